//! Small blocks: slabs of equal objects.
//!
//! A slab is a region cut into objects of one size class, so that small blocks cost neither a
//! region each nor a search. Slabs belong to one heap and serve its own stream only.

use crate::pool::heap::members::{Place, NO_MEMBER};
use crate::pool::memory::SLOT;
use crate::pool::order::Tag;
use crate::pool::types::{NONE, SMALL_MIN};

/// Largest request served from slabs, bytes.
pub(crate) const SMALL_MAX: u64 = 64 << 10;

/// Steps per power of two once classes are wider than [`SMALL_MIN`].
const STEPS: u64 = 8;

/// 256, 512 … 2048 in steps of 256, then 8 classes for each of the 5 doublings to 64 KiB.
pub(crate) const CLASSES: usize = 8 + 5 * STEPS as usize;

/// Fewest objects in a slab of usual size.
const MIN_OBJECTS: u64 = 8;

/// The size class for a request of `size` bytes, at most [`SMALL_MAX`].
#[inline]
pub(crate) fn class_of(size: u64) -> usize {
    let units = size.saturating_sub(1) / SMALL_MIN;
    // How many of the last bits the class ignores.
    let shift = (units | STEPS).ilog2() - STEPS.ilog2();
    (u64::from(shift) * STEPS + (units >> shift)) as usize
}

/// Bytes of an object of this class.
#[inline]
pub(crate) fn class_size(class: usize) -> u64 {
    let shift = (class as u64 / STEPS).saturating_sub(1);
    (class as u64 - shift * STEPS + 1) * (SMALL_MIN << shift)
}

/// log2 of the scale of [`Slab::inverse`].
const SCALE: u32 = 40;

/// Bytes of a slab of this class, whole slots. The class's first slabs are shorter, and so is one
/// that takes what room there is.
pub(crate) fn slab_size(class: usize) -> u64 {
    (class_size(class) * MIN_OBJECTS).next_multiple_of(SLOT)
}

/// The bits of the first `count` objects, at most 256.
fn first(count: u32) -> [u64; 4] {
    std::array::from_fn(|w| match count.saturating_sub(64 * w as u32) {
        n @ 0..64 => (1 << n) - 1,
        _ => u64::MAX,
    })
}

/// The class whose objects all start at multiples of `align` (a power of two up to [`SLOT`]) and
/// hold `size` bytes.
pub(crate) fn aligned_class(size: u64, align: u64) -> Option<usize> {
    (class_of(size.max(1))..CLASSES).find(|&c| class_size(c).is_multiple_of(align))
}

/// What is known about one small block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Object {
    pub(crate) id: u64,
    pub(crate) requested: u32,
    /// Its record in the heap's [`Members`](crate::pool::heap::members::Members).
    pub(crate) member: u32,
}

/// One slab.
///
/// Invariants: `used + (set bits of pending and free) == capacity`; a slab is in its class's list
/// iff it has a free object and is not `old`; inherited objects are live, and in a slab that is
/// `old` all live ones are inherited.
pub(crate) struct Slab {
    pub(crate) base: u64,
    /// The region that holds it; [`NONE`] when this descriptor is vacant.
    pub(crate) region: u32,
    pub(crate) class: u32,
    pub(crate) capacity: u32,
    /// Objects handed out.
    pub(crate) used: u32,
    /// Whether a stream that had the heap before may still be using free objects. Until
    /// [`Slabs::reopen`] none is handed out, and the slab is not dropped.
    old: bool,
    /// When the last object in use was freed, in the order of the heap's lane, or of the context if
    /// the heap has changed hands since. From then on, only streams that pending objects wait for
    /// have used it, and in an old slab also what the heap's earlier stream had not yet done.
    pub(crate) idle: Tag,
    /// A set bit is a free object.
    free: [u64; 4],
    /// A set bit is a pending object: one freed on another stream and not yet settled.
    pending: [u64; 4],
    /// A set bit is a live object that was made for a stream that had the heap before.
    inherited: [u64; 4],
    /// Bytes of an object, and 2^[`SCALE`] divided by them, rounded up. A slab is shorter than 2^20
    /// bytes and an object no longer than 2^16, so `offset * inverse >> SCALE` is exactly
    /// `offset / size` for any offset in the slab.
    pub(crate) size: u64,
    inverse: u64,
    objects: Box<[Object]>,
}

impl Slab {
    /// The object's number for an address inside the slab, if an object starts there.
    #[inline(always)]
    pub(crate) fn object_at(&self, addr: u64) -> Option<u32> {
        let n = self.object_containing(addr)?;
        (self.addr_of(n) == addr).then_some(n)
    }

    /// The object's number for any address inside an object; `None` for one that is in none, or
    /// before the slab.
    #[inline(always)]
    pub(crate) fn object_containing(&self, addr: u64) -> Option<u32> {
        let offset = addr.checked_sub(self.base).filter(|&o| o < 1 << 20)?;
        let n = ((offset * self.inverse) >> SCALE) as u32;
        (n < self.capacity).then_some(n)
    }

    #[inline]
    pub(crate) fn is_free(&self, n: u32) -> bool {
        self.free[n as usize / 64] >> (n % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn is_pending(&self, n: u32) -> bool {
        self.pending[n as usize / 64] >> (n % 64) & 1 == 1
    }

    #[inline(always)]
    pub(crate) fn is_inherited(&self, n: u32) -> bool {
        self.inherited[n as usize / 64] >> (n % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn is_live(&self, n: u32) -> bool {
        !self.is_free(n) && !self.is_pending(n)
    }

    /// The numbers of the live objects.
    pub(crate) fn live(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.capacity).filter(|&n| self.is_live(n))
    }

    #[inline]
    pub(crate) fn addr_of(&self, n: u32) -> u64 {
        self.base + u64::from(n) * self.size
    }

    #[inline]
    pub(crate) fn object(&self, n: u32) -> Object {
        self.objects[n as usize]
    }

    /// Object `n` is not in use any more. If it was the last, `now` gives the tag for `idle`.
    #[inline(always)]
    fn leaves(&mut self, n: u32, now: impl FnOnce() -> Tag) {
        self.inherited[n as usize / 64] &= !(1 << (n % 64));
        self.used -= 1;
        if self.used == 0 {
            self.idle = now();
        }
    }

    /// Whether no object is in use and none pending.
    fn is_empty(&self) -> bool {
        self.used == 0 && self.pending == [0; 4]
    }

    #[inline(always)]
    fn has_free(&self) -> bool {
        self.free.iter().fold(0, |all, w| all | w) != 0
    }
}

/// A heap's slabs and, per class, a list of those with a free object.
pub(crate) struct Slabs {
    all: Vec<Slab>,
    vacant: Vec<u32>,
    /// The last one is used first.
    open: [Vec<u32>; CLASSES],
    /// Per class, how many slabs there are.
    count: [u32; CLASSES],
    /// Per class, how many objects are in slabs that have none in use and none pending; slabs that
    /// are `old` do not count.
    empty: [u32; CLASSES],
    /// Per class, how many objects are pending.
    pending: [u32; CLASSES],
    /// If slabs are `old`, when they last became so, in the order of the context. One context
    /// marker behind that reopens all of them.
    pub(crate) old_since: Option<Tag>,
}

impl Default for Slabs {
    fn default() -> Slabs {
        Slabs {
            all: Vec::new(),
            vacant: Vec::new(),
            open: [const { Vec::new() }; CLASSES],
            count: [0; CLASSES],
            empty: [0; CLASSES],
            pending: [0; CLASSES],
            old_since: None,
        }
    }
}

impl Slabs {
    #[inline]
    pub(crate) fn try_get(&self, s: u32) -> Option<&Slab> {
        self.all.get(s as usize).filter(|s| s.region != NONE)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.all.iter().enumerate().map(|(i, s)| (i as u32, s)).filter(|(_, s)| s.region != NONE)
    }

    /// Takes an object of the class. Returns its address, too.
    #[inline(always)]
    pub(crate) fn alloc(&mut self, class: usize, requested: u64, id: u64) -> Option<(Place, u64)> {
        let &s = self.open[class].last()?;
        let slab = &mut self.all[s as usize];
        let word = slab.free.iter().position(|&w| w != 0)?;
        let n = word as u32 * 64 + slab.free[word].trailing_zeros();
        slab.free[word] &= slab.free[word] - 1;
        slab.objects[n as usize] = Object { id, requested: requested as u32, member: NO_MEMBER };
        let addr = slab.addr_of(n);
        if slab.is_empty() {
            self.empty[class] -= slab.capacity;
        }
        slab.used += 1;
        if !slab.has_free() {
            self.open[class].pop();
        }
        Some((Place::Object { slab: s, number: n }, addr))
    }

    /// Whether a slab of the class has a free object.
    pub(crate) fn has_free(&self, class: usize) -> bool {
        !self.open[class].is_empty()
    }

    /// How many objects of the class will be free once what they wait for has settled.
    pub(crate) fn pending(&self, class: usize) -> u32 {
        self.pending[class]
    }

    /// Notes the record of a live object.
    #[inline]
    pub(crate) fn set_member(&mut self, s: u32, n: u32, member: u32) {
        self.all[s as usize].objects[n as usize].member = member;
    }

    /// Changes the requested bytes of a live object. Returns the old ones.
    pub(crate) fn resize(&mut self, s: u32, n: u32, requested: u64) -> u64 {
        let object = &mut self.all[s as usize].objects[n as usize];
        u64::from(std::mem::replace(&mut object.requested, requested as u32))
    }

    /// Bytes of the next slab of a class: room for one object in the first, for twice as many in
    /// each of the next, up to the usual. A stream with few objects of many sizes would else map
    /// megabytes.
    pub(crate) fn next_size(&self, class: usize) -> u64 {
        let objects = 1 << self.count[class].min(MIN_OBJECTS.ilog2());
        (class_size(class) * objects).next_multiple_of(SLOT)
    }

    /// Makes a slab over a region of `size` bytes at `base`, at least one object's.
    pub(crate) fn add(&mut self, class: usize, (base, size): (u64, u64), region: u32) -> u32 {
        let capacity = (size.min(slab_size(class)) / class_size(class)) as u32;
        let slab = Slab {
            base,
            region,
            class: class as u32,
            capacity,
            used: 0,
            old: false,
            idle: Tag::SETTLED,
            free: first(capacity),
            pending: [0; 4],
            inherited: [0; 4],
            size: class_size(class),
            inverse: (1u64 << SCALE).div_ceil(class_size(class)),
            objects: vec![Object::default(); capacity as usize].into_boxed_slice(),
        };
        let s = match self.vacant.pop() {
            Some(s) => {
                self.all[s as usize] = slab;
                s
            }
            None => {
                self.all.push(slab);
                (self.all.len() - 1) as u32
            }
        };
        self.count[class] += 1;
        self.empty[class] += capacity;
        self.open[class].push(s);
        s
    }

    /// Puts a live object back, free at once. `now` gives the tag if it was the last one in use:
    /// see [`Slab::idle`]. Returns whether the slab is to be dropped, as [`Self::put_back`] does.
    #[inline(always)]
    pub(crate) fn free(&mut self, s: u32, n: u32, now: impl FnOnce() -> Tag) -> bool {
        self.all[s as usize].leaves(n, now);
        self.put_back(s, n)
    }

    /// Marks a live object as freed on another stream. `now` as for [`Self::free`].
    pub(crate) fn free_later(&mut self, s: u32, n: u32, now: impl FnOnce() -> Tag) {
        let slab = &mut self.all[s as usize];
        slab.leaves(n, now);
        self.pending[slab.class as usize] += 1;
        slab.pending[n as usize / 64] |= 1 << (n % 64);
    }

    /// Puts a pending object back: its other stream has passed the free. Returns whether the slab
    /// is to be dropped, as [`Self::put_back`] does.
    pub(crate) fn settle(&mut self, s: u32, n: u32) -> bool {
        let slab = &mut self.all[s as usize];
        self.pending[slab.class as usize] -= 1;
        slab.pending[n as usize / 64] &= !(1 << (n % 64));
        self.put_back(s, n)
    }

    /// Makes an object free. Returns whether the slab is to be dropped: it is empty and not the
    /// only empty one of its class, which is kept as a spare, as are several short ones.
    #[inline(always)]
    fn put_back(&mut self, s: u32, n: u32) -> bool {
        let slab = &mut self.all[s as usize];
        let was_full = !slab.has_free();
        slab.free[n as usize / 64] |= 1 << (n % 64);
        let class = slab.class as usize;
        if slab.old {
            return false;
        }
        if was_full {
            self.open[class].push(s);
        }
        slab.is_empty() && self.is_surplus(s)
    }

    /// Counts a slab as empty. Returns whether it is to be dropped, as [`Self::put_back`] does.
    #[inline(always)]
    fn is_surplus(&mut self, s: u32) -> bool {
        let Slab { class, capacity, .. } = self.all[s as usize];
        let empty = &mut self.empty[class as usize];
        *empty += capacity;
        *empty > capacity.max(MIN_OBJECTS as u32)
    }

    /// Forgets an empty slab; returns its region.
    pub(crate) fn remove(&mut self, s: u32) -> u32 {
        let Slab { region, class, capacity, old, .. } = self.all[s as usize];
        self.count[class as usize] -= 1;
        if !old {
            self.empty[class as usize] -= capacity;
            // It is listed, since an empty slab has a free object.
            let open = &mut self.open[class as usize];
            open.iter().rposition(|&other| other == s).map(|at| open.remove(at));
        }
        self.all[s as usize].region = NONE;
        self.all[s as usize].objects = Box::default();
        self.vacant.push(s);
        region
    }

    /// A slab with no object in use and none pending, if there is one that is not `old`.
    pub(crate) fn find_empty(&self) -> Option<u32> {
        let class = self.empty.iter().position(|&n| n > 0)?;
        // It is listed, since it has a free object.
        self.open[class].iter().rev().copied().find(|&s| self.all[s as usize].is_empty())
    }

    /// Makes all slabs old, because the heap changes hands as of `now`. `idle` gives the tag in the
    /// order of the context for that of a last use. Returns the empty ones, which are to be
    /// dropped.
    pub(crate) fn retire(&mut self, now: Tag, idle: impl Fn(Tag) -> Tag) -> Vec<u32> {
        let mut empty = Vec::new();
        for (s, slab) in (0..).zip(&mut self.all).filter(|(_, s)| s.region != NONE) {
            slab.old = true;
            let live = first(slab.capacity);
            slab.inherited = std::array::from_fn(|w| live[w] & !(slab.free[w] | slab.pending[w]));
            if slab.used == 0 {
                slab.idle = idle(slab.idle);
            }
            if slab.is_empty() {
                empty.push(s);
            }
        }
        self.open.iter_mut().for_each(Vec::clear);
        self.empty = [0; CLASSES];
        self.old_since = (self.iter().count() > empty.len()).then_some(now);
        empty
    }

    /// The device has passed everything from before the heap changed hands: old slabs are slabs
    /// like others. `settled` says of a tag whether the device has passed it. Returns the slabs
    /// that are to be dropped, as [`Self::put_back`] does.
    pub(crate) fn reopen(&mut self, settled: impl Fn(Tag) -> bool) -> Vec<u32> {
        self.old_since = None;
        let mut empty = Vec::new();
        for (s, slab) in (0..).zip(&mut self.all).filter(|(_, s)| s.region != NONE && s.old) {
            slab.old = false;
            if settled(slab.idle) {
                slab.idle = Tag::SETTLED;
            }
            if slab.has_free() {
                self.open[slab.class as usize].push(s);
            }
            if slab.is_empty() {
                empty.push(s);
            }
        }
        empty.retain(|&s| self.is_surplus(s));
        empty
    }

    /// Checks the invariants written above [`Slab`].
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (mut count, mut empty, mut pendings) = ([0; CLASSES], [0; CLASSES], [0; CLASSES]);
        let listed: std::collections::HashSet<u32> = self.open.iter().flatten().copied().collect();
        for (i, s) in self.iter() {
            let free: u32 = s.free.iter().map(|w| w.count_ones()).sum();
            let pending: u32 = s.pending.iter().map(|w| w.count_ones()).sum();
            let (used, capacity) = (s.used, s.capacity);
            let all = used + pending + free == capacity;
            ensure!(all, "slab {:#x}: {used} used + {pending} pending + {free} free != {capacity}", s.base);
            let right = listed.contains(&i) == (free > 0 && !s.old);
            ensure!(right, "slab {:#x} is not in its class's list exactly when it has a free object", s.base);
            count[s.class as usize] += 1;
            empty[s.class as usize] += if s.is_empty() && !s.old { capacity } else { 0 };
            pendings[s.class as usize] += pending;
            let inherited = (0..256).filter(|&n| s.is_inherited(n));
            let fine =
                inherited.clone().all(|n| n < capacity && s.is_live(n)) && (!s.old || inherited.count() as u32 == used);
            ensure!(fine, "slab {:#x} has inherited {:x?}, {used} used", s.base, s.inherited);
        }
        let old = self.iter().any(|(_, s)| s.old);
        ensure!(old == self.old_since.is_some(), "old slabs: {old}, since {:?}", self.old_since);
        ensure!(count == self.count, "the count of slabs is wrong");
        ensure!(empty == self.empty, "the count of objects in empty slabs is wrong");
        ensure!(pendings == self.pending, "the count of pending objects is wrong");
        Ok(())
    }
}

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;

//! A heap: the memory of one stream.
//!
//! It owns spans of mapped addresses, the regions that tile them, the extents behind them and the slabs inside them,
//! all under one lock. What its own stream frees it can hand out again at once; what another stream frees waits until
//! the device has passed the free. Heap `n` belongs to lane `n` of the pool's order.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::extent::Extents;
use super::grain::Grain;
use super::index::{Entry, Index};
use super::memo::Memo;
use super::order::{Order, Tag, CONTEXT};
use super::region::{Block, Region, Regions, State, GRANULE, MIN_SPLIT};
use super::slab::{self, AfterFree, Slabs};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Mutex;

/// Stands for the identity of a stream that is being captured, which cannot be asked for it. No stream has it.
pub(super) const CAPTURED_ID: u64 = u64::MAX;

/// One stream's memory.
pub(super) struct Heap {
    /// Also the number of its lane.
    pub(super) number: u32,
    /// The stream's handle; a handle of a per-thread stream is the same for several heaps.
    pub(super) stream: AtomicUsize,
    /// The stream's identity. Changes when the handle is given to a new stream.
    pub(super) stream_id: AtomicU64,
    /// Copies of counters of `state`, for sums taken without its lock.
    pub(super) live: AtomicU64,
    pub(super) free: AtomicU64,
    pub(super) state: Mutex<HeapState>,
}

impl Heap {
    /// Whether it holds what was allocated during captures of its stream.
    pub(super) fn is_of_captures(&self) -> bool {
        self.stream_id.load(Relaxed) == CAPTURED_ID
    }

    pub(super) fn new(number: u32, stream: usize, stream_id: u64, page: u64) -> Heap {
        Heap {
            number,
            stream: AtomicUsize::new(stream),
            stream_id: AtomicU64::new(stream_id),
            live: AtomicU64::new(0),
            free: AtomicU64::new(0),
            state: Mutex::new(HeapState::new(number, page)),
        }
    }

    /// Brings the copies up to date; called before the lock is given up.
    #[inline]
    pub(super) fn publish(&self, st: &HeapState) {
        self.live.store(st.live_bytes, Relaxed);
        self.free.store(st.regions.ready_bytes() + st.waiting_bytes, Relaxed);
    }
}

/// Something free that waits for another stream.
#[derive(Clone, Copy, Debug)]
enum Item {
    Region(u32),
    Object { slab: u32, number: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    tag: Tag,
    ticket: u64,
    item: Item,
}

/// What a heap's lock guards.
///
/// Invariants: those of its parts; every waiting region has exactly one entry in `waiting`, with its ticket;
/// `waiting_bytes` is their sum; the bytes of all regions equal `extents.bytes()`;
/// `live_bytes` is the sum of live regions and live slab objects.
pub(super) struct HeapState {
    number: u32,
    pub(super) regions: Regions,
    pub(super) extents: Extents,
    pub(super) slabs: Slabs,
    /// Per lane, roughly in the order of the frees.
    waiting: Vec<(u32, VecDeque<Wait>)>,
    /// Further tags of entries that wait for more than one stream, by ticket.
    also: HashMap<u64, Vec<Tag>>,
    next_ticket: u64,
    pub(super) waiting_bytes: u64,
    /// Other lanes that use a live block (`record_stream`), by its address.
    pub(super) users: HashMap<u64, Vec<u32>>,
    /// Callers' tags of small objects that have one, by address.
    pub(super) tags: HashMap<u64, u64>,
    next_id: u64,
    pub(super) live_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) mallocs: u64,
    pub(super) frees: u64,
    /// Extents moved for this heap since it last started afresh.
    pub(super) moves: u64,
    /// The most `live_bytes` was at a growth since then.
    pub(super) peak_live: u64,
    pub(super) memo: Memo,
    pub(super) grain: Grain,
}

impl HeapState {
    fn new(number: u32, page: u64) -> HeapState {
        HeapState {
            number,
            regions: Regions::new(),
            extents: Extents::of_pages(page),
            slabs: Slabs::new(),
            waiting: Vec::new(),
            also: HashMap::new(),
            next_ticket: 1,
            waiting_bytes: 0,
            users: HashMap::new(),
            tags: HashMap::new(),
            next_id: 0,
            live_bytes: 0,
            requested_bytes: 0,
            mallocs: 0,
            frees: 0,
            moves: 0,
            peak_live: 0,
            memo: Memo::default(),
            grain: Grain::default(),
        }
    }

    /// A number no other allocation of the process has (`pool` is the pool's number).
    #[inline]
    pub(super) fn new_id(&mut self, pool: u64) -> u64 {
        self.next_id += 1;
        pool << 56 | u64::from(self.number) << 42 | self.next_id
    }

    /// Takes a small object; `None` when the class has no free one.
    #[inline]
    pub(super) fn take_object(&mut self, class: usize, requested: u64, pool: u64) -> Option<u64> {
        let id = self.new_id(pool);
        let addr = self.slabs.alloc(class, requested, id)?;
        self.live_bytes += slab::class_size(class);
        self.requested_bytes += requested;
        self.mallocs += 1;
        Some(addr)
    }

    /// The lanes that a block about to be freed was recorded on.
    #[inline]
    pub(super) fn take_users(&mut self, addr: u64) -> Vec<u32> {
        match self.users.is_empty() {
            true => Vec::new(),
            false => self.users.remove(&addr).unwrap_or_default(),
        }
    }

    /// Changes what was asked for in an object that is large enough.
    pub(super) fn resize_object(&mut self, slab: u32, number: u32, requested: u64) {
        let before = self.slabs.resize(slab, number, requested);
        self.requested_bytes = self.requested_bytes + requested - before;
    }

    /// Keeps the caller's tag of a small object.
    #[inline]
    pub(super) fn note_tag(&mut self, addr: u64, tag: u64) {
        if tag != 0 {
            self.tags.insert(addr, tag);
        }
    }

    /// Makes a slab over a live region that `cut_for` gave for it.
    pub(super) fn add_slab(&mut self, class: usize, region: u32, index: &Index) {
        let (addr, size) = (self.regions.get(region).addr, self.regions.get(region).size);
        self.regions.get_mut(region).state = State::Slab;
        let slab = self.slabs.add(class, addr, region);
        index.set_range(addr, size, Entry::Slab { heap: self.number, slab });
    }

    /// Frees an empty slab's region as of its last use: for the heap's stream at once, for one that came after it when
    /// the context has passed that.
    pub(super) fn drop_slab(&mut self, slab: u32, order: &Order, index: &Index) {
        let (old, idle) = self.slabs.try_get(slab).map_or((false, Tag::SETTLED), |s| (s.old, s.idle));
        let region = self.slabs.remove(slab);
        let (addr, size) = (self.regions.get(region).addr, self.regions.get(region).size);
        index.set_range(addr, size, Entry::Empty);
        if old && !order.settled(idle) {
            self.wait_for(region, &[idle]);
        } else {
            self.regions.make_ready(region, if old { Tag::SETTLED } else { idle });
        }
    }

    /// The best ready region for `size` bytes at a multiple of `align`, cut to size and marked live.
    #[inline]
    pub(super) fn cut_for(&mut self, size: u64, align: u64, accept: impl Fn(&Region) -> bool) -> Option<u32> {
        let r = self.regions.find(size, align, accept)?;
        Some(self.cut_at(r, size, align))
    }

    /// Cuts `size` bytes at a multiple of `align` out of a ready region that has them: from its start, or from its end
    /// where that leaves more extents whole.
    pub(super) fn cut_at(&mut self, r: u32, size: u64, align: u64) -> u32 {
        let region = self.regions.get(r);
        let start = region.addr.next_multiple_of(align);
        let room = region.end() - start;
        let size = if room - size < MIN_SPLIT { room } else { size };
        let page = self.extents.page();
        if room - size >= page && size >= page {
            let (end, back) = (region.end(), (region.end() - size) / align * align);
            if self.extents.whole_bytes(start, back) > self.extents.whole_bytes(start + size, end) {
                return self.regions.cut(r, back, size);
            }
        }
        self.regions.cut(r, start, size)
    }

    /// Makes a live region a block and gives it its place in the index.
    #[inline]
    pub(super) fn hand_out(&mut self, region: u32, block: Block, index: &Index) -> u64 {
        let number = self.number;
        let r = self.regions.get_mut(region);
        r.state = State::Live;
        r.block = block;
        let (addr, size) = (r.addr, r.size);
        self.live_bytes += size;
        self.requested_bytes += block.requested;
        self.mallocs += 1;
        index.set(addr, Entry::Block { heap: number, region });
        addr
    }

    /// Takes a live block back: it is free when every tag is settled, and at once for the heap's own stream when
    /// `own` (its tags are all of the heap's own lane).
    pub(super) fn take_back(&mut self, region: u32, tags: &[Tag], own: bool, index: &Index) {
        let r = self.regions.get(region);
        let (addr, size, requested) = (r.addr, r.size, r.block.requested);
        self.live_bytes -= size;
        self.requested_bytes -= requested;
        self.frees += 1;
        index.set(addr, Entry::Freed { offset: addr % super::index::SLOT });
        if own {
            self.regions.make_ready(region, tags.first().copied().unwrap_or(Tag::SETTLED));
        } else {
            self.wait_for(region, tags);
        }
    }

    /// Takes a small object back, as [`Self::take_back`].
    pub(super) fn take_back_object(
        &mut self,
        slab: u32,
        number: u32,
        tags: &[Tag],
        own: bool,
        order: &Order,
        index: &Index,
    ) {
        let (class, requested) = match self.slabs.try_get(slab) {
            Some(s) => {
                if !self.tags.is_empty() {
                    self.tags.remove(&s.addr_of(number));
                }
                (s.class as usize, u64::from(s.object(number).requested))
            }
            None => return,
        };
        self.live_bytes -= slab::class_size(class);
        self.requested_bytes -= requested;
        self.frees += 1;
        if own {
            let after = self.slabs.free(slab, number);
            self.slabs.note_idle(slab, |old| order.tag(if old { CONTEXT } else { self.number }));
            if after == AfterFree::Drop {
                self.drop_slab(slab, order, index);
            }
        } else {
            self.slabs.free_later(slab, number);
            self.slabs.note_idle(slab, |old| order.tag(if old { CONTEXT } else { self.number }));
            self.enqueue(Item::Object { slab, number }, tags);
        }
    }

    fn wait_for(&mut self, region: u32, tags: &[Tag]) {
        let ticket = self.enqueue(Item::Region(region), tags);
        let r = self.regions.get_mut(region);
        r.state = State::Waiting;
        r.order = tags.first().copied().unwrap_or(Tag::SETTLED);
        r.ticket = ticket;
        self.waiting_bytes += r.size;
    }

    fn enqueue(&mut self, item: Item, tags: &[Tag]) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let first = tags.first().copied().unwrap_or(Tag::SETTLED);
        if tags.len() > 1 {
            self.also.insert(ticket, tags[1..].to_vec());
        }
        self.push(Wait { tag: first, ticket, item });
        ticket
    }

    fn push(&mut self, wait: Wait) {
        let lane = wait.tag.lane();
        match self.waiting.iter_mut().find(|q| q.0 == lane) {
            Some(q) => q.1.push_back(wait),
            None => self.waiting.push((lane, VecDeque::from([wait]))),
        }
    }

    /// The lanes something here waits for.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = u32> + '_ {
        self.waiting.iter().filter(|q| !q.1.is_empty()).map(|q| q.0)
    }

    /// Tags that something here waits for and that no marker covers yet.
    pub(super) fn unmarked<'a>(&'a self, order: &'a Order) -> impl Iterator<Item = Tag> + 'a {
        self.waiting.iter().filter_map(|q| q.1.back()).map(|w| w.tag).filter(|&t| !order.marked(t))
    }

    /// Makes ready whatever the device is known to have passed. Returns whether anything was.
    pub(super) fn settle(&mut self, order: &Order, index: &Index) -> bool {
        let mut any = false;
        for q in 0..self.waiting.len() {
            while let Some(&wait) = self.waiting[q].1.front() {
                if !order.settled(wait.tag) {
                    break;
                }
                self.waiting[q].1.pop_front();
                if let Item::Region(r) = wait.item {
                    let region = self.regions.try_get(r);
                    if !region.is_some_and(|g| g.state == State::Waiting && g.ticket == wait.ticket) {
                        continue;
                    }
                }
                if let Some(next) = self.next_tag(wait.ticket, order) {
                    if let Item::Region(r) = wait.item {
                        self.regions.get_mut(r).order = next;
                    }
                    self.push(Wait { tag: next, ..wait });
                    continue;
                }
                any = true;
                match wait.item {
                    Item::Region(r) => {
                        self.waiting_bytes -= self.regions.get(r).size;
                        self.regions.make_ready(r, Tag::SETTLED);
                    }
                    Item::Object { slab, number } => {
                        if self.slabs.settle(slab, number) == AfterFree::Drop {
                            self.drop_slab(slab, order, index);
                        }
                    }
                }
            }
        }
        self.waiting.retain(|q| !q.1.is_empty());
        any
    }

    /// The next tag an entry waits for, if any is left.
    fn next_tag(&mut self, ticket: u64, order: &Order) -> Option<Tag> {
        let tags = self.also.get_mut(&ticket)?;
        while let Some(tag) = tags.pop() {
            if !order.settled(tag) {
                return Some(tag);
            }
        }
        self.also.remove(&ticket);
        None
    }

    /// A waiting region that the present stream of `lane` freed itself, with room for `size` bytes at `align`: the
    /// smallest such, cut to size and marked live. Only that lane may use what is left over, too, so that goes on
    /// waiting.
    pub(super) fn take_waiting_of(&mut self, lane: u32, size: u64, align: u64, order: &Order) -> Option<u32> {
        let queue = &self.waiting.iter().find(|q| q.0 == lane)?.1;
        let fits = |r: &Region| r.addr.next_multiple_of(align) == r.addr && r.size >= size;
        let best = queue
            .iter()
            .filter_map(|w| match w.item {
                Item::Region(r) => Some((w, r)),
                Item::Object { .. } => None,
            })
            .filter(|(w, r)| {
                let g = self.regions.get(*r);
                g.state == State::Waiting
                    && g.ticket == w.ticket
                    && fits(g)
                    && order.own(w.tag, lane)
                    && !self.also.contains_key(&w.ticket)
            })
            .min_by_key(|(_, r)| self.regions.get(*r).size)
            .map(|(_, r)| r)?;
        let tag = self.regions.get(best).order;
        self.waiting_bytes -= self.regions.get(best).size;
        self.regions.get_mut(best).state = State::Live;
        let spare = self.regions.get(best).size - size;
        if spare >= MIN_SPLIT.max(GRANULE) {
            let rest = self.regions.split(best, size);
            self.wait_for(rest, &[tag]);
        }
        Some(best)
    }

    /// The heap's stream is gone and its handle belongs to a new one: what the old stream may still be using waits
    /// for the context from now on.
    pub(super) fn retire(&mut self, order: &Order, index: &Index) {
        let tag = order.tag(CONTEXT);
        let unsettled: Vec<u32> =
            self.regions.ready_from(GRANULE).filter(|&r| !order.settled(self.regions.get(r).order)).collect();
        for r in unsettled {
            self.regions.take_ready(r);
            self.wait_for(r, &[tag]);
        }
        for slab in self.slabs.retire() {
            self.drop_slab(slab, order, index);
        }
    }

    /// Checks the invariants written above.
    pub(super) fn validate(&self, index: &Index) -> Result<(), String> {
        self.regions.validate()?;
        self.slabs.validate()?;
        let (mut bytes, mut live, mut waiting, mut requested) = (0, 0, 0, 0);
        let mut extents = self.extents.iter();
        let tickets: HashMap<u64, u32> = self
            .waiting
            .iter()
            .flat_map(|q| q.1.iter())
            .filter_map(|w| match w.item {
                Item::Region(r) => Some((w.ticket, r)),
                Item::Object { .. } => None,
            })
            .collect();
        for first in self.regions.spans() {
            let mut at = self.regions.get(first).addr;
            for r in self.regions.walk(first) {
                let g = self.regions.get(r);
                bytes += g.size;
                match g.state {
                    State::Live => {
                        live += g.size;
                        requested += g.block.requested;
                        if index.get(g.addr) != (Entry::Block { heap: self.number, region: r }) {
                            return Err(format!("block {:#x} is not in the index", g.addr));
                        }
                    }
                    State::Waiting => {
                        waiting += g.size;
                        if tickets.get(&g.ticket) != Some(&r) {
                            return Err(format!("waiting region {:#x} has no entry in the waiting list", g.addr));
                        }
                    }
                    State::Ready if g.order != Tag::SETTLED && g.order.lane() != self.number => {
                        return Err(format!("ready region {:#x} is of another stream's order", g.addr));
                    }
                    _ => {}
                }
                while at < g.end() {
                    match extents.next() {
                        Some((a, e)) if a == at => at += e.size,
                        other => return Err(format!("extents do not tile the span at {at:#x}: {other:?}")),
                    }
                }
                if self.regions.get(r).next == super::bins::NONE && at != g.end() {
                    return Err(format!("the extent at the end of the span {:#x} reaches beyond it", g.end()));
                }
            }
        }
        for (i, s) in self.slabs.iter() {
            live += u64::from(s.used) * slab::class_size(s.class as usize);
            requested +=
                (0..s.capacity).filter(|&n| s.is_live(n)).map(|n| u64::from(s.object(n).requested)).sum::<u64>();
            if index.get(s.base) != (Entry::Slab { heap: self.number, slab: i }) {
                return Err(format!("slab {:#x} is not in the index", s.base));
            }
        }
        let equal = [
            ("regions and extents", bytes, self.extents.bytes()),
            ("live_bytes", self.live_bytes, live),
            ("requested_bytes", self.requested_bytes, requested),
            ("waiting_bytes", self.waiting_bytes, waiting),
        ];
        match equal.iter().find(|(_, a, b)| a != b) {
            Some((what, a, b)) => Err(format!("{what}: {a} recorded, {b} found")),
            None => Ok(()),
        }
    }
}

//! A heap: memory of one stream.
//!
//! It owns spans of mapped addresses, the regions that tile them, the extents behind them and the
//! slabs inside them, all under one lock. Memory that its own stream frees can be handed out again
//! at once. Memory that another stream frees waits until the device has passed the free
//! (`waiting.rs`). A stream has one heap, or several if threads keep meeting at its lock
//! (`streams/registry.rs`) or small blocks strand large ones (`streams/annex.rs`). They share the
//! stream's lane, so memory in order for one is in order for all.

use crate::base::size::GIB;
use crate::base::spin_lock::{SpinGuard, SpinLock};
use crate::base::sync::{AtomicU32, AtomicU64};
use crate::pool::heap::backoff::Backoff;
use crate::pool::heap::fresh_starts::FreshStarts;
use crate::pool::heap::low::Low;
use crate::pool::heap::members::Members;
use crate::pool::heap::memo::Memo;
use crate::pool::heap::part::StreamPart;
use crate::pool::heap::region::{Region, Regions, State, MIN_SPLIT};
use crate::pool::heap::slab::Slabs;
use crate::pool::heap::waiting::{Item, Waiting};
use crate::pool::memory::Extents;
use crate::pool::order::{Order, OwnBatch, Tag};
use crate::pool::types::{Counter, Guard, Rank, Want, NONE};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// A heap with fewer bytes than this is small.
pub(crate) const SMALL_HEAP: u64 = GIB;

/// Finding no room counts if it happens within this many allocations of the last time, or of the
/// heap's start.
const SHORT_AGAIN: u64 = 1 << 16;

/// For [`Heap::annex`].
pub(crate) const WANTED: u32 = NONE - 1;

/// Holds a heap's lock until dropped. Then the copies of its counters are brought up to date.
pub(crate) struct Locked<'a> {
    heap: &'a Heap,
    st: Guard<SpinGuard<'a, HeapState>>,
}

impl<'a> Locked<'a> {
    pub(crate) fn heap(&self) -> &'a Heap {
        self.heap
    }
}

impl Deref for Locked<'_> {
    type Target = HeapState;
    #[inline(always)]
    fn deref(&self) -> &HeapState {
        &self.st
    }
}

impl DerefMut for Locked<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut HeapState {
        &mut self.st
    }
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let st = &*self.st;
        self.heap.live.store(st.live_bytes, Relaxed);
        let free = if st.live_bytes == 0 { st.extents.bytes() } else { st.regions.ready_bytes() + st.waiting_bytes };
        self.heap.free.store(free, Relaxed);
    }
}

/// Memory of one stream, on cache lines of its own, because other threads use its neighbours.
#[repr(C, align(128))]
pub(crate) struct Heap {
    pub(crate) number: u32,
    /// The lane of its stream, which other heaps may share.
    pub(crate) lane: u32,
    /// Whether it holds what was allocated during captures of its stream.
    pub(crate) of_captures: bool,
    /// Copies of counters of `state`, for sums taken without its lock.
    pub(crate) live: AtomicU64,
    /// Ready and waiting bytes. If nothing is live, all of the heap's bytes, those of empty slabs
    /// too.
    pub(crate) free: AtomicU64,
    /// The number of its annex and what that takes, [`NONE`] without one, [`WANTED`] if the next
    /// request is to make it (`streams/annex.rs`).
    pub(crate) annex: AtomicU32,
    pub(crate) state: SpinLock<HeapState>,
}

impl Heap {
    pub(crate) fn new(number: u32, lane: u32, identity: u64, of_captures: bool, page: u64) -> Heap {
        Heap {
            number,
            lane,
            of_captures,
            live: AtomicU64::new(0),
            free: AtomicU64::new(0),
            annex: AtomicU32::new(NONE),
            state: SpinLock::new(HeapState { of_captures, ..HeapState::new(number, lane, identity, page) }),
        }
    }

    /// Takes the lock and empties the quick list, so that searches find every free region.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let mut st = self.lock_quick();
        st.regions.tidy();
        st
    }

    /// Like [`Self::lock`], if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        let mut st = self.try_lock_quick()?;
        st.regions.tidy();
        Some(st)
    }

    /// Like [`Self::try_lock`], unless the heap's free memory is kept for graphs.
    pub(crate) fn try_lock_open(&self) -> Option<Locked<'_>> {
        self.try_lock().filter(|st| st.private.is_none())
    }

    /// Takes the lock and leaves the quick list as it is, to hand a block out or take one back.
    #[inline]
    pub(crate) fn lock_quick(&self) -> Locked<'_> {
        let held = Rank::Heap.wait();
        Locked { heap: self, st: Guard { guard: self.state.lock(), _held: held } }
    }

    /// Like [`Self::lock_quick`], perhaps while holding other heaps' locks: for a thread that keeps
    /// all others out, and so waits for none that waits for it.
    pub(crate) fn lock_among_others(&self) -> Locked<'_> {
        Locked { heap: self, st: Guard { guard: self.state.lock(), _held: Rank::Heap.taken() } }
    }

    /// Like [`Self::lock_quick`], if nobody has it.
    #[inline]
    pub(crate) fn try_lock_quick(&self) -> Option<Locked<'_>> {
        let guard = self.state.try_lock()?;
        Some(Locked { heap: self, st: Guard { guard, _held: Rank::Heap.taken() } })
    }
}

/// How many ids a heap takes at a time; a power of two.
const IDS: u64 = 1 << 32;

/// Takes ids that no heap has taken yet. Returns the multiple of [`IDS`] in front of them.
#[cold]
fn more_ids() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(IDS, Relaxed)
}

/// What a heap's lock guards.
///
/// Invariants: those of its parts; every waiting region has exactly one entry in `waiting`, and
/// no other region has one; `waiting_bytes` is their sum; the bytes of all regions equal
/// `extents.bytes()`; `live_bytes` is the sum of live regions and live slab objects, `most_live` no
/// less; a heap of a capture arena is `of_captures`.
///
/// The fields that every hit looks at come first, in as few cache lines as possible: those lines
/// compete with everything a workload touches.
#[derive(Default)]
#[repr(C)]
pub(crate) struct HeapState {
    pub(crate) number: u32,
    pub(crate) lane: u32,
    /// The stream its ready memory is in order for: the lane's, except for a moment while the lane
    /// goes to another stream.
    pub(crate) identity: u64,
    /// The id handed out last: see [`HeapState::new_id`].
    pub(crate) last_id: u64,
    pub(crate) live_bytes: u64,
    /// The most that `live_bytes` has been since the peaks were last reset.
    pub(crate) most_live: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) mallocs: u64,
    pub(crate) frees: u64,
    /// How many of its own extents have moved since it last started afresh.
    pub(crate) moves: u64,
    pub(crate) waiting_bytes: u64,
    pub(crate) low: Low,
    /// Counts live memory, if set. Then nothing is handed out without a receipt.
    pub(crate) counter: Option<Arc<dyn Counter>>,
    pub(crate) batch: OwnBatch,
    /// The part of a capture arena that has the heap: see `graph/parts.rs`.
    pub(crate) private: Option<Arc<StreamPart>>,
    /// The part that had it until its arena was released. A thread that still holds the part may be
    /// about to allocate here.
    pub(crate) former: Weak<StreamPart>,
    /// Other lanes that use a live block (`record_stream`), by its address.
    pub(crate) users: HashMap<u64, Vec<u32>>,
    /// Callers' tags of small objects that have one, by address.
    pub(crate) user_tags: HashMap<u64, u64>,
    /// [`Heap::of_captures`].
    pub(crate) of_captures: bool,
    pub(crate) learnt: Learnt,
    pub(crate) regions: Regions,
    pub(crate) slabs: Slabs,
    pub(crate) extents: Extents,
    pub(crate) waiting: Waiting,
    /// Which live blocks and objects are in a scope, and their receipts.
    pub(crate) members: Members,
    /// The least that `regions.ready_bytes()` has been since `take_unused`.
    pub(crate) least_ready: u64,
    /// All extents ever moved for this heap.
    pub(crate) moved: u64,
    /// Requests met with memory from elsewhere, and none created.
    pub(crate) stitches: u64,
    /// Its `mallocs` when it last ran short of memory.
    short_at: u64,
    pub(crate) vain: Vain,
    /// Whether a context marker about other heaps' memory has been of use of late.
    pub(crate) asking: Backoff,
    /// Whether the last small request without room here got an object of another heap of the
    /// stream.
    pub(crate) borrows_beside: bool,
    /// Where the last newly mapped run ends. The next one goes there, if a span still ends there.
    pub(crate) grown_to: u64,
    /// Start and end of the addresses that a private heap keeps to grow in, with nothing mapped. It
    /// starts where the heap's last run there ends, or is 0 if none were kept.
    pub(crate) kept: (u64, u64),
}

impl HeapState {
    pub(crate) fn new(number: u32, lane: u32, identity: u64, page: u64) -> HeapState {
        HeapState { number, lane, identity, extents: Extents::of_pages(page), ..HeapState::default() }
    }

    /// A number that no other allocation of the process has, larger than this heap's earlier ones.
    /// Heaps take [`IDS`] of them at a time, so that no two heaps ever share one.
    #[inline]
    pub(crate) fn new_id(&mut self) -> u64 {
        if self.last_id.is_multiple_of(IDS) {
            self.last_id = more_ids();
        }
        self.last_id += 1;
        self.last_id
    }

    /// Counts an allocation.
    #[inline(always)]
    pub(crate) fn note_handed_out(&mut self, size: u64, requested: u64) {
        self.low.note_handed_out(self.live_bytes, size);
        self.live_bytes += size;
        self.most_live = self.most_live.max(self.live_bytes);
        self.requested_bytes += requested;
        self.mallocs += 1;
    }

    /// Takes the lanes a block about to be freed was recorded on.
    #[inline]
    pub(crate) fn take_users(&mut self, addr: u64) -> Vec<u32> {
        match self.users.is_empty() {
            true => Vec::new(),
            false => self.users.remove(&addr).unwrap_or_default(),
        }
    }

    /// A live region for `size` bytes at a multiple of `align`: the one last freed by a request of
    /// just this size, or else the best ready one, cut to size.
    #[inline]
    pub(crate) fn take_region(&mut self, size: u64, align: u64) -> Option<u32> {
        match self.regions.take_quick(size, align) {
            Some(r) => {
                self.note_taken();
                Some(r)
            }
            None => self.tidy_and_cut(size, align),
        }
    }

    #[inline(never)]
    fn tidy_and_cut(&mut self, size: u64, align: u64) -> Option<u32> {
        self.regions.tidy();
        self.cut_for(size, align)
    }

    /// The best ready region for `size` bytes at a multiple of `align`, cut to size and marked
    /// live.
    #[inline]
    pub(crate) fn cut_for(&mut self, size: u64, align: u64) -> Option<u32> {
        self.cut_where(size, align, |_| true)
    }

    /// Like [`Self::cut_for`], out of a region that `accept`s.
    #[inline]
    pub(crate) fn cut_where(&mut self, size: u64, align: u64, accept: impl Fn(&Region) -> bool) -> Option<u32> {
        debug_assert!(self.regions.is_tidy());
        let r = self.regions.find(size, align, accept)?;
        let (from, size) = self.place_in(r, size, align);
        let cut = self.regions.cut(r, from, size);
        self.note_taken();
        Some(cut)
    }

    /// Whether the heap has ready memory for a request.
    pub(crate) fn serves(&self, want: Want) -> bool {
        let object = want.class.is_some_and(|class| self.slabs.has_free(class));
        object || self.regions.find(want.size, want.align, |_| true).is_some()
    }

    /// Where in a free region a request goes, and how many bytes it gets.
    ///
    /// A block goes to the start. In a ring, the newest block is next to that; blocks made together
    /// are freed together, and join then. A block of a page or more goes to the end if the newer
    /// neighbour is there and this leaves more extents whole (docs/adr/placement.md).
    pub(crate) fn place_in(&self, r: u32, size: u64, align: u64) -> (u64, u64) {
        let region = self.regions.get(r);
        let start = region.addr + (region.addr.wrapping_neg() & (align - 1));
        let room = region.end() - start;
        let size = if room - size < MIN_SPLIT { room } else { size };
        let page = self.extents.page();
        if room - size < page || size < page || !self.is_newer_behind(region) {
            return (start, size);
        }
        let (end, back) = (region.end(), (region.end() - size) & !(align - 1));
        let (in_front, behind) = (self.extents.whole_bytes(start, back), self.extents.whole_bytes(start + size, end));
        (if in_front > behind { back } else { start }, size)
    }

    /// Enters a run, last used at `last_use`, whose extents are here already. Cuts a request, if
    /// there is one, out of it and its ready neighbours, which have room for it, and returns that
    /// region, live. Otherwise returns all of it, which is ready, or waits in the shared heap.
    pub(crate) fn enter_run(&mut self, (start, end): (u64, u64), last_use: Tag, want: Option<Want>) -> u32 {
        let region = self.regions.add(start, end - start);
        let region = self.regions.take_neighbours(region, last_use);
        let last_use = self.regions.get(region).tag;
        let cut = want.map(|w| {
            debug_assert!(self.regions.get(region).holds(w.size, w.align));
            let (from, size) = self.place_in(region, w.size, w.align);
            self.regions.cut_apart(region, from, size)
        });
        let (block, left) = cut.unwrap_or((region, [Some(region), None]));
        for r in left.into_iter().flatten() {
            // In the shared heap what is left may be in order for the request's stream alone.
            match last_use == Tag::SETTLED || last_use.lane() == self.lane {
                true => self.regions.put_back(r, last_use),
                false => self.wait_for(r, &[last_use]),
            }
        }
        self.note_taken();
        block
    }

    /// Whether the neighbour behind a free region is a live block, newer than what lies in front.
    /// Never at the ends of a span.
    fn is_newer_behind(&self, region: &Region) -> bool {
        let made = |r: u32| (self.regions.get(r).state == State::Live).then(|| self.regions.block(r).id);
        !self.regions.is_edge(region.prev) && made(region.next) > made(region.prev)
    }

    /// Counts the extents a stitch or a flip moved, and how many of them were the heap's own.
    #[inline]
    pub(crate) fn count_moves(&mut self, moved: u64, own: u64) {
        if moved > 0 {
            self.low.note_move(self.live_bytes, self.extents.bytes());
            self.moves += own;
            self.moved += moved;
        }
    }

    /// Notes that a request of `size` bytes found no room. It counts if that much is ready, only
    /// not in one piece.
    pub(crate) fn note_short(&mut self, size: u64) {
        if self.regions.ready_bytes() >= size {
            let since = self.mallocs.wrapping_sub(std::mem::replace(&mut self.short_at, self.mallocs));
            self.learnt.short = since <= SHORT_AGAIN;
        }
    }

    /// Forgets everything learnt, because no memory is left: the next requests are decided as in a
    /// new heap.
    pub(crate) fn forget(&mut self) {
        self.learnt = Learnt::default();
        self.low = Low::default();
        self.moves = 0;
    }

    /// Whether this is a small heap in which requests find no room again and again.
    pub(crate) fn runs_short(&self) -> bool {
        self.learnt.short && self.extents.bytes() < SMALL_HEAP
    }

    /// Makes the heap move memory like others, although it runs short: there was not enough room to
    /// give it more.
    pub(crate) fn goes_without(&mut self) {
        self.learnt.short = false;
    }

    /// Must be called after ready memory was taken.
    #[inline]
    pub(crate) fn note_taken(&mut self) {
        self.least_ready = self.least_ready.min(self.regions.ready_bytes());
    }

    /// Counts a free.
    #[inline]
    pub(crate) fn note_freed(&mut self, size: u64, requested: u64) {
        self.live_bytes -= size;
        self.requested_bytes -= requested;
        self.frees += 1;
    }

    /// Whether the heap's ready memory is in order for the lane's present stream. If not,
    /// [`Self::retire`] must come before any free here: otherwise the new stream's frees would
    /// vouch for the old one's.
    #[inline]
    pub(crate) fn is_current(&self, order: &Order) -> bool {
        order.identity(self.lane) == self.identity
    }

    /// Whether the heap is low, and has moved extents since it last was. If so, `Pool::ran_low`
    /// follows. Every free asks.
    #[inline(always)]
    pub(crate) fn has_run_low(&self) -> bool {
        self.low.is_reached(self.live_bytes, self.moves)
    }

    /// Whether freed memory may not be handed out again for now.
    pub(crate) fn is_monotone(&self) -> bool {
        self.private.as_ref().is_some_and(|part| part.monotone)
    }

    /// Whether allocations are told apart by their order, so that growth must not take the place of
    /// a new allocation.
    pub(crate) fn is_laid_out(&self) -> bool {
        self.private.as_ref().is_some_and(|part| part.notes.lock().is_laid_out())
    }

    /// Notes, if a capture arena has the heap and records, that the block at `addr` is being freed.
    pub(crate) fn note_death(&self, addr: u64) {
        if let Some(part) = &self.private {
            part.notes.lock().died(addr);
        }
    }

    /// This heap's lane, if `lane` is that of another heap of the same stream in the same arena;
    /// otherwise `lane`.
    pub(crate) fn lane_here(&self, lane: u32) -> u32 {
        match &self.private {
            Some(part) if part.lane == lane => self.lane,
            _ => lane,
        }
    }

    /// Makes a region (in no bin) wait for every one of the tags.
    pub(crate) fn wait_for(&mut self, region: u32, tags: &[Tag]) {
        self.waiting.enqueue(Item::Region(region), tags);
        let r = self.regions.get_mut(region);
        r.state = State::Waiting;
        r.tag = tags.first().copied().unwrap_or(Tag::SETTLED);
        self.waiting_bytes += r.size;
    }
}

/// What a heap has learnt from its requests. Forgotten when it has no memory left.
#[derive(Default)]
pub(crate) struct Learnt {
    pub(crate) memo: Memo,
    pub(crate) fresh_starts: FreshStarts,
    /// The most that `live_bytes` was at a growth since the last fresh start that was in no doubt
    /// ([`FreshStarts::doubt`]). Giving memory back lowers it.
    pub(crate) peak_live: u64,
    /// Bytes mapped to other addresses for the heap since then; lowered with the peak. Does not
    /// count bytes taken back with no driver call.
    pub(crate) remapped: u64,
    /// Whether it gave up old addresses when it last ran short.
    pub(crate) gives_up: bool,
    /// Whether it ran short of memory soon after the last time.
    short: bool,
    /// Whether it could map more, rather than move memory, when it last ran short. Such a heap gets
    /// no small extents, which make every move dear.
    pub(crate) buys: bool,
    /// Whether it could once map more, but not all that it had earned: it nearly fills the device
    /// or the limit, and moves memory for ever. Holds until memory is given back on demand, so that
    /// work that repeats is decided alike each time.
    pub(crate) cramped: bool,
    /// How many times the size of new extents was halved.
    pub(crate) halved: u32,
    /// Whether the pool's first memory was asked for ahead, so that nobody knows what it will be
    /// cut into.
    pub(crate) ahead: bool,
}

/// Whether it has been of use of late to wait for markers, to look for extents in other heaps, and
/// to borrow blocks from them.
#[derive(Default)]
pub(crate) struct Vain {
    pub(crate) patience: Backoff,
    pub(crate) others: Backoff,
    pub(crate) borrowing: Backoff,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn heaps_that_use_up_their_ids_have_none_in_common() {
        let mut heaps: Vec<HeapState> = (0..3).map(|n| HeapState::new(n, n, 0, 2 << 20)).collect();
        let mut seen = std::collections::HashSet::new();
        for turn in 0..4 {
            for heap in &mut heaps {
                let first = heap.new_id();
                assert!(seen.insert(first) && first > 0, "turn {turn}: {first:#x} again");
                // All but the last two of those that it took.
                heap.last_id = heap.last_id.next_multiple_of(IDS) - 2;
                for _ in 0..3 {
                    let before = heap.last_id;
                    let id = heap.new_id();
                    assert!(id > before && seen.insert(id), "turn {turn}: {id:#x} after {before:#x}");
                }
            }
        }
    }
}

//! The pool of one device: what it consists of, and the little that every room above needs.

use crate::base::sync::{Apart, AtomicBool, AtomicU64, OnceBox, OnceLock};
use crate::base::{size, DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::{process, DeviceProps, Driver, PhysHandle, Watch};
use crate::pool::heap::{Block, Heap, HeapState, Place, GRANULE, NO_MEMBER};
use crate::pool::memory::{Aliases, Dedicated, Entry, Grave, Holes, Index, Stock};
use crate::pool::order::{Order, Tag};
use crate::pool::state::arenas::Privates;
use crate::pool::state::streams::{Key, OtherDevices, SpareStreams, StreamHeaps};
use crate::pool::types::{too_large, AllocRequest, Counter, PoolOptions, Rank, RankHeld, Ranked, NONE};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

/// Addresses, and memory that belongs to no heap. Guarded by the core lock.
#[derive(Default)]
pub(crate) struct Core {
    pub(crate) holes: Holes,
    pub(crate) stock: Stock,
    pub(crate) aliases: Aliases,
    /// Addresses that were never handed out and that the driver would not unmap, as `(start,
    /// length)`: tried again when memory is given back.
    pub(crate) zombies: Vec<(u64, u64)>,
    pub(crate) dedicated: BTreeMap<u64, Dedicated>,
    /// Graves by `va`.
    pub(crate) graves: BTreeMap<u64, Grave>,
    /// Handles without a mapping that the driver would not drop: tried again when memory is given
    /// back.
    pub(crate) orphans: Vec<PhysHandle>,
    /// Why the last stitch found no addresses, or could not map there, if it did not.
    pub(crate) no_place: Option<Error>,
}

impl Core {
    /// Removes a grave in which nothing is mapped. Its addresses rest.
    pub(crate) fn close_grave(&mut self, va: u64) {
        if let Some(grave) = self.graves.remove(&va) {
            self.holes.rest(va, grave.reserved);
        }
    }
}

/// Counts that belong to no heap.
#[derive(Default)]
pub(crate) struct Counters {
    /// `extents + stock + dedicated + graves`, bytes.
    pub(crate) mapped: AtomicU64,
    pub(crate) peak_mapped: AtomicU64,
    /// The most that heaps had live together when one of them ran short, and the bytes they have
    /// moved: `remap/economy.rs`.
    pub(crate) most_live: AtomicU64,
    pub(crate) remapped: AtomicU64,
    /// Bytes moved, or found by looking into other heaps, since the device was last seen behind the
    /// host: `remap/shared_heap.rs`.
    pub(crate) paid: AtomicU64,
    /// Whether the device has refused an extent of late: `Pool::creatable`.
    pub(crate) device_is_full: AtomicBool,
    pub(crate) dedicated_live: AtomicU64,
    /// The most that `dedicated_live` has been since the peaks were last reset.
    pub(crate) dedicated_most: AtomicU64,
    pub(crate) dedicated_requested: AtomicU64,
    pub(crate) dedicated_mallocs: AtomicU64,
    pub(crate) dedicated_frees: AtomicU64,
    /// Bytes freed since memory was last given back by threshold.
    pub(crate) freed_since_trim: AtomicU64,
    pub(crate) growths: AtomicU64,
    pub(crate) double_frees: AtomicU64,
    pub(crate) unknown_pointers: AtomicU64,
    /// Frees by id that came after the allocation had gone.
    pub(crate) late_frees: AtomicU64,
    pub(crate) out_of_memory: AtomicU64,
}

/// The pool of one device.
pub struct Pool {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) dev: DeviceId,
    /// Not 0: tells it from every other pool of the process, in per-thread caches and scopes.
    pub(crate) number: u64,
    pub(crate) props: DeviceProps,
    pub(crate) options: PoolOptions,
    /// Bytes of the smallest extent; a multiple of the device's granularity, a power of two.
    pub(crate) page: u64,
    /// Devices that get access to every mapping, `dev` first.
    pub(crate) access: Vec<DeviceId>,
    pub(crate) limit: AtomicU64,
    pub(crate) index: Index,
    pub(crate) order: Order,
    /// How to see which stream a handle stands for.
    pub(crate) watch: Watch,
    /// Heaps by number. Boxed: there is room for many, and a heap takes a kilobyte.
    pub(crate) heaps: Box<[OnceBox<Heap>]>,
    /// How many heaps there are; changed under the lock of `streams`.
    pub(crate) heap_count: AtomicU32,
    /// Streams in use → their lanes and heaps.
    pub(crate) streams: Apart<Ranked<HashMap<Key, StreamHeaps>, { Rank::Streams as u8 }>>,
    /// Per-thread streams whose threads have ended.
    pub(crate) spare_streams: Arc<SpareStreams>,
    pub(crate) core: Apart<Ranked<Core, { Rank::Core as u8 }>>,
    /// Held, shared, by calls that make or drop physical memory in several steps without a heap's
    /// lock. A call takes it once, before any other lock.
    pub(crate) changing: std::sync::RwLock<()>,
    pub(crate) counters: Apart<Counters>,
    /// Streams of other devices that memory of this one is used on.
    pub(crate) other_devices: Apart<OtherDevices>,
    /// Heaps of capture arenas, and which streams allocate from them.
    pub(crate) privates: Apart<Privates>,
    /// The number of the heap that all streams share, [`NONE`] until there is one
    /// (`remap/shared_heap.rs`). Set under the lock of `streams`.
    pub(crate) shared: AtomicU32,
    /// Called with a captured stream that no route claims, if there is such a function.
    pub(crate) unclaimed: OnceLock<Unclaimed>,
    /// Counts live memory, if there is a counter. Set under the lock of `streams`.
    pub(crate) counter: OnceLock<Arc<dyn Counter>>,
}

impl Pool {
    /// The device this pool is for.
    pub fn device(&self) -> DeviceId {
        self.dev
    }

    /// Whether the pool's reservations contain the address.
    #[inline]
    pub fn owns(&self, addr: u64) -> bool {
        self.index.covers(addr)
    }

    /// Reserves more addresses: at least `bytes`, normally the configured amount, less where the
    /// system refuses it. A page at the end of each reservation is never used, so that no memory
    /// goes on in the next one.
    pub(crate) fn reserve_root(&self, core: &mut Core, bytes: u64) -> Result<()> {
        if !self.index.can_add_root() {
            return Err(Error::new(Status::OutOfMemory, "no more address reservations are possible in this pool"));
        }
        let least = self.whole_pages(bytes)?;
        let mut want = self.options.va_size.max(least).next_multiple_of(self.page);
        loop {
            let reservation = want.checked_add(self.page).ok_or_else(|| too_large(bytes))?;
            match self.driver.va_reserve(self.dev, reservation, self.page) {
                Ok(base) => {
                    self.index.add_root(base, want);
                    // Makes the table the first request needs now, not then: addresses are taken
                    // from the start.
                    self.index.set(base, Entry::Empty);
                    core.holes.add_root(base, want);
                    return Ok(());
                }
                Err(_) if want / 2 >= least => want = (want / 2).next_multiple_of(self.page),
                Err(e) => return Err(e.context(format!("reserving {} of addresses", size::human(want)))),
            }
        }
    }

    /// `bytes` rounded up to whole pages.
    pub(crate) fn whole_pages(&self, bytes: u64) -> Result<u64> {
        size::round_up(bytes, self.page).ok_or_else(|| too_large(bytes))
    }

    /// Logs a decision of the slow path, if that is wanted.
    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.options.log_decisions {
            process::say(format_args!("device {}: {}", self.dev, what()));
        }
    }

    /// Counts frees of memory that callers took for gpumem's.
    pub fn note_unknown(&self, frees: u64) {
        self.counters.unknown_pointers.fetch_add(frees, Relaxed);
    }

    #[inline]
    pub(crate) fn heap(&self, number: u32) -> Option<&Heap> {
        self.heaps.get(number as usize)?.get()
    }

    /// Adds a lane for a stream and its identity, and a heap for it; `None`, and neither, if there
    /// are too many of either. Callers hold the lock of `streams`.
    pub(crate) fn add_lane_and_heap(
        &self,
        unnamed: bool,
        (stream, id): (StreamHandle, u64),
        of_captures: bool,
    ) -> Option<&Heap> {
        self.heaps.get(self.heap_count.load(Relaxed) as usize)?;
        self.add_heap(self.order.add_lane(unnamed, stream, id)?, of_captures)
    }

    /// Adds a heap for a lane; `None` if there are too many. Callers hold the lock of `streams`.
    pub(crate) fn add_heap(&self, lane: u32, of_captures: bool) -> Option<&Heap> {
        let number = self.heap_count.load(Relaxed);
        let heap = self
            .heaps
            .get(number as usize)?
            .get_or_init(|| Box::new(Heap::new(number, lane, self.order.identity(lane), of_captures, self.page)));
        // A new heap counts if its pool does.
        if let Some(counter) = self.counter.get() {
            heap.lock_quick().counter = Some(counter.clone());
        }
        self.heap_count.store(number + 1, Release);
        Some(heap)
    }

    /// The heap that all streams share, if any.
    pub(crate) fn shared_heap(&self) -> Option<&Heap> {
        match self.shared.load(Acquire) {
            NONE => None,
            number => self.heap(number),
        }
    }

    #[inline]
    pub(crate) fn is_shared(&self, heap: u32) -> bool {
        heap == self.shared.load(Relaxed)
    }

    pub(crate) fn all_heaps(&self) -> impl Iterator<Item = &Heap> {
        let count = self.heap_count.load(Acquire) as usize;
        self.heaps.iter().take(count).filter_map(OnceBox::get)
    }

    /// The heaps other than `heap` with at least `bytes` free.
    pub(crate) fn others_with(&self, heap: u32, bytes: u64) -> impl Iterator<Item = &Heap> {
        self.all_heaps().filter(move |h| h.number != heap && h.free.load(Relaxed) >= bytes)
    }

    /// Whether `heap` may use memory last used at `tag` at once for the stream of `lane`: the tag
    /// has settled, or that stream freed the memory itself. The latter is not enough for a capture:
    /// its work runs whenever and wherever the graph is launched, not behind what the stream did
    /// before.
    pub(crate) fn usable(&self, tag: Tag, heap: &HeapState, lane: u32) -> bool {
        self.order.settled(tag) || (!heap.of_captures && self.order.own(tag, lane))
    }

    /// The facts to keep about a new block of a heap.
    #[inline(always)]
    pub(crate) fn block(&self, st: &mut HeapState, req: &AllocRequest, lane: u32) -> Block {
        Block {
            requested: req.size,
            // Ids of one heap tell which of two neighbours is newer.
            id: st.new_id(),
            user_tag: req.tag,
            stream: req.stream,
            stream_id: self.order.identity(lane),
            lane,
            member: NO_MEMBER,
            align: req.align.max(GRANULE),
        }
    }

    /// Hands out a live region of a heap, perhaps not the request's own. Returns its address.
    #[inline]
    pub(crate) fn finish_block(&self, st: &mut HeapState, r: u32, req: &AllocRequest, lane: u32) -> u64 {
        let block = self.block(st, req, lane);
        let addr = st.hand_out(r, block, &self.index);
        st.admit(req, Place::Block { region: r }, self.number);
        addr
    }

    /// Bytes of physical memory that the pool has, or has claimed and is about to create.
    pub(crate) fn mapped_now(&self) -> u64 {
        self.counters.mapped.load(Relaxed)
    }

    /// Live bytes of all heaps, rounding included.
    pub(crate) fn live_now(&self) -> u64 {
        self.all_heaps().map(|h| h.live.load(Relaxed)).sum::<u64>() + self.counters.dedicated_live.load(Relaxed)
    }

    /// Counts dedicated memory that is in use from now on.
    pub(crate) fn add_dedicated_live(&self, bytes: u64, requested: u64) {
        let live = self.counters.dedicated_live.fetch_add(bytes, Relaxed) + bytes;
        self.counters.dedicated_most.fetch_max(live, Relaxed);
        self.counters.dedicated_requested.fetch_add(requested, Relaxed);
    }

    /// Counts dedicated memory that is in use no more.
    pub(crate) fn sub_dedicated_live(&self, bytes: u64, requested: u64) {
        self.counters.dedicated_live.fetch_sub(bytes, Relaxed);
        self.counters.dedicated_requested.fetch_sub(requested, Relaxed);
    }

    /// Raises the peak. What is claimed and will not be created does not count.
    pub(crate) fn note_peak(&self) {
        let mapped = self.mapped_now().min(self.props.total_bytes);
        self.counters.peak_mapped.fetch_max(mapped, Relaxed);
    }

    /// While the guard lives, physical memory may be on its way between two of the pool's books.
    pub(crate) fn change(&self) -> (std::sync::RwLockReadGuard<'_, ()>, RankHeld) {
        let held = Rank::Changing.wait();
        (self.changing.read().unwrap_or_else(std::sync::PoisonError::into_inner), held)
    }

    /// Uncounts mapped bytes, and lowers the peak of all heaps: what they once had live does not
    /// excuse mapping it again.
    pub(crate) fn sub_mapped(&self, bytes: u64) {
        let before = self.counters.mapped.fetch_sub(bytes, Relaxed);
        self.counters.most_live.fetch_min(before.saturating_sub(bytes), Relaxed);
    }

    /// Bytes of physical memory that can still be created: within the limit, and what the device
    /// has.
    pub fn unmapped(&self) -> Result<u64> {
        Ok(self.driver.mem_info(self.dev)?.free.min(self.headroom()))
    }

    /// Bytes of physical memory that must go before `bytes` can be created. What is mapped above
    /// the limit is missing as well.
    pub fn missing_for(&self, bytes: u64) -> Result<u64> {
        let above = self.mapped_now().saturating_sub(self.limit.load(Relaxed));
        Ok(bytes.saturating_add(above).saturating_sub(self.unmapped()?))
    }

    /// Bytes that may still be mapped under the limit.
    pub(crate) fn headroom(&self) -> u64 {
        self.limit.load(Relaxed).saturating_sub(self.mapped_now())
    }
}

/// Called with a stream that is being captured and that no route claims; it may begin one.
pub type Unclaimed = Box<dyn Fn(&Pool, StreamHandle) -> Result<()> + Send + Sync>;

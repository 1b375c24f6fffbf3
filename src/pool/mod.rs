//! One device's memory: a stream-ordered pool over virtual memory that remaps instead of fragmenting.
//!
//! # Words
//!
//! - *reservation*, *root*: addresses taken from the driver ([`reserve`]); *hole*: addresses with nothing mapped.
//! - *extent*: physical memory, one driver handle, mapped whole ([`extent`]).
//! - *span*: a longest run of mapped addresses in one heap; *region*: a piece of a span, live or free ([`region`]).
//! - *slab*: a region cut into equal small objects ([`slab`], [`objects`]).
//! - *heap*: memory of one stream ([`heap`]); *lane*, *epoch*, *marker*, *settled*: stream order ([`order`]).
//! - *stitch*: to map free extents at neighbouring addresses ([`stitch`] decides what, [`anchor`] where, [`extend`] does);
//!   *grain*: how large new extents are ([`grain`]).
//! - *alias*: an address at which an extent is mapped; *dormant*, or *zombie*: not where it is now ([`aliases`]).
//! - *flip*: to take dormant aliases back with no driver call ([`flip`]); *memo*: what to take back ([`memo`]).
//! - *stock*: physical memory without an address ([`stock`]).
//! - *scope*: allocations that go together ([`scope`]); *member*: one of a heap's that is in one ([`members`]).
//! - *private heap*: memory of a capture arena, which no other heap takes from ([`private`], [`planned`]); *route*: which
//!   streams allocate there ([`routes`]).
//! - *rent*, *buy*: moving memory, or mapping more of it instead ([`economy`]).
//! - *dedicated*: an allocation with an extent of its own, never moved ([`dedicated`]); *evictable*: one whose memory may
//!   be given up for a while ([`evictable`]).
//!
//! # Locks
//!
//! `changing`, the capture arenas' locks, the stream registry's lock, that of the shells, then a heap's ([`heap_lock`]), then
//! the core's, then the order's; a scope's last. Another heap's lock is only ever tried while one is held, but by whoever holds
//! `changing` alone, and so keeps everybody out ([`still`]). Driver calls that wait for the device are made with no lock held but
//! `changing`, shared; those that do not, such as
//! mapping and creating, may be made under the lock of the heap they are for.
//!
//! # Invariant of the whole
//!
//! `reserved == spans + holes + zombies + dedicated + graves` (addresses) and
//! `mapped == extents + stock + dedicated + graves` (physical bytes); [`Pool::validate`] checks both, and those of every part.

mod afar;
mod afresh;
mod aliases;
mod alloc;
mod anchor;
mod batch;
#[cfg(feature = "bench-internals")]
#[doc(hidden)]
pub mod bench_internals;
mod bins;
mod bits;
mod captures;
mod claims;
mod cut;
mod dedicated;
mod due;
mod dump;
mod economy;
mod evictable;
mod extend;
mod extent;
mod flip;
mod free;
mod grain;
mod heap;
mod heap_lock;
mod heap_validate;
mod hit;
mod index;
mod mapping;
mod members;
mod memo;
#[cfg(all(test, loom))]
mod models;
mod objects;
mod order;
mod pages;
mod parts;
mod planned;
mod private;
mod quarantine;
mod quick;
mod realloc;
mod receipts;
mod region;
mod reserve;
mod retire;
mod routes;
mod scope;
mod scope_walk;
mod shells;
mod slab;
mod spans;
mod stats;
mod still;
mod stitch;
mod stock;
mod streams;
mod sync;
mod tag;
mod trial;
mod trim;
mod waiting;
mod walk;
mod wide;

use crate::base::sync::{lock, Apart, AtomicU64, Mutex, OnceBox, OnceLock};
use crate::base::{size, DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::{DeviceProps, Driver, PhysHandle, Watch};
pub use evictable::{By, Guest, Moving, Waited};
use heap::Heap;
pub use planned::{Life, Placed, Span};
pub use private::{GraphArena, GraphArenaOptions, GraphArenaStats};
pub use quarantine::Held;
pub use realloc::{Relocation, Resized};
pub use receipts::{Counter, Receipt, Slip};
pub use routes::{Filter, Route, Unclaimed, WhichStreams};
pub use scope::{Scope, ScopeCounts};
pub use scope_walk::{Kept, Reclaimed};
pub use stats::PoolStats;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::Arc;
pub use still::{add_to, Still, Sums};
pub use walk::{Alive, HeapView, Is, Piece};

/// Special needs of one allocation, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AllocFlags(pub u32);

impl AllocFlags {
    /// One physical handle, never remapped (NCCL, RDMA, IPC).
    pub const SINGLE_HANDLE: AllocFlags = AllocFlags(1);
    /// Single handle that can be exported as a file descriptor.
    pub const EXPORTABLE: AllocFlags = AllocFlags(2);
    /// The bytes after the allocation are unmapped, so overruns fault.
    pub const GUARD: AllocFlags = AllocFlags(4);
    /// Physical memory of its own that may be given up and come back at the same addresses.
    pub const EVICTABLE: AllocFlags = AllocFlags(8);
    /// Physical memory and addresses that nothing else shares. The pool's own: not accepted from C, and not shown.
    pub const SEPARATE: AllocFlags = AllocFlags(1 << 31);
    /// Every bit that has a meaning to users.
    pub const ALL: AllocFlags = AllocFlags(15);
}

/// Facts about one live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocInfo {
    /// First byte.
    pub base: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes usable from `base`.
    pub usable: u64,
    /// The device it lives on.
    pub device: DeviceId,
    /// The stream it was allocated on, as the caller named it.
    pub stream: StreamHandle,
    /// A number no other allocation of this process has.
    pub id: u64,
    /// The caller's tag.
    pub tag: u64,
    /// The flags it was made with.
    pub flags: AllocFlags,
}

/// Settings of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Addresses reserved at a time, bytes.
    pub va_size: u64,
    /// Smallest extent, bytes; 0 means the device's granularity.
    pub page_size: u64,
    /// Most bytes to map; 0 means no limit but the device's.
    pub limit: u64,
    /// Bytes to map at the start.
    pub prealloc: u64,
    /// Whether a stream may be made to wait on the device for memory that another stream freed.
    pub wait: bool,
    /// Free mapped bytes of one heap beyond which a free into it gives memory back; 0 means never.
    pub trim_threshold: u64,
    /// Share of a heap's peak live bytes that it may map beyond them to save moves, in 1/1000,
    pub slack_permille: u32,
    /// and how many bytes it may at least; more in a small heap that runs short. 0: nothing.
    pub slack_floor: u64,
    /// Share of its peak that a heap may map besides, rather than move memory, in 1/1000: by right,
    pub bought_permille: u32,
    /// and at most what it has earned by moving memory (`economy.rs`). The larger of the two counts.
    pub earned_permille: u32,
    /// Most streams that the pool can tell apart, and one: from 2 to 2^16.
    pub max_lanes: usize,
    /// Largest extent to create, bytes, as long as none of a heap's memory is stranded; a power of two,
    pub max_extent: u64,
    /// and how small it may become then while there is memory left, bytes: 0 is a page.
    pub fine_extent: u64,
    /// Largest extent to create for a request that finds nothing mapped at all, bytes.
    pub first_extent: u64,
    /// A request is made of no more extents than about this many.
    pub extents_per_request: u64,
    /// Most old addresses of moved extents to keep mapped, a count of extents, so that they can move back for nothing.
    pub max_aliases: usize,
    /// How often to ask the device about memory that has a marker before anything is mapped instead.
    pub patience: u32,
    /// Whether the driver's structures may be read to see which stream a handle is; otherwise it is asked each time.
    pub watch: bool,
    /// Whether to say on stderr what the slow path decides: growths, stitches, fresh starts.
    pub log_decisions: bool,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            va_size: 8 * size::TIB,
            page_size: 0,
            limit: 0,
            prealloc: 0,
            wait: false,
            trim_threshold: 0,
            slack_permille: 12,
            slack_floor: 32 * size::MIB,
            bought_permille: 0,
            earned_permille: 230,
            max_lanes: order::MAX_LANES,
            max_extent: 32 * size::MIB,
            fine_extent: 16 * size::MIB,
            first_extent: size::GIB,
            extents_per_request: 16,
            max_aliases: 128 << 10,
            patience: 24,
            watch: true,
            log_decisions: false,
        }
    }
}

/// What to allocate from a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocRequest<'a> {
    /// Bytes; 0 gives a unique pointer that must be freed.
    pub size: u64,
    /// Alignment in bytes, a power of two; 0 means 256.
    pub align: u64,
    /// The stream whose order the allocation follows.
    pub stream: StreamHandle,
    /// Special needs.
    pub flags: AllocFlags,
    /// A number of the caller's, shown in dumps.
    pub tag: u64,
    /// What it belongs to, besides its user.
    pub scope: Option<&'a Arc<Scope>>,
    /// Its receipt, which leaves the slip when the allocation is made.
    pub slip: Option<&'a Slip>,
}

/// Addresses that nobody has seen and that the driver would not unmap: tried again when memory is given back.
#[derive(Clone, Copy, Debug)]
struct Zombie {
    addr: u64,
    size: u64,
}

/// Addresses, and what has no heap. Guarded by the core lock.
#[derive(Default)]
struct Core {
    holes: reserve::Holes,
    stock: stock::Stock,
    aliases: aliases::Aliases,
    zombies: Vec<Zombie>,
    dedicated: BTreeMap<u64, dedicated::Dedicated>,
    /// By `va`.
    graves: BTreeMap<u64, dedicated::Grave>,
    /// Handles without a mapping that the driver would not drop: tried again when memory is given back.
    orphans: Vec<PhysHandle>,
}

/// Counts that belong to no heap.
#[derive(Default)]
struct Counters {
    /// `extents + stock + dedicated + graves`, bytes.
    mapped: AtomicU64,
    peak_mapped: AtomicU64,
    zombie_bytes: AtomicU64,
    dedicated_live: AtomicU64,
    /// The most that it ever was since the peaks were last reset.
    dedicated_most: AtomicU64,
    dedicated_requested: AtomicU64,
    dedicated_mallocs: AtomicU64,
    dedicated_frees: AtomicU64,
    /// Bytes freed since memory was last given back by threshold.
    freed_since_trim: AtomicU64,
    growths: AtomicU64,
    double_frees: AtomicU64,
    unknown_pointers: AtomicU64,
    /// Frees by id that came after the allocation had gone.
    late_frees: AtomicU64,
    out_of_memory: AtomicU64,
}

/// The pool of one device.
pub struct Pool {
    driver: Arc<dyn Driver>,
    dev: DeviceId,
    /// 1 to 255: tells pools apart in per-thread caches and allocation ids.
    number: u64,
    props: DeviceProps,
    options: PoolOptions,
    /// Bytes of the smallest extent; a multiple of the device's granularity, a power of two.
    page: u64,
    /// Devices that get access to every mapping, `dev` first.
    access: Vec<DeviceId>,
    limit: AtomicU64,
    index: index::Index,
    order: order::Order,
    /// How to see which stream a handle is.
    watch: Watch,
    /// By number. Boxed: there is room for many, and a heap takes a kilobyte.
    heaps: Box<[OnceBox<Heap>]>,
    /// How many there are; changed under the lock of `streams`.
    heap_count: AtomicU32,
    /// Streams in use → their lanes and heaps.
    streams: Apart<Mutex<HashMap<streams::Key, streams::Members>>>,
    core: Apart<Mutex<Core>>,
    /// Shared by whoever makes or drops physical memory in several steps without a heap's lock; taken by the calls themselves,
    /// before any other lock, once.
    changing: std::sync::RwLock<()>,
    counters: Apart<Counters>,
    own: quarantine::OwnStream,
    /// Streams of other devices that memory of this one is used on.
    afar: Apart<afar::Afar>,
    /// Heaps of capture arenas, and which streams allocate from them.
    privates: Apart<private::Privates>,
    /// Who counts what is live, if anybody does. Set under the lock of `streams`.
    counter: OnceLock<Arc<dyn Counter>>,
}

impl Pool {
    /// A pool on one device. Reserves addresses; maps nothing unless `prealloc` says so.
    pub fn new(driver: Arc<dyn Driver>, dev: DeviceId, options: PoolOptions) -> Result<Pool> {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let props = driver.device_props(dev)?;
        if !props.vmm {
            return Err(Error::new(
                Status::Unsupported,
                format!("device {dev} ({}) has no virtual memory management; set GPUMEM_POOL=off", props.name),
            ));
        }
        // Index slots must not straddle extents.
        let page = options.page_size.max(props.granularity).max(index::SLOT);
        if !page.is_power_of_two() || page > size::GIB {
            return Err(Error::new(
                Status::Config,
                format!("page size {page} is not a power of two from {} to {}", props.granularity, size::GIB),
            ));
        }
        let mut access = vec![dev];
        for peer in (0..driver.device_count()).map(DeviceId).filter(|&d| d != dev) {
            if driver.can_access(peer, dev)? {
                access.push(peer);
            }
        }
        let pool = Pool {
            dev,
            number: NUMBER.fetch_add(1, Relaxed) % 255 + 1,
            props,
            options,
            page,
            access,
            limit: AtomicU64::new(if options.limit == 0 { u64::MAX } else { options.limit }),
            index: index::Index::new(),
            order: order::Order::new(dev, options.max_lanes),
            watch: match options.watch {
                true => driver.stream_watch(dev),
                false => Watch::Ask,
            },
            heap_count: AtomicU32::new(0),
            heaps: (0..options.max_lanes).map(|_| OnceBox::new()).collect(),
            streams: Apart(Mutex::new(HashMap::new())),
            core: Apart(Mutex::new(Core::default())),
            changing: std::sync::RwLock::new(()),
            counters: Apart(Counters::default()),
            own: quarantine::OwnStream::new(),
            afar: Apart(afar::Afar::new()),
            privates: Apart(private::Privates::default()),
            counter: OnceLock::new(),
            driver,
        };
        pool.reserve_root(&mut lock(&*pool.core), page)?;
        if options.prealloc > 0 {
            if let Err(e) = pool.prealloc(options.prealloc) {
                // Nothing is mapped: the next try would reserve addresses again.
                let _ = pool.give_up_addresses();
                return Err(e);
            }
        }
        Ok(pool)
    }

    /// The device this pool is for.
    pub fn device(&self) -> DeviceId {
        self.dev
    }

    /// Whether the pool's reservations contain the address.
    #[inline]
    pub fn owns(&self, addr: u64) -> bool {
        self.index.covers(addr)
    }

    /// Reserves more addresses: at least `bytes`, normally the configured amount, less where the system refuses it.
    fn reserve_root(&self, core: &mut Core, bytes: u64) -> Result<()> {
        if !self.index.can_add_root() {
            return Err(Error::new(Status::OutOfMemory, "no more address reservations are possible in this pool"));
        }
        let least = bytes.checked_next_multiple_of(self.page).ok_or_else(|| too_large(bytes))?;
        let mut want = self.options.va_size.max(least).next_multiple_of(self.page);
        loop {
            match self.driver.va_reserve(self.dev, want, self.page) {
                Ok(base) => {
                    self.index.add_root(base, want);
                    // Makes the table that the first request needs, now and not then: addresses are taken from the first on.
                    self.index.set(base, index::Entry::Empty);
                    core.holes.add_root(base, want);
                    return Ok(());
                }
                Err(e) if want / 2 >= least => {
                    want = (want / 2).next_multiple_of(self.page);
                    let _ = e;
                }
                Err(e) => return Err(e.context(format!("reserving {} of addresses", size::human(want)))),
            }
        }
    }

    /// Says what the slow path decided, if that is wanted.
    fn say(&self, what: impl FnOnce() -> String) {
        if self.options.log_decisions {
            eprintln!("gpumem: device {}: {}", self.dev, what());
        }
    }

    /// Counts a free of what a caller took for gpumem's.
    pub fn note_unknown(&self) {
        self.counters.unknown_pointers.fetch_add(1, Relaxed);
    }

    #[inline]
    fn heap(&self, number: u32) -> Option<&Heap> {
        self.heaps.get(number as usize)?.get()
    }

    /// One more heap for a lane; `None` when there are too many. Callers hold the lock of `streams`.
    fn add_heap(&self, lane: u32, of_captures: bool) -> Option<&Heap> {
        let number = self.heap_count.load(Relaxed);
        let heap = self
            .heaps
            .get(number as usize)?
            .get_or_init(|| Box::new(Heap::new(number, lane, self.order.identity(lane), of_captures, self.page)));
        self.count_in(heap);
        self.heap_count.store(number + 1, Release);
        Some(heap)
    }

    fn all_heaps(&self) -> impl Iterator<Item = &Heap> {
        let count = self.heap_count.load(Acquire) as usize;
        self.heaps.iter().take(count).filter_map(OnceBox::get)
    }

    /// Whether memory last used at `tag` may go to `heap` now, with no wait: everybody may have it, or it is earlier in
    /// the order of the heap's own stream. Not so for a capture: its work runs whenever and wherever the graph is launched,
    /// not behind what the stream did before.
    fn usable(&self, tag: order::Tag, heap: &Heap) -> bool {
        self.order.settled(tag) || (!heap.is_of_captures() && self.order.own(tag, heap.lane))
    }

    /// Live bytes of all heaps, rounding included.
    fn live_now(&self) -> u64 {
        self.all_heaps().map(|h| h.live.load(Relaxed)).sum::<u64>() + self.counters.dedicated_live.load(Relaxed)
    }

    /// Dedicated memory is in use from now on.
    fn add_dedicated_live(&self, bytes: u64, requested: u64) {
        let live = self.counters.dedicated_live.fetch_add(bytes, Relaxed) + bytes;
        self.counters.dedicated_most.fetch_max(live, Relaxed);
        self.counters.dedicated_requested.fetch_add(requested, Relaxed);
    }

    /// What is claimed and will not be created does not count.
    fn note_peak(&self) {
        let mapped = self.counters.mapped.load(Relaxed).min(self.props.total_bytes);
        self.counters.peak_mapped.fetch_max(mapped, Relaxed);
    }

    /// While the guard lives, physical memory may be on its way between two of the pool's books.
    fn change(&self) -> std::sync::RwLockReadGuard<'_, ()> {
        self.changing.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn sub_mapped(&self, bytes: u64) {
        self.counters.mapped.fetch_sub(bytes, Relaxed);
    }

    /// Bytes that may still be mapped under the limit.
    fn headroom(&self) -> u64 {
        self.limit.load(Relaxed).saturating_sub(self.counters.mapped.load(Relaxed))
    }

    /// Sets the most bytes the pool may map (0: no limit) and gives free memory back if it has more.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        let limit = if bytes == 0 { u64::MAX } else { bytes };
        self.limit.store(limit, Relaxed);
        if self.counters.mapped.load(Relaxed) > limit {
            self.trim(limit)?;
        }
        Ok(())
    }
}

/// The error for a request that no device could meet.
fn too_large(bytes: u64) -> Error {
    Error::new(Status::OutOfMemory, format!("{bytes} bytes were requested, more than any address space holds"))
}

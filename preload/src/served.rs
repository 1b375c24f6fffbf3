//! A device that is served: its pool, the stream that owns unordered memory, and the quarantine of
//! its frees.
//!
//! Memory from `cuMemAlloc` may be used on any stream at once, so it comes from the heap of a
//! stream of gpumem's own. That stream only ever gets waits for memory that other streams freed.
//! While such a wait may be pending, a thread that takes memory from that heap waits for the
//! stream. Memory freed into it has been waited for before.
//!
//! A device is served from the first request in one of its contexts until its primary context ends.
//! Then everything is undone, and the next request starts afresh; but while created contexts have
//! memory, only that of the primary one ends.

use crate::cuda::{
    Code, Ctx, Location, MemPool, Ptr, Stream, CAPTURING, DEVICE, INVALID_VALUE, OUT_OF_MEMORY, READ_WRITE,
    RELEASE_THRESHOLD, SUCCESS,
};
use crate::quarantine::{Home, Quarantine};
use crate::real::{other, Real};
use crate::{counters, observers, settings};
use gpumem::base::{DeviceId, Error, Status, StreamHandle};
use gpumem::context::{page_of, Config, Context, Request};
use gpumem::driver::{cuda, process, Driver, Ledger};
use gpumem::pool::AllocInfo;
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most devices served; the driver serves any others.
const MOST: usize = 64;

pub struct Served {
    pub dev: DeviceId,
    pub ledger: Arc<Ledger>,
    pub pool: Context,
    /// The device's primary context.
    primary: Ctx,
    /// The stream of unordered memory.
    pub own: StreamHandle,
    /// Requests under way that may make `own` wait.
    searching: AtomicU64,
    pub quarantine: Quarantine,
    /// Live memory of contexts that are not the primary one, by context: address and number.
    created: Mutex<HashMap<Ctx, HashMap<Ptr, u64>>>,
    /// How many allocations `created` holds.
    created_live: AtomicU64,
    /// Created contexts of other devices that may access the memory. Each guest's primary one may,
    /// too.
    pub peers: Mutex<HashSet<Ctx>>,
    /// Allocations that the program has set to be synchronous: address and number. Not every free
    /// takes its entry out; one with another number than the allocation's is of earlier memory.
    pub synchronous: Mutex<HashMap<Ptr, u64>>,
    /// The device's default pool, by number.
    pub default_pool: usize,
    /// Whether the default pool is the device's current one.
    pub pool_is_current: AtomicBool,
    /// The release threshold that the program has set.
    pub threshold: AtomicU64,
    /// High marks kept when the other one was reset: used, reserved.
    pub marks: [AtomicU64; 2],
}

/// An allocation, or memory of another process, as the program sees it.
pub struct Found {
    pub served: &'static Served,
    pub base: Ptr,
    pub bytes: u64,
    pub id: u64,
    /// The context that it was made in.
    pub context: Ctx,
    /// The pool that it is from, or 0.
    pub pool: MemPool,
    /// Whether other processes can be given a handle of it.
    pub shareable: bool,
}

static SERVED: [AtomicPtr<Served>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
/// Devices that gpumem cannot serve.
static REFUSED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
/// One beyond the highest device that has been served.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Held while a device starts or ends.
static CHANGING: [Mutex<()>; MOST] = [const { Mutex::new(()) }; MOST];

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a device from starting and ending until it is dropped. Rust's frames and the lock do not
/// survive a forced unwinding, so the thread is not cancelled meanwhile.
pub fn changing(device: c_int) -> (Option<MutexGuard<'static, ()>>, process::Uncancelled) {
    let uncancelled = process::Uncancelled::new();
    (usize::try_from(device).ok().and_then(|d| CHANGING.get(d)).map(lock), uncancelled)
}

/// Every device that is served now.
#[inline]
pub fn all() -> impl Iterator<Item = &'static Served> {
    // SAFETY: null, or a device that is never freed.
    SERVED.iter().take(COUNT.load(Acquire)).filter_map(|s| unsafe { s.load(Acquire).as_ref() })
}

/// The device that owns this memory.
#[inline]
pub fn owner(ptr: Ptr) -> Option<&'static Served> {
    all().find(|s| s.pool.made_pool(s.dev).is_some_and(|p| p.owns(ptr)))
}

/// The served device whose primary context this is.
#[inline]
pub fn of_primary(ctx: Ctx) -> Option<&'static Served> {
    all().find(|s| s.primary == ctx)
}

/// The device that a context is on, served from now on if it can be; and whether the context is the
/// primary one.
pub fn of_context(real: &Real, ctx: Ctx) -> Option<(&'static Served, bool)> {
    if ctx == 0 {
        return None;
    }
    if let Some(served) = of_primary(ctx) {
        return Some((served, true));
    }
    let device = real.device_of(ctx)?;
    let served = of_device(real, device)?;
    Some((served, served.primary == ctx))
}

/// The served device of this number, if it is served already.
pub fn existing(device: c_int) -> Option<&'static Served> {
    all().find(|s| i64::from(s.dev.0) == i64::from(device))
}

/// Whether gpumem has found that it cannot serve a device.
pub fn is_refused(device: c_int) -> bool {
    usize::try_from(device).ok().and_then(|d| REFUSED.get(d)).is_none_or(|refused| refused.load(Relaxed))
}

fn of_device(real: &Real, device: c_int) -> Option<&'static Served> {
    let at = usize::try_from(device).ok().filter(|d| *d < MOST)?;
    let (slot, refused) = (SERVED.get(at)?, REFUSED.get(at)?);
    if refused.load(Relaxed) {
        return None;
    }
    // SAFETY: null, or a device that is never freed.
    if let Some(served) = unsafe { slot.load(Acquire).as_ref() } {
        return Some(served);
    }
    let _one = changing(device);
    // SAFETY: as above.
    if let Some(served) = unsafe { slot.load(Acquire).as_ref() } {
        return Some(served);
    }
    let Some(config) = settings::config() else {
        refused.store(true, Relaxed);
        return None;
    };
    match start(real, device, config) {
        Ok(served) => {
            let served: &'static Served = Box::leak(Box::new(served));
            slot.store(std::ptr::from_ref(served).cast_mut(), Release);
            COUNT.fetch_max(at + 1, Release);
            observers::start_page(config, || page_of(all().map(|s| &s.pool)));
            Some(served)
        }
        // The next attempt may succeed, and the driver reports the same error.
        Err(e) if matches!(e.status, Status::OutOfMemory | Status::Capturing | Status::ShuttingDown) => None,
        Err(e) => {
            refused.store(true, Relaxed);
            if settings::get().log >= 1 {
                settings::say(&format!("device {device} is left to the driver: {e}"));
            }
            None
        }
    }
}

fn start(real: &Real, device: c_int, config: &Config) -> Result<Served, Error> {
    if !config.pool {
        return Err(Error::new(Status::Unsupported, "GPUMEM_POOL is off"));
    }
    let dev = DeviceId(u32::try_from(device).unwrap_or(u32::MAX));
    process::watch_forks();
    counters::watch_exit();
    let driver = cuda::open()?;
    let props = driver.device_props(dev)?;
    if !props.vmm {
        return Err(Error::new(Status::Unsupported, "it has no virtual memory management"));
    }
    let ledger = Arc::new(Ledger::new(driver.clone()));
    let made = make(real, device, dev, ledger.clone(), config);
    if made.is_err() {
        // Nothing stays, nor holds the primary context.
        let _ = ledger.tear_down(dev);
        if driver.holds(dev) {
            real.cuDevicePrimaryCtxRelease_v2(device);
        }
    }
    made
}

fn make(real: &Real, device: c_int, dev: DeviceId, ledger: Arc<Ledger>, config: &Config) -> Result<Served, Error> {
    let pool = Context::one_of_several(ledger.clone(), config.clone())?;
    // The pool retains the primary context.
    pool.pool(dev)?;
    let own = ledger.stream_create(dev)?;
    let (mut default_pool, mut current_pool, mut threshold) = (0, 0, 0u64);
    let Some(primary) = real.primary(device) else {
        return Err(Error::new(Status::ShuttingDown, "its primary context has ended"));
    };
    other!(real, cuDeviceGetDefaultMemPool(&mut default_pool, device));
    other!(real, cuDeviceGetMemPool(&mut current_pool, device));
    if default_pool != 0 {
        // The program may have set these before it allocated anything.
        real.cuMemPoolGetAttribute(default_pool, RELEASE_THRESHOLD, (&raw mut threshold).cast());
        for guest in (0..ledger.device_count()).map(DeviceId).filter(|guest| *guest != dev) {
            let (mut flags, mut there) = (0, Location { kind: DEVICE, id: guest.0 as c_int });
            let asked = other!(real, cuMemPoolGetAccess(&mut flags, default_pool, &mut there));
            if asked == SUCCESS && flags == READ_WRITE {
                ledger.let_in(guest)?;
            }
        }
    }
    Ok(Served {
        dev,
        ledger,
        pool,
        primary,
        own,
        searching: AtomicU64::new(0),
        quarantine: Quarantine::default(),
        created: Mutex::default(),
        created_live: AtomicU64::new(0),
        peers: Mutex::default(),
        synchronous: Mutex::default(),
        default_pool,
        pool_is_current: AtomicBool::new(current_pool == default_pool),
        threshold: AtomicU64::new(threshold),
        marks: [AtomicU64::new(0), AtomicU64::new(0)],
    })
}

/// The driver's code for a failure of gpumem's; `None` if the driver knows better and is asked.
pub fn code(e: &Error) -> Option<Code> {
    match e.status {
        Status::OutOfMemory => Some(OUT_OF_MEMORY),
        Status::Invalid | Status::UnknownPointer | Status::DoubleFree => Some(INVALID_VALUE),
        Status::InvalidStream => Some(400),
        Status::Capturing => Some(CAPTURING),
        _ => None,
    }
}

/// Memory of the driver starts at multiples of this, on which textures rely.
const ALIGN: u64 = 512;

/// What to ask gpumem for. Its objects of up to 4 KiB start at multiples of their size, rounded up
/// to 256 bytes. If that makes it an odd number of 256 bytes, it is rounded up to [`ALIGN`].
pub fn aligned(bytes: u64) -> u64 {
    match bytes <= 4096 && bytes.div_ceil(ALIGN / 2) % 2 == 1 {
        true => bytes.next_multiple_of(ALIGN),
        false => bytes,
    }
}

impl Served {
    pub fn primary(&self) -> Ctx {
        self.primary
    }

    /// Memory that may be used on any stream at once. `tag` is the context that it belongs to, 0
    /// for the primary one.
    pub fn take(&self, bytes: u64, tag: Ctx) -> Result<u64, Error> {
        let bytes = aligned(bytes);
        self.quarantine.poll(self, false);
        if tag == 0 {
            if let Some(ptr) = self.pool.malloc_hit_on(self.dev, bytes, self.own) {
                // A request that the stream still has to wait for may have brought this memory
                // here.
                if self.searching.load(SeqCst) > 0 {
                    self.ledger.stream_sync(self.dev, self.own)?;
                }
                return Ok(ptr.get());
            }
        }
        let request =
            Request { size: bytes, stream: self.own, device: Some(self.dev), tag: tag as u64, ..Request::default() };
        // Waiting memory may be free by now, and is better than new memory.
        self.quarantine.poll(self, true);
        let ptr = self.settled(&request)?;
        if tag != 0 {
            // A new map gets a seed from the system, which is a cancellation point.
            let _uncancelled = process::Uncancelled::new();
            let id = self.pool.info(ptr).map_or(0, |i| i.id);
            lock(&self.created).entry(tag).or_default().insert(ptr, id);
            self.created_live.fetch_add(1, Relaxed);
        }
        Ok(ptr)
    }

    /// Allocates, and waits until no earlier work uses the memory.
    fn settled(&self, request: &Request) -> Result<u64, Error> {
        self.searching.fetch_add(1, SeqCst);
        let made = self.search(request).and_then(|ptr| match self.ledger.stream_sync(self.dev, self.own) {
            Ok(()) => Ok(ptr),
            Err(e) => self.pool.free(ptr).and(Err(e)),
        });
        self.searching.fetch_sub(1, SeqCst);
        made
    }

    /// Allocates in the order of a stream of the primary context.
    pub fn take_ordered(&self, bytes: u64, stream: Stream) -> Result<u64, Error> {
        let (size, stream, device) = (aligned(bytes), StreamHandle(stream), Some(self.dev));
        self.quarantine.poll(self, true);
        self.search(&Request { size, stream, device, ..Request::default() })
    }

    /// Allocates; if memory is short, first gives back everything possible.
    fn search(&self, request: &Request) -> Result<u64, Error> {
        let _uncancelled = process::Uncancelled::new();
        self.pool.malloc_search_or(request, || {
            self.give_back();
            true
        })
    }

    /// Waits for the device, unless a capture forbids it, and frees what waits for it.
    pub fn settle(&self) {
        let _ = self.ledger.device_sync(self.dev);
        self.quarantine.poll(self, true);
    }

    /// Waits for the device, unless a capture forbids it, and gives all free memory back.
    pub fn give_back(&self) {
        self.settle();
        // If this fails, so does the attempt that follows.
        let _ = self.pool.trim(0);
    }

    /// The allocation that `ptr` is in, which is not waiting to be free.
    pub fn info_containing(&self, ptr: Ptr) -> Option<AllocInfo> {
        self.pool.info_containing(ptr).ok().filter(|i| !self.quarantine.has(i.base))
    }

    /// Frees memory that nothing uses any more, in the order of gpumem's own stream. A recording
    /// has its free already.
    pub fn put(&self, ptr: Ptr, id: u64) {
        if let Some(pool) = self.pool.made_pool(self.dev) {
            let _ = pool.free_id(ptr, id, Some(self.own));
        }
    }

    /// Forgets that memory belongs to a created context.
    pub fn disown(&self, info: &AllocInfo) {
        if info.tag != 0 {
            if let Some(all) = lock(&self.created).get_mut(&(info.tag as Ctx)) {
                if all.remove(&info.base).is_some() {
                    self.created_live.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// Whether there is memory of created contexts.
    #[inline]
    pub fn has_created(&self) -> bool {
        self.created_live.load(Relaxed) > 0
    }

    /// Takes back the memory of a context that ends; nothing uses it any more.
    pub fn end_context(&self, ctx: Ctx) {
        let all = lock(&self.created).remove(&ctx).unwrap_or_default();
        self.created_live.fetch_sub(all.len() as u64, Relaxed);
        for (ptr, id) in all {
            counters::freed(self.pool.info(ptr).map_or(0, |i| i.requested));
            self.pool.note_free(ptr, None);
            self.put(ptr, id);
        }
    }

    /// Takes back the memory of the primary context. What belongs to created contexts stays.
    pub fn end_primary(&self) {
        let idle = self.ledger.device_sync(self.dev).is_ok();
        let mut ending = Vec::new();
        self.pool.visit(&mut |alive, _| {
            if alive.info.tag == 0 && !self.quarantine.has(alive.info.base) {
                ending.push(alive.info);
            }
            true
        });
        for AllocInfo { base, id, requested, usable, .. } in ending {
            counters::gone(requested);
            self.pool.note_free(base, None);
            match idle {
                true => self.put(base, id),
                // A capture in another context forbids to wait.
                false => drop(self.quarantine.add(self, base, id, usable)),
            }
        }
        self.give_back();
    }

    /// The most that was mapped, bytes.
    pub fn peak_mapped(&self) -> u64 {
        let [_, reserved] = &self.marks;
        reserved.load(Relaxed).max(self.pool.made_pool(self.dev).map_or(0, |p| p.stats().peak_mapped))
    }

    /// Free memory, as far as it would be given back once the device is idle, bytes.
    pub fn reclaimable(&self) -> u64 {
        self.settle();
        self.pool.stats(self.dev).map_or(0, |s| s.mapped.saturating_sub(s.live))
    }
}

impl Home for Served {
    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn dev(&self) -> DeviceId {
        self.dev
    }

    fn give_back(&self, ptr: Ptr, id: u64) {
        self.put(ptr, id);
    }

    fn handed_out(&self) -> u64 {
        self.pool.made_pool(self.dev).map_or(0, |p| p.stats().live)
    }
}

/// Undoes everything on a device, whose primary context is about to end; `false` if it is not
/// served.
pub fn end(device: c_int) -> bool {
    let Some(served) = existing(device) else { return false };
    let slot = SERVED.get(served.dev.0 as usize);
    if slot.is_none_or(|slot| slot.swap(std::ptr::null_mut(), AcqRel).is_null()) {
        return false;
    }
    counters::ended(served.peak_mapped());
    served.pool.end_trimmer();
    served.settle();
    observers::ends(served.dev, &served.pool);
    // Counters and recordings show its memory as free.
    served.end_primary();
    if let Err(e) = served.ledger.tear_down(served.dev) {
        if settings::get().log >= 1 {
            settings::say(&format!("device {device}, which is reset, keeps memory: {e}"));
        }
    }
    true
}

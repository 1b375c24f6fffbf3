//! One process's gpumem: configuration, the driver in use, and one pool per device.
//!
//! There is at most one global context ([`global`]); tests make their own over any driver.

#![deny(unsafe_code, clippy::unwrap_used)]

mod accounts;
mod arenas;
pub mod backend;
mod capture;
mod captures;
pub mod config;
mod counters;
mod debug;
pub mod environment;
mod evict;
mod global;
mod host;
#[cfg(all(test, loom))]
mod models;
mod native;
mod pinned;
pub mod preload;
pub mod settings;
mod snapshot;
mod spaces;
mod streams;
pub mod tiers;
mod trimmer;
mod values;
mod watch;

use crate::arena::{Arena, Detector, DetectorOptions, Registry};
use crate::base::sync::{lock, Mutex, OnceLock};
use crate::base::{DeviceId, Error, Interest, Result, Status, StreamHandle};
use crate::driver::counted::Counted;
use crate::driver::Driver;
use crate::observe::page::Page;
use crate::observe::{Event, Kind, Recorder};
use crate::pool::{AllocFlags, AllocInfo, AllocRequest, Pool, PoolOptions, PoolStats, Scope};
use crate::tier::Reservation;
use captures::Captures;
pub use captures::TorchPoolId;
pub use config::Config;
use config::{CaptureDetection, Limit, Reuse, Slack, StreamCheck};
pub(crate) use counters::counters;
pub use evict::What;
use native::Native;
pub use snapshot::{join, page_of, write_wanted};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use tiers::Tiers;
use trimmer::Trimmer;
pub use watch::Past;

/// What to allocate. `Default` is: no bytes, default alignment, the stream's device, the legacy
/// stream, no flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Bytes; 0 gives a unique pointer that must be freed.
    pub size: u64,
    /// Alignment in bytes, a power of two; 0 means 256.
    pub align: u64,
    /// The device; `None` means the one the stream belongs to.
    pub device: Option<DeviceId>,
    /// The stream whose order the allocation follows.
    pub stream: StreamHandle,
    /// Flags for special needs.
    pub flags: AllocFlags,
    /// A number of the caller's choice, shown in dumps.
    pub tag: u64,
    /// The arena it belongs to; `None` means the calling thread's current one, if it has one.
    pub arena: Option<&'a Arc<Arena>>,
    /// The reservation to draw from, whatever is attached. It must be in the device's space. `None`
    /// means the one of the stream or of the thread, if there is one.
    pub reservation: Option<&'a Reservation>,
}

/// The library's state in one process (or one test).
pub struct Context {
    driver: Arc<Counted>,
    config: Config,
    /// By device, made by the first call that needs one.
    pools: Pools,
    /// Held while a pool is being made, so that none is made twice.
    making: Mutex<()>,
    /// Frees of memory that is not gpumem's, from before there is a pool to count them.
    unknown_early: AtomicU64,
    arenas: Registry,
    native: Native,
    captures: Arc<Captures>,
    /// Spaces, reservations and what moves data, from the first call that needs them.
    tiers: OnceLock<Tiers>,
    /// The background trim, once there is a pool to trim, if it is wanted.
    trimmer: OnceLock<Trimmer>,
    recorder: Arc<Recorder>,
    /// Takes an event for every allocation, if events are wanted.
    interest: Arc<Interest>,
    /// Held while events are turned on or off.
    watching: Mutex<()>,
    /// Whether a free may be a hit: a pool exists, and nothing is watched.
    quick_free: AtomicBool,
    /// Whether the work at the process's end, which is done once, has been done.
    left: AtomicBool,
    /// Publishes counters, if that is wanted.
    page: OnceLock<Page>,
    /// Whether it is one of several contexts of the process, which are published together.
    one_of_several: bool,
}

/// By device.
type Pools = Arc<[OnceLock<Pool>]>;

impl Context {
    /// Makes a separate context over any driver.
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Context> {
        let recorder = match config.record.is_some() {
            true => Recorder::of_process().clone(),
            false => Arc::default(),
        };
        Context::make(driver, config, recorder, false)
    }

    /// Like [`Self::new`], for one of several contexts of a process that serve a device each. They
    /// share a recorder. Whoever makes them ends it, publishes [`page_of`] all of them, and writes
    /// the snapshot of the process's end.
    pub fn one_of_several(driver: Arc<dyn Driver>, config: Config) -> Result<Context> {
        Context::make(driver, config, Recorder::of_process().clone(), true)
    }

    fn make(driver: Arc<dyn Driver>, config: Config, recorder: Arc<Recorder>, one_of_several: bool) -> Result<Context> {
        let devices = driver.device_count() as usize;
        if devices == 0 {
            return Err(Error::new(Status::NoDevice, "the driver has no device"));
        }
        let driver = Counted::new(driver);
        driver.observe(recorder.clone());
        let interest = Arc::<Interest>::default();
        let context = Context {
            driver: Arc::new(driver),
            arenas: Registry::new(detector(&config), interest.clone()),
            recorder,
            interest: interest.clone(),
            watching: Mutex::new(()),
            quick_free: AtomicBool::new(config.pool),
            page: OnceLock::new(),
            one_of_several,
            left: AtomicBool::new(false),
            pools: (0..devices).map(|_| OnceLock::new()).collect(),
            making: Mutex::new(()),
            unknown_early: AtomicU64::new(0),
            native: Native::new(config.limit),
            config,
            captures: Arc::default(),
            tiers: OnceLock::new(),
            trimmer: OnceLock::new(),
        };
        context.start_observing();
        Ok(context)
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The driver, for device, stream and copy helpers. Calls through it are counted.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// How often each driver call was made, by name, in a fixed order.
    pub fn driver_calls(&self) -> Vec<(&'static str, u64)> {
        self.driver.counts()
    }

    /// The pool of a device, made on first use.
    #[inline]
    pub fn pool(&self, dev: DeviceId) -> Result<&Pool> {
        match self.made_pool(dev) {
            Some(pool) => Ok(pool),
            None => self.make_pool(dev),
        }
    }

    /// The pool of a device, if there is one by now.
    #[inline]
    pub fn made_pool(&self, dev: DeviceId) -> Option<&Pool> {
        self.pools.get(dev.0 as usize).and_then(OnceLock::get)
    }

    #[cold]
    fn make_pool(&self, dev: DeviceId) -> Result<&Pool> {
        let cell = self.pools.get(dev.0 as usize).ok_or_else(|| {
            Error::invalid(format!("there is no device {dev}; devices are 0 to {}", self.pools.len() - 1))
        })?;
        let _making = lock(&self.making);
        if let Some(pool) = cell.get() {
            return Ok(pool);
        }
        let tiers = match self.config.tiers && self.config.pool {
            true => Some(self.tiers_making()?),
            false => self.tiers.get(),
        };
        let total = self.driver.device_props(dev)?.total_bytes;
        let free = self.driver.mem_info(dev)?.free;
        let options = PoolOptions {
            va_size: self.config.va_size,
            page_size: self.config.page_size,
            limit: match self.config.limit {
                Limit::Device => 0,
                limit => limit.of(total),
            },
            prealloc: self.config.prealloc.of(free),
            wait: self.config.reuse == Reuse::Wait,
            trim_threshold: self.config.trim_threshold,
            bought_permille: match self.config.slack {
                Slack::Percent(share) => 10 * share,
                Slack::Auto | Slack::Tight => 0,
            },
            earned_permille: match self.config.slack {
                Slack::Auto => PoolOptions::default().earned_permille,
                Slack::Tight | Slack::Percent(_) => 0,
            },
            finer: self.config.slack == Slack::Tight,
            watch: self.config.stream_check == StreamCheck::Auto,
            log_decisions: self.config.log >= 2,
            ..PoolOptions::default()
        };
        let driver = Arc::new(self.driver.of_device(dev));
        let pool =
            Pool::new(driver, dev, options).map_err(|e| e.context(format!("starting the pool of device {dev}")))?;
        if self.config.capture == CaptureDetection::Auto {
            self.detect_captures(&pool);
        }
        if let Some(tiers) = tiers {
            tiers.count(&pool)?;
        }
        pool.note_unknown(self.unknown_early.swap(0, Relaxed));
        let pool = cell.get_or_init(|| pool);
        self.start_trimmer();
        self.start_page();
        Ok(pool)
    }

    /// Starts the background trim if it is wanted and does not run; called under `making`.
    fn start_trimmer(&self) {
        if self.config.trim_interval.is_zero() || self.trimmer.get().is_some() {
            return;
        }
        match Trimmer::start(&self.pools, &self.config) {
            Ok(trimmer) => {
                let _ = self.trimmer.set(trimmer);
            }
            Err(e) => self.complain(format_args!("no background trim: {e}")),
        }
    }

    /// Ends the background trim for good.
    pub fn end_trimmer(&self) {
        if let Some(trimmer) = self.trimmer.get() {
            trimmer.end();
        }
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().filter_map(OnceLock::get)
    }

    /// Counts a free of memory that is not gpumem's, at the first device.
    fn note_unknown(&self) {
        match self.pools().next() {
            Some(pool) => pool.note_unknown(1),
            None => _ = self.unknown_early.fetch_add(1, Relaxed),
        }
    }

    /// An error where there are no pools. Its text begins with `needs`, which is followed by "the
    /// pool".
    fn want_pool(&self, needs: &str) -> Result<()> {
        match self.config.pool {
            true => Ok(()),
            false => Err(Error::new(Status::Unsupported, format!("{needs} the pool; GPUMEM_POOL is off"))),
        }
    }

    /// The pool whose addresses contain `ptr`.
    #[inline]
    fn owner(&self, ptr: u64, verb: &str) -> Result<&Pool> {
        self.pools()
            .find(|p| p.owns(ptr))
            .ok_or_else(|| Error::new(Status::UnknownPointer, format!("{verb}: {ptr:#x} is no memory of gpumem's")))
    }

    /// The device of a request, and whether the stream fits it.
    #[inline]
    fn device_of(&self, device: Option<DeviceId>, stream: StreamHandle) -> Result<DeviceId> {
        if self.pools.len() == 1 {
            return match device {
                None | Some(DeviceId(0)) => Ok(DeviceId(0)),
                Some(d) => Err(Error::invalid(format!("there is no device {d}; the only device is 0"))),
            };
        }
        match device {
            Some(d) if stream.is_default() => Ok(d),
            None => self.home_of(stream),
            Some(d) => {
                let of_stream = self.driver.stream_device(stream)?;
                if of_stream != d {
                    return Err(Error::invalid(format!(
                        "the stream {stream} belongs to device {of_stream}, the request names device {d}; use a stream of \
                         device {d}"
                    )));
                }
                Ok(d)
            }
        }
    }

    /// Resolves a stream in a call about the device of `pool`: it must be of that device.
    #[inline]
    fn stream_of(&self, pool: &Pool, stream: StreamHandle) -> Result<StreamHandle> {
        let stream = stream.canonical();
        if self.pools.len() > 1 {
            self.device_of(Some(pool.device()), stream)?;
        }
        Ok(stream)
    }

    /// Allocates on a stream with default options, if that needs neither a search nor a driver
    /// call. For callers that count nanoseconds; on a miss they call [`Self::malloc_search`].
    #[inline]
    pub fn malloc_hit(&self, size: u64, stream: StreamHandle) -> Option<NonZeroU64> {
        match self.interest.is_none() {
            true => self.malloc_hit_of(size, stream, None),
            false => self.malloc_hit_in_arena(size, stream),
        }
    }

    /// Like [`Self::malloc_hit`], on a given device. Its pool does not know a created stream of
    /// another device, so that is no hit.
    #[inline]
    pub fn malloc_hit_on(&self, device: DeviceId, size: u64, stream: StreamHandle) -> Option<NonZeroU64> {
        if !self.config.pool || !self.interest.is_none() {
            return self.malloc_hit_on_watched(device, size, stream);
        }
        self.made_pool(device)?.malloc_hit(size, stream.canonical())
    }

    #[inline(always)]
    fn malloc_hit_of(&self, size: u64, stream: StreamHandle, scope: Option<&Arc<Scope>>) -> Option<NonZeroU64> {
        let stream = stream.canonical();
        if !self.config.pool {
            return None;
        }
        match &*self.pools {
            [only] => hit_in(only.get()?, size, stream, scope),
            _ => self.malloc_hit_on_one_of(size, stream, scope),
        }
    }

    /// The hit where there are several devices. It has its own frame, so that hits with one device
    /// do not pay for it.
    #[inline(never)]
    fn malloc_hit_on_one_of(&self, size: u64, stream: StreamHandle, scope: Option<&Arc<Scope>>) -> Option<NonZeroU64> {
        // Default streams exist on every device; a created one is known to the pool of its own.
        match stream {
            StreamHandle::LEGACY | StreamHandle::PER_THREAD => None,
            _ => self.pools().find_map(|pool| hit_in(pool, size, stream, scope)),
        }
    }

    /// Frees in the order of `stream`, or of the stream the memory was allocated on, if that needs
    /// no more than giving it back to the heap it is from. Nothing has happened when it returns
    /// `false`; then [`Self::free`] and [`Self::free_async`] do it or say why not.
    #[inline]
    pub fn free_hit(&self, ptr: u64, stream: Option<StreamHandle>) -> bool {
        match self.quick_free.load(Relaxed) {
            true => self.free_hit_anyhow(ptr, stream.map(StreamHandle::canonical)),
            false => self.free_hit_watched(ptr, stream),
        }
    }

    /// Like [`Self::free_hit`], watched or not.
    #[inline(always)]
    fn free_hit_anyhow(&self, ptr: u64, stream: Option<StreamHandle>) -> bool {
        match &*self.pools {
            [only] => only.get().is_some_and(|p| p.free_hit(ptr, stream)),
            _ => self.free_hit_on_one_of(ptr, stream),
        }
    }

    /// Allocates; the memory is usable by work submitted to the request's stream from now on.
    #[inline]
    pub fn malloc(&self, req: &Request) -> Result<u64> {
        if req.align == 0 && req.flags == AllocFlags::default() && req.tag == 0 && req.arena.is_none() {
            let hit = match req.device {
                None => self.malloc_hit(req.size, req.stream),
                Some(device) => self.malloc_hit_on(device, req.size, req.stream),
            };
            if let Some(ptr) = hit {
                return Ok(ptr.get());
            }
        }
        self.malloc_search(req)
    }

    /// Like [`Self::malloc`], for a request that was no hit or may not be one.
    pub fn malloc_search(&self, req: &Request) -> Result<u64> {
        self.malloc_search_or(req, || false)
    }

    /// Like [`Self::malloc_search`]. Where memory is short it calls `make_room`, and searches again
    /// if that returns true. Recordings and snapshots see one request.
    pub fn malloc_search_or(&self, req: &Request, make_room: impl Fn() -> bool) -> Result<u64> {
        let search = || match self.search(req) {
            Err(e) if e.status == Status::OutOfMemory && make_room() => self.search(req),
            done => done,
        };
        let done = match self.is_watched() {
            false => search(),
            true => self.search_watched(req, search),
        };
        done.inspect_err(|e| self.failed(req, e))
    }

    fn search(&self, req: &Request) -> Result<u64> {
        if Context::is_evictable(req) {
            return self.malloc_evictable(req).inspect(|&ptr| self.handed_out(ptr));
        }
        match self.interest.is_none() && req.arena.is_none() {
            true => self.malloc_search_of(req, None),
            false => self.malloc_search_in_arena(req),
        }
    }

    fn malloc_search_of(&self, req: &Request, scope: Option<&Arc<Scope>>) -> Result<u64> {
        let stream = req.stream.canonical();
        let device = self.device_of(req.device, stream)?;
        if !self.config.pool {
            self.no_reservation(req)?;
            if req.flags != AllocFlags::default() {
                self.want_pool("memory with a single handle, exportable or guarded memory needs")?;
            }
            self.driver.adopt_thread(device);
            return self.native.malloc(&*self.driver, device, (req.size, req.align), stream, req.tag);
        }
        self.collect_graphs();
        let pool = self.pool(device)?;
        if let Some(tiers) = self.tiers.get() {
            return self.malloc_counted(tiers, pool, req, scope);
        }
        self.no_reservation(req)?;
        let Request { size, align, flags, tag, .. } = *req;
        pool.malloc_search(&AllocRequest { size, align, stream, flags, tag, scope, ..AllocRequest::default() })
    }

    /// Frees in the order of the stream it was allocated on. Null is allowed and does nothing.
    #[inline]
    pub fn free(&self, ptr: u64) -> Result<()> {
        match self.free_hit(ptr, None) {
            true => Ok(()),
            false => self.free_anyhow(ptr, None),
        }
    }

    /// Frees in the order of `stream`: all use of the memory has been submitted to `stream` or
    /// ordered before it.
    #[inline]
    pub fn free_async(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        match self.free_hit(ptr, Some(stream)) {
            true => Ok(()),
            false => self.free_anyhow(ptr, Some(stream)),
        }
    }

    /// Like [`Self::free_async`], or [`Self::free`] when `stream` is `None`, for a free that was no
    /// hit.
    pub fn free_anyhow(&self, ptr: u64, stream: Option<StreamHandle>) -> Result<()> {
        if ptr == 0 {
            return Ok(());
        }
        match self.is_watched() {
            false => self.free_slowly(ptr, stream),
            true => self.free_watched(ptr, stream),
        }
    }

    fn free_slowly(&self, ptr: u64, stream: Option<StreamHandle>) -> Result<()> {
        let freed = if !self.config.pool {
            self.native_order(stream).and_then(|s| self.native.free(&*self.driver, (ptr, None), s))
        } else {
            self.owner(ptr, "free").inspect_err(|_| self.note_unknown()).and_then(|pool| {
                let stream = stream.map(|s| self.stream_after(pool, s)).transpose()?;
                pool.free_anyhow(ptr, stream)
            })
        };
        match freed {
            // The process is ending and the driver is gone; so is the memory.
            Err(e) if e.status == Status::ShuttingDown => Ok(()),
            other => other,
        }
    }

    /// The stream of a free without a pool, and its device.
    fn native_order(&self, stream: Option<StreamHandle>) -> Result<Option<(DeviceId, StreamHandle)>> {
        stream.map(|s| Ok((self.home_of(s)?, s))).transpose()
    }

    /// Changes an allocation's size, in place where it can, else by copying in stream order. Null
    /// allocates.
    pub fn realloc(&self, ptr: u64, size: u64, stream: StreamHandle) -> Result<u64> {
        let done = match self.is_watched() {
            false => self.resize(ptr, size, stream),
            true => self.realloc_watched(ptr, size, stream),
        };
        // Null is a request as any other, which has told of its failure.
        done.inspect_err(|e| {
            if ptr != 0 {
                self.failed(&self.as_request(ptr, size, stream), e);
            }
        })
    }

    /// The request that a resize amounts to, on the device and with the tag of the allocation.
    pub(super) fn as_request(&self, ptr: u64, size: u64, stream: StreamHandle) -> Request<'static> {
        let (device, tag) = self.info(ptr).map_or((None, 0), |i| (Some(i.device), i.tag));
        Request { size, stream, device, tag, ..Request::default() }
    }

    fn resize(&self, ptr: u64, size: u64, stream: StreamHandle) -> Result<u64> {
        if ptr == 0 {
            return self.malloc(&Request { size, stream, ..Request::default() });
        }
        let stream = stream.canonical();
        let dev = self.home_of(stream)?;
        if !self.config.pool {
            return self.native.realloc(&*self.driver, ptr, size, (dev, stream));
        }
        match self.owner(ptr, "realloc")? {
            pool if pool.device() == dev => self.realloc_on(pool, ptr, size, stream),
            pool => self.realloc_on_other_device(pool, (ptr, size), (dev, stream)),
        }
    }

    /// Like [`Self::realloc`], on a stream of the pool's device.
    fn realloc_on(&self, pool: &Pool, ptr: u64, size: u64, stream: StreamHandle) -> Result<u64> {
        self.collect_graphs();
        let new = match self.tiers.get() {
            Some(tiers) => self.realloc_counted(tiers, pool, ptr, size, stream)?,
            None => self.or_from_quarantine(|| pool.realloc(ptr, size, stream))?,
        };
        self.handed_out(new);
        Ok(new)
    }

    /// Facts about the live allocation that starts at `ptr`.
    pub fn info(&self, ptr: u64) -> Result<AllocInfo> {
        if !self.config.pool {
            return match self.native.info_containing(ptr)? {
                i if i.base == ptr => Ok(i),
                i => Err(Error::new(
                    Status::UnknownPointer,
                    format!("{ptr:#x} is inside the allocation at {:#x}; pass its start", i.base),
                )),
            };
        }
        self.owner(ptr, "look-up")?.info(ptr)
    }

    /// Facts about the live allocation that contains `ptr`.
    pub fn info_containing(&self, ptr: u64) -> Result<AllocInfo> {
        if !self.config.pool {
            return self.native.info_containing(ptr);
        }
        self.owner(ptr, "look-up")?.info_containing(ptr)
    }

    /// Gives free physical memory of every started pool back to the driver until no more than
    /// `keep` bytes stay mapped per device. Memory the device may still be using stays.
    pub fn trim(&self, keep: u64) -> Result<()> {
        self.trim_all(self.pools(), Event { bytes: keep, ..Event::new(Kind::Trim, 0) })
    }

    /// Like [`Self::trim`], for one device.
    pub fn trim_device(&self, dev: DeviceId, keep: u64) -> Result<()> {
        let event = Event { bytes: keep, device: dev.0 as u8, ..Event::new(Kind::Trim, 0) };
        self.trim_all(self.made_pool(dev).into_iter(), event)
    }

    /// Trims some pools down to the bytes in the event.
    fn trim_all<'a>(&self, mut pools: impl Iterator<Item = &'a Pool>, event: Event) -> Result<()> {
        let keep = event.bytes;
        self.timed(
            |()| event,
            || {
                self.empty_quarantine();
                self.collect_graphs();
                pools.try_for_each(|p| p.trim(keep).map(drop))
            },
        )
    }

    /// Counters of one device's pool.
    pub fn stats(&self, dev: DeviceId) -> Result<PoolStats> {
        if !self.config.pool {
            return self.native.stats(&*self.driver, dev);
        }
        self.collect_graphs();
        self.pool(dev).map(Pool::stats)
    }

    /// Sets the peak counters back to the present values.
    pub fn reset_peaks(&self, dev: DeviceId) -> Result<()> {
        match self.config.pool {
            true => self.pool(dev).map(Pool::reset_peaks),
            false => self.native.reset_peak(&*self.driver, dev),
        }
    }

    /// Sets the most bytes the device's pool may map (0: no limit); below what is mapped now, free
    /// memory goes back. Without the pool: the most that may be live.
    pub fn set_limit(&self, dev: DeviceId, bytes: u64) -> Result<()> {
        if !self.config.pool {
            return self.native.set_limit(&*self.driver, dev, bytes);
        }
        let pool = self.pool(dev)?;
        if bytes > 0 && bytes < pool.stats().mapped {
            self.empty_quarantine();
        }
        pool.set_limit(bytes)
    }

    /// Every region of one device's pool in address order, in the notation of docs/spec/pool.md.
    pub fn dump(&self, dev: DeviceId) -> Result<String> {
        match self.config.pool {
            true => self.pool(dev).map(Pool::dump),
            false => Ok(self.native.dump(dev)),
        }
    }

    /// Checks every invariant of every pool, of the tiers, of arenas, and of what is kept of ended
    /// arenas.
    pub fn validate(&self) -> Result<()> {
        self.pools().try_for_each(Pool::validate)?;
        self.validate_accounts()?;
        self.validate_arenas()
    }

    /// A file descriptor for an `EXPORTABLE` allocation, to be imported by another process.
    pub fn export_fd(&self, ptr: u64) -> Result<OwnedFd> {
        self.has_exports()?;
        self.owner(ptr, "export")?.export_fd(ptr)
    }

    /// Maps exported memory of `size` bytes; freed like any allocation.
    pub fn import_fd(&self, dev: DeviceId, fd: &OwnedFd, size: u64) -> Result<u64> {
        self.has_exports()?;
        let pool = self.pool(dev)?;
        let ptr = self.or_from_quarantine(|| pool.import_fd(fd, size, StreamHandle::LEGACY))?;
        self.handed_out(ptr);
        self.saw_import(ptr, size, dev);
        Ok(ptr)
    }

    fn has_exports(&self) -> Result<()> {
        self.want_pool("memory is exported and imported by")
    }
}

/// A hit in a pool, with or without a scope.
#[inline(always)]
fn hit_in(pool: &Pool, size: u64, stream: StreamHandle, scope: Option<&Arc<Scope>>) -> Option<NonZeroU64> {
    match scope {
        None => pool.malloc_hit(size, stream),
        Some(scope) => pool.malloc_hit_in(size, stream, scope),
    }
}

/// The detector that a configuration asks for. Arenas need the pool, so without one there is
/// nothing to detect.
fn detector(config: &Config) -> Option<Arc<Detector>> {
    let (mode, log, quarantine) = (config.arena_debug, config.log, config.quarantine());
    let options = DetectorOptions { mode, quarantine, log, ..DetectorOptions::default() };
    (config.pool && mode.is_on()).then(|| Arc::new(Detector::new(options)))
}

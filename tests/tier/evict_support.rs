//! A context over a host device, with spaces to move to.
#![allow(dead_code)]

use gpumem::base::size::MIB;
use gpumem::base::{DeviceId, Result, StreamHandle};
use gpumem::context::config::{Config, DiskMount, Limit, PinnedBlocks, StreamCheck};
use gpumem::context::{Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{Driver, Fault};
use gpumem::pool::{AllocFlags, PoolStats};
use gpumem::tier::{OutOfMemoryPolicy, SpaceId, SpaceUsage, Thresholds, Tier};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use tempfile::TempDir;

pub const D: DeviceId = DeviceId(0);
/// What an evictable allocation is a multiple of, bytes.
pub const PAGE: u64 = 2 * MIB;
/// Bytes between checked words of a pattern, whose last word holds the last byte: fewer than any
/// copy moves at a time.
const STRIDE: u64 = 64;

pub struct Options {
    /// Pages of device memory.
    pub pages: u64,
    /// Pinned memory, bytes.
    pub pinned: u64,
    /// A directory to move to.
    pub disk: bool,
    pub mover: bool,
    pub thresholds: Thresholds,
    /// Work runs late, in an order of this seed, and every access is checked.
    pub late: Option<u64>,
    pub stream_check: StreamCheck,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            pages: 2048,
            pinned: 2048 * MIB,
            disk: false,
            mover: false,
            thresholds: Thresholds::default(),
            late: None,
            stream_check: StreamCheck::Auto,
        }
    }
}

/// A policy that makes no room, and how often it was asked.
pub fn asked_in_vain() -> (Arc<AtomicU64>, OutOfMemoryPolicy) {
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let callback = move |_: &_| {
        count.fetch_add(1, SeqCst);
        false
    };
    (asked, OutOfMemoryPolicy::Callback(Arc::new(callback)))
}

pub struct Rig {
    pub host: Arc<HostDriver>,
    pub fault: Arc<Fault>,
    pub ctx: Context,
    /// A page that is always there.
    pub scratch: u64,
    disk: Option<TempDir>,
}

impl Rig {
    pub fn new(options: Options) -> Rig {
        let bytes_per_device = options.pages * PAGE;
        let host = match options.late {
            Some(seed) => HostOptions { bytes_per_device, ..HostOptions::simulation(seed) },
            None => HostOptions { bytes_per_device, ..HostOptions::default() },
        };
        let host = HostDriver::new(host).unwrap();
        let fault = Arc::new(Fault::new(host.clone()));
        let disk = options.disk.then(|| TempDir::new().unwrap());
        let mount = |d: &TempDir| DiskMount { path: d.path().to_path_buf(), limit: Some(4096 * MIB) };
        let config = Config {
            pinned_blocks: PinnedBlocks { block_bytes: MIB, blocks: 8, chunks: 1 },
            pinned_limit: Limit::Bytes(options.pinned),
            disks: disk.iter().map(mount).collect(),
            mover: options.mover,
            thresholds: options.thresholds,
            stream_check: options.stream_check,
            ..Config::default()
        };
        let ctx = Context::new(fault.clone(), config).unwrap();
        let flags = AllocFlags::SINGLE_HANDLE;
        let scratch = ctx.malloc(&Request { size: PAGE, flags, ..Request::default() }).unwrap();
        Rig { host, fault, ctx, scratch, disk }
    }

    pub fn stream(&self) -> StreamHandle {
        self.host.stream_create(D).unwrap()
    }

    pub fn try_malloc(&self, size: u64, tag: u64, stream: StreamHandle) -> Result<u64> {
        let flags = AllocFlags::EVICTABLE;
        self.ctx.malloc(&Request { size, tag, stream, flags, ..Request::default() })
    }

    /// Evictable memory.
    pub fn malloc(&self, size: u64, tag: u64, stream: StreamHandle) -> u64 {
        self.try_malloc(size, tag, stream).unwrap()
    }

    /// A kernel on `stream` that writes the pattern of `id`.
    pub fn fill(&self, stream: StreamHandle, ptr: u64, size: u64, id: u64) {
        self.host.launch(D, stream, Kernel::write_pattern("fill", ptr..ptr + size, id, STRIDE)).unwrap();
    }

    /// A kernel on `stream` that reports where the pattern of `id` is broken.
    pub fn check(&self, stream: StreamHandle, ptr: u64, size: u64, id: u64) {
        self.host.launch(D, stream, Kernel::check_pattern("check", ptr..ptr + size, id, STRIDE)).unwrap();
    }

    /// Orders what comes on `to` after what is on `from` now.
    pub fn order(&self, from: StreamHandle, to: StreamHandle) {
        let e = self.host.event_create(D).unwrap();
        self.host.event_record(D, e, from).unwrap();
        self.host.stream_wait(D, to, e).unwrap();
        self.host.event_destroy(D, e).unwrap();
    }

    pub fn usage(&self, space: SpaceId) -> SpaceUsage {
        self.ctx.tiers().unwrap().manager().usage(space).unwrap()
    }

    pub fn host_used(&self) -> u64 {
        let tiers = self.ctx.tiers().unwrap();
        tiers.host().nodes().iter().map(|&n| self.usage(SpaceId::new(Tier::Host, n)).used).sum()
    }

    /// Slots in the mount's store.
    pub fn slots(&self) -> u64 {
        let mounts = self.ctx.tiers().unwrap().disks().mounts();
        mounts.iter().map(|m| m.store().map_or(0, |s| s.usage().slots)).sum()
    }

    pub fn stats(&self) -> PoolStats {
        self.ctx.stats(D).unwrap()
    }

    pub fn device_free(&self) -> u64 {
        self.host.mem_info(D).unwrap().free
    }

    /// Every invariant of every part holds, and nothing that the device did was wrong.
    pub fn books(&self) {
        self.ctx.validate().unwrap();
        let tiers = self.ctx.tiers().unwrap();
        tiers.manager().validate().unwrap();
        tiers.evictor().validate().unwrap();
        tiers.host().validate().unwrap();
        for m in tiers.disks().mounts() {
            m.store().unwrap().validate().unwrap();
        }
        assert!(self.host.reports().is_empty(), "{:#?}", self.host.reports());
    }

    /// With all evictable memory freed: nothing is used anywhere.
    pub fn close(&self) {
        self.host.device_sync(D).unwrap();
        self.ctx.free(self.scratch).unwrap();
        // What the mover has in hand just now goes when its move ends.
        let spaces = self.ctx.tiers().unwrap().manager().spaces();
        let start = std::time::Instant::now();
        while spaces.iter().any(|s| s.usage().now() > 0) && start.elapsed().as_secs() < 30 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.host.device_sync(D).unwrap();
        self.ctx.trim(0).unwrap();
        self.books();
        let s = self.stats();
        assert_eq!((s.allocations, s.live, s.mapped), (0, 0, 0));
        let m = self.host.mem_info(D).unwrap();
        assert_eq!(m.free, m.total, "device memory leaked");
        for space in self.ctx.tiers().unwrap().manager().spaces() {
            let u = self.usage(space.id());
            assert_eq!((u.used, u.promised, u.unreserved), (0, 0, 0), "{}", space.id());
        }
        assert_eq!(self.slots(), 0);
    }
}

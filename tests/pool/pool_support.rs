//! What the pool's tests share: a pool over a host device behind a driver that can fail, and its
//! bookkeeping checked against the layout that the pool prints.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::base::size::{human, GIB, MIB};
use gpumem::base::{DeviceId, StreamHandle};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{Driver, Fault};
use gpumem::pool::{AllocFlags, AllocRequest, Pool, PoolOptions};
use std::sync::Arc;

pub const D: DeviceId = DeviceId(0);
/// The host device's granularity, and the pool's page in these tests.
pub const PAGE: u64 = 2 * MIB;
/// Memory of most test devices, bytes.
pub const GIB_DEVICE: u64 = GIB;
/// Distance between the words of patterns, bytes.
pub const STRIDE: u64 = 256 << 10;

/// A pool on device 0 of a host device of its own.
pub struct Rig {
    pub host: Arc<HostDriver>,
    /// Between the pool and the device. The tests' own calls go to `host` and are neither counted
    /// nor failed.
    pub fault: Arc<Fault>,
    pub pool: Pool,
}

/// A device of `bytes` that runs work at once and checks every access.
pub fn checked(bytes: u64) -> HostOptions {
    HostOptions { bytes_per_device: bytes, check: true, ..HostOptions::default() }
}

/// A device of `bytes` on which work runs late, in an order that `seed` decides, with every access
/// checked.
pub fn late(seed: u64, bytes: u64) -> HostOptions {
    HostOptions { bytes_per_device: bytes, ..HostOptions::simulation(seed) }
}

/// Extents of a page each, no least slack, and streams that wait for each other's memory on the
/// device.
pub fn page_extents() -> PoolOptions {
    PoolOptions { wait: true, first_extent: PAGE, max_extent: PAGE, slack_floor: 0, ..PoolOptions::default() }
}

impl Rig {
    pub fn new(host: HostOptions, pool: PoolOptions) -> Rig {
        let host = HostDriver::new(host).unwrap();
        let fault = Arc::new(Fault::new(host.clone()));
        let pool = Pool::new(fault.clone(), D, pool).unwrap();
        Rig { host, fault, pool }
    }

    /// A pool with default options on a device of 1 GiB that runs work at once.
    pub fn small() -> Rig {
        Rig::new(checked(GIB), PoolOptions::default())
    }

    pub fn stream(&self) -> StreamHandle {
        self.host.stream_create(D).unwrap()
    }

    pub fn malloc(&self, size: u64, stream: StreamHandle) -> u64 {
        self.pool.malloc(&request(size, stream)).unwrap()
    }

    pub fn malloc_with(&self, size: u64, stream: StreamHandle, flags: AllocFlags) -> u64 {
        self.pool.malloc(&AllocRequest { flags, ..request(size, stream) }).unwrap()
    }

    pub fn free(&self, ptr: u64, stream: StreamHandle) {
        self.pool.free(ptr, Some(stream)).unwrap();
    }

    /// A kernel on `stream` that writes the pattern of `id`.
    pub fn fill(&self, stream: StreamHandle, ptr: u64, size: u64, id: u64) {
        self.host.launch(D, stream, Kernel::write_pattern("fill", ptr..ptr + size, id, STRIDE)).unwrap();
    }

    /// A kernel on `stream` that reports where the pattern of `id` is broken.
    pub fn check(&self, stream: StreamHandle, ptr: u64, size: u64, id: u64) {
        self.host.launch(D, stream, Kernel::check_pattern("check", ptr..ptr + size, id, STRIDE)).unwrap();
    }

    /// Orders what comes on `to` after what is on `from` now, as a careful user does.
    pub fn order(&self, from: StreamHandle, to: StreamHandle) {
        let e = self.host.event_create(D).unwrap();
        self.host.event_record(D, e, from).unwrap();
        self.host.stream_wait(D, to, e).unwrap();
        self.host.event_destroy(D, e).unwrap();
    }

    pub fn sync(&self) {
        self.host.device_sync(D).unwrap();
    }

    pub fn mapped(&self) -> u64 {
        self.pool.stats().mapped
    }

    /// Every invariant holds, and the counters agree with the layout.
    pub fn books(&self) -> Books {
        self.pool.validate().unwrap_or_else(|e| panic!("{e}\n{}", self.pool.dump()));
        let b = Books::of(&self.pool);
        let s = self.pool.stats();
        assert_eq!((s.free, s.waiting), (b.ready, b.waiting), "{}", self.pool.dump());
        assert_eq!(s.mallocs - s.frees, s.allocations);
        assert!(s.live <= s.peak_live && s.mapped <= s.peak_mapped && s.requested <= s.live);
        b
    }

    /// With every allocation freed: nothing is wrong with any access, and everything goes back to
    /// the device.
    pub fn close(&self) {
        self.sync();
        self.books();
        let s = self.pool.stats();
        assert_eq!((s.allocations, s.live, s.requested), (0, 0, 0), "{}", self.pool.dump());
        self.pool.trim(0).unwrap();
        self.books();
        let s = self.pool.stats();
        assert_eq!((s.mapped, s.extents, s.free, s.waiting, s.zombies), (0, 0, 0, 0, 0), "{}", self.pool.dump());
        assert_eq!(s.holes, s.reserved);
        self.nothing_on_the_device();
        assert!(self.host.reports().is_empty(), "{:#?}", self.host.reports());
    }

    /// No physical memory is in use on the device: no handle, no mapping.
    pub fn nothing_on_the_device(&self) {
        let m = self.host.mem_info(D).unwrap();
        assert_eq!(m.free, m.total, "{} of physical memory leaked", human(m.total - m.free));
    }
}

pub fn request(size: u64, stream: StreamHandle) -> AllocRequest<'static> {
    AllocRequest { size, stream, ..AllocRequest::default() }
}

/// The layout's pieces added up by kind, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    pub live: u64,
    pub slabs: u64,
    pub ready: u64,
    pub waiting: u64,
    /// Zombies and freed dedicated allocations.
    pub zombies: u64,
    /// Dedicated allocations with their guards.
    pub dedicated: u64,
}

impl Books {
    pub fn of(pool: &Pool) -> Books {
        let mut b = Books::default();
        for piece in pool.layout(1).split(['[', ']']).filter(|p| !p.is_empty() && *p != "...") {
            let at = piece.find(|c: char| c.is_ascii_digit()).unwrap();
            let size: u64 = piece[at..].parse().unwrap();
            match &piece[..at] {
                "" => b.live += size,
                ":" => b.slabs += size,
                "-" => b.ready += size,
                "~" => b.waiting += size,
                "!" => b.zombies += size,
                "=" => b.dedicated += size,
                "*" => {}
                other => panic!("{other:?} is no sign of the notation"),
            }
        }
        b
    }
}

//! The four cases of the VPMM walkthrough (docs/spec/pool.md), with extents of one page: what
//! stands where after each step, in the notation of the specification.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::base::{DeviceId, StreamHandle};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::{AllocRequest, Pool, PoolOptions};
use std::sync::Arc;

/// The walkthrough's "1 GB page".
const P: u64 = 2 << 20;

struct Walk {
    pool: Pool,
    stream: StreamHandle,
    ten: u64,
    one: u64,
}

/// A pool of 11 + `spare` pages after `+10 > +1`.
fn walk(spare: u64) -> Walk {
    let host = HostDriver::new(HostOptions { bytes_per_device: 64 * P, ..HostOptions::default() }).unwrap();
    let driver: Arc<dyn Driver> = host;
    let options = PoolOptions {
        va_size: 1 << 30,
        max_extent: P,
        first_extent: P,
        prealloc: (11 + spare) * P,
        slack_permille: 0,
        slack_floor: 0,
        ..PoolOptions::default()
    };
    let pool = Pool::new(driver, DeviceId(0), options).unwrap();
    let mut w = Walk { pool, stream: StreamHandle::LEGACY, ten: 0, one: 0 };
    w.ten = w.malloc(10);
    w.one = w.malloc(1);
    w
}

impl Walk {
    fn malloc(&self, pages: u64) -> u64 {
        let ptr =
            self.pool.malloc(&AllocRequest { size: pages * P, stream: self.stream, ..Default::default() }).unwrap();
        self.pool.validate().unwrap();
        ptr
    }

    fn free(&self, ptr: u64) {
        self.pool.free(ptr, Some(self.stream)).unwrap();
        self.pool.validate().unwrap();
    }

    /// The layout once old addresses are unmapped.
    fn settled(&self) -> String {
        self.pool.trim(u64::MAX).unwrap();
        self.pool.validate().unwrap();
        self.pool.layout(P)
    }
}

#[test]
fn case_a_enough_free_pages_behind() {
    let w = walk(11);
    assert_eq!(w.pool.layout(P), "[10][1][-11]");
    w.free(w.ten);
    w.malloc(4);
    assert_eq!(w.pool.layout(P), "[4][-6][1][-11]");
    w.malloc(11);
    assert_eq!(w.pool.layout(P), "[4][-6][1][11]");
    assert_eq!(w.pool.stats().moved, 0);
}

#[test]
fn case_b_the_first_free_region_moves_to_the_end() {
    let w = walk(7);
    w.free(w.ten);
    w.malloc(4);
    assert_eq!(w.pool.layout(P), "[-10][1][4][-3]");
    w.malloc(11);
    // Only what is missing moves: 8 of the 10 pages join the 3 behind the 4.
    assert_eq!(w.settled(), "[*8][-2][1][4][11]");
    let s = w.pool.stats();
    assert_eq!((s.moved, s.mapped / P), (8, 18), "nothing was created");
}

#[test]
fn case_c_moved_and_created_pages_make_up_the_request() {
    let w = walk(4);
    w.free(w.ten);
    w.malloc(4);
    assert_eq!(w.pool.layout(P), "[-10][1][4]");
    w.malloc(11);
    assert_eq!(w.settled(), "[*10][1][4][...][11]");
    let s = w.pool.stats();
    assert_eq!((s.moved, s.mapped / P), (10, 16), "10 pages moved, 1 created");
}

#[test]
fn case_d_the_four_fits_only_at_the_front() {
    let w = walk(2);
    w.free(w.ten);
    w.malloc(4);
    assert_eq!(w.pool.layout(P), "[4][-6][1][-2]");
    w.malloc(11);
    assert_eq!(w.settled(), "[4][*6][1][11]");
    let s = w.pool.stats();
    assert_eq!((s.moved, s.mapped / P), (6, 16), "6 pages moved, 3 created, the 2 at the end used where they are");
}

#[test]
fn zombies_stay_mapped_until_the_stream_has_passed_them() {
    let host = HostDriver::new(HostOptions { bytes_per_device: 64 * P, ..HostOptions::simulation(3) }).unwrap();
    let stream = StreamHandle::LEGACY;
    let driver: Arc<dyn Driver> = host.clone();
    let options = PoolOptions {
        va_size: 1 << 30,
        max_extent: P,
        first_extent: P,
        prealloc: 8 * P,
        slack_permille: 0,
        slack_floor: 0,
        ..PoolOptions::default()
    };
    let pool = Pool::new(driver, DeviceId(0), options).unwrap();
    let malloc = |pages: u64| pool.malloc(&AllocRequest { size: pages * P, stream, ..Default::default() }).unwrap();
    let (a, _b, c) = (malloc(4), malloc(1), malloc(3));
    host.hold(DeviceId(0), stream).unwrap();
    let kernel = gpumem::driver::host::Kernel::write_pattern("late", a..a + 4 * P, 7, 4096);
    host.launch(DeviceId(0), stream, kernel).unwrap();
    pool.free(a, Some(stream)).unwrap();
    pool.free(c, Some(stream)).unwrap();
    malloc(7);
    pool.validate().unwrap();
    assert_eq!(pool.layout(P), "[!1][!1][!1][!1][1][7]", "the held kernel still writes to the old addresses");
    host.release(DeviceId(0), stream).unwrap();
    host.stream_sync(DeviceId(0), stream).unwrap();
    pool.trim(u64::MAX).unwrap();
    assert_eq!(pool.layout(P), "[*4][1][7]");
    assert_eq!(host.take_reports(), vec![], "no access to unmapped memory, no race");
}

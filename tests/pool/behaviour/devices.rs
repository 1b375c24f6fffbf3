//! Several devices, and the driver's own allocator in the pool's place.

use crate::pool_support::{late, D};
use gpumem::base::size::{GIB, MIB};
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::config::{Backend, Limit, Prealloc};
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{Call, CaptureMode, Driver, Fault};
use gpumem::pool::{AllocFlags, AllocRequest, Pool, PoolOptions};
use std::sync::Arc;
use std::time::Duration;

const D1: DeviceId = DeviceId(1);

fn context(devices: u32, config: Config) -> (Arc<HostDriver>, Context) {
    let options = HostOptions { devices, bytes_per_device: GIB, check: true, ..HostOptions::default() };
    let host = HostDriver::new(options).unwrap();
    let ctx = Context::new(host.clone(), Config { backend: Backend::Host, ..config }).unwrap();
    (host, ctx)
}

fn request(size: u64, stream: StreamHandle) -> Request<'static> {
    Request { size, stream, ..Request::default() }
}

#[test]
fn every_mapping_is_accessible_to_peers() {
    let (host, ctx) = context(3, Config::default());
    let streams = [0, 1, 2].map(|d| host.stream_create(DeviceId(d)).unwrap());
    for (owner, &s) in streams.iter().enumerate() {
        let of = |flags| ctx.malloc(&Request { flags: AllocFlags(flags), ..request(3 * MIB, s) }).unwrap();
        let mut blocks = [of(0), of(1), of(2), ctx.malloc(&request(100, s)).unwrap()];
        blocks[0] = ctx.realloc(blocks[0], 9 * MIB, s).unwrap();
        // The copy, if it was one.
        host.device_sync(DeviceId(owner as u32)).unwrap();
        for p in blocks {
            let info = ctx.info(p).unwrap();
            assert_eq!(info.device, DeviceId(owner as u32));
            for (user, &t) in streams.iter().enumerate() {
                let k = Kernel::write_pattern("peer", p..p + info.requested, user as u64, 4096);
                host.launch(DeviceId(user as u32), t, k).unwrap();
                host.stream_sync(DeviceId(user as u32), t).unwrap();
            }
            ctx.free(p).unwrap();
        }
        host.device_sync(DeviceId(owner as u32)).unwrap();
        let reports = host.take_reports();
        assert!(reports.is_empty(), "{reports:#?}");
    }
    ctx.validate().unwrap();
    ctx.trim(0).unwrap();
    for d in [0, 1, 2].map(DeviceId) {
        assert_eq!(host.mem_info(d).unwrap().free, GIB);
    }
}

#[test]
fn the_wrong_device_is_an_error() {
    let (host, ctx) = context(2, Config::default());
    let (s0, s1) = (host.stream_create(D).unwrap(), host.stream_create(D1).unwrap());
    let bad = Request { device: Some(D1), ..request(100, s0) };
    let e = ctx.malloc(&bad).unwrap_err();
    assert!(e.status == Status::Invalid && e.message.contains("device 0") && e.message.contains("device 1"), "{e}");
    for d in [2, u32::MAX] {
        for s in [s0, StreamHandle::LEGACY] {
            let e = ctx.malloc(&Request { device: Some(DeviceId(d)), ..request(100, s) }).unwrap_err();
            assert_eq!(e.status, Status::Invalid, "{e}");
        }
        assert_eq!(ctx.stats(DeviceId(d)).unwrap_err().status, Status::Invalid);
    }
    let p = ctx.malloc(&request(MIB, s0)).unwrap();
    // A stream beside memory may be of another device, though: tests/context/streams_across.rs.
    ctx.record_stream(p, s1).unwrap();
    // Default streams are of every device: the request, or the thread's current device, decides.
    let q = ctx.malloc(&Request { device: Some(D1), ..request(MIB, StreamHandle::LEGACY) }).unwrap();
    assert_eq!(ctx.info(q).unwrap().device, D1);
    host.set_current_device(D1).unwrap();
    let r = ctx.malloc(&request(MIB, StreamHandle::LEGACY)).unwrap();
    assert_eq!(ctx.info(r).unwrap().device, D1);
    host.set_current_device(D).unwrap();
    ctx.free(p).unwrap();
    for p in [q, r] {
        ctx.free(p).unwrap();
        assert_eq!(ctx.free(p).unwrap_err().status, Status::DoubleFree);
    }
    ctx.validate().unwrap();
}

#[test]
fn without_peers_every_device_is_on_its_own() {
    let options = HostOptions { devices: 2, bytes_per_device: GIB, peers: false, ..HostOptions::default() };
    let host = HostDriver::new(options).unwrap();
    let ctx = Context::new(host.clone(), Config::default()).unwrap();
    for d in [D, D1] {
        let s = host.stream_create(d).unwrap();
        let p = ctx.malloc(&request(5 * MIB, s)).unwrap();
        host.launch(d, s, Kernel::write_pattern("own", p..p + 5 * MIB, 1, 4096)).unwrap();
        ctx.free(p).unwrap();
    }
    assert!(host.reports().is_empty());
    ctx.validate().unwrap();
}

#[test]
fn limits_and_preallocation_come_from_the_configuration() {
    let (_, ctx) =
        context(1, Config { limit: Limit::Bytes(64 * MIB), prealloc: Prealloc::Bytes(10 * MIB), ..Config::default() });
    assert_eq!(ctx.stats(D).unwrap().mapped, 10 * MIB);
    assert_eq!(ctx.malloc(&request(65 * MIB, StreamHandle::LEGACY)).unwrap_err().status, Status::OutOfMemory);
    let p = ctx.malloc(&request(64 * MIB, StreamHandle::LEGACY)).unwrap();
    assert_eq!(ctx.stats(D).unwrap().mapped, 64 * MIB);
    ctx.free(p).unwrap();
    let (_, ctx) = context(1, Config { prealloc: Prealloc::Bytes(2 * GIB), ..Config::default() });
    let e = ctx.stats(D).unwrap_err();
    assert!(e.status == Status::OutOfMemory && e.message.contains("GPUMEM_PREALLOC"), "{e}");
}

#[test]
fn without_the_pool_the_driver_serves_every_request() {
    let (host, ctx) = context(1, Config { pool: false, ..Config::default() });
    let s = host.stream_create(D).unwrap();
    let p = ctx.malloc(&request(3 * MIB, s)).unwrap();
    let z = ctx.malloc(&request(0, s)).unwrap();
    assert_ne!(p, z);
    host.launch(D, s, Kernel::write_pattern("fill", p..p + 3 * MIB, 5, 4096)).unwrap();
    let i = ctx.info(p).unwrap();
    assert_eq!((i.requested, ctx.info_containing(p + 100).unwrap()), (3 * MIB, i));
    assert_eq!(ctx.info(p + 100).unwrap_err().status, Status::UnknownPointer);
    let q = ctx.realloc(p, 4 * MIB, s).unwrap();
    host.launch(D, s, Kernel::check_pattern("check", q..q + 3 * MIB, 5, 4096)).unwrap();
    assert_eq!(ctx.stats(D).unwrap().live, 4 * MIB);
    let dump = ctx.dump(D).unwrap();
    let line = format!("{q:#014x} [4.00 MiB] {} asked for, stream {s}, id 3\n", 4 * MIB);
    assert!(dump.contains(&line) && dump.contains("4.00 MiB live in 2 allocations\n"), "{dump}");
    // What is inside of an allocation is none, and the refusal is no free.
    assert_eq!(ctx.realloc(q + 256, MIB, s).unwrap_err().status, Status::UnknownPointer);
    assert_eq!(ctx.realloc(q, 2 * GIB, s).unwrap_err().status, Status::OutOfMemory);
    let e = ctx.malloc(&request(u64::MAX, s)).unwrap_err();
    assert!(e.status == Status::OutOfMemory && e.message.contains("no limit is set. Free memory"), "{e}");
    assert_eq!((ctx.stats(D).unwrap().live, ctx.stats(D).unwrap().unknown_pointers), (4 * MIB, 0));
    ctx.reset_peaks(D).unwrap();
    ctx.free_async(q, s).unwrap();
    assert_eq!(ctx.stats(D).unwrap().peak_live, 4 * MIB);
    ctx.free(z).unwrap();
    assert!(ctx.free(q).is_err());
    host.device_sync(D).unwrap();
    let calls = ctx.driver_calls();
    let count = |name| calls.iter().find(|c| c.0 == name).unwrap().1;
    assert_eq!((count("native_alloc"), count("native_free"), count("phys_create")), (4, 3, 0));
    assert_eq!(host.mem_info(D).unwrap().free, GIB);
}

/// A free that names no stream waits for the work of the one the memory was allocated on, which
/// may be gone; a free by id counts if it comes too late.
#[test]
fn without_the_pool_a_free_outlives_its_stream() {
    for seed in 0..20 {
        let host = HostDriver::new(HostOptions::simulation(seed)).unwrap();
        let ctx = Context::new(host.clone(), Config { pool: false, ..Config::default() }).unwrap();
        let (s, t) = (host.stream_create(D).unwrap(), host.stream_create(D).unwrap());
        let p = ctx.malloc(&request(MIB, s)).unwrap();
        host.launch(D, s, Kernel::write_pattern("late", p..p + MIB, 1, 64)).unwrap();
        host.stream_destroy(D, s).unwrap();
        ctx.free(p).unwrap();
        let q = ctx.malloc(&request(MIB, t)).unwrap();
        host.launch(D, t, Kernel::write_pattern("fill", q..q + MIB, 2, 64)).unwrap();
        host.launch(D, t, Kernel::check_pattern("check", q..q + MIB, 2, 64)).unwrap();
        let id = ctx.info(q).unwrap().id;
        let freed = [id + 1, id, id].map(|id| ctx.free_id(q, id, Some(t)).unwrap());
        assert_eq!((freed, ctx.stats(D).unwrap().late_frees), ([false, true, false], 2));
        host.device_sync(D).unwrap();
        assert!(host.reports().is_empty(), "seed {seed}: {:#?}", host.reports());
    }
}

/// A free of what is not live, before anything was allocated, counts, and leaves the limit as it
/// is.
#[test]
fn without_the_pool_a_stray_free_keeps_the_limit() {
    let (_host, ctx) = context(2, Config { pool: false, limit: Limit::Bytes(8 * MIB), ..Config::default() });
    assert_eq!(ctx.free(0x1234_0000).unwrap_err().status, Status::UnknownPointer);
    assert_eq!(ctx.realloc(0x1234_0000, 5, StreamHandle::LEGACY).unwrap_err().status, Status::UnknownPointer);
    let e = ctx.malloc(&request(9 * MIB, StreamHandle::LEGACY)).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory);
    let unknown = |d| ctx.stats(DeviceId(d)).map(|s| (s.unknown_pointers, s.limit)).unwrap();
    assert_eq!([unknown(0), unknown(1)], [(1, 8 * MIB), (0, 8 * MIB)]);
}

/// So it does with pools, though there is none yet.
#[test]
fn a_stray_free_before_the_first_allocation_counts() {
    let (_host, ctx) = context(2, Config::default());
    assert_eq!(ctx.free(0x1234_0000).unwrap_err().status, Status::UnknownPointer);
    let unknown = |d| ctx.stats(DeviceId(d)).unwrap().unknown_pointers;
    assert_eq!([unknown(0), unknown(1)], [1, 0]);
    assert_eq!(ctx.free_id(0x1234_0000, 3, None).unwrap_err().status, Status::UnknownPointer);
    assert_eq!([unknown(0), unknown(1)], [2, 0]);
}

/// The driver's own allocator has no memory of these kinds: they are refused, not given as plain
/// memory.
#[test]
fn without_the_pool_there_are_no_exports_nor_guards() {
    let (_host, ctx) = context(1, Config { pool: false, ..Config::default() });
    for flags in [AllocFlags::SINGLE_HANDLE, AllocFlags::EXPORTABLE, AllocFlags::GUARD, AllocFlags::EVICTABLE] {
        let e = ctx.malloc(&Request { flags, ..request(MIB, StreamHandle::LEGACY) }).unwrap_err();
        assert_eq!(e.status, Status::Unsupported, "{flags:?}");
    }
    let p = ctx.malloc(&request(MIB, StreamHandle::LEGACY)).unwrap();
    assert_eq!(ctx.export_fd(p).unwrap_err().status, Status::Unsupported);
    let (_other, with) = context(1, Config::default());
    let exported =
        with.malloc(&Request { flags: AllocFlags::EXPORTABLE, ..request(MIB, StreamHandle::LEGACY) }).unwrap();
    let fd = with.export_fd(exported).unwrap();
    assert_eq!(ctx.import_fd(D, &fd, MIB).unwrap_err().status, Status::Unsupported);
    assert_eq!(ctx.stats(D).map(|s| s.allocations), Ok(1));
    ctx.free(p).unwrap();
    with.free(exported).unwrap();
}

#[test]
fn without_the_pool_each_device_has_its_counters_and_its_limit() {
    let (host, ctx) = context(2, Config { pool: false, limit: Limit::Bytes(8 * MIB), ..Config::default() });
    let s1 = host.stream_create(DeviceId(1)).unwrap();
    let on = |d: u32, size| Request { device: Some(DeviceId(d)), ..request(size, StreamHandle::LEGACY) };
    let counts = |d| {
        let s = ctx.stats(DeviceId(d)).unwrap();
        assert_eq!((s.live, s.mapped), (s.requested, s.requested));
        (s.live, s.peak_live, s.allocations, s.mallocs - s.frees, s.out_of_memory, s.limit)
    };
    let p = ctx.malloc(&on(0, 5 * MIB)).unwrap();
    let q = ctx.malloc(&request(3 * MIB, s1)).unwrap();
    assert_eq!(counts(0), (5 * MIB, 5 * MIB, 1, 1, 0, 8 * MIB));
    assert_eq!(counts(1), (3 * MIB, 3 * MIB, 1, 1, 0, 8 * MIB));
    // The limit of one is not the other's. Changing a size takes the old memory and the new.
    let refused = ctx.malloc(&on(0, 3 * MIB + 1)).unwrap_err();
    assert_eq!(refused.status, Status::OutOfMemory);
    assert!(refused.message.contains("5.00 MiB are live there, and the limit is 8.00 MiB"), "{refused}");
    assert_eq!(ctx.realloc(p, 4 * MIB, StreamHandle::LEGACY).unwrap_err().status, Status::OutOfMemory);
    let q = ctx.realloc(q, 5 * MIB, s1).unwrap();
    assert_eq!(counts(0), (5 * MIB, 5 * MIB, 1, 1, 2, 8 * MIB));
    assert_eq!(counts(1), (5 * MIB, 8 * MIB, 1, 1, 0, 8 * MIB));
    // Another limit, below what is live; none, up to what the device has.
    ctx.set_limit(DeviceId(0), MIB).unwrap();
    assert_eq!(ctx.malloc(&on(0, 0)).unwrap_err().status, Status::OutOfMemory);
    ctx.set_limit(DeviceId(0), 0).unwrap();
    assert_eq!(ctx.malloc(&on(0, GIB - 4 * MIB)).unwrap_err().status, Status::OutOfMemory);
    assert_eq!(counts(0), (5 * MIB, 5 * MIB, 1, 1, 4, 0));
    for d in 0..2 {
        ctx.reset_peaks(DeviceId(d)).unwrap();
        assert_eq!(counts(d).1, 5 * MIB);
    }
    assert_eq!(ctx.stats(DeviceId(2)).unwrap_err().status, Status::Invalid);
    [p, q].into_iter().for_each(|p| ctx.free(p).unwrap());
    assert_eq!((counts(0).0, counts(1).0), (0, 0));
    (0..2).for_each(|d| host.device_sync(DeviceId(d)).unwrap());
    assert!(host.reports().is_empty());
}

/// A wait for the device also waits for another one that is owed a wait, and then what was freed
/// is free for all.
#[test]
fn a_wait_for_the_device_pays_what_is_owed() {
    let host = HostDriver::new(HostOptions { devices: 2, ..late(3, GIB) }).unwrap();
    let pool = Pool::new(host.clone(), D, PoolOptions::default()).unwrap();
    let [s, t] = [(); 2].map(|()| host.stream_create(D).unwrap());
    let far = host.stream_create(D1).unwrap();
    let malloc = |stream| pool.malloc(&AllocRequest { size: 64 * MIB, stream, ..AllocRequest::default() }).unwrap();
    let p = malloc(s);
    host.launch(D1, far, Kernel::write_pattern("far", p..p + 64 * MIB, 1, MIB)).unwrap();
    pool.record_stream_on_other_device(p, D1, far).unwrap();
    // A stream that is being captured cannot be followed.
    host.capture_begin(D1, far, CaptureMode::Relaxed).unwrap();
    pool.free(p, Some(s)).unwrap();
    host.capture_end(D1, far).unwrap();
    pool.sync_device().unwrap();
    assert_eq!(malloc(t), p);
    host.launch(D, t, Kernel::write_pattern("near", p..p + 64 * MIB, 2, MIB)).unwrap();
    host.device_sync(D).unwrap();
    assert!(host.reports().is_empty(), "{:#?}", host.reports());
}

/// What a stream of another device may still write waits for that device, also while another thread
/// is waiting for it.
#[test]
fn a_wait_for_another_device_counts_once_it_has_ended() {
    let host = HostDriver::new(HostOptions { devices: 2, ..late(3, GIB) }).unwrap();
    let slow = Arc::new(Fault::new(host.clone()));
    let pool = Pool::new(slow.clone(), D, PoolOptions::default()).unwrap();
    let [s, t] = [(); 2].map(|()| host.stream_create(D).unwrap());
    let far = host.stream_create(D1).unwrap();
    let size = 64 * MIB;
    let malloc = |stream| pool.malloc(&AllocRequest { size, stream, ..AllocRequest::default() }).unwrap();
    let p = malloc(s);
    host.hold(D1, far).unwrap();
    host.launch(D1, far, Kernel::write_pattern("far", p..p + size, 1, MIB)).unwrap();
    pool.record_stream_on_other_device(p, D1, far).unwrap();
    // A stream that is being captured cannot be followed: a wait for its device is owed.
    host.capture_begin(D1, far, CaptureMode::Relaxed).unwrap();
    pool.free(p, Some(s)).unwrap();
    host.capture_end(D1, far).unwrap();
    // The host device does not wait for a stream that is held: it is let go meanwhile.
    slow.slow_down(Some((Call::DeviceSync, Duration::from_secs(1))));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.wait_for_device());
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..3 {
            let q = malloc(t);
            assert_ne!(q, p);
            host.launch(D, t, Kernel::write_pattern("near", q..q + size, 2, MIB)).unwrap();
        }
        host.release(D1, far).unwrap();
        let _ = waits.join().unwrap();
    });
    slow.slow_down(None);
    assert!(pool.wait_for_device().unwrap());
    assert_eq!(malloc(t), p, "it is free once the wait has ended");
    host.device_sync(D).unwrap();
    let reports = host.take_reports();
    assert!(reports.is_empty(), "{reports:#?}");
    pool.validate().unwrap();
}

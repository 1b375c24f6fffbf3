//! Epoch arenas, captures and streams recorded on allocations, together.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::arena_support;

use arena_support::{malloc, D};
use gpumem::arena::capture::CaptureOptions;
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::context::{Config, Context};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::Driver;
use gpumem::pool::GraphArenaOptions;
use std::sync::Arc;

fn rig(options: HostOptions) -> (Arc<HostDriver>, Context) {
    let host = HostDriver::new(HostOptions { bytes_per_device: 4 * GIB, ..options }).unwrap();
    (host.clone(), Context::new(host, Config::default()).unwrap())
}

/// What a capture allocates belongs to the thread's arena like anything else, laid out or not.
#[test]
fn allocations_of_captures_belong_to_arenas() {
    let (host, ctx) = rig(HostOptions::default());
    let s = host.stream_create(D).unwrap();
    let sizes = [3 * MIB, 100 * KIB, 500];
    let record = GraphArenaOptions { record: true, ..GraphArenaOptions::default() };
    let dry = ctx.capture_begin(s, CaptureOptions { arena: record, ..CaptureOptions::default() }).unwrap();
    let _ = sizes.map(|n| malloc(&ctx, n, s)).map(|p| ctx.free_async(p, s).unwrap());
    ctx.capture_end(&dry).unwrap();
    for layout in [None, Some(&dry)] {
        let capture = ctx.capture_begin(s, CaptureOptions { layout, ..CaptureOptions::default() }).unwrap();
        let arena = ctx.arena_enter("step").unwrap();
        let all = sizes.map(|n| malloc(&ctx, n, s));
        for p in all {
            assert_eq!(ctx.arena_of(p).unwrap().unwrap().id(), arena.id());
        }
        let report = ctx.arena_exit(&arena, &all[1..2]).unwrap();
        assert_eq!((report.freed, report.kept), (2, 1));
        ctx.free(all[1]).unwrap();
        ctx.capture_release(&capture).unwrap();
        ctx.validate().unwrap();
    }
    assert_eq!(ctx.stats(D).unwrap().allocations, 0);
}

/// A stream is recorded on an allocation while it is in a capture; the capture ends and its place
/// in the pool goes to another stream's. The allocation still waits for the stream that was named.
#[test]
fn a_recorded_stream_is_waited_for_after_its_capture() {
    for claimed in [true, false] {
        let (host, ctx) = rig(HostOptions::simulation(3));
        let [s, u, w] = [(); 3].map(|()| host.stream_create(D).unwrap());
        let p = malloc(&ctx, 8 * MIB, s);
        ctx.free_async(malloc(&ctx, MIB, u), u).unwrap();
        let first = claimed.then(|| ctx.capture_begin(u, CaptureOptions::default()).unwrap());
        ctx.record_stream(p, u).unwrap();
        if let Some(capture) = &first {
            ctx.capture_release(capture).unwrap();
        }
        let _second = ctx.capture_begin(w, CaptureOptions::default()).unwrap();
        ctx.trim(0).unwrap();
        host.device_sync(D).unwrap();
        ctx.trim(0).unwrap();
        host.hold(D, u).unwrap();
        host.launch(D, u, Kernel::new("late reader").reads(p..p + 8 * MIB)).unwrap();
        ctx.free_async(p, s).unwrap();
        for _ in 0..40 {
            ctx.free_async(malloc(&ctx, MIB, s), w).unwrap();
        }
        host.stream_sync(D, s).unwrap();
        host.stream_sync(D, w).unwrap();
        for _ in 0..10 {
            let q = malloc(&ctx, 8 * MIB, s);
            host.launch(D, s, Kernel::write_pattern("next owner", q..q + 8 * MIB, 2, 4096)).unwrap();
        }
        host.stream_sync(D, s).unwrap();
        host.release(D, u).unwrap();
        host.device_sync(D).unwrap();
        assert!(host.reports().is_empty(), "claimed {claimed}: {:?}", host.reports());
    }
}

/// The stream that got the place in the pool may be gone when the allocation is freed: nothing is
/// asked about it.
#[test]
fn a_stream_that_was_never_recorded_is_not_asked() {
    let (host, ctx) = rig(HostOptions::default());
    let [s, u, w] = [(); 3].map(|()| host.stream_create(D).unwrap());
    let p = malloc(&ctx, 8 * MIB, s);
    let first = ctx.capture_begin(u, CaptureOptions::default()).unwrap();
    ctx.record_stream(p, u).unwrap();
    ctx.capture_release(&first).unwrap();
    let second = ctx.capture_begin(w, CaptureOptions::default()).unwrap();
    ctx.capture_release(&second).unwrap();
    host.stream_destroy(D, w).unwrap();
    let asked = || ctx.driver_calls().iter().filter(|c| c.0 == "stream_id").map(|c| c.1).sum::<u64>();
    let before = asked();
    ctx.free(p).unwrap();
    assert_eq!(asked(), before);
    ctx.validate().unwrap();
}

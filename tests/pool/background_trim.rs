//! Free memory that has been unused for a whole interval goes back by itself, and nothing else
//! does.
//!
//! What one interval does is tested by calling it; the thread that calls it is tested by what it
//! brings about in the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pool_support;

use gpumem::base::size::{GIB, MIB};
use gpumem::base::Status;
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::{Call, Fault, FaultRule};
use gpumem::pool::PoolOptions;
use pool_support::{checked, late, Rig, D, PAGE};
use std::sync::Arc;
use std::time::{Duration, Instant};
use test_support::alone;

#[test]
fn what_no_interval_has_needed_goes() {
    let rig = Rig::small();
    let s = rig.stream();
    let a = rig.malloc(256 * MIB, s);
    assert_eq!(rig.pool.trim_unused(0).unwrap(), 0, "it is live");
    rig.free(a, s);
    assert_eq!(rig.pool.trim_unused(0).unwrap(), 0, "it was live during the interval");
    assert_eq!(rig.pool.trim_unused(0).unwrap(), 256 * MIB);
    assert_eq!(rig.mapped(), 0);
    rig.pool.validate().unwrap();
}

#[test]
fn a_busy_pool_keeps_what_it_uses_between_intervals() {
    // In pieces: an extent goes as a whole.
    let rig = Rig::new(checked(GIB), PoolOptions { first_extent: 32 * MIB, ..PoolOptions::default() });
    let s = rig.stream();
    let a = rig.malloc(256 * MIB, s);
    rig.free(a, s);
    rig.pool.trim_unused(0).unwrap();
    let mut grown = 0;
    for step in 0..6 {
        // Nothing is live when the interval ends.
        let b = rig.malloc(64 * MIB, s);
        let c = rig.malloc(4096, s);
        rig.free(b, s);
        rig.free(c, s);
        rig.pool.trim_unused(0).unwrap();
        let stats = rig.pool.stats();
        if step == 0 {
            grown = stats.growths;
        }
        assert_eq!(stats.growths, grown, "memory in use went and had to be made again");
        assert!((64 * MIB..256 * MIB).contains(&stats.mapped), "{} mapped", stats.mapped);
        rig.pool.validate().unwrap();
    }
}

#[test]
fn as_much_as_the_threshold_stays() {
    let rig = Rig::small();
    let s = rig.stream();
    let blocks: Vec<u64> = (0..8).map(|_| rig.malloc(16 * MIB, s)).collect();
    blocks.into_iter().for_each(|b| rig.free(b, s));
    for _ in 0..3 {
        rig.pool.trim_unused(48 * MIB).unwrap();
    }
    let left = rig.mapped();
    assert!((48 * MIB..48 * MIB + 16 * MIB).contains(&left), "{left} bytes stay");
    assert_eq!(rig.pool.trim_unused(48 * MIB).unwrap(), 0);
}

/// What another stream has taken was needed, although its own stream has not asked for any.
#[test]
fn what_moves_to_another_stream_is_not_unused() {
    let rig = Rig::new(checked(GIB), PoolOptions { limit: 512 * MIB, max_extent: 32 * MIB, ..PoolOptions::default() });
    let (here, there) = (rig.stream(), rig.stream());
    let blocks: Vec<u64> = (0..8).map(|_| rig.malloc(64 * MIB, there)).collect();
    blocks.iter().step_by(2).for_each(|&b| rig.free(b, there));
    rig.sync();
    rig.pool.trim_unused(u64::MAX).unwrap();
    let moved = rig.malloc(256 * MIB, here);
    blocks.iter().skip(1).step_by(2).for_each(|&b| rig.free(b, there));
    rig.sync();
    assert_eq!(rig.pool.trim_unused(0).unwrap(), 0);
    rig.free(moved, here);
    rig.close();
}

#[test]
fn memory_that_the_device_uses_stays() {
    for seed in 0..8 {
        let rig = Rig::new(late(seed, GIB), PoolOptions::default());
        let s = rig.stream();
        rig.host.hold(D, s).unwrap();
        let a = rig.malloc(64 * MIB, s);
        rig.fill(s, a, 64 * MIB, 1);
        rig.free(a, s);
        for _ in 0..3 {
            assert_eq!(rig.pool.trim_unused(0).unwrap(), 0, "seed {seed}: a kernel is still writing there");
        }
        rig.host.release(D, s).unwrap();
        rig.sync();
        assert_eq!(rig.pool.trim_unused(0).unwrap(), 64 * MIB, "seed {seed}");
        assert!(rig.host.reports().is_empty(), "seed {seed}: {:?}", rig.host.reports());
    }
}

#[test]
fn a_capture_that_is_known_survives() {
    let rig = Rig::new(checked(GIB), PoolOptions::default());
    let (s, captured) = (rig.stream(), rig.stream());
    let a = rig.malloc(64 * MIB, s);
    rig.free(a, s);
    rig.pool.trim_unused(0).unwrap();
    rig.host.begin_capture(captured).unwrap();
    let b = rig.malloc(PAGE, captured);
    rig.fault.start_recording();
    for _ in 0..3 {
        rig.pool.trim_unused(0).unwrap();
    }
    let calls = rig.fault.stop_recording();
    assert!(!calls.contains(&Call::ContextRecord), "{calls:?}");
    rig.free(b, captured);
    assert!(rig.host.end_capture(captured).unwrap(), "the capture was lost");
    // Known to be over once the stream is named again.
    let c = rig.malloc(PAGE, captured);
    rig.free(c, captured);
    for _ in 0..3 {
        rig.pool.trim_unused(0).unwrap();
    }
    assert_eq!(rig.mapped(), 0);
}

#[test]
fn an_interval_with_nothing_to_give_asks_the_driver_for_nothing() {
    let rig = Rig::small();
    let s = rig.stream();
    let a = rig.malloc(64 * MIB, s);
    rig.pool.trim_unused(0).unwrap();
    rig.fault.start_recording();
    rig.pool.trim_unused(0).unwrap();
    assert_eq!(rig.fault.stop_recording(), []);
    rig.free(a, s);
}

/// Waits until something holds that a thread brings about. The limit is only there to end a test
/// that fails.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Threads of the background trim in this process.
fn trimmers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
    names.filter(|n| n.trim_end() == "gpumem-trim").count()
}

fn context(interval: Duration) -> (Arc<Fault>, Context) {
    let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..HostOptions::default() }).unwrap();
    let fault = Arc::new(Fault::new(host));
    let context = Context::new(fault.clone(), Config { trim_interval: interval, ..Config::default() }).unwrap();
    (fault, context)
}

fn use_and_free(context: &Context) {
    let stream = context.driver().stream_create(D).unwrap();
    let a = context.malloc(&Request { size: 64 * MIB, stream, ..Request::default() }).unwrap();
    context.free_async(a, stream).unwrap();
}

/// One test, in a process of its own, as it counts the process's threads.
#[test]
fn a_thread_does_it_while_it_is_wanted() {
    alone!("a_thread_does_it_while_it_is_wanted");
    let (_, off) = context(Duration::ZERO);
    use_and_free(&off);
    assert_eq!(trimmers(), 0, "nobody asked for one");
    assert_eq!(off.stats(D).unwrap().mapped, 64 * MIB);

    let (fault, on) = context(Duration::from_millis(1));
    assert_eq!(trimmers(), 0, "there is no pool yet");
    // The first time it tries, the driver refuses.
    fault.set_rule(Some(FaultRule::nth_of(Call::Unmap, 0).with_status(Status::Driver)));
    use_and_free(&on);
    eventually("the thread has its name", || trimmers() == 1);
    eventually("memory goes back", || on.stats(D).unwrap().mapped == 0);
    assert_eq!(fault.fired(), 1);
    on.validate().unwrap();
    assert_eq!(off.stats(D).unwrap().mapped, 64 * MIB, "another context's memory is not its business");
    drop(on);
    eventually("the thread ends", || trimmers() == 0);
}

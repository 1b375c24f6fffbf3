//! The counting and the failing driver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::base::{size::MIB, DeviceId, Result, Status, StreamHandle};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::{Call, CaptureMode, Counted, Driver, Fault, FaultRule, PhysFlags};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const D: DeviceId = DeviceId(0);
const M2: u64 = 2 * MIB;

fn host() -> Arc<HostDriver> {
    HostDriver::new(HostOptions::default()).unwrap()
}

/// Makes every call of the trait once, and leaves nothing behind.
fn every_call(d: &dyn Driver) -> Result<()> {
    let s = d.stream_create(D)?;
    let exportable = PhysFlags { posix_fd: true, rdma: false };
    d.device_props(D)?;
    d.set_current_device(d.current_device()?)?;
    d.can_access(D, D)?;
    d.mem_info(D)?;
    let va = d.va_reserve(D, M2, M2)?;
    let h = d.phys_create(D, M2, exportable)?;
    let h2 = d.phys_import(D, &d.phys_export(h)?)?;
    d.map(D, va, M2, h)?;
    d.set_access(va, M2, &[D])?;
    d.stream_device(s)?;
    d.stream_id(D, s)?;
    d.stream_is_capturing(D, s)?;
    let e = d.event_create(D)?;
    d.set_async(D, va, 1, 64, s)?;
    d.copy_async(D, va + 64, va, 64, s)?;
    d.event_record(D, e, s)?;
    d.stream_wait(D, StreamHandle::LEGACY, e)?;
    d.context_record(D, e)?;
    d.event_sync(D, e)?;
    d.event_query(D, e)?;
    d.event_destroy(D, e)?;
    d.capture_begin(D, s, CaptureMode::Relaxed)?;
    if let Some(info) = d.capture_info(D, s)? {
        d.graph_retain(D, info.graph, 5)?;
    }
    let graph = d.capture_end(D, s)?;
    d.graph_launch(D, graph, s)?;
    d.graph_nodes(graph)?;
    d.graph_destroy(D, graph)?;
    assert_eq!(d.graphs_gone(), [5]);
    let p = d.host_alloc(D, 64)?;
    d.host_free(D, p)?;
    let p = d.host_alloc_on(D, 64, Some(0))?;
    d.host_free(D, p)?;
    let p = d.native_alloc(D, 64, s)?;
    d.native_free(D, p, s)?;
    d.stream_sync(D, s)?;
    d.device_sync(D)?;
    d.unmap(va, M2)?;
    d.phys_release(h)?;
    d.phys_release(h2)?;
    d.va_free(D, va, M2)?;
    d.stream_destroy(D, s)
}

#[test]
fn every_call_is_counted_under_its_own_name() {
    let d = Counted::new(host());
    every_call(&d).unwrap();
    let counts: HashMap<_, _> = d.counts().into_iter().collect();
    for call in Call::ALL {
        let want = if matches!(call, Call::PhysRelease | Call::HostFree) { 2 } else { 1 };
        assert_eq!(counts[call.name()], want, "{call}");
        assert_eq!(d.count(call), want);
    }
    assert!(d.event_query(D, gpumem::driver::EventHandle(99)).is_err());
    assert_eq!(d.count(Call::EventQuery), 2, "failed calls count");
    d.reset();
    assert!(d.counts().iter().all(|(_, n)| *n == 0));
}

#[test]
fn names_are_the_methods_names() {
    let names: BTreeSet<_> = Call::ALL.iter().map(|c| c.name()).collect();
    assert_eq!(names.len(), Call::COUNT);
    let source = include_str!("../../src/driver/mod.rs");
    let methods: BTreeSet<_> = source
        .lines()
        .filter_map(|l| l.strip_prefix("    fn ")?.split_once('(').map(|(name, _)| name))
        .filter(|m| {
            ![
                "backend",
                "version",
                "device_count",
                "stream_watch",
                "graphs_gone",
                "mistakes",
                "adopt_thread",
                "stream_blocks",
            ]
            .contains(m)
        })
        .collect();
    assert_eq!(names, methods);
}

#[test]
fn threads_lose_no_count() {
    let d = Counted::new(host());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10_000).map(|_| d.stream_id(D, StreamHandle::LEGACY).unwrap()).sum::<u64>());
        }
    });
    assert_eq!(d.count(Call::StreamId), 80_000);
}

#[test]
fn the_nth_call_fails_and_never_arrives() {
    let counted = Arc::new(Counted::new(host()));
    let d = Fault::new(counted.clone());
    d.start_recording();
    every_call(&d).unwrap();
    let calls = d.stop_recording();
    assert_eq!(calls.len(), Call::COUNT + 2);
    for (n, call) in calls.iter().enumerate() {
        let host = Arc::new(Counted::new(host()));
        let d = Fault::new(host.clone());
        d.set_rule(Some(FaultRule::nth(n as u64)));
        let e = every_call(&d).unwrap_err();
        assert_eq!(e.status, Status::Driver);
        assert!(e.message.contains(call.name()), "{e}");
        assert_eq!(d.fired(), 1);
        let arrived: u64 = host.counts().iter().map(|(_, n)| n).sum();
        assert_eq!(arrived, n as u64, "exactly the calls before the failing one arrive");
    }
    assert_eq!(d.fired(), 0);
    assert_eq!(d.stop_recording(), [], "recording has stopped");
}

#[test]
fn rules_choose_kind_status_and_duration() {
    let d = Fault::new(host());
    let create = || d.phys_create(D, M2, PhysFlags::default()).and_then(|h| d.phys_release(h)).map_err(|e| e.status);
    d.set_rule(Some(FaultRule::nth_of(Call::PhysCreate, 1).with_status(Status::OutOfMemory)));
    d.mem_info(D).unwrap();
    assert_eq!([create(), create(), create()], [Ok(()), Err(Status::OutOfMemory), Ok(())]);
    d.set_rule(Some(FaultRule::nth_of(Call::PhysCreate, 1).lasting()));
    assert_eq!([create(), create(), create()], [Ok(()), Err(Status::Driver), Err(Status::Driver)]);
    d.mem_info(D).unwrap();
    d.set_rule(None);
    assert_eq!(create(), Ok(()));
    assert_eq!(d.fired(), 3);
    d.set_rule(Some(FaultRule::nth(0)));
    assert!(d.mem_info(D).is_err());
    d.mem_info(D).unwrap();
}

#[test]
fn lies_about_order_are_told_only_while_they_are_asked_for() {
    let host = HostDriver::new(HostOptions::simulation(1)).unwrap();
    let d = Fault::new(host.clone());
    let s = d.stream_create(D).unwrap();
    host.hold(D, s).unwrap();
    let [a, b] = [d.event_create(D).unwrap(), d.event_create(D).unwrap()];
    let work = || host.launch(D, s, gpumem::driver::host::Kernel::new("work")).unwrap();
    work();
    d.event_record(D, a, s).unwrap();
    assert_eq!(d.event_query(D, a), Ok(false));
    d.pretend_done(true);
    assert_eq!((d.event_query(D, a), host.event_query(D, a)), (Ok(true), Ok(false)));
    d.pretend_done(false);
    assert_eq!(d.event_query(D, a), Ok(false));
    d.drop_records(true);
    d.event_record(D, b, s).unwrap();
    assert_eq!(d.event_query(D, b), Ok(true), "it was never recorded");
    d.context_record(D, b).unwrap();
    assert_eq!(d.event_query(D, b), Ok(true), "nor for the context");
    d.drop_records(false);
    d.context_record(D, b).unwrap();
    assert_eq!(d.event_query(D, b), Ok(false));
    host.release(D, s).unwrap();
    d.device_sync(D).unwrap();
    assert_eq!((d.event_query(D, a), d.event_query(D, b)), (Ok(true), Ok(true)));
}

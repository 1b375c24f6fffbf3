//! Graphs: what the host device checks when they run, and what each capture mode forbids.

use super::*;
use gpumem::driver::{CaptureMode, GraphHandle};

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

fn captured(d: &HostDriver, s: StreamHandle, work: impl FnOnce()) -> GraphHandle {
    d.capture_begin(D, s, CaptureMode::Global).unwrap();
    work();
    d.capture_end(D, s).unwrap()
}

fn launch(d: &HostDriver, g: GraphHandle, s: StreamHandle) {
    d.graph_launch(D, g, s).unwrap();
}

#[test]
fn kernels_run_at_each_launch_in_the_order_of_the_capture() {
    for d in [simulation(1), simulation(2), eager()] {
        let (s, t) = (stream(&d), stream(&d));
        let log = Arc::new(Mutex::new(Vec::new()));
        let g = captured(&d, s, || {
            for i in 0..5 {
                let log = log.clone();
                d.launch(D, s, Kernel::new("log").body(move |_| log.lock().unwrap().push(i))).unwrap();
            }
        });
        d.device_sync(D).unwrap();
        assert!(log.lock().unwrap().is_empty(), "captured kernels do not run");
        for on in [s, t, t, s] {
            launch(&d, g, on);
        }
        d.device_sync(D).unwrap();
        assert_eq!(*log.lock().unwrap(), [0, 1, 2, 3, 4].repeat(4));
        assert_eq!(d.take_reports(), []);
    }
}

#[test]
fn work_is_checked_when_it_is_launched_and_when_it_runs() {
    for d in [simulation(3), eager()] {
        let (va, h) = mapped(&d, M2);
        let s = stream(&d);
        d.mark_live(va..va + 4096, "block");
        let g = captured(&d, s, || {
            d.launch(D, s, writer("graph", va..va + 4096)).unwrap();
            d.set_async(D, va, 1, 100, s).unwrap();
        });
        launch(&d, g, s);
        d.device_sync(D).unwrap();
        assert_eq!(d.take_reports(), []);
        d.mark_dead(va);
        launch(&d, g, s);
        d.device_sync(D).unwrap();
        let reports = d.take_reports();
        assert_eq!(kinds(&reports), [ReportKind::NotLive, ReportKind::NotLive]);
        assert_eq!(
            (reports[0].labels.as_slice(), reports[1].labels.as_slice()),
            (&["graph".into()][..], &["fill".into()][..])
        );
        d.mark_live(va..va + 4096, "block");
        d.unmap(va, M2).unwrap();
        launch(&d, g, s);
        d.device_sync(D).unwrap();
        assert_eq!(kinds(&d.take_reports()), [ReportKind::Fault, ReportKind::Fault]);
        d.map(D, va, M2, h).unwrap();
        d.set_access(va, M2, &[D]).unwrap();
        launch(&d, g, s);
        d.device_sync(D).unwrap();
        assert_eq!(d.take_reports(), [], "the addresses count, not what was there at the capture");
    }
}

#[test]
fn a_launch_races_with_what_it_is_not_ordered_with() {
    let graph = |d: &HostDriver, va: u64, s| captured(d, s, || d.launch(D, s, writer("graph", va..va + 64)).unwrap());
    always(ReportKind::Race, |d, va, a, b| {
        let g = graph(d, va, a);
        launch(d, g, a);
        d.launch(D, b, reader("reader", va..va + 64)).unwrap();
    });
    always(ReportKind::Race, |d, va, a, b| {
        let (g, h) = (graph(d, va, a), graph(d, va, a));
        launch(d, g, a);
        launch(d, h, b);
    });
    never(|d, va, a, b| {
        let g = graph(d, va, a);
        launch(d, g, a);
        order(d, a, b);
        d.launch(D, b, reader("reader", va..va + 64)).unwrap();
    });
    never(|d, va, a, b| {
        let g = graph(d, va, a);
        // Launches of one graph are ordered by themselves.
        for s in [a, b, b, a] {
            launch(d, g, s);
        }
    });
    always(ReportKind::Race, |d, va, a, b| {
        let g = graph(d, va, a);
        launch(d, g, a);
        launch(d, g, b);
        // Which orders nothing that comes after the first of them.
        d.launch(D, a, reader("reader", va..va + 64)).unwrap();
    });
}

#[test]
fn tokens_wait_for_the_launches() {
    let d = simulation(4);
    let (va, _) = mapped(&d, M2);
    let (s, t) = (stream(&d), stream(&d));
    let g = captured(&d, s, || {
        let info = d.capture_info(D, s).unwrap().unwrap();
        d.graph_retain(D, info.graph, 11).unwrap();
        d.graph_retain(D, info.graph, 12).unwrap();
        for not in [info.graph + 1, info.id, 0] {
            assert_eq!(d.graph_retain(D, not, 13).unwrap_err().status, Status::Invalid, "no graph being captured");
        }
        assert_eq!(d.graph_retain(E, info.graph, 13).unwrap_err().status, Status::Invalid, "no such device");
        d.set_async(D, va, 1, 64, s).unwrap();
    });
    d.hold(D, s).unwrap();
    d.hold(D, t).unwrap();
    launch(&d, g, s);
    launch(&d, g, t);
    d.graph_destroy(D, g).unwrap();
    assert_eq!(d.graphs_gone(), [0_u64; 0]);
    d.release(D, s).unwrap();
    d.stream_sync(D, s).unwrap();
    assert_eq!(d.graphs_gone(), [0_u64; 0], "one launch is still to run");
    d.release(D, t).unwrap();
    d.stream_sync(D, t).unwrap();
    assert_eq!(d.graphs_gone(), [11, 12]);
    assert_eq!(d.graphs_gone(), [0_u64; 0], "each once");
    assert_eq!(d.take_reports(), []);
}

#[test]
fn what_a_kernel_owns_goes_with_its_graph() {
    let d = simulation(5);
    let s = stream(&d);
    let owned = Arc::new(());
    let kernel = || {
        let owned = owned.clone();
        Kernel::new("owner").body(move |_| assert_eq!(Arc::strong_count(&owned).min(1), 1))
    };
    let g = captured(&d, s, || d.launch(D, s, kernel()).unwrap());
    d.begin_capture(s).unwrap();
    d.launch(D, s, kernel()).unwrap();
    assert_eq!(Arc::strong_count(&owned), 3);
    assert!(d.stream_sync(D, s).is_err());
    d.launch(D, s, kernel()).unwrap();
    assert!(!d.end_capture(s).unwrap());
    assert_eq!(Arc::strong_count(&owned), 2, "a spoilt capture keeps nothing");
    launch(&d, g, s);
    d.graph_destroy(D, g).unwrap();
    d.stream_sync(D, s).unwrap();
    assert_eq!(Arc::strong_count(&owned), 1);
}

/// Whether a capture that this thread begins survives `call`, which succeeds if it does and is
/// `Capturing` if not.
fn survives(
    mode: CaptureMode,
    elsewhere: bool,
    call: fn(&HostDriver, StreamHandle) -> gpumem::base::Result<()>,
) -> bool {
    let d = simulation(6);
    let (s, other) = (stream(&d), stream(&d));
    d.capture_begin(D, s, mode).unwrap();
    let answer = match elsewhere {
        true => std::thread::scope(|scope| scope.spawn(|| call(&d, other)).join().unwrap()),
        false => call(&d, other),
    };
    let ended = d.capture_end(D, s).map(drop).map_err(|e| e.status);
    assert_eq!(answer.map_err(|e| e.status), ended, "{mode:?}");
    assert!(!d.stream_is_capturing(D, s).unwrap());
    ended.is_ok()
}

#[test]
fn a_mode_says_whose_calls_spoil_a_capture() {
    let ours = MODES.map(|mode| survives(mode, false, |d, other| d.stream_sync(D, other)));
    assert_eq!(ours, [false, false, true]);
    let theirs = MODES.map(|mode| survives(mode, true, |d, other| d.stream_sync(D, other)));
    assert_eq!(theirs, [false, true, true]);
    // These concern the captured stream too.
    for elsewhere in [false, true] {
        let sync = MODES.map(|mode| survives(mode, elsewhere, |d, _| d.device_sync(D)));
        assert_eq!(sync, [false; 3]);
        let mark = MODES.map(|mode| survives(mode, elsewhere, |d, _| d.context_record(D, d.event_create(D)?)));
        assert_eq!(mark, [false; 3]);
    }
}

#[test]
fn a_call_spoils_the_captures_that_forbid_it_and_no_others() {
    let d = HostDriver::new(HostOptions { devices: 2, ..HostOptions::simulation(7) }).unwrap();
    let streams = [stream(&d), stream(&d), stream(&d)];
    let other = stream(&d);
    let begin = || streams.iter().zip(MODES).for_each(|(s, mode)| d.capture_begin(D, *s, mode).unwrap());
    let end = || streams.map(|s| d.capture_end(D, s).is_ok());
    begin();
    assert_eq!(end(), [true; 3]);
    begin();
    std::thread::scope(|scope| scope.spawn(|| d.stream_sync(D, other).unwrap_err()).join().unwrap());
    assert_eq!(end(), [false, true, true]);
    begin();
    d.stream_sync(D, other).unwrap_err();
    assert_eq!(end(), [false, false, true]);
    begin();
    d.stream_sync(D, streams[2]).unwrap_err();
    assert_eq!(end(), [false; 3], "the last because it is the stream itself");
    begin();
    d.device_sync(E).unwrap_err();
    assert_eq!(end(), [false, false, true], "another device's");
    let e = recorded(&d, other);
    begin();
    d.stream_wait(D, streams[1], e).unwrap_err();
    assert_eq!(end(), [true, false, true], "its own mistake");
    assert_eq!(d.take_reports(), []);
}

#[test]
fn pageable_memory_cannot_be_captured() {
    let d = simulation(8);
    let (va, _) = mapped(&d, M2);
    let s = stream(&d);
    let mut host = [1u8; 64];
    for to_device in [true, false] {
        let (dst, src) = match to_device {
            true => (va, host.as_ptr() as u64),
            false => (host.as_mut_ptr() as u64, va),
        };
        d.begin_capture(s).unwrap();
        assert_eq!(d.copy_async(D, dst, src, 64, s).unwrap_err().status, Status::Capturing);
        assert!(!d.end_capture(s).unwrap());
    }
}

#[test]
fn a_graph_belongs_to_its_device() {
    let d = HostDriver::new(HostOptions { devices: 2, ..HostOptions::simulation(9) }).unwrap();
    let (s, t) = (stream(&d), d.stream_create(E).unwrap());
    let g = captured(&d, s, || {});
    assert_eq!(d.graph_launch(E, g, t).unwrap_err().status, Status::Invalid);
    assert_eq!(d.graph_launch(D, g, t).unwrap_err().status, Status::Invalid);
    assert_eq!(d.graph_destroy(E, g).unwrap_err().status, Status::Invalid);
    d.graph_destroy(D, g).unwrap();
}

#[test]
fn a_refused_launch_changes_nothing() {
    // At once, so that a race is found only where the clocks say so.
    let d = eager();
    let (va, _) = mapped(&d, M2);
    let (s, t, blocking) = (stream(&d), stream(&d), d.stream_create_blocking(D).unwrap());
    let [g, h] = [va, va + 4096].map(|at| captured(&d, s, || d.set_async(D, at, 7, 64, s).unwrap()));
    d.begin_capture(blocking).unwrap();
    for graph in [g, h] {
        launch(&d, graph, s);
        // The legacy stream would have to wait for the captured one.
        assert_eq!(d.graph_launch(D, graph, LEGACY).unwrap_err().status, Status::Capturing);
    }
    assert!(!d.end_capture(blocking).unwrap());
    launch(&d, h, t);
    assert_eq!(d.take_reports(), [], "launches are still ordered");
    d.launch(D, LEGACY, reader("reader", va..va + 64)).unwrap();
    assert_eq!(kinds(&d.take_reports()), [ReportKind::Race], "the launch that was refused has ordered nothing");
}

//! Captures and graphs.

use super::*;
use gpumem::driver::{CaptureMode, GraphHandle};
use std::time::{Duration, Instant};

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// What is submitted to `s` meanwhile, as a graph.
fn captured(d: &Dut, s: StreamHandle, mode: CaptureMode, work: impl FnOnce()) -> GraphHandle {
    d.capture_begin(D, s, mode).unwrap();
    work();
    d.capture_end(D, s).unwrap()
}

/// Ends whatever capture there is on `s`; afterwards the stream works.
fn over(d: &Dut, s: StreamHandle, b: &Block) {
    if let Ok(g) = d.capture_end(D, s) {
        d.graph_destroy(D, g).unwrap();
    }
    assert!(!d.stream_is_capturing(D, s).unwrap());
    assert_eq!(d.capture_info(D, s).unwrap(), None);
    d.set_async(D, b.va, 0x5C, 100, s).unwrap();
    assert_eq!(read(d, b.va, 100, s), [0x5C; 100]);
}

pub fn a_graph_does_its_work_at_each_launch(d: &Dut) {
    let b = block(d, 3);
    let (x, y, z) = (b.va, b.va + granule(d), b.va + 2 * granule(d));
    for mode in MODES {
        let (s, t) = (d.stream_create(D).unwrap(), d.stream_create(D).unwrap());
        for at in [x, y, z] {
            d.set_async(D, at, 0xEE, 5000, s).unwrap();
        }
        d.stream_sync(D, s).unwrap();
        let g = captured(d, s, mode, || {
            d.copy_async(D, y, x, 5000, s).unwrap();
            d.set_async(D, y + 10, 0x11, 100, s).unwrap();
            d.copy_async(D, z, y, 5000, s).unwrap();
            d.set_async(D, y, 0, 5000, s).unwrap();
        });
        assert_eq!(read(d, z, 5000, s), [0xEE; 5000], "captured work does not run");
        for (round, on) in [(1, s), (2, s), (3, t), (4, s)] {
            let mut want = bytes(round, 5000);
            write(d, x, &want, on);
            d.graph_launch(D, g, on).unwrap();
            want[10..110].fill(0x11);
            assert_eq!(read(d, z, 5000, on), want, "launch {round}");
            assert_eq!(read(d, y, 5000, on), [0; 5000], "launch {round}");
        }
        d.graph_destroy(D, g).unwrap();
        d.stream_destroy(D, s).unwrap();
        d.stream_destroy(D, t).unwrap();
    }
    b.drop(d);
}

pub fn a_graph_copies_pinned_memory_as_it_is_at_each_launch(d: &Dut) {
    let b = block(d, 1);
    let s = d.stream_create(D).unwrap();
    let pinned = d.host_alloc(D, 8192).unwrap();
    let (input, output) = (pinned as *mut u8, (pinned + 4096) as *const u8);
    let g = captured(d, s, CaptureMode::Global, || {
        d.copy_async(D, b.va, pinned, 4096, s).unwrap();
        d.copy_async(D, pinned + 4096, b.va, 4096, s).unwrap();
    });
    for round in 0..5u8 {
        // SAFETY: two halves of a live allocation, which the device does not use at this point.
        unsafe { input.write_bytes(round, 4096) };
        d.graph_launch(D, g, s).unwrap();
        d.stream_sync(D, s).unwrap();
        // SAFETY: as above.
        let got = unsafe { std::slice::from_raw_parts(output, 4096) };
        assert!(got.iter().all(|v| *v == round), "round {round}");
    }
    d.graph_destroy(D, g).unwrap();
    d.host_free(D, pinned).unwrap();
    d.stream_destroy(D, s).unwrap();
    b.drop(d);
}

pub fn launches_of_a_graph_follow_each_other_on_whatever_streams(d: &Dut) {
    let b = block(d, 2);
    let (x, y) = (b.va, b.va + granule(d));
    let streams: Vec<_> = (0..4).map(|_| d.stream_create(D).unwrap()).collect();
    // Each launch reads what the one before has written, so two at once would leave a mixture.
    let g = captured(d, streams[0], CaptureMode::Relaxed, || {
        d.copy_async(D, x + 1, y, 100_000, streams[0]).unwrap();
        d.copy_async(D, y, x, 100_001, streams[0]).unwrap();
    });
    d.set_async(D, x, 0, 200_000, LEGACY).unwrap();
    d.set_async(D, y, 0, 200_000, LEGACY).unwrap();
    d.set_async(D, x, 7, 1, LEGACY).unwrap();
    d.device_sync(D).unwrap();
    for i in 0..40 {
        d.graph_launch(D, g, streams[i % 4]).unwrap();
    }
    d.device_sync(D).unwrap();
    let got = read(d, y, 60, LEGACY);
    assert_eq!((&got[..40], &got[40..]), (&[7u8; 40][..], &[0u8; 20][..]), "each launch moves the front by one byte");
    d.graph_destroy(D, g).unwrap();
    for s in streams {
        d.stream_destroy(D, s).unwrap();
    }
    b.drop(d);
}

pub fn a_capture_is_seen_while_it_lasts(d: &Dut) {
    let b = block(d, 1);
    let (s, other) = (d.stream_create(D).unwrap(), d.stream_create(D).unwrap());
    let mut ids = HashSet::new();
    for on in [s, PER_THREAD] {
        for mode in MODES {
            assert_eq!(d.capture_info(D, on).unwrap(), None);
            let g = captured(d, on, mode, || {
                assert!(d.stream_is_capturing(D, on).unwrap());
                assert_eq!(d.stream_id(D, on).unwrap_err().status, Status::Capturing);
                let info = d.capture_info(D, on).unwrap().unwrap();
                assert!(info.id != 0 && info.graph != 0, "{info:?}");
                d.set_async(D, b.va, 1, 64, on).unwrap();
                assert_eq!(d.capture_info(D, on).unwrap(), Some(info), "the same throughout");
                assert!(ids.insert(info.id), "capture {} was another one's", info.id);
                assert_eq!(d.capture_info(D, other).unwrap(), None);
                assert_eq!(d.capture_info(D, LEGACY).unwrap(), None);
                assert!(!d.stream_is_capturing(D, other).unwrap());
            });
            assert_eq!(d.graph_nodes(g).unwrap().total, 1, "and it was still valid");
            d.graph_destroy(D, g).unwrap();
            assert!(!d.stream_is_capturing(D, on).unwrap());
        }
    }
    d.stream_destroy(D, s).unwrap();
    d.stream_destroy(D, other).unwrap();
    b.drop(d);
}

pub fn capture_rules(d: &Dut) {
    let b = block(d, 1);
    let s = d.stream_create(D).unwrap();
    let finished = captured(d, s, CaptureMode::Global, || d.set_async(D, b.va, 3, 64, s).unwrap());
    for mode in MODES {
        assert_eq!(d.capture_begin(D, LEGACY, mode).unwrap_err().status, Status::Invalid);
        assert_eq!(d.capture_begin(D, StreamHandle(1), mode).unwrap_err().status, Status::Invalid);
        assert_eq!(d.capture_end(D, s).unwrap_err().status, Status::Invalid, "not begun");
        assert_eq!(d.capture_end(D, LEGACY).unwrap_err().status, Status::Invalid, "not begun");
        let g = captured(d, s, mode, || {
            d.set_async(D, b.va, 1, 64, s).unwrap();
            assert_eq!(d.capture_begin(D, s, mode).unwrap_err().status, Status::Capturing, "begun already");
            assert_eq!(d.graph_launch(D, finished, s).unwrap_err().status, Status::Capturing);
            d.set_async(D, b.va, 2, 64, s).unwrap();
        });
        assert_eq!(d.graph_nodes(g).unwrap().total, 2, "none of the refusals harmed it");
        d.graph_destroy(D, g).unwrap();
    }
    for mode in MODES {
        d.capture_begin(D, s, mode).unwrap();
        let theirs = std::thread::scope(|scope| scope.spawn(|| d.capture_end(D, s)).join().unwrap());
        if mode == CaptureMode::Relaxed {
            d.graph_destroy(D, theirs.expect("any thread may end a relaxed capture")).unwrap();
        } else {
            assert_eq!(theirs.unwrap_err().status, Status::Capturing);
            assert!(!d.stream_is_capturing(D, s).unwrap(), "it is over, and its work lost");
            assert_eq!(d.capture_end(D, s).unwrap_err().status, Status::Invalid);
        }
        if mode != CaptureMode::Relaxed {
            over(d, s, &b);
        }
    }
    d.graph_destroy(D, finished).unwrap();
    d.stream_destroy(D, s).unwrap();
    b.drop(d);
}

pub fn a_spoilt_capture_gives_no_graph(d: &Dut) {
    let b = block(d, 1);
    let (s, other) = (d.stream_create(D).unwrap(), d.stream_create(D).unwrap());
    let e = recorded(d, other);
    for mode in MODES {
        d.capture_begin(D, s, mode).unwrap();
        d.set_async(D, b.va, 9, 64, s).unwrap();
        assert_eq!(d.stream_wait(D, s, e).unwrap_err().status, Status::Capturing);
        assert!(d.stream_is_capturing(D, s).unwrap(), "until it is ended");
        assert_eq!(d.capture_info(D, s).unwrap_err().status, Status::Capturing);
        assert_eq!(d.set_async(D, b.va, 9, 64, s).unwrap_err().status, Status::Capturing);
        assert_eq!(d.capture_end(D, s).unwrap_err().status, Status::Capturing);
        assert_eq!(d.capture_end(D, s).unwrap_err().status, Status::Invalid, "it is over");
        over(d, s, &b);
        // Waiting for a stream that is being captured is illegal in any mode.
        d.capture_begin(D, s, mode).unwrap();
        assert_eq!(d.stream_sync(D, s).unwrap_err().status, Status::Capturing);
        over(d, s, &b);
    }
    d.event_destroy(D, e).unwrap();
    d.stream_destroy(D, s).unwrap();
    d.stream_destroy(D, other).unwrap();
    b.drop(d);
}

pub fn a_relaxed_capture_minds_no_call_on_other_streams(d: &Dut) {
    let b = block(d, 1);
    let (s, other) = (d.stream_create(D).unwrap(), d.stream_create(D).unwrap());
    let g = captured(d, s, CaptureMode::Relaxed, || {
        d.set_async(D, b.va, 1, 64, s).unwrap();
        d.set_async(D, b.va + 64, 1, 64, other).unwrap();
        d.stream_sync(D, other).unwrap();
        let e = recorded(d, other);
        d.event_sync(D, e).unwrap();
        assert!(d.event_query(D, e).unwrap());
        d.event_destroy(D, e).unwrap();
        let p = d.host_alloc(D, 4096).unwrap();
        d.host_free(D, p).unwrap();
    });
    d.graph_destroy(D, g).unwrap();
    d.stream_destroy(D, s).unwrap();
    d.stream_destroy(D, other).unwrap();
    b.drop(d);
}

pub fn nodes_are_counted(d: &Dut) {
    let b = block(d, 1);
    let s = d.stream_create(D).unwrap();
    let empty = captured(d, s, CaptureMode::Global, || {});
    let nodes = d.graph_nodes(empty).unwrap();
    assert_eq!((nodes.total, nodes.memory), (0, 0));
    d.graph_launch(D, empty, s).unwrap();
    let mut memory = 0;
    let g = captured(d, s, CaptureMode::Global, || {
        d.set_async(D, b.va, 1, 64, s).unwrap();
        match d.native_alloc(D, 4096, s) {
            // The host device has no such nodes.
            Err(e) => assert_eq!((e.status, d.backend()), (Status::Capturing, "host")),
            Ok(p) => {
                d.native_free(D, p, s).unwrap();
                memory = 2;
            }
        }
        d.copy_async(D, b.va + 64, b.va, 64, s).unwrap();
    });
    let nodes = d.graph_nodes(g).unwrap();
    assert_eq!((nodes.total, nodes.memory), (2 + memory, memory));
    d.graph_launch(D, g, s).unwrap();
    assert_eq!(read(d, b.va + 64, 64, s), [1; 64]);
    for graph in [empty, g] {
        d.graph_destroy(D, graph).unwrap();
        assert_eq!(d.graph_destroy(D, graph).unwrap_err().status, Status::Invalid);
        assert_eq!(d.graph_launch(D, graph, s).unwrap_err().status, Status::Invalid);
        assert_eq!(d.graph_nodes(graph).unwrap_err().status, Status::Invalid);
    }
    assert_eq!(d.graph_nodes(GraphHandle(u64::MAX)).unwrap_err().status, Status::Invalid);
    d.stream_destroy(D, s).unwrap();
    b.drop(d);
}

pub fn a_destroyed_graph_finishes_its_launches(d: &Dut) {
    let b = block(d, 4);
    let s = d.stream_create(D).unwrap();
    for round in 0..10u8 {
        let g = captured(d, s, CaptureMode::ThreadLocal, || d.set_async(D, b.va, round, b.size, s).unwrap());
        d.graph_launch(D, g, s).unwrap();
        d.graph_destroy(D, g).unwrap();
        assert_eq!(read(d, b.va + b.size - 9, 9, s), [round; 9]);
    }
    d.stream_destroy(D, s).unwrap();
    b.drop(d);
}

/// Waits until the tokens are back, these and no others. The driver may take its time.
fn come_back(d: &Dut, tokens: &[u64]) {
    let start = Instant::now();
    let mut got = Vec::new();
    while got.len() < tokens.len() && start.elapsed() < Duration::from_secs(30) {
        got.extend(d.graphs_gone());
        std::thread::yield_now();
    }
    got.extend(d.graphs_gone());
    got.sort_unstable();
    assert_eq!(got, tokens);
}

pub fn tokens_come_back_when_their_graph_is_gone(d: &Dut) {
    let b = block(d, 2);
    let (s, other) = (d.stream_create(D).unwrap(), d.stream_create(D).unwrap());
    let retain = |token: u64| {
        let info = d.capture_info(D, s).unwrap().unwrap();
        d.graph_retain(D, info.graph, token)
    };
    d.capture_begin(D, s, CaptureMode::Global).unwrap();
    let supported = retain(1);
    d.set_async(D, b.va, 1, b.size, s).unwrap();
    let g = d.capture_end(D, s).unwrap();
    if let Err(e) = &supported {
        assert_eq!(e.status, Status::Unsupported, "{e}");
    } else {
        assert_eq!(d.graphs_gone(), [0_u64; 0], "the graph is there");
        d.graph_launch(D, g, s).unwrap();
        d.stream_sync(D, s).unwrap();
        assert_eq!(d.graphs_gone(), [0_u64; 0], "and can be launched again");
    }
    d.graph_destroy(D, g).unwrap();
    if supported.is_ok() {
        come_back(d, &[1]);
        // Several on one graph, and another graph in between.
        let g = captured(d, s, CaptureMode::Relaxed, || {
            retain(u64::MAX).unwrap();
            d.set_async(D, b.va, 1, b.size, s).unwrap();
            retain(2).unwrap();
        });
        let h = captured(d, s, CaptureMode::Relaxed, || retain(3).unwrap());
        d.graph_launch(D, g, s).unwrap();
        d.graph_destroy(D, h).unwrap();
        come_back(d, &[3]);
        d.graph_destroy(D, g).unwrap();
        d.stream_sync(D, s).unwrap();
        come_back(d, &[2, u64::MAX]);
        // A capture that comes to nothing.
        let e = recorded(d, other);
        d.capture_begin(D, s, CaptureMode::Global).unwrap();
        retain(4).unwrap();
        assert!(d.stream_wait(D, s, e).is_err());
        assert!(d.capture_end(D, s).is_err());
        come_back(d, &[4]);
        d.event_destroy(D, e).unwrap();
    }
    d.stream_destroy(D, s).unwrap();
    d.stream_destroy(D, other).unwrap();
    b.drop(d);
}

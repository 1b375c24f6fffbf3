//! Captures through the context, with graphs that are really launched: replays over arena memory
//! while the pool is busy, captures that begin by themselves, dry runs and their layouts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::arena::capture::{Capture, CaptureOptions};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::config::CaptureDetection;
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{Call, CaptureMode, Driver, Fault, FaultRule, GraphHandle};
use gpumem::pool::GraphArenaOptions;
use std::collections::VecDeque;
use std::sync::Arc;

const D: DeviceId = DeviceId(0);

struct Rig {
    host: Arc<HostDriver>,
    fault: Arc<Fault>,
    ctx: Context,
}

fn rig(host: HostOptions, capture: CaptureDetection) -> Rig {
    let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..host }).unwrap();
    let fault = Arc::new(Fault::new(host.clone()));
    let config = Config { capture, va_size: 512 * GIB, ..Config::default() };
    let ctx = Context::new(fault.clone(), config).unwrap();
    Rig { host, fault, ctx }
}

fn checked() -> HostOptions {
    HostOptions { check: true, ..HostOptions::default() }
}

impl Rig {
    fn stream(&self) -> StreamHandle {
        self.host.stream_create(D).unwrap()
    }

    fn malloc(&self, size: u64, stream: StreamHandle) -> u64 {
        self.ctx.malloc(&Request { size, stream, ..Request::default() }).unwrap()
    }

    fn free(&self, p: u64, s: StreamHandle) {
        self.ctx.free_async(p, s).unwrap();
    }

    fn begin(&self, s: StreamHandle) -> Capture {
        self.ctx.capture_begin(s, CaptureOptions::default()).unwrap()
    }

    fn capture(&self, s: StreamHandle, work: impl FnOnce()) -> GraphHandle {
        self.host.capture_begin(D, s, CaptureMode::Global).unwrap();
        work();
        self.host.capture_end(D, s).unwrap()
    }

    /// `to[i] = from[i] + add` at every 4096th byte.
    fn step(&self, s: StreamHandle, from: u64, to: u64, size: u64, add: u8) {
        let k = Kernel::new("step").reads(from..from + size).writes(to..to + size).body(move |k| {
            for at in (0..size).step_by(4096) {
                let mut byte = [0];
                k.load(from + at, &mut byte);
                k.store(to + at, &[byte[0].wrapping_add(add)]);
            }
        });
        self.host.launch(D, s, k).unwrap();
    }

    fn expect(&self, s: StreamHandle, p: u64, size: u64, want: u8) {
        let k = Kernel::new("expect").reads(p..p + size).body(move |k| {
            for at in (0..size).step_by(4096) {
                let mut byte = [0];
                k.load(p + at, &mut byte);
                if byte[0] != want {
                    return k.fail(format!("{:#x} holds {}, not {want}", p + at, byte[0]));
                }
            }
        });
        self.host.launch(D, s, k).unwrap();
    }

    /// A chain of steps through temporary memory of several sizes, as the body of a model: freed as
    /// it goes.
    fn model(&self, s: StreamHandle, input: u64, output: u64, size: u64) {
        let mut last = input;
        for i in 0..5u64 {
            let (small, next) = (self.malloc(1000 + i, s), self.malloc(size + i * 700 * KIB, s));
            self.step(s, last, next, size, 1);
            if last != input {
                self.free(last, s);
            }
            self.free(small, s);
            last = next;
        }
        self.step(s, last, output, size, 1);
        self.free(last, s);
    }

    /// What other users of the pool do: growth, a checkerboard that is stitched, everything given
    /// back.
    fn churn(&self, t: StreamHandle) {
        let blocks: Vec<u64> = (0..12).map(|i| self.malloc((1 + i % 3) * 3 * MIB, t)).collect();
        // A page of every 64 KiB: enough for each place of a model's that `expect` looks at to be
        // met.
        let spoil = |p: u64, size: u64| {
            let k = Kernel::new("spoil").writes(p..p + size).body(move |k| {
                (p..p + size).step_by(64 << 10).for_each(|at| k.store(at, &[0xee; 4096]));
            });
            self.host.launch(D, t, k).unwrap();
        };
        blocks.iter().for_each(|&p| spoil(p, 3 * MIB));
        blocks.iter().step_by(2).for_each(|&p| self.free(p, t));
        let large = self.malloc(30 * MIB, t);
        spoil(large, 30 * MIB);
        self.free(large, t);
        blocks.iter().skip(1).step_by(2).for_each(|&p| self.free(p, t));
        self.ctx.trim(0).unwrap();
    }

    fn clean(&self) {
        self.host.device_sync(D).unwrap();
        assert!(self.host.reports().is_empty(), "{:#?}", self.host.reports());
        self.ctx.validate().unwrap_or_else(|e| panic!("{e}\n{}", self.ctx.dump(D).unwrap()));
    }

    fn nothing_left(&self) {
        self.clean();
        self.ctx.trim(0).unwrap();
        let s = self.ctx.stats(D).unwrap();
        assert_eq!((s.mapped, s.allocations), (0, 0), "{}", self.ctx.dump(D).unwrap());
        self.clean();
    }
}

fn seeds() -> Vec<HostOptions> {
    (1..4).map(HostOptions::simulation).chain([checked()]).collect()
}

#[test]
fn replays_give_what_the_eager_run_gives_whatever_the_pool_does() {
    const SIZE: u64 = 3 * MIB + 4096;
    for host in seeds() {
        let r = rig(host, CaptureDetection::Off);
        let (s, t, u) = (r.stream(), r.stream(), r.stream());
        let (input, output) = (r.malloc(SIZE, s), r.malloc(SIZE, s));
        r.host.set_async(D, input, 7, SIZE, s).unwrap();
        r.model(s, input, output, SIZE);
        r.expect(s, output, SIZE, 13);
        r.clean();
        let c = r.begin(s);
        let graph = r.capture(s, || r.model(s, input, output, SIZE));
        r.ctx.capture_end(&c).unwrap();
        for round in 0..6u8 {
            let on = if round % 2 == 0 { s } else { u };
            r.host.set_async(D, input, round, SIZE, on).unwrap();
            r.host.graph_launch(D, graph, on).unwrap();
            r.churn(t);
            r.expect(on, output, SIZE, round + 6);
            r.churn(s);
            r.host.device_sync(D).unwrap();
        }
        r.clean();
        // The last replay goes on while its memory is given up and wanted.
        r.host.set_async(D, input, 100, SIZE, u).unwrap();
        r.host.graph_launch(D, graph, u).unwrap();
        assert!(r.ctx.capture_release(&c).unwrap());
        assert!(r.ctx.capture_release(&c).is_err());
        r.churn(t);
        r.churn(s);
        r.expect(u, output, SIZE, 106);
        r.clean();
        r.host.graph_destroy(D, graph).unwrap();
        [input, output].iter().for_each(|&p| r.free(p, s));
        r.nothing_left();
    }
}

/// Without an arena the same test fails, so the one above can.
#[test]
fn without_an_arena_the_replay_is_wrong() {
    let r = rig(checked(), CaptureDetection::Off);
    let (s, t) = (r.stream(), r.stream());
    let (input, output) = (r.malloc(3 * MIB, s), r.malloc(3 * MIB, s));
    let graph = r.capture(s, || r.model(s, input, output, 3 * MIB));
    r.free(r.malloc(100, s), s);
    r.churn(t);
    r.host.set_async(D, input, 1, 3 * MIB, s).unwrap();
    r.host.graph_launch(D, graph, s).unwrap();
    r.host.device_sync(D).unwrap();
    assert!(!r.host.reports().is_empty());
}

#[test]
fn graphs_take_turns_in_shared_memory() {
    let r = rig(checked(), CaptureDetection::Off);
    let (s, t) = (r.stream(), r.stream());
    let (input, output) = (r.malloc(3 * MIB, s), r.malloc(3 * MIB, s));
    let first = r.begin(s);
    let a = r.capture(s, || r.model(s, input, output, 3 * MIB));
    r.ctx.capture_end(&first).unwrap();
    let mapped = r.ctx.capture_stats(&first).unwrap().arena.mapped;
    let share = CaptureOptions { share: Some(&first), ..CaptureOptions::default() };
    let second = r.ctx.capture_begin(s, share).unwrap();
    let b = r.capture(s, || {
        r.model(s, input, output, 2 * MIB);
        r.step(s, output, output, 2 * MIB, 50);
    });
    r.ctx.capture_end(&second).unwrap();
    let stats = r.ctx.capture_stats(&second).unwrap();
    assert_eq!((stats.arena.mapped, stats.references), (mapped, 2), "the second needs nothing more");
    assert!(r.ctx.capture_release(&first).unwrap());
    for round in 0..6u8 {
        r.host.set_async(D, input, round, 3 * MIB, s).unwrap();
        r.host.graph_launch(D, a, s).unwrap();
        r.expect(s, output, 3 * MIB, round + 6);
        r.host.graph_launch(D, b, s).unwrap();
        r.expect(s, output, 2 * MIB, round + 56);
        r.churn(t);
    }
    assert!(r.ctx.capture_release(&second).unwrap());
    let refused = CaptureOptions { share: Some(&second), ..CaptureOptions::default() };
    assert_eq!(r.ctx.capture_begin(s, refused).err().unwrap().status, Status::Invalid);
    [a, b].iter().for_each(|&g| r.host.graph_destroy(D, g).unwrap());
    [input, output].iter().for_each(|&p| r.free(p, s));
    r.nothing_left();
}

#[test]
fn references_are_counted() {
    let r = rig(checked(), CaptureDetection::Off);
    let s = r.stream();
    let c = r.begin(s);
    let p = r.malloc(3 * MIB, s);
    c.retain().unwrap();
    c.retain().unwrap();
    assert_eq!(r.ctx.capture_stats(&c).unwrap().references, 3);
    assert!(!r.ctx.capture_release(&c).unwrap() && !r.ctx.capture_release(&c).unwrap());
    let q = r.malloc(3 * MIB, s);
    assert_eq!(r.ctx.capture_stats(&c).unwrap().arena.allocations, 2, "it goes on");
    assert!(r.ctx.capture_release(&c).unwrap(), "the last release ends it");
    assert!(c.retain().is_err() && r.ctx.capture_release(&c).is_err());
    [p, q].iter().for_each(|&p| r.free(p, s));
    let c = r.begin(s);
    let p = r.malloc(3 * MIB, s);
    c.retain().unwrap();
    r.ctx.capture_abort(&c).unwrap();
    assert!(r.ctx.free_async(p, s).is_err());
    assert!(c.retain().is_err());
    r.nothing_left();
}

#[test]
fn what_has_escaped_outlives_an_abort() {
    let r = rig(checked(), CaptureDetection::Off);
    let s = r.stream();
    for ends_before in [false, true] {
        let c = r.begin(s);
        let [freed, block, object] = [3 * MIB, 3 * MIB, 100].map(|bytes| r.malloc(bytes, s));
        let step = r.ctx.arena_enter("step").unwrap();
        let of_step = r.malloc(5 * MIB, s);
        r.ctx.arena_escape(of_step).unwrap();
        r.ctx.arena_exit(&step, &[]).unwrap();
        if ends_before {
            r.ctx.capture_end(&c).unwrap();
        }
        for p in [block + MIB, block, object] {
            r.ctx.arena_escape(p).unwrap();
        }
        r.ctx.capture_abort(&c).unwrap();
        assert!(r.ctx.free_async(freed, s).is_err());
        // Nobody else gets what is still held.
        let others = [3 * MIB, 3 * MIB, 100, 5 * MIB].map(|bytes| r.malloc(bytes, s));
        for p in [block, object, of_step] {
            assert!(r.ctx.info(p).is_ok() && !others.contains(&p));
            r.free(p, s);
        }
        others.iter().for_each(|&p| r.free(p, s));
        r.nothing_left();
    }
}

/// Forward and backward of a net: activations live long and die in reverse, gradients and
/// workspaces for a moment.
fn training(r: &Rig, s: StreamHandle, large: u64) -> Vec<u64> {
    let mut activations = Vec::new();
    for i in 0..24u64 {
        let workspace = r.malloc(large * 2 + i * 64 * KIB, s);
        activations.push(r.malloc(large + (i * 37 % 11) * 300 * KIB, s));
        r.free(workspace, s);
    }
    let mut gradient = r.malloc(large, s);
    for (i, a) in activations.into_iter().enumerate().rev() {
        let workspace = r.malloc(large + (i as u64 * 53 % 7) * 500 * KIB, s);
        let next = r.malloc(large + (i as u64 % 3) * 400 * KIB, s);
        r.free(gradient, s);
        r.free(a, s);
        r.free(workspace, s);
        gradient = next;
    }
    vec![gradient]
}

#[test]
fn a_planned_capture_needs_little_more_than_the_peak() {
    for eager in [true, false] {
        let r = rig(HostOptions { bytes_per_device: 0, ..checked() }, CaptureDetection::Off);
        let s = r.stream();
        let options = |monotone, record| CaptureOptions {
            arena: GraphArenaOptions { monotone, record, reserve: 0 },
            ..CaptureOptions::default()
        };
        let run = |options: CaptureOptions<'_>, eager: bool| {
            let c = r.ctx.capture_begin(s, options).unwrap();
            if eager {
                training(&r, s, 4 * MIB).into_iter().for_each(|p| r.free(p, s));
            } else {
                let g = r.capture(s, || training(&r, s, 4 * MIB).into_iter().for_each(|p| r.free(p, s)));
                r.host.graph_destroy(D, g).unwrap();
            }
            r.ctx.capture_end(&c).unwrap();
            let stats = r.ctx.capture_stats(&c).unwrap().arena;
            (c, stats)
        };
        let (recorded, _) = run(options(false, true), eager);
        let (planned, peak) = r.ctx.capture_plan(&recorded).unwrap();
        assert!(planned as f64 <= 1.05 * peak as f64, "{planned} for a peak of {peak}");
        let (laid_out, stats) = run(CaptureOptions { layout: Some(&recorded), ..options(false, false) }, false);
        assert_eq!((stats.deviations, stats.planned), (0, planned));
        assert!(stats.mapped as f64 <= 1.05 * stats.peak_live as f64, "{stats:?}");
        r.ctx.capture_release(&laid_out).unwrap();
        r.ctx.capture_release(&recorded).unwrap();
        r.free(r.malloc(100, s), s);
        r.ctx.trim(0).unwrap();
        let (monotone, stats) = run(options(true, false), false);
        assert!(stats.mapped >= stats.total && stats.total > 2 * peak, "{stats:?}");
        r.ctx.capture_release(&monotone).unwrap();
        r.nothing_left();
    }
}

#[test]
fn a_layout_needs_a_record_and_no_monotone_arena() {
    let r = rig(checked(), CaptureDetection::Off);
    let s = r.stream();
    let c = r.begin(s);
    r.ctx.capture_end(&c).unwrap();
    let layout = CaptureOptions { layout: Some(&c), ..CaptureOptions::default() };
    assert_eq!(r.ctx.capture_begin(s, layout).err().unwrap().status, Status::Invalid);
    assert_eq!(r.ctx.capture_plan(&c).unwrap_err().status, Status::Invalid);
    let record = GraphArenaOptions { record: true, ..GraphArenaOptions::default() };
    let recorded = r.ctx.capture_begin(s, CaptureOptions { arena: record, ..CaptureOptions::default() }).unwrap();
    r.ctx.capture_end(&recorded).unwrap();
    let monotone = GraphArenaOptions { monotone: true, ..GraphArenaOptions::default() };
    let both = CaptureOptions { arena: monotone, layout: Some(&recorded), ..CaptureOptions::default() };
    assert_eq!(r.ctx.capture_begin(s, both).err().unwrap().status, Status::Invalid);
    // Of nothing, which is fine.
    let empty = CaptureOptions { layout: Some(&recorded), ..CaptureOptions::default() };
    let laid_out = r.ctx.capture_begin(s, empty).unwrap();
    let p = r.malloc(3 * MIB, s);
    assert_eq!(r.ctx.capture_stats(&laid_out).unwrap().arena.deviations, 1);
    r.free(p, s);
    for c in [c, recorded, laid_out] {
        r.ctx.capture_release(&c).unwrap();
    }
    r.nothing_left();
}

#[test]
fn captures_begin_by_themselves_and_end_with_their_graphs() {
    const SIZE: u64 = 3 * MIB;
    for host in seeds() {
        let r = rig(host, CaptureDetection::Auto);
        let (s, t) = (r.stream(), r.stream());
        let (input, output) = (r.malloc(SIZE, s), r.malloc(SIZE, s));
        for generation in 0..3 {
            let graph = r.capture(s, || r.model(s, input, output, SIZE));
            // The stream's next allocations are ordinary.
            r.churn(s);
            r.clean();
            let kept = r.ctx.stats(D).unwrap().mapped;
            for round in 0..4u8 {
                r.host.set_async(D, input, round, SIZE, t).unwrap();
                r.host.graph_launch(D, graph, t).unwrap();
                r.expect(t, output, SIZE, round + 6);
                r.churn(t);
                r.churn(s);
                r.host.device_sync(D).unwrap();
            }
            r.clean();
            r.ctx.trim(0).unwrap();
            assert!(r.ctx.stats(D).unwrap().mapped > 2 * SIZE + 8 * MIB, "generation {generation}: {kept}");
            // With a replay in flight.
            r.host.graph_launch(D, graph, t).unwrap();
            r.host.graph_destroy(D, graph).unwrap();
            r.churn(s);
            r.expect(t, output, SIZE, 3 + 6);
            r.host.device_sync(D).unwrap();
            r.ctx.trim(0).unwrap();
            assert!(r.ctx.stats(D).unwrap().mapped <= 2 * SIZE + 4 * MIB, "{}", r.ctx.dump(D).unwrap());
            r.clean();
        }
        [input, output].iter().for_each(|&p| r.free(p, s));
        r.nothing_left();
    }
}

#[test]
fn the_memory_of_graphs_that_are_gone_serves_a_resize() {
    let r = rig(checked(), CaptureDetection::Auto);
    let s = r.stream();
    let p = r.malloc(256 * MIB, s);
    let graph = r.capture(s, || r.free(r.malloc(640 * MIB, s), s));
    r.host.graph_destroy(D, graph).unwrap();
    let q = r.ctx.realloc(p, 512 * MIB, s).unwrap();
    r.free(q, s);
    r.nothing_left();
}

/// The memory of a graph that is gone serves the next one, with no more in between than a wait.
#[test]
fn one_graph_after_another_has_the_memory_of_one() {
    for (detection, last_first) in
        [(CaptureDetection::Auto, true), (CaptureDetection::Auto, false), (CaptureDetection::Off, true)]
    {
        let r = rig(checked(), detection);
        let s = r.stream();
        for _ in 0..8 {
            let mut memory = None;
            let graph = r.capture(s, || {
                memory = (detection == CaptureDetection::Off).then(|| r.begin(s));
                r.free(r.malloc(40 * MIB, s), s);
            });
            r.host.graph_launch(D, graph, s).unwrap();
            if !last_first {
                r.ctx.stream_sync(s).unwrap();
            }
            r.host.graph_destroy(D, graph).unwrap();
            if let Some(c) = memory {
                r.ctx.capture_release(&c).unwrap();
            }
            if last_first {
                r.ctx.stream_sync(s).unwrap();
            }
        }
        let mapped = r.ctx.stats(D).unwrap().mapped;
        assert!(mapped <= 80 * MIB, "{detection:?}, waits last {last_first}: {mapped} bytes");
        r.free(r.malloc(100, s), s);
        r.nothing_left();
    }
}

/// Graphs are captured on streams that are used for nothing else, and launched on another one. Each
/// graph that goes leaves its memory to the next.
#[test]
fn graphs_that_take_turns_keep_the_footprint_flat() {
    for new_stream in [false, true] {
        let r = rig(checked(), CaptureDetection::Auto);
        let (e, side) = (r.stream(), r.stream());
        let (mut graphs, mut mapped) = (VecDeque::new(), Vec::new());
        for _ in 0..30 {
            let s = if new_stream { r.stream() } else { side };
            let mut output = 0;
            let graph = r.capture(s, || {
                output = r.malloc(4 * MIB, s);
                r.free(r.malloc(20 * MIB, s), s);
            });
            graphs.push_back((graph, output, s));
            for &(graph, ..) in &graphs {
                r.host.graph_launch(D, graph, e).unwrap();
            }
            r.free(r.malloc(8 * MIB, e), e);
            r.ctx.stream_sync(e).unwrap();
            if graphs.len() > 2 {
                let (graph, output, s) = graphs.pop_front().unwrap();
                r.free(output, e);
                r.host.graph_destroy(D, graph).unwrap();
                if new_stream {
                    r.host.stream_destroy(D, s).unwrap();
                }
            }
            mapped.push(r.ctx.stats(D).unwrap().mapped);
        }
        assert_eq!(mapped[10], mapped[29], "new streams {new_stream}: {mapped:?}");
        for (graph, output, _) in graphs {
            r.free(output, e);
            r.host.graph_destroy(D, graph).unwrap();
        }
        r.nothing_left();
    }
}

/// 40 of 64 MiB are free and wait for the context, because their stream is gone. A capture that a
/// call has begun is not lost for them; one that no call has ended may be, as it may be over.
#[test]
fn a_request_that_waits_for_the_context_and_a_capture() {
    for (begun, over) in [(Some(true), false), (Some(false), false), (None, true)] {
        let r = rig(checked(), CaptureDetection::Off);
        r.ctx.set_limit(D, 64 * MIB).unwrap();
        let (s, t, gone) = (r.stream(), r.stream(), r.stream());
        let c = (begun == Some(true)).then(|| r.begin(t));
        r.host.capture_begin(D, t, CaptureMode::Relaxed).unwrap();
        let c = c.or_else(|| begun.map(|_| r.begin(t)));
        r.free(r.malloc(MIB, t), t);
        if over {
            let graph = r.host.capture_end(D, t).unwrap();
            r.host.graph_destroy(D, graph).unwrap();
        }
        r.free(r.malloc(40 * MIB, gone), gone);
        r.host.stream_destroy(D, gone).unwrap();
        let made = r.ctx.malloc(&Request { size: 40 * MIB, stream: s, ..Request::default() });
        assert_eq!(made.is_ok(), over, "begun {begun:?}: {made:?}");
        made.iter().for_each(|&p| r.free(p, s));
        if !over {
            let graph = r.host.capture_end(D, t).expect("the capture was lost");
            r.host.graph_destroy(D, graph).unwrap();
        }
        if let Some(c) = c {
            r.ctx.capture_release(&c).unwrap();
        }
        r.free(r.malloc(100, t), t);
        r.nothing_left();
    }
}

/// A capture that may be over is not lost for a request that no wait can help, or that a wait for
/// markers recorded already is enough for.
#[test]
fn a_capture_is_lost_only_if_nothing_else_helps() {
    let r = rig(HostOptions::simulation(1), CaptureDetection::Off);
    r.ctx.set_limit(D, 8 * MIB).unwrap();
    let [s, t, u, w] = [(); 4].map(|()| r.stream());
    let p = r.malloc(6 * MIB, u);
    r.host.capture_begin(D, t, CaptureMode::Relaxed).unwrap();
    let live = r.malloc(MIB, t);
    let request = |size| r.ctx.malloc(&Request { size, stream: s, ..Request::default() });
    // More than the limit, and more than is free.
    for size in [8 * MIB + 1, 4 * MIB] {
        assert_eq!(request(size).unwrap_err().status, Status::OutOfMemory);
    }
    r.host.launch(D, w, Kernel::write_pattern("use", p..p + 6 * MIB, 1, 4096)).unwrap();
    r.ctx.record_stream(p, w).unwrap();
    r.free(p, u);
    let q = request(60).unwrap();
    let graph = r.host.capture_end(D, t).expect("the capture was lost");
    r.host.graph_destroy(D, graph).unwrap();
    [(q, s), (live, t)].into_iter().for_each(|(p, s)| r.free(p, s));
    r.ctx.device_sync().unwrap();
    r.nothing_left();
}

#[test]
fn a_capture_that_comes_to_nothing_leaves_nothing() {
    let r = rig(checked(), CaptureDetection::Auto);
    let (s, t) = (r.stream(), r.stream());
    for _ in 0..3 {
        r.host.capture_begin(D, s, CaptureMode::Global).unwrap();
        let p = r.malloc(3 * MIB, s);
        // What CUDA forbids: the capture is lost.
        r.host.stream_sync(D, t).unwrap_err();
        let q = r.malloc(3 * MIB, s);
        assert_eq!(r.host.capture_end(D, s).unwrap_err().status, Status::Capturing);
        [p, q].iter().for_each(|&p| r.free(p, s));
        r.free(r.malloc(100, s), s);
    }
    r.nothing_left();
}

/// Every driver call of a capture's life fails once: the step that failed works when it is tried
/// again.
#[test]
fn every_call_fails_once() {
    let mut positions = 0;
    for n in 0..400 {
        let r = rig(checked(), CaptureDetection::Off);
        let s = r.stream();
        let old = [3 * MIB, 500, 9 * MIB].map(|n| r.malloc(n, s));
        r.fault.start_recording();
        r.fault.set_rule(Some(FaultRule::nth(n)));
        let valid = || r.ctx.validate().unwrap_or_else(|e| panic!("call {n}: {e}\n{}", r.ctx.dump(D).unwrap()));
        fn twice<T>(valid: &dyn Fn(), mut f: impl FnMut() -> Result<T, gpumem::base::Error>) -> T {
            let first = f();
            valid();
            match first {
                Ok(x) => x,
                Err(_) => f().unwrap(),
            }
        }
        let record = GraphArenaOptions { record: true, ..GraphArenaOptions::default() };
        let options = CaptureOptions { arena: record, bytes: 4 * MIB, ..CaptureOptions::default() };
        let c = twice(&valid, || r.ctx.capture_begin(s, options));
        r.host.capture_begin(D, s, CaptureMode::Relaxed).unwrap();
        let malloc = |size| twice(&valid, || r.ctx.malloc(&Request { size, stream: s, ..Request::default() }));
        let blocks = [300, 200 * KIB, 3 * MIB, 7 * MIB, 40 * MIB].map(malloc);
        for &p in blocks.iter().take(3).chain(&old[..2]) {
            twice(&valid, || r.ctx.free_async(p, s));
        }
        let more = malloc(12 * MIB);
        let graph = r.host.capture_end(D, s).unwrap();
        r.ctx.capture_end(&c).unwrap();
        valid();
        let laid_out = CaptureOptions { layout: Some(&c), ..CaptureOptions::default() };
        let d = twice(&valid, || r.ctx.capture_begin(s, laid_out));
        let p = malloc(200 * KIB);
        twice(&valid, || r.ctx.capture_release(&c));
        twice(&valid, || r.ctx.capture_abort(&d));
        assert!(r.ctx.free_async(p, s).is_err());
        for &p in blocks.iter().skip(3).chain([&more, &old[2]]) {
            twice(&valid, || r.ctx.free_async(p, s));
        }
        twice(&valid, || {
            r.ctx
                .malloc(&Request { size: 60 * MIB, stream: s, ..Request::default() })
                .and_then(|p| r.ctx.free_async(p, s))
        });
        let fired = r.fault.fired() > 0;
        r.fault.set_rule(None);
        r.host.graph_destroy(D, graph).unwrap();
        r.nothing_left();
        if !fired {
            positions = n;
            break;
        }
    }
    assert!(positions > 40, "{positions} positions");
    println!("{positions} positions");
}

/// Where the graph cannot tell of its end, nothing is kept for it; where the driver fails, the
/// allocation does, once.
#[test]
fn a_capture_that_no_graph_holds_does_not_begin_by_itself() {
    for status in [Status::Unsupported, Status::Driver] {
        for call in [Call::GraphRetain, Call::CaptureInfo] {
            let r = rig(checked(), CaptureDetection::Auto);
            let s = r.stream();
            r.host.capture_begin(D, s, CaptureMode::Relaxed).unwrap();
            r.fault.set_rule(Some(FaultRule::nth_of(call, 0).with_status(status)));
            let request = Request { size: 3 * MIB, stream: s, ..Request::default() };
            let first = r.ctx.malloc(&request);
            assert_eq!(r.fault.fired(), 1);
            assert_eq!(first.is_ok(), status == Status::Unsupported, "{first:?}");
            r.ctx.validate().unwrap();
            r.fault.set_rule(None);
            let p = r.malloc(3 * MIB, s);
            let graph = r.host.capture_end(D, s).unwrap();
            first.iter().chain([&p]).for_each(|&p| r.free(p, s));
            r.host.graph_destroy(D, graph).unwrap();
            r.nothing_left();
        }
    }
}

/// Two devices: each has captures of its own.
#[test]
fn captures_belong_to_the_device_of_their_stream() {
    let r = rig(HostOptions { devices: 2, ..checked() }, CaptureDetection::Off);
    let other = DeviceId(1);
    let (s, t) = (r.stream(), r.host.stream_create(other).unwrap());
    let (c, d) = (r.begin(s), r.begin(t));
    assert_eq!((c.device(), d.device()), (D, other));
    let (p, q) = (r.malloc(3 * MIB, s), r.malloc(3 * MIB, t));
    r.ctx.capture_end(&c).unwrap();
    r.ctx.capture_end(&d).unwrap();
    assert_eq!(r.ctx.capture_stats(&d).unwrap().arena.allocations, 1);
    for options in [
        CaptureOptions { share: Some(&c), ..CaptureOptions::default() },
        CaptureOptions { layout: Some(&c), ..CaptureOptions::default() },
    ] {
        let e = r.ctx.capture_begin(t, options).err().unwrap();
        assert!(e.status == Status::Invalid && e.message.contains("device 0"), "{e}");
    }
    r.free(p, s);
    r.free(q, t);
    r.ctx.capture_release(&c).unwrap();
    r.ctx.capture_release(&d).unwrap();
    r.nothing_left();
}

/// What an eager block gives up when it shrinks during a capture was used in front of the capture:
/// the graph runs whenever it is launched, so its memory must not be that.
#[test]
fn the_tail_of_an_eager_block_is_not_the_captures() {
    for seed in 0..20 {
        let rig = rig(HostOptions::simulation(seed), CaptureDetection::Off);
        let (s, elsewhere) = (rig.stream(), rig.stream());
        let capture = rig.begin(s);
        let p = rig.malloc(16 * MIB, s);
        rig.host.launch(D, s, Kernel::new("eager").writes(p..p + 16 * MIB)).unwrap();
        let graph = rig.capture(s, || {
            assert_eq!(rig.ctx.realloc(p, MIB, s).unwrap(), p);
            let q = rig.malloc(12 * MIB, s);
            assert!(q >= p + 16 * MIB || q + 12 * MIB <= p, "seed {seed}: {q:#x} lies in what {p:#x} gave up");
            rig.host.launch(D, s, Kernel::new("captured").writes(q..q + 12 * MIB)).unwrap();
        });
        rig.ctx.capture_end(&capture).unwrap();
        rig.host.graph_launch(D, graph, elsewhere).unwrap();
        rig.host.device_sync(D).unwrap();
        assert!(rig.host.reports().is_empty(), "seed {seed}: {}", rig.host.reports()[0]);
        rig.host.graph_destroy(D, graph).unwrap();
    }
}

//! Which streams are being captured. Memory allocated on them belongs to the graph and is left to
//! the driver, and no call may invalidate a capture meanwhile.

use crate::cuda::{Code, Ctx, Stream, CAPTURING, NO_TIMING, RELAXED, SUCCESS};
use crate::real::{other, Real};
use gpumem::driver::ledger;
use gpumem::driver::process::{self, Uncancelled};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// A stream. A default stream's handle is the same in every context and, if it is a thread's own,
/// in every thread, so these come with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    stream: Stream,
    ctx: Ctx,
    thread: u64,
}

/// How many captures are open, readable without a lock.
static OPEN: AtomicU64 = AtomicU64::new(0);
/// The captured streams, and the context of each.
static STREAMS: Mutex<BTreeMap<Key, Ctx>> = Mutex::new(BTreeMap::new());

/// The driver's handles for default streams are below this.
const HANDLES: Stream = 3;

fn context(real: &Real, stream: Stream) -> Ctx {
    let mut ctx: Ctx = 0;
    match stream < HANDLES || other!(real, cuStreamGetCtx(stream, &mut ctx)) != SUCCESS {
        true => real.current(),
        false => ctx,
    }
}

/// The per-thread default stream.
const OWN: Stream = 2;

fn thread() -> u64 {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as u64 }
}

fn key(real: &Real, stream: Stream) -> Key {
    let ctx = if stream < HANDLES { real.current() } else { 0 };
    Key { stream, ctx, thread: if stream == OWN { thread() } else { 0 } }
}

/// Lives as long as a thread that has captured a stream of its own. With the thread such captures
/// end, and nothing calls their end.
struct Thread;

impl Drop for Thread {
    fn drop(&mut self) {
        if process::forked() {
            // A thread that the child does not have may have held the locks.
            return;
        }
        let thread = thread();
        forget(|captured, _| captured.thread == thread);
    }
}

thread_local! {
    static THREAD: Thread = const { Thread };
}

/// Whether any stream is being captured.
#[inline]
pub fn any() -> bool {
    OPEN.load(Acquire) > 0
}

/// Waits for all work that contexts have so far; one that has ended has none. Gives the first code
/// of a failure, which is `CAPTURING` while a stream is being captured.
pub fn wait_for(real: &Real, contexts: impl IntoIterator<Item = Ctx>) -> Code {
    let there = contexts.into_iter().filter(|ctx| *ctx != 0);
    let mut codes = there.filter_map(|ctx| real.within(ctx, || wait_here(real, ctx)));
    codes.find(|code| *code != SUCCESS).unwrap_or(SUCCESS)
}

/// Waits for all work of the current context so far, as [`ledger::Ledger`] does where it knows the
/// context. A capture may begin meanwhile: only to record the marker that the wait is behind would
/// end it.
fn wait_here(real: &Real, ctx: Ctx) -> Code {
    let (mut event, mut mode) = (0, RELAXED);
    match other!(real, cuEventCreate(&mut event, NO_TIMING)) {
        SUCCESS => {}
        code => return code,
    }
    // In other modes some captures forbid to wait for an event.
    other!(real, cuThreadExchangeStreamCaptureMode(&mut mode));
    let marked = {
        let open = ledger::captures().read().unwrap_or_else(PoisonError::into_inner);
        if *open > 0 {
            CAPTURING
        } else {
            other!(real, cuCtxRecordEvent(ctx, event))
        }
    };
    let code = match marked {
        SUCCESS => other!(real, cuEventSynchronize(event)),
        CAPTURING => CAPTURING,
        // A driver that has no markers, or a context that has failed.
        _ => other!(real, cuCtxSynchronize()),
    };
    other!(real, cuThreadExchangeStreamCaptureMode(&mut mode));
    other!(real, cuEventDestroy_v2(event));
    code
}

fn begins(real: &Real, stream: Stream, begin: impl FnOnce() -> Code) -> Code {
    let _uncancelled = Uncancelled::new();
    let ctx = context(real, stream);
    // The lock keeps threads from recording a marker between the driver's begin and the count.
    let mut open = ledger::captures().write().unwrap_or_else(PoisonError::into_inner);
    let code = begin();
    if code == SUCCESS {
        if stream == OWN {
            // Fails while the thread ends.
            let _ = THREAD.try_with(|_| ());
        }
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.insert(key(real, stream), ctx).is_none() {
            *open += 1;
            OPEN.store(*open, Release);
        }
    }
    code
}

fn gone(real: &Real, stream: Stream) {
    let key = key(real, stream);
    forget(|captured, _| *captured == key);
}

/// Forgets the captures of a context that has ended: nothing calls their end.
pub fn context_ended(ctx: Ctx) {
    forget(|_, of| *of == ctx);
}

fn forget(is_gone: impl Fn(&Key, &Ctx) -> bool) {
    if !any() {
        return;
    }
    let mut open = ledger::captures().write().unwrap_or_else(PoisonError::into_inner);
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = streams.len() as u64;
    streams.retain(|stream, ctx| !is_gone(stream, ctx));
    *open = open.saturating_sub(before - streams.len() as u64);
    OPEN.store(*open, Release);
}

fn ends(real: &Real, stream: Stream, end: impl FnOnce() -> Code) -> Code {
    let _uncancelled = Uncancelled::new();
    let code = end();
    // A failed end still ends the capture, unless the stream had only joined it or the thread is
    // not the one that began it.
    if code == SUCCESS || !real.is_captured(stream) {
        gone(real, stream);
    }
    code
}

/// The stream that a `_ptsz` function means.
pub fn of_thread(stream: Stream) -> Stream {
    if stream == 0 {
        OWN
    } else {
        stream
    }
}

pub unsafe fn begin(real: &Real, stream: Stream, mode: c_int) -> Code {
    begins(real, stream, || real.cuStreamBeginCapture_v2(stream, mode))
}

pub unsafe fn begin_own(real: &Real, stream: Stream, mode: c_int) -> Code {
    begins(real, of_thread(stream), || real.cuStreamBeginCapture_v2_ptsz(stream, mode))
}

/// The function's first variant, which has no mode.
pub unsafe fn begin_1(real: &Real, stream: Stream) -> Code {
    begins(real, stream, || real.cuStreamBeginCapture(stream))
}

pub unsafe fn begin_1_own(real: &Real, stream: Stream) -> Code {
    begins(real, of_thread(stream), || real.cuStreamBeginCapture_ptsz(stream))
}

pub unsafe fn begin_graph(
    real: &Real,
    stream: Stream,
    graph: usize,
    nodes: usize,
    edges: usize,
    count: usize,
    mode: c_int,
) -> Code {
    begins(real, stream, || real.cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode))
}

pub unsafe fn begin_graph_own(
    real: &Real,
    stream: Stream,
    graph: usize,
    nodes: usize,
    edges: usize,
    count: usize,
    mode: c_int,
) -> Code {
    begins(real, of_thread(stream), || real.cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode))
}

/// Captures into a graph that has nodes; `mismatch` is called where their parameters differ.
pub unsafe fn begin_again(
    real: &Real,
    stream: Stream,
    mode: c_int,
    graph: usize,
    mismatch: *mut c_void,
    data: *mut c_void,
) -> Code {
    begins(real, stream, || real.cuStreamBeginRecaptureToGraph(stream, mode, graph, mismatch, data))
}

pub unsafe fn begin_again_own(
    real: &Real,
    stream: Stream,
    mode: c_int,
    graph: usize,
    mismatch: *mut c_void,
    data: *mut c_void,
) -> Code {
    begins(real, of_thread(stream), || real.cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, mismatch, data))
}

pub unsafe fn end(real: &Real, stream: Stream, graph: *mut usize) -> Code {
    ends(real, stream, || real.cuStreamEndCapture(stream, graph))
}

pub unsafe fn end_own(real: &Real, stream: Stream, graph: *mut usize) -> Code {
    ends(real, of_thread(stream), || real.cuStreamEndCapture_ptsz(stream, graph))
}

/// Captures into a command list of a graphics API.
pub unsafe fn begin_cig(real: &Real, stream: Stream, params: *mut c_void) -> Code {
    begins(real, stream, || real.cuStreamBeginCaptureToCig(stream, params))
}

pub unsafe fn begin_cig_own(real: &Real, stream: Stream, params: *mut c_void) -> Code {
    begins(real, of_thread(stream), || real.cuStreamBeginCaptureToCig_ptsz(stream, params))
}

pub unsafe fn end_cig(real: &Real, stream: Stream) -> Code {
    ends(real, stream, || real.cuStreamEndCaptureToCig(stream))
}

pub unsafe fn end_cig_own(real: &Real, stream: Stream) -> Code {
    ends(real, of_thread(stream), || real.cuStreamEndCaptureToCig_ptsz(stream))
}

/// Destroys a stream, which ends its capture.
pub unsafe fn destroy(real: &Real, stream: Stream) -> Code {
    gone(real, stream);
    real.cuStreamDestroy_v2(stream)
}

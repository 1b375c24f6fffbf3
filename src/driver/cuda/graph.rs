//! Captures and graphs.
//!
//! A graph is two CUDA objects: the captured graph and the executable one. Both are kept to the
//! end, because nodes are counted in the first. A table holds them under our own numbers, so a
//! stale handle is an error and not a crash. Each pair has a lock, because CUDA leaves it to
//! callers not to use one from two threads at once.

use super::code::{Code, CODE_SUCCESS};
use super::driver::CudaDriver;
use super::graphs::{lock, stale, Objects};
use super::handles::{is_special, raw_stream};
use super::load::version_text;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::graph::Gone;
use crate::driver::{CaptureInfo, CaptureMode, GraphHandle, GraphNodes};
use cudarc::driver::sys::{
    CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeType, CUstreamCaptureMode, CUstreamCaptureStatus,
    CUuserObjectRetain_flags, CUuserObject_flags,
};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The target of a user object's pointer.
struct Tie {
    token: u64,
    gone: Arc<Gone>,
    /// Whether the graph refused it, so that its end is not reported.
    void: AtomicBool,
}

/// Runs on a driver thread or inside any driver call, and makes no driver call itself.
unsafe extern "C" fn untie(tie: *mut c_void) {
    // SAFETY: the pointer that `tie_token` gave to a user object, whose destructor runs once.
    let tie = unsafe { Box::from_raw(tie.cast::<Tie>()) };
    if !tie.void.load(Ordering::Acquire) {
        tie.gone.add(&[tie.token]);
    }
}

impl CudaDriver {
    /// An optional entry point, or `Unsupported`.
    fn have<T>(&self, entry: Option<T>, name: &str) -> Result<T> {
        entry.ok_or_else(|| {
            Error::new(Status::Unsupported, format!("the driver, for {}, lacks {name}", version_text(self.version)))
        })
    }

    pub(super) fn begin_capture(&self, dev: DeviceId, s: StreamHandle, mode: CaptureMode) -> Result<()> {
        let begin = self.have(self.api.cuStreamBeginCapture_v2, "cuStreamBeginCapture_v2")?;
        let _bound = self.bind(dev)?;
        if s.canonical() == StreamHandle::LEGACY {
            return Err(Error::invalid("the legacy default stream cannot be captured"));
        }
        if self.captured(s)? {
            return Err(Error::new(Status::Capturing, format!("stream {s} is being captured already")));
        }
        let mode = match mode {
            CaptureMode::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        // SAFETY: a live stream, or the per-thread one with a context bound.
        let code = unsafe { begin(raw_stream(s), mode) };
        self.check_stream(code, "cuStreamBeginCapture", || format!("stream {s}, device {dev}"))
    }

    pub(super) fn end_capture(&self, dev: DeviceId, s: StreamHandle) -> Result<GraphHandle> {
        let end = self.have(self.api.cuStreamEndCapture, "cuStreamEndCapture")?;
        let instantiate = self.have(self.api.cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags")?;
        let _bound = self.bind(dev)?;
        if s.canonical() == StreamHandle::LEGACY || !self.captured(s)? {
            return Err(Error::invalid(format!("stream {s} is not being captured")));
        }
        let mut graph: CUgraph = null_mut();
        // SAFETY: a stream that is being captured; writes one pointer, null when the capture was
        // invalidated.
        let code = unsafe { end(raw_stream(s), &mut graph) };
        self.check_stream(code, "cuStreamEndCapture", || format!("stream {s}, device {dev}"))?;
        if graph.is_null() {
            return Err(Error::new(Status::Driver, format!("cuStreamEndCapture gave no graph for stream {s}")));
        }
        // Instantiating allocates, which would end another thread's capture.
        let relaxed = self.relax();
        let mut exec: CUgraphExec = null_mut();
        let ready = relaxed.and_then(|_relaxed| {
            // SAFETY: a graph that was just made and that nobody else knows; writes one pointer;
            // flags are 0.
            let code = unsafe { instantiate(&mut exec, graph, 0) };
            self.check(code, "cuGraphInstantiate", || format!("captured on stream {s}, device {dev}"))
        });
        if let Err(e) = ready {
            self.drop_graph(graph);
            return Err(e);
        }
        Ok(self.graphs.add(dev, Objects { graph: graph as usize, exec: exec as usize }))
    }

    /// Destroys a captured graph that nothing else refers to; returns CUDA's code.
    fn drop_graph(&self, graph: CUgraph) -> Code {
        match self.api.cuGraphDestroy {
            // SAFETY: the caller gives up a live graph.
            Some(destroy) => unsafe { destroy(graph) },
            // Every driver that can capture can destroy; without that, the graph would leak.
            None => CODE_SUCCESS,
        }
    }

    pub(super) fn info_of_capture(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<CaptureInfo>> {
        let _bound = match is_special(s) {
            true => Some(self.bind(dev)?),
            false => self.alive().map(|()| None)?,
        };
        if s.canonical() == StreamHandle::LEGACY {
            return Ok(None);
        }
        let (mut status, mut id, mut graph): (u32, u64, CUgraph) = (0, 0, null_mut());
        let state = (&raw mut status).cast::<CUstreamCaptureStatus>();
        let code = match (self.api.cuStreamGetCaptureInfo_v3, self.api.cuStreamGetCaptureInfo_v2) {
            // SAFETY: a live stream, or the per-thread one with a context bound; writes what is not
            // null: an unsigned int, an integer and a pointer.
            (Some(ask), _) => unsafe {
                ask(raw_stream(s), state, &mut id, &mut graph, null_mut(), null_mut(), null_mut())
            },
            // SAFETY: as above.
            (None, Some(ask)) => unsafe { ask(raw_stream(s), state, &mut id, &mut graph, null_mut(), null_mut()) },
            (None, None) => return self.have(None, "cuStreamGetCaptureInfo_v2"),
        };
        self.check_stream(code, "cuStreamGetCaptureInfo", || format!("stream {s}, device {dev}"))?;
        const NONE: u32 = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32;
        const ACTIVE: u32 = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as u32;
        match status {
            NONE => Ok(None),
            ACTIVE => Ok(Some(CaptureInfo { id, graph: graph as u64 })),
            _ => Err(Error::new(
                Status::Capturing,
                format!("the capture of stream {s} has been invalidated by an illegal call; end it"),
            )),
        }
    }

    pub(super) fn tie_token(&self, dev: DeviceId, graph: u64, token: u64) -> Result<()> {
        let create = self.have(self.api.cuUserObjectCreate, "cuUserObjectCreate")?;
        let release = self.have(self.api.cuUserObjectRelease, "cuUserObjectRelease")?;
        let retain = self.have(self.api.cuGraphRetainUserObject, "cuGraphRetainUserObject")?;
        if graph == 0 {
            return Err(Error::invalid("graph 0 is not being captured; ask capture_info for it"));
        }
        let _bound = self.bind(dev)?;
        let tie = Box::new(Tie { token, gone: self.graphs.gone.clone(), void: AtomicBool::new(false) });
        let tie = Box::into_raw(tie);
        let mut object = null_mut();
        let no_sync = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: writes one pointer; the destructor takes this pointer, once.
        let code = unsafe { create(&mut object, tie.cast(), Some(untie), 1, no_sync) };
        if let Err(e) = self.check(code, "cuUserObjectCreate", || format!("device {dev}")) {
            // SAFETY: made above, and no object was made that would free it.
            drop(unsafe { Box::from_raw(tie) });
            return Err(e);
        }
        let give_away = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: a graph that is being captured, by the caller's promise; it takes over the one
        // reference there is.
        let code = unsafe { retain(graph as usize as CUgraph, object, 1, give_away) };
        let taken = self.check(code, "cuGraphRetainUserObject", || format!("graph {graph:#x}, device {dev}"));
        if taken.is_err() {
            // SAFETY: the object's one reference is still ours, so its destructor has not run.
            unsafe { (*tie).void.store(true, Ordering::Release) };
            // SAFETY: gives that reference up; the destructor frees `tie`. If this fails, `tie`
            // leaks.
            unsafe { release(object, 1) };
        }
        taken
    }

    pub(super) fn launch_graph(&self, dev: DeviceId, g: GraphHandle, s: StreamHandle) -> Result<()> {
        let launch = self.have(self.api.cuGraphLaunch, "cuGraphLaunch")?;
        let _bound = self.bind(dev)?;
        let entry = self.graphs.of(dev, g)?;
        if self.captured(s)? {
            return Err(Error::new(
                Status::Capturing,
                format!("stream {s} is being captured, and a graph cannot be launched into another"),
            ));
        }
        let objects = lock(&entry.objects);
        let exec = objects.ok_or_else(|| stale(g))?.exec as CUgraphExec;
        let _relaxed = self.relax()?;
        // SAFETY: a live graph, which no other thread uses meanwhile, and a live stream.
        let code = unsafe { launch(exec, raw_stream(s)) };
        self.check_stream(code, "cuGraphLaunch", || format!("graph {}, stream {s}, device {dev}", g.0))
    }

    pub(super) fn destroy_graph(&self, dev: DeviceId, g: GraphHandle) -> Result<()> {
        let destroy = self.have(self.api.cuGraphExecDestroy, "cuGraphExecDestroy")?;
        let _bound = self.bind(dev)?;
        let entry = self.graphs.of(dev, g)?;
        let _relaxed = self.relax()?;
        let objects = lock(&entry.objects).take().ok_or_else(|| stale(g))?;
        lock(&self.graphs.table).list.remove(&g.0);
        // SAFETY: a live graph that was just taken out of the table; launches in flight keep what
        // they need.
        let exec = unsafe { destroy(objects.exec as CUgraphExec) };
        let graph = self.drop_graph(objects.graph as CUgraph);
        self.check(exec, "cuGraphExecDestroy", || format!("graph {}", g.0))?;
        self.check(graph, "cuGraphDestroy", || format!("graph {}", g.0))
    }

    pub(super) fn count_nodes(&self, g: GraphHandle) -> Result<GraphNodes> {
        let get = self.have(self.api.cuGraphGetNodes, "cuGraphGetNodes")?;
        let type_of = self.have(self.api.cuGraphNodeGetType, "cuGraphNodeGetType")?;
        self.alive()?;
        let entry = self.graphs.get(g)?;
        let objects = lock(&entry.objects);
        let graph = objects.ok_or_else(|| stale(g))?.graph as CUgraph;
        let mut count = 0;
        // SAFETY: a live graph, which no other thread uses meanwhile; without an array, writes
        // their number.
        let code = unsafe { get(graph, null_mut(), &mut count) };
        self.check(code, "cuGraphGetNodes", || format!("graph {}", g.0))?;
        let mut nodes: Vec<CUgraphNode> = vec![null_mut(); count];
        if count > 0 {
            // SAFETY: as above; the array has as many places as said.
            let code = unsafe { get(graph, nodes.as_mut_ptr(), &mut count) };
            self.check(code, "cuGraphGetNodes", || format!("graph {}", g.0))?;
            nodes.truncate(count);
        }
        const ALLOC: u32 = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC as u32;
        const FREE: u32 = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE as u32;
        let mut counts = GraphNodes { total: nodes.len() as u64, memory: 0 };
        for node in nodes {
            let mut kind: u32 = 0;
            // SAFETY: a node of the graph; writes one unsigned int.
            let code = unsafe { type_of(node, (&raw mut kind).cast::<CUgraphNodeType>()) };
            self.check(code, "cuGraphNodeGetType", || format!("graph {}", g.0))?;
            counts.memory += u64::from(kind == ALLOC || kind == FREE);
        }
        Ok(counts)
    }
}

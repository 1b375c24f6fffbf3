//! Where the driver keeps a stream's identity and whether it is being captured.
//!
//! The layout is private to the driver and may differ in the next version, so the probe assumes
//! nothing. It creates a few streams of different kinds, searches the memory behind their handles
//! for the ids that the driver gives them, and compares that memory before, during and after
//! captures. It takes only places that are right every time; if there is any doubt, there is no
//! watch, and the driver is asked on every allocation.
//!
//! It finds on an H200, driver 580.159: the handle points to a pointer to the structure; the id is
//! at byte 336, and byte 1096 begins a pointer that is null exactly while the stream is not being
//! captured.

use super::api::Api;
use super::code::CODE_SUCCESS;
use super::driver::CudaDriver;
use super::handles::{raw_event, raw_stream};
use crate::base::{DeviceId, Error, Result, StreamHandle};
use crate::driver::watch::{read, Fields};
use crate::driver::{Driver, EventHandle, Watch};
use cudarc::driver::sys::{CUgraph, CUstream, CUstreamCaptureMode, CUstream_flags};
use std::collections::BTreeSet;

/// How much of a structure is searched, bytes.
const LOOK: usize = 4096;
/// How many of the streams are captured: those that do not synchronise with the legacy stream.
/// Capturing others would bar other threads from it.
const CAPTURABLE: usize = 3;
/// How often a stream is destroyed and recreated to check that a reused handle shows the new
/// stream.
const REUSES: usize = 8;

/// Places of identity and capture state that proved right for every kind of stream and capture
/// (`tests/driver/cuda_device.rs`: streams that synchronise with the legacy stream and others,
/// captures in every mode, into a new graph and an existing one, begun and joined). Found on:
/// driver 580.159, H200.
const PROVEN: [(usize, usize); 1] = [(336, 1096)];

/// How a stream comes to be captured.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Begin(CUstreamCaptureMode),
    /// Into an existing graph.
    ToGraph,
    /// Begun on another stream, which this one waits for.
    Join,
}

/// Ways that disturb no other thread, each on a stream that does not synchronise with the legacy
/// one. Captures in global mode forbid other threads to allocate, and captures of other streams
/// forbid them the legacy stream, so neither is tried.
const WAYS: [(usize, Way); 4] = [
    (0, Way::Begin(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)),
    (1, Way::Join),
    (2, Way::Begin(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)),
    (0, Way::ToGraph),
];

/// Finds the places, or decides that the driver is to be asked.
pub(super) fn find(driver: &CudaDriver, dev: DeviceId) -> Watch {
    match Probe::new(driver, dev).and_then(|mut probe| probe.run()) {
        Ok(Some(fields)) => Watch::Fields(fields),
        // A failed probe costs time later on, and nothing else.
        Ok(None) | Err(_) => Watch::Ask,
    }
}

/// The streams and the event of one search, destroyed with it.
struct Probe<'a> {
    driver: &'a CudaDriver,
    dev: DeviceId,
    streams: Vec<StreamHandle>,
    event: EventHandle,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        // A failure would leak a stream, once in a process.
        for &s in &self.streams {
            let _ = self.driver.stream_destroy(self.dev, s);
        }
        let _ = self.driver.event_destroy(self.dev, self.event);
    }
}

impl<'a> Probe<'a> {
    fn new(driver: &'a CudaDriver, dev: DeviceId) -> Result<Probe<'a>> {
        let event = driver.event_create(dev)?;
        let mut probe = Probe { driver, dev, streams: Vec::new(), event };
        for _ in 0..CAPTURABLE {
            probe.streams.push(driver.stream_create(dev)?);
        }
        probe.streams.push(probe.blocking_stream()?);
        Ok(probe)
    }

    fn api(&self) -> &'a Api {
        &self.driver.api
    }

    fn blocking_stream(&self) -> Result<StreamHandle> {
        let _bound = self.driver.bind(self.dev)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes one pointer; a context is current.
        let code = unsafe { (self.api().cuStreamCreate)(&mut stream, CUstream_flags::CU_STREAM_DEFAULT as u32) };
        self.driver.check(code, "cuStreamCreate", || format!("device {}", self.dev))?;
        Ok(StreamHandle(stream as usize))
    }

    fn run(&mut self) -> Result<Option<Fields>> {
        let mut ids = self.places_of_id(0)?;
        for i in 1..self.streams.len() {
            let also = self.places_of_id(i)?;
            ids.retain(|at| also.contains(at));
        }
        let mut captures: Option<BTreeSet<usize>> = None;
        // Few, as other threads may not synchronise the device meanwhile.
        for (i, way) in WAYS {
            if way == Way::ToGraph && self.api().cuStreamBeginCaptureToGraph.is_none() {
                continue;
            }
            let places = self.places_of_capture(i, way)?;
            match &mut captures {
                None => captures = Some(places),
                Some(all) => all.retain(|at| places.contains(at)),
            }
        }
        // Exactly one place: of several, some may match by chance.
        let capture = captures.filter(|c| c.len() == 1).and_then(|c| c.into_iter().next());
        let (Some(&id), Some(capture)) = (ids.iter().next(), capture) else { return Ok(None) };
        let fields = Fields { id, capture, blocking: PROVEN.contains(&(id, capture)) };
        Ok(self.survives_reuse(fields)?.then_some(fields))
    }

    /// The words of the structure behind a stream's handle, as far as they can be read.
    fn words(&self, stream: usize) -> Result<Vec<u64>> {
        let handle = self.streams.get(stream).map_or(0, |s| s.0);
        match read(handle, 8).first() {
            Some(&structure) => Ok(read(structure as usize, LOOK)),
            None => Err(Error::internal("a stream's handle is no address")),
        }
    }

    fn places_of_id(&self, stream: usize) -> Result<BTreeSet<usize>> {
        let id = self.driver.stream_id(self.dev, self.streams[stream])?;
        let words = self.words(stream)?;
        Ok(words.iter().enumerate().filter(|(_, &w)| w == id).map(|(i, _)| i * 8).collect())
    }

    /// Where a stream's structure is 0 before and after a capture and not 0 during it, while
    /// another stream's is 0 throughout.
    fn places_of_capture(&self, stream: usize, way: Way) -> Result<BTreeSet<usize>> {
        let joined = way == Way::Join;
        let (other, third) = ((stream + 1) % CAPTURABLE, (stream + 2) % CAPTURABLE);
        let origin = if joined { other } else { stream };
        let before = self.words(stream)?;
        let graph = self.begin(origin, way)?;
        let mut during = Ok((Vec::new(), Vec::new()));
        let joining = if joined { self.join(other, stream) } else { Ok(()) };
        if joining.is_ok() {
            during = self.words(stream).and_then(|w| Ok((w, self.words(third)?)));
        }
        // A fork must rejoin before the capture ends.
        let back = if joined { joining.and_then(|()| self.join(stream, other)) } else { Ok(()) };
        self.end(origin, graph)?;
        back?;
        let after = self.words(stream)?;
        let (during, bystander) = during?;
        let all = before.iter().zip(&during).zip(&after).zip(&bystander).enumerate();
        Ok(all.filter(|(_, (((&b, &d), &a), &t))| b == 0 && d != 0 && a == 0 && t == 0).map(|(i, _)| i * 8).collect())
    }

    /// Begins a capture; returns the graph that it goes into, if that was made for it.
    fn begin(&self, stream: usize, way: Way) -> Result<Option<CUgraph>> {
        let lacking = || Error::internal("the driver has no captures");
        let (begin, _) = self.api().cuStreamBeginCapture_v2.zip(self.api().cuStreamEndCapture).ok_or_else(lacking)?;
        let _bound = self.driver.bind(self.dev)?;
        let stream = raw_stream(self.streams[stream]);
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let mode = match way {
            Way::ToGraph => return self.begin_to_graph(stream, relaxed).map(Some),
            Way::Begin(mode) => mode,
            Way::Join => relaxed,
        };
        // SAFETY: a live stream of this probe.
        let code = unsafe { begin(stream, mode) };
        self.driver.check(code, "cuStreamBeginCapture", String::new).map(|()| None)
    }

    fn begin_to_graph(&self, stream: CUstream, mode: CUstreamCaptureMode) -> Result<CUgraph> {
        let (begin, create) = self
            .api()
            .cuStreamBeginCaptureToGraph
            .zip(self.api().cuGraphCreate)
            .ok_or_else(|| Error::internal("no such captures"))?;
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: writes one pointer; flags are 0.
        let code = unsafe { create(&mut graph, 0) };
        self.driver.check(code, "cuGraphCreate", String::new)?;
        // SAFETY: a live stream of this probe and the graph just made, with no nodes to depend on.
        let code = unsafe { begin(stream, graph, std::ptr::null(), std::ptr::null(), 0, mode) };
        self.driver.check(code, "cuStreamBeginCaptureToGraph", String::new).inspect_err(|_| self.destroy(graph))?;
        Ok(graph)
    }

    fn destroy(&self, graph: CUgraph) {
        if let Some(destroy) = self.api().cuGraphDestroy.filter(|_| !graph.is_null()) {
            // SAFETY: a graph that was made here and that nobody else knows.
            unsafe { destroy(graph) };
        }
    }

    fn join(&self, from: usize, to: usize) -> Result<()> {
        let _bound = self.driver.bind(self.dev)?;
        // SAFETY: a live event and stream of this probe, captured.
        let code = unsafe { (self.api().cuEventRecord)(raw_event(self.event), raw_stream(self.streams[from])) };
        self.driver.check(code, "cuEventRecord", String::new)?;
        // SAFETY: as above.
        let code = unsafe { (self.api().cuStreamWaitEvent)(raw_stream(self.streams[to]), raw_event(self.event), 0) };
        self.driver.check(code, "cuStreamWaitEvent", String::new)
    }

    /// Ends a capture; `made` is the graph that it went into, if that was made for it.
    fn end(&self, stream: usize, made: Option<CUgraph>) -> Result<()> {
        let Some(end) = self.api().cuStreamEndCapture else { return Ok(()) };
        let _bound = self.driver.bind(self.dev)?;
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: the stream on which this thread began the capture; writes one pointer.
        let code = unsafe { end(raw_stream(self.streams[stream]), &mut graph) };
        // A failed capture has destroyed its graph, even one that existed before.
        if code == CODE_SUCCESS {
            self.destroy(made.unwrap_or(graph));
        }
        self.driver.check(code, "cuStreamEndCapture", String::new)
    }

    /// Whether streams made at the handles of destroyed ones show their own identity there.
    fn survives_reuse(&mut self, fields: Fields) -> Result<bool> {
        let watch = Watch::Fields(fields);
        for _ in 0..REUSES {
            if let Some(s) = self.streams.pop() {
                self.driver.stream_destroy(self.dev, s)?;
            }
            let s = self.driver.stream_create(self.dev)?;
            self.streams.push(s);
            if watch.look(s) != Some(self.driver.stream_id(self.dev, s)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

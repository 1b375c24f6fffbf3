//! Stream capture: what is recorded, which calls are legal meanwhile, and which of them spoil it.
//!
//! A capture covers one stream: the device refuses to wait for another stream's event, by which
//! CUDA joins streams to a capture.

#![deny(unsafe_code)]

use super::captured::Capture;
use super::device::HostDriver;
use super::state::State;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::process;
use crate::driver::{CaptureInfo, CaptureMode, Driver, GraphHandle};
use std::sync::atomic::Ordering;

/// What a call waits for.
#[derive(Clone, Copy)]
pub(super) enum Reach {
    /// Every stream of a device.
    Device(DeviceId),
    /// One lane.
    Lane(usize),
}

/// The error from ending an invalidated capture.
pub(super) fn spoilt(s: StreamHandle) -> Error {
    Error::new(
        Status::Capturing,
        format!(
            "the capture of stream {s} was invalidated by an illegal call made during it, and its work is lost; capture \
             again without that call, or in a mode that allows it"
        ),
    )
}

impl State {
    /// Spoils the capture of one lane, if there is one.
    pub(super) fn invalidate_capture(&mut self, lane: usize) {
        if let Some(c) = self.lanes.list.get_mut(lane).and_then(|l| l.capture.as_mut()) {
            c.valid = false;
        }
    }

    /// Refuses a call that waits for the device if a capture forbids it, and invalidates each such
    /// capture, as CUDA does.
    pub(super) fn refuse_in_capture(&mut self, call: &str, reach: Reach) -> Result<()> {
        let legacy = matches!(reach, Reach::Lane(l) if self.lanes.legacy.contains(&l));
        let of = |lane: usize| self.lanes.list.get(lane).map(|l| l.dev);
        let dev = match reach {
            Reach::Device(dev) => Some(dev),
            Reach::Lane(lane) => of(lane),
        };
        let mut refused = false;
        for (i, l) in self.lanes.list.iter_mut().enumerate() {
            let Some(c) = l.capture.as_mut() else { continue };
            let reached = match reach {
                Reach::Device(_) => Some(l.dev) == dev,
                // Waiting for the legacy stream means waiting for every blocking stream of its
                // device.
                Reach::Lane(lane) => lane == i || (legacy && l.blocking && Some(l.dev) == dev),
            };
            if reached || c.forbids_here() {
                c.valid = false;
                refused = true;
            }
        }
        if !refused {
            return Ok(());
        }
        Err(Error::new(
            Status::Capturing,
            format!(
                "{call} is not allowed while a stream is being captured; every capture that forbids it is now invalid"
            ),
        ))
    }

    /// The capture that builds `graph`.
    fn capture_of(&mut self, dev: DeviceId, graph: u64) -> Result<&mut Capture> {
        let on = self.lanes.list.iter_mut().filter(|l| l.dev == dev);
        on.filter_map(|l| l.capture.as_deref_mut()).find(|c| c.info.graph == graph).ok_or_else(|| {
            Error::invalid(format!("graph {graph} is not being captured on device {dev}; ask capture_info for it"))
        })
    }
}

impl HostDriver {
    pub(super) fn start_capture(&self, dev: DeviceId, s: StreamHandle, mode: CaptureMode) -> Result<()> {
        let st = &mut *self.enter();
        let lane = self.lane(st, dev, s)?;
        if s.canonical() == StreamHandle::LEGACY {
            return Err(Error::invalid("the legacy default stream cannot be captured"));
        }
        st.lanes.refuse_captured(lane, || format!("stream {s} is being captured already"))?;
        let info = CaptureInfo { id: st.graphs.number(), graph: st.graphs.number() };
        let thread = process::thread_number();
        let ties = st.graphs.ties();
        let capture = Capture { info, mode, thread, valid: true, nodes: Vec::new(), ties };
        st.lanes.get_mut(lane)?.capture = Some(Box::new(capture));
        self.captures.fetch_add(1, Ordering::Release);
        self.handles.set_captured(s, true);
        Ok(())
    }

    /// Ends the capture of a stream; returns its graph, or `None` if it had been invalidated.
    pub(super) fn finish_capture(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<GraphHandle>> {
        let mut guard = self.enter();
        let st = &mut *guard;
        let lane = self.lane(st, dev, s)?;
        let l = st.lanes.get_mut(lane)?;
        let Some(c) = &l.capture else { return Err(Error::invalid(format!("stream {s} is not being captured"))) };
        let by_another = c.mode != CaptureMode::Relaxed && c.thread != process::thread_number();
        let capture = l.capture.take();
        self.captures.fetch_sub(1, Ordering::Release);
        self.handles.set_captured(s, false);
        if by_another {
            drop(guard);
            drop(capture);
            return Err(Error::new(
                Status::Capturing,
                format!("the capture of stream {s} was begun by another thread, which has to end it; it is lost now"),
            ));
        }
        Ok(match capture {
            Some(c) if c.valid => Some(st.graphs.add(dev, c.nodes, c.ties)),
            spoilt => {
                // Dropped outside the lock: a body may own anything.
                drop(guard);
                drop(spoilt);
                None
            }
        })
    }

    pub(super) fn info_of_capture(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<CaptureInfo>> {
        if self.captures.load(Ordering::Acquire) == 0 {
            return self.identity(dev, s).map(|_| None);
        }
        let mut st = self.look();
        let lane = self.lane(&mut st, dev, s)?;
        match &st.lanes.get(lane)?.capture {
            None => Ok(None),
            Some(c) if c.valid => Ok(Some(c.info)),
            Some(_) => Err(Error::new(
                Status::Capturing,
                format!("the capture of stream {s} has been invalidated by an illegal call; end it"),
            )),
        }
    }

    pub(super) fn tie_token(&self, dev: DeviceId, graph: u64, token: u64) -> Result<()> {
        self.check_device(dev)?;
        self.enter().capture_of(dev, graph)?.ties.tokens.push(token);
        Ok(())
    }

    // ---- for tests ------------------------------------------------------------------------------

    /// Starts capturing a stream in global mode.
    pub fn begin_capture(&self, s: StreamHandle) -> Result<()> {
        self.capture_begin(self.stream_device(s)?, s, CaptureMode::Global)
    }

    /// Ends the capture of a stream and forgets its graph; says whether it was still valid.
    pub fn end_capture(&self, s: StreamHandle) -> Result<bool> {
        let dev = self.stream_device(s)?;
        match self.finish_capture(dev, s)? {
            Some(graph) => self.destroy_graph(dev, graph).map(|()| true),
            None => Ok(false),
        }
    }
}

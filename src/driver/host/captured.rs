//! A capture in progress.

#![deny(unsafe_code)]

use super::graphs::Node;
use super::op::Submission;
use super::ties::Ties;
use crate::base::{Error, Result, Status};
use crate::driver::process;
use crate::driver::{CaptureInfo, CaptureMode};

/// A capture in progress.
pub(super) struct Capture {
    pub(super) info: CaptureInfo,
    pub(super) mode: CaptureMode,
    /// The thread that began it.
    pub(super) thread: u32,
    /// Whether no illegal call has been made.
    pub(super) valid: bool,
    pub(super) nodes: Vec<Node>,
    pub(super) ties: Ties,
}

impl Capture {
    /// Notes work, or refuses it when the capture has been invalidated.
    pub(super) fn note(&mut self, s: Submission) -> Result<()> {
        if !self.valid {
            return Err(Error::new(
                Status::Capturing,
                format!("{:?}: the capture of this stream has been invalidated; end it first", s.label),
            ));
        }
        self.nodes.push(Node { label: s.label, work: s.work, reads: s.reads, writes: s.writes });
        Ok(())
    }

    pub(super) fn is_valid(&self) -> bool {
        self.valid
    }

    /// Whether it forbids this thread to wait for other streams.
    pub(super) fn forbids_here(&self) -> bool {
        match self.mode {
            CaptureMode::Global => true,
            CaptureMode::ThreadLocal => self.thread == process::thread_number(),
            CaptureMode::Relaxed => false,
        }
    }
}

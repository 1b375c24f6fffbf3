//! Operations: the units of work in a stream.

use super::clock::Clock;
use super::kernel::Body;
use super::ranges::{overlap, span};
use super::ties::Ties;
use crate::base::{DeviceId, StreamHandle};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An operation's identity, for reports and for ordering. Outlives the operation.
#[derive(Debug)]
pub(super) struct OpInfo {
    pub(super) label: Cow<'static, str>,
    pub(super) lane: usize,
    /// Its number in the lane, from 1.
    pub(super) seq: u64,
    /// The stream's identity.
    pub(super) stream: u64,
    /// The stream's handle and device.
    pub(super) named: (StreamHandle, DeviceId),
    /// The first range it touches: written rather than read.
    pub(super) at: Option<Range<u64>>,
}

impl OpInfo {
    /// Whether it is ordered before an operation of `lane` whose clock is `clock`.
    pub(super) fn before(&self, lane: usize, clock: &Clock) -> bool {
        self.lane == lane || clock.covers(self.lane, self.seq)
    }
}

impl fmt::Display for OpInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.label)?;
        if let Some(at) = &self.at {
            write!(f, " of {}", span(at))?;
        }
        let (handle, dev) = self.named;
        write!(f, " (operation {} of stream {handle} of device {dev})", self.seq)
    }
}

/// The work of an operation.
#[derive(Clone)]
pub(super) enum Work {
    /// Does nothing. Events wait for its completion, and its dependencies hold what `stream_wait`
    /// waits for.
    Mark,
    /// Copies between two ranges that do not overlap.
    Copy { dst: u64, src: Source, size: u64 },
    /// Fills a range with a byte.
    Fill { dst: u64, byte: u8, size: u64 },
    /// Runs a simulated kernel.
    Kernel(Option<Body>),
    /// Takes a native allocation away.
    NativeFree { va: u64 },
}

/// Where a copy reads from.
#[derive(Clone)]
pub(super) enum Source {
    /// Memory that stays valid until the copy runs.
    Address(u64),
    /// Pageable host memory, taken over when the copy was submitted.
    Staged(Arc<[u8]>),
}

/// One unit of work in a lane's queue.
pub(super) struct Op {
    pub(super) info: Arc<OpInfo>,
    /// The operations of other lanes ordered before it.
    pub(super) clock: Arc<Clock>,
    /// `(lane, seq)` of operations that must be complete before it may run, besides those of its
    /// own lane.
    pub(super) deps: Vec<(usize, u64)>,
    /// Device or pinned memory that it reads.
    pub(super) reads: Vec<Range<u64>>,
    /// Device or pinned memory that it writes.
    pub(super) writes: Vec<Range<u64>>,
    pub(super) work: Work,
    /// Keeps the tokens of the launched graph that it belongs to.
    pub(super) _ties: Option<Arc<Ties>>,
}

impl Op {
    /// Whether it touches any byte of `range`, reading or writing.
    pub(super) fn touches(&self, range: &Range<u64>) -> bool {
        self.reads.iter().chain(&self.writes).any(|r| overlap(r, range))
    }
}

/// Work to be submitted.
pub(super) struct Submission {
    pub(super) label: Cow<'static, str>,
    pub(super) work: Work,
    pub(super) reads: Vec<Range<u64>>,
    pub(super) writes: Vec<Range<u64>>,
    /// `(lane, seq)` that must be complete first, besides stream order.
    pub(super) deps: Vec<(usize, u64)>,
    /// The tokens of the launched graph that it belongs to.
    pub(super) ties: Option<Arc<Ties>>,
}

impl Submission {
    pub(super) fn new(label: impl Into<Cow<'static, str>>, work: Work) -> Submission {
        Submission { label: label.into(), work, reads: Vec::new(), writes: Vec::new(), deps: Vec::new(), ties: None }
    }
}

//! Reports of mistakes in the work given to the device.

#![deny(unsafe_code)]

use super::op::OpInfo;
use super::options::Tell;
use crate::driver::process;
use std::fmt;
use std::ops::Range;

/// The kind of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReportKind {
    /// Two operations, neither ordered before the other, touch the same physical bytes and one of
    /// them writes.
    Race,
    /// An operation reached addresses that were not mapped, or not accessible from its device, when
    /// it ran.
    Fault,
    /// Memory was unmapped, or natively freed, that unfinished or unobserved work still uses.
    UnmapInUse,
    /// An operation was submitted for addresses outside every live range, or across the end of one.
    NotLive,
    /// A range declared live overlaps one that is live already.
    LiveOverlap,
    /// A kernel found its data wrong, or touched bytes it had not declared.
    Check,
    /// A kernel's body panicked.
    Panic,
}

/// One mistake. The device goes on: an operation that faults is skipped, every other one still
/// runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kind of the mistake.
    pub kind: ReportKind,
    /// The labels of the operations involved, the earlier one first.
    pub labels: Vec<String>,
    /// The identities of their streams (`Driver::stream_id`).
    pub streams: Vec<u64>,
    /// The addresses concerned, as the later operation named them.
    pub range: Range<u64>,
    /// The whole story in a sentence.
    pub text: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

impl Report {
    pub(super) fn new(kind: ReportKind, ops: &[&OpInfo], range: Range<u64>, text: String) -> Report {
        Report {
            kind,
            labels: ops.iter().map(|o| o.label.to_string()).collect(),
            streams: ops.iter().map(|o| o.stream).collect(),
            range,
            text,
        }
    }
}

/// How many reports are kept; otherwise one bug in a long run would fill memory with them.
const KEPT: usize = 1000;

/// How many reports are announced; after that, one each time their number doubles.
const TOLD: u64 = 64;

/// The reports so far.
#[derive(Debug, Default)]
pub(super) struct Reports {
    list: Vec<Report>,
    dropped: u64,
    /// How many there were in all.
    made: u64,
    tell: Tell,
}

impl Reports {
    pub(super) fn new(tell: Tell) -> Reports {
        Reports { tell, ..Reports::default() }
    }

    /// How many reports there were in all, including those that have been taken.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    pub(super) fn push(&mut self, r: Report) {
        // Two accesses can meet in several segments; one report is enough.
        if self.list.last().is_some_and(|l| l.kind == r.kind && l.text == r.text) {
            return;
        }
        self.made += 1;
        if self.tell != Tell::Nobody && (self.made <= TOLD || self.made.is_power_of_two()) {
            process::say(format_args!("host device: {r} ({} so far)", self.made));
        }
        if self.tell == Tell::Abort {
            std::process::abort();
        }
        if self.list.len() < KEPT {
            self.list.push(r);
        } else {
            self.dropped += 1;
        }
    }

    pub(super) fn list(&self) -> &[Report] {
        &self.list
    }

    pub(super) fn take(&mut self) -> Vec<Report> {
        let mut list = std::mem::take(&mut self.list);
        if let (n @ 1.., Some(last)) = (std::mem::take(&mut self.dropped), list.last_mut()) {
            last.text.push_str(&format!(" (and {n} more reports that were not kept)"));
        }
        list
    }
}

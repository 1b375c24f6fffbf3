//! What a workload works with, and where it puts what it finds.

use super::measure::Clock;
use super::report::Measurement;
use super::target::Target;
use indicatif::ProgressBar;
use std::path::PathBuf;

/// What a workload works with, and where it puts what it finds.
pub struct Bench {
    pub target: Target,
    pub clock: Clock,
    pub ops: Option<u64>,
    pub repeat: u32,
    pub files: Vec<PathBuf>,
    pub bar: ProgressBar,
    pub measurements: Vec<Measurement>,
    pub scaled: Vec<String>,
}

impl Bench {
    /// Allocations to make where the workload itself would make `own`.
    pub fn ops_or(&self, own: usize) -> usize {
        self.ops.map_or(own, |n| usize::try_from(n).unwrap_or(usize::MAX))
    }

    /// What is being measured now, for a person at a terminal.
    pub fn step(&self, what: &str) {
        self.bar.set_message(what.to_string());
        self.bar.tick();
    }

    pub fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    /// Notes that the device is too small for the workload as it is meant.
    pub fn scaled(&mut self, what: String) {
        self.scaled.push(what);
    }
}

//! The inputs and results of a workload.

use super::measure::Clock;
use super::report::Measurement;
use super::target::Target;
use indicatif::ProgressBar;
use std::path::PathBuf;

/// The inputs and results of a workload.
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
    /// Allocations to make: `--ops`, or else the workload's `own` number.
    pub fn ops_or(&self, own: usize) -> usize {
        self.ops.map_or(own, |n| usize::try_from(n).unwrap_or(usize::MAX))
    }

    /// Shows at a terminal what is being measured now.
    pub fn step(&self, what: &str) {
        self.bar.set_message(what.to_string());
        self.bar.tick();
    }

    pub fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    /// Notes that the device is too small for the full workload.
    pub fn scaled(&mut self, what: String) {
        self.scaled.push(what);
    }
}

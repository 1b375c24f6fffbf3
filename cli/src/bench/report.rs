//! The results of a benchmark, in the form of the JSON object.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Driver calls by name, without those not made.
pub type Calls = BTreeMap<String, u64>;

/// The whole result. Field order is the order of the output.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The version of gpumem.
    pub version: String,
    /// `host` or `cuda`.
    pub backend: String,
    /// The device's ordinal.
    pub device: u32,
    /// The device's product name.
    pub device_name: String,
    /// The device's memory, bytes.
    pub device_bytes: u64,
    /// The cost of one look at the clock, nanoseconds. It is subtracted from times of single calls;
    /// means of loops include two looks in all.
    pub clock_ns: f64,
    /// Workloads made smaller or left out because the device is too small for them.
    pub scaled: Vec<String>,
    /// One entry per workload and case.
    pub measurements: Vec<Measurement>,
    /// Workloads that gave no result.
    pub failed: Vec<String>,
}

impl Report {
    /// Appends these results to those of `earlier`, measured on the same device.
    pub fn after(self, earlier: Option<Report>) -> Report {
        let Some(mut all) = earlier else { return self };
        all.scaled.extend(self.scaled);
        all.measurements.extend(self.measurements);
        all
    }
}

/// One case of one workload.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// The workload's name on the command line.
    pub workload: String,
    /// The case of the workload.
    pub case: String,
    /// Allocations and frees that `driver_calls` covers.
    pub operations: u64,
    /// The figures.
    pub metrics: Vec<Metric>,
    /// Driver calls made during the operations.
    pub driver_calls: Calls,
    /// All driver calls ÷ operations.
    pub driver_calls_per_operation: f64,
}

/// One figure.
#[derive(Debug, Serialize, Deserialize)]
pub struct Metric {
    /// The figure's name.
    pub metric: String,
    /// The figure.
    pub value: f64,
    /// `us`, `ms`, `Mops/s`, `MiB`, `GiB`, or `1` for ratios and counts.
    pub unit: String,
}

impl Measurement {
    /// A case with nothing measured yet.
    pub fn new(workload: &str, case: impl Into<String>, operations: u64, driver_calls: Calls) -> Measurement {
        let calls: u64 = driver_calls.values().sum();
        Measurement {
            workload: workload.to_string(),
            case: case.into(),
            operations,
            metrics: Vec::new(),
            driver_calls,
            driver_calls_per_operation: calls as f64 / operations.max(1) as f64,
        }
    }

    /// Adds a figure.
    pub fn with(mut self, metric: &str, value: f64, unit: &str) -> Measurement {
        self.metrics.push(Metric { metric: metric.to_string(), value, unit: unit.to_string() });
        self
    }

    /// Adds bytes as GiB.
    pub fn with_gib(self, metric: &str, bytes: u64) -> Measurement {
        self.with(metric, bytes as f64 / gpumem::base::size::GIB as f64, "GiB")
    }

    /// Whether operations of a trace failed.
    pub fn has_failures(&self) -> bool {
        self.metrics.iter().any(|m| m.metric == "failures" && m.value > 0.0)
    }
}

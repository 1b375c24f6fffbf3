//! What the commands print: one JSON object, or short aligned tables for people.

use crate::doctor::Report as Doctor;
use crate::replay::Report as Replay;
use gpumem::base::size;
use indicatif::HumanCount;
use serde::Serialize;
use std::io::{self, Write};

/// One object and a newline on stdout.
pub fn json(report: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, report)?;
    writeln!(out)
}

/// Lines of `label  value`, aligned.
#[derive(Default)]
pub struct Table {
    rows: Vec<(String, String)>,
}

impl Table {
    /// Adds a line.
    pub fn row(&mut self, label: impl Into<String>, value: impl Into<String>) {
        self.rows.push((label.into(), value.into()));
    }

    /// A line of its own, after an empty one.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.row("", "");
        self.row(text, "");
    }

    /// Writes them.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let width = self.rows.iter().filter(|(_, v)| !v.is_empty()).map(|(l, _)| l.chars().count()).max().unwrap_or(0);
        for (label, value) in &self.rows {
            writeln!(out, "{}", format!("{label:width$}  {value}").trim_end())?;
        }
        Ok(())
    }
}

/// The result of a replay.
pub fn replay(r: &Replay) -> io::Result<()> {
    let mut t = Table::default();
    t.row("log", &r.file);
    t.row("device", format!("{} ({})", r.device, r.backend));
    t.row("operations", passes_text(r));
    t.row(
        "streams, threads",
        format!("{}, {}{}", r.streams, r.threads, if r.threads > 1 { " (replayed on one)" } else { "" }),
    );
    if r.skipped_lines > 0 {
        t.row("lines skipped", format!("{} (failed or null in the log)", HumanCount(r.skipped_lines)));
    }
    t.row("failures", HumanCount(r.failures).to_string());
    if let Some(first) = &r.first_failure {
        t.row("first failure", first);
    }
    t.row("peak live", bytes(r.peak_live_bytes));
    t.row("peak mapped", bytes(r.peak_mapped_bytes));
    t.row("utilisation", r.utilisation.map_or("none: the pool mapped nothing".to_string(), |u| format!("{u:.4}")));
    t.row("mean time", format!("{:.0} ns per operation", r.mean_ns_per_op));
    let calls: Vec<_> =
        r.driver_calls.iter().filter(|(_, &n)| n > 0).map(|(name, &n)| format!("{name} {}", HumanCount(n))).collect();
    t.row("driver calls", if calls.is_empty() { "none".to_string() } else { calls.join(", ") });
    for (i, p) in r.passes.iter().enumerate() {
        t.row(
            format!("pass {}", i + 1),
            format!(
                "peak mapped {}, {} failures, {:.0} ns per operation",
                size::human(p.peak_mapped_bytes),
                HumanCount(p.failures),
                p.mean_ns_per_op
            ),
        );
    }
    t.print(&mut io::stdout().lock())
}

fn passes_text(r: &Replay) -> String {
    match r.passes.len() {
        0 => HumanCount(r.ops).to_string(),
        n => format!("{} in {n} passes", HumanCount(r.ops)),
    }
}

/// A size for people, and exactly.
pub fn bytes(n: u64) -> String {
    format!("{} ({} bytes)", size::human(n), HumanCount(n))
}

/// The result of a look at the machine.
pub fn doctor(r: &Doctor) -> io::Result<()> {
    let mut t = Table::default();
    t.row("gpumem", r.version);
    match &r.backend {
        Some(b) => {
            t.row("backend", format!("{} ({})", b.name, b.why));
            t.row("driver", &b.driver);
        }
        None => t.row("backend", "none could be opened"),
    }
    for d in &r.devices {
        t.heading(format!("Device {}", d.ordinal));
        t.row("name", &d.name);
        t.row("memory", format!("{} free of {}", size::human(d.free_bytes), size::human(d.total_bytes)));
        t.row("granularity", size::human(d.granularity));
        t.row("compute capability", d.compute_capability.as_deref().unwrap_or("none (host device)"));
        t.row("virtual memory management", yes(d.vmm));
        t.row("export as POSIX fd", yes(d.posix_fd));
        t.row("GPUDirect RDMA", yes(d.rdma));
        t.row("peers", list(&d.peers));
        t.row("pool limit", bytes(d.pool_limit_bytes));
    }
    t.heading("Limits");
    for l in &r.limits {
        t.row(
            l.name,
            match &l.remark {
                Some(remark) => format!("{} ({remark})", l.value),
                None => l.value.clone(),
            },
        );
    }
    if !r.settings.is_empty() {
        t.heading("Settings");
    }
    for s in &r.settings {
        t.row(s.name, format!("{} ({})", s.value, s.source));
    }
    t.heading("Self-test");
    for c in &r.self_test {
        let verdict = if c.passed { "pass" } else { "FAIL" };
        t.row(
            format!("device {}: {}", c.device, c.check),
            match &c.detail {
                Some(detail) => format!("{verdict}: {detail}"),
                None => verdict.to_string(),
            },
        );
    }
    if r.self_test.is_empty() {
        t.row("not run", "there is no device to run it on");
    }
    t.heading(if r.problems.is_empty() { "No problem found." } else { "Problems" });
    for p in &r.problems {
        t.row(format!("- {p}"), "");
    }
    t.print(&mut io::stdout().lock())
}

fn yes(b: bool) -> &'static str {
    if b {
        "yes"
    } else {
        "no"
    }
}

fn list(items: &[u32]) -> String {
    if items.is_empty() {
        "none".to_string()
    } else {
        items.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    }
}

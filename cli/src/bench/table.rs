//! The results for people: an aligned table per workload, units in the headings.

use super::report::{Calls, Measurement, Metric, Report};
use crate::output::Target;
use crate::plot::{self, Bars};
use gpumem::base::size;
use indicatif::HumanCount;
use std::error::Error;
use std::io::{self, Write};

/// Prints the whole result.
pub fn print(r: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "gpumem {}, device {}: {}, {} ({})", r.version, r.device, r.device_name, human(r), r.backend)?;
    writeln!(
        out,
        "Reading the clock takes {:.0} ns. That is taken off the times of single calls (p50, p99, max); means are over whole loops.",
        r.clock_ns
    )?;
    let mut rest = r.measurements.as_slice();
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|m| m.workload == first.workload && headings(m) == headings(first)).count();
        let (group, others) = rest.split_at(same);
        rest = others;
        writeln!(out)?;
        for line in table(group) {
            writeln!(out, "{line}")?;
        }
        if rest.first().is_none_or(|m| m.workload != first.workload) {
            writeln!(out, "  driver calls: {}", calls(r, &first.workload))?;
        }
    }
    for (heading, lines) in [("Made smaller for this device", &r.scaled), ("Gave no result", &r.failed)] {
        if !lines.is_empty() {
            writeln!(out, "\n{heading}:")?;
        }
        for line in lines {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// Bars of the first figure of each case.
pub fn plot(r: &Report, to: &Target) -> Result<(), Box<dyn Error>> {
    let group = |group: &[Measurement]| {
        let first = group.first()?;
        let row = |m: &Measurement| m.metrics.first().map(|f| (m.case.clone(), f.value, value(f)));
        let title = format!("{}: {}", first.workload, heading(first).get(1)?);
        Some(Bars { title, bars: group.iter().filter_map(row).collect() })
    };
    let alike = |a: &Measurement, b: &Measurement| a.workload == b.workload && headings(a) == headings(b);
    let groups: Vec<Bars> = r.measurements.chunk_by(alike).filter_map(group).collect();
    plot::bars(to, &format!("gpumem {}, {}", r.version, r.device_name), &groups)
}

fn human(r: &Report) -> String {
    size::human(r.device_bytes)
}

fn headings(m: &Measurement) -> Vec<String> {
    m.metrics.iter().map(|metric| metric.metric.clone()).collect()
}

/// Measurements with the same metrics, one line each under a heading.
fn table(group: &[Measurement]) -> Vec<String> {
    let Some(first) = group.first() else { return Vec::new() };
    let mut rows = vec![heading(first)];
    rows.extend(group.iter().map(|m| {
        let mut row = vec![format!("  {}", m.case)];
        row.extend(m.metrics.iter().map(value));
        row.push(format!("{:.2}", m.driver_calls_per_operation));
        row
    }));
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0))
        .map(|c| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(c, (cell, &width))| match c {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}

fn heading(m: &Measurement) -> Vec<String> {
    let mut row = vec![m.workload.clone()];
    row.extend(m.metrics.iter().map(|metric| match metric.unit.as_str() {
        "1" => metric.metric.clone(),
        "us" => format!("{} µs", metric.metric),
        unit => format!("{} {unit}", metric.metric),
    }));
    row.push("driver calls/op".to_string());
    row
}

fn value(m: &Metric) -> String {
    match m.unit.as_str() {
        "us" | "ms" => format!("{:.3}", m.value),
        "1" if m.value.fract() != 0.0 => format!("{:.4}", m.value),
        "1" => HumanCount(m.value as u64).to_string(),
        _ => format!("{:.2}", m.value),
    }
}

/// All driver calls of a workload, the most frequent first.
fn calls(r: &Report, workload: &str) -> String {
    let mut sums = Calls::new();
    for m in r.measurements.iter().filter(|m| m.workload == workload) {
        m.driver_calls.iter().for_each(|(name, n)| *sums.entry(name.clone()).or_default() += n);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
    match sums.as_slice() {
        [] => "none".to_string(),
        sums => sums.iter().map(|(name, n)| format!("{name} {}", HumanCount(*n))).collect::<Vec<_>>().join(", "),
    }
}

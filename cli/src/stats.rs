//! `gpumem stats`: a recording or a snapshot in a few lines, as JSON, or as Prometheus reads it.

use crate::report::{self, Stdout, Table};
use crate::view::{self, Seen};
use gpumem::base::size::human;
use gpumem::observe::{History, Recording};
use indicatif::HumanCount;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::PathBuf;

/// Command line of `stats`.
#[derive(clap::Args)]
pub struct Args {
    /// Prints one JSON object on stdout.
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Prints metrics in Prometheus' text format.
    #[arg(long)]
    prometheus: bool,
    /// The recording or the snapshot.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<bool, Box<dyn std::error::Error>> {
    let seen = view::read(&args.file)?;
    let numbers = match &seen {
        Seen::Recording(recording, history) => view::totals(recording, history),
        Seen::Snapshot(snapshot) => snapshot_numbers(snapshot),
    };
    if args.json {
        report::json(&numbers)?;
    } else if args.prometheus {
        prometheus(&numbers, &mut Stdout::lock())?;
    } else {
        match &seen {
            Seen::Recording(recording, history) => people(recording, history, &numbers)?,
            Seen::Snapshot(snapshot) => {
                let mut out = Stdout::lock();
                for sentence in snapshot.get("report").and_then(Value::as_array).into_iter().flatten() {
                    writeln!(out, "{}", report::one_line(sentence.as_str().unwrap_or_default()))?;
                }
            }
        }
    }
    Ok(true)
}

/// The counters of each device.
fn snapshot_numbers(snapshot: &Value) -> Value {
    let devices = snapshot.get("devices").and_then(Value::as_array).into_iter().flatten();
    let device = |d: &Value| {
        let mut stats = d.get("stats").cloned().unwrap_or_default();
        if let Some(s) = stats.as_object_mut() {
            for name in ["device", "stranded_bytes", "whole_free_bytes", "evictable_bytes"] {
                s.insert(name.into(), d.get(name).cloned().unwrap_or_default());
            }
        }
        stats
    };
    serde_json::json!({
        "reason": snapshot.get("reason"),
        "failure": snapshot.get("failure"),
        "devices": devices.map(device).collect::<Vec<_>>(),
    })
}

/// Writes numbers as gauges; those of devices have a label.
fn prometheus(numbers: &Value, out: &mut impl Write) -> io::Result<()> {
    // A metric's samples stand together, behind its only type line.
    let mut metrics: BTreeMap<&str, Vec<(String, u64)>> = BTreeMap::new();
    let devices = numbers.get("devices").and_then(Value::as_array).into_iter().flatten();
    let labelled = devices.map(|device| {
        let number = device.get("device").and_then(Value::as_u64).unwrap_or(0);
        (device, format!("{{device=\"{number}\"}}"))
    });
    for (of, label) in std::iter::once((numbers, String::new())).chain(labelled) {
        let values = of.as_object().into_iter().flatten().filter(|(name, _)| label.is_empty() || *name != "device");
        for (name, n) in values.filter_map(|(name, value)| Some((name, value.as_u64()?))) {
            metrics.entry(name).or_default().push((label.clone(), n));
        }
    }
    for (name, samples) in metrics {
        writeln!(out, "# TYPE gpumem_{name} gauge")?;
        samples.iter().try_for_each(|(label, n)| writeln!(out, "gpumem_{name}{label} {n}"))?;
    }
    Ok(())
}

fn people(recording: &Recording, history: &History, numbers: &Value) -> io::Result<()> {
    let n = |name: &str| numbers.get(name).and_then(Value::as_u64).unwrap_or(0);
    let count = |name: &str| HumanCount(n(name)).to_string();
    let mut t = Table::default();
    if let Some(command) = recording.info.get("command").and_then(Value::as_array) {
        let words: Vec<&str> = command.iter().filter_map(Value::as_str).collect();
        t.row("command", words.join(" "));
    }
    t.row("time", format!("{:.3} s", n("nanoseconds") as f64 / 1e9));
    let lost = match (view::is_whole(recording), recording.lost) {
        (true, _) => format!("{} lost", count("lost")),
        (false, 0) => "not known how many lost".into(),
        (false, _) => format!("at least {} lost", count("lost")),
    };
    t.row("events", format!("{}, {lost}", count("events")));
    let [made, freed, resized, failed] = ["allocations", "frees", "resizes", "failures"].map(count);
    t.row("allocations", format!("{made}, {freed} frees, {resized} resizes in place, {failed} failures"));
    t.row("threads", count("threads"));
    t.row("peak live", format!("{}, after {:.3} s", report::bytes(n("peak_live_bytes")), n("peak_at_ns") as f64 / 1e9));
    t.row("peak mapped", format!("{} of what was mapped since the begin", report::bytes(n("peak_mapped_bytes"))));
    t.row(
        "live at the end",
        format!("{} in {} allocations", report::bytes(n("live_bytes")), count("live_allocations")),
    );
    t.row(
        "slow path",
        format!("{} growths, {} stitches, {} trims", count("growths"), count("stitches"), count("trims")),
    );
    t.row("driver calls", format!("{} in {:.3} ms", count("driver_calls"), n("driver_nanoseconds") as f64 / 1e6));
    let mut alive: HashMap<(u32, u64), (u64, u64)> = HashMap::new();
    for l in history.lives.iter().filter(|l| l.to == gpumem::observe::history::NEVER) {
        let sum = alive.entry((l.stack, l.tag)).or_default();
        *sum = (sum.0.saturating_add(l.bytes), sum.1 + 1);
    }
    let mut alive: Vec<_> = alive.into_iter().collect();
    alive.sort_by_key(|&(key, (bytes, _))| (std::cmp::Reverse(bytes), key));
    if !alive.is_empty() {
        t.heading("Live at the end, the most first");
    }
    for ((stack, tag), (bytes, many)) in alive.iter().take(10) {
        let frames = recording.frames(*stack);
        let who = match frames.first() {
            Some(frame) => (*frame).to_string(),
            None if *tag != 0 => format!("tag {tag}"),
            None => "no stack and no tag".into(),
        };
        t.row(human(*bytes), format!("{} allocations: {who}", HumanCount(*many)));
        for frame in frames.iter().skip(1).take(3) {
            t.row("", format!("    from {frame}"));
        }
    }
    t.print(&mut Stdout::lock())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_metric_has_one_type_line_with_its_samples_behind_it() {
        let device = |n: u64| serde_json::json!({"device": n, "live": 10 + n, "mapped": 20 + n});
        let numbers = serde_json::json!({"live": 7, "reason": "oom", "devices": [device(0), device(1)]});
        let mut out = Vec::new();
        prometheus(&numbers, &mut out).unwrap();
        let expected = "# TYPE gpumem_live gauge\ngpumem_live 7\ngpumem_live{device=\"0\"} 10\n\
                        gpumem_live{device=\"1\"} 11\n# TYPE gpumem_mapped gauge\n\
                        gpumem_mapped{device=\"0\"} 20\ngpumem_mapped{device=\"1\"} 21\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

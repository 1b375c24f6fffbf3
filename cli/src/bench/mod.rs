//! `gpumem bench`: what allocating costs on this machine, workload by workload.
//!
//! Each workload runs in a process of its own, on a fresh pool, so that none profits or suffers
//! from another. The workloads are those of `bench/peers`, drawn from the same random numbers, so
//! their figures are comparable.

mod arena;
mod checkerboard;
mod cold;
mod cross_stream;
mod growing;
mod hot;
mod measure;
mod random;
mod report;
mod script;
mod table;
mod target;
mod threads;
mod traces;
mod workbench;

use crate::output;
use crate::session::{Backend, Place};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use measure::Clock;
use report::{Measurement, Report};
use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use target::Target;
use workbench::Bench;

/// Most allocations that `--ops` takes: what a slot number has room for.
const MOST_OPS: u64 = 1 << 31;

/// Command line of `bench`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Prints one JSON object on stdout instead of tables.
    #[arg(long)]
    json: bool,
    /// Also draws the first figure of each case as bars, to this file; - writes to standard output.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Allocations per case, instead of each workload's own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_OPS))]
    ops: Option<u64>,
    /// Passes over each trace of `replay`.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// What to measure: hot, live, random, threads, threads_one_stream, cross_stream, growing,
    /// checkerboard, arena, cold; or, as the last, replay followed by the files to replay. The
    /// default is all but replay.
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,
}

/// What to measure. The names are those of the command line and of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Workload {
    Cold,
    Hot,
    Live,
    Random,
    Threads,
    ThreadsOneStream,
    CrossStream,
    Growing,
    Checkerboard,
    Arena,
    Replay,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Workload::Cold => "cold",
            Workload::Hot => "hot",
            Workload::Live => "live",
            Workload::Random => "random",
            Workload::Threads => "threads",
            Workload::ThreadsOneStream => "threads_one_stream",
            Workload::CrossStream => "cross_stream",
            Workload::Growing => "growing",
            Workload::Checkerboard => "checkerboard",
            Workload::Arena => "arena",
            Workload::Replay => "replay",
        }
    }
}

/// Runs the command; `Ok(false)` if some but not all workloads failed, or operations of a trace
/// failed.
pub fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let (workloads, files) = parse(&args.workloads)?;
    if let Some(svg) = &args.svg {
        files.iter().try_for_each(|file| crate::source::spare(file, svg))?;
    }
    let svg = args.svg.as_deref().map(output::Target::new).transpose()?;
    let taken = output::one_on_stdout([
        ("--svg -", svg.as_ref().is_some_and(output::Target::is_stdout)),
        ("--json", args.json),
    ])?;
    let report = match *workloads.as_slice() {
        [only] => match here(args, only, files)? {
            Ok(report) => report,
            Err(e) => {
                crate::report::say(e);
                return Ok(false);
            }
        },
        _ => apart(args, &workloads, &files)?,
    };
    if args.json {
        crate::report::json(&report)?;
    } else {
        table::print(&report, &mut crate::report::beside(taken))?;
    }
    if let Some(to) = &svg {
        table::plot(&report, to)?;
    }
    Ok(report.failed.is_empty() && !report.measurements.iter().any(Measurement::has_failures))
}

/// The workloads named, in the order of the command line, and the files for `replay`.
fn parse(words: &[String]) -> Result<(Vec<Workload>, Vec<PathBuf>), String> {
    let choices = Workload::value_variants().iter().map(|w| w.name()).collect::<Vec<_>>().join(", ");
    let mut workloads = Vec::new();
    let mut words = words.iter();
    for word in words.by_ref() {
        let workload = Workload::from_str(word, false)
            .map_err(|_| format!("{word:?} is no workload; choose from {choices} (files follow replay)"))?;
        if workloads.contains(&workload) {
            return Err(format!("the workload {word} is named twice"));
        }
        workloads.push(workload);
        if workload == Workload::Replay {
            break;
        }
    }
    let files: Vec<_> = words.map(PathBuf::from).collect();
    if workloads.contains(&Workload::Replay) && files.is_empty() {
        return Err("replay needs files: gpumem bench replay FILE.csv.gz [FILE...]".to_string());
    }
    if workloads.is_empty() {
        workloads = Workload::value_variants().iter().copied().filter(|&w| w != Workload::Replay).collect();
    }
    Ok((workloads, files))
}

/// Runs one workload in this process, which has not used the allocator yet. The outer error means
/// that it could not begin or that a trace is invalid; the inner one is the allocator's.
fn here(
    args: &Args,
    workload: Workload,
    files: Vec<PathBuf>,
) -> Result<Result<Report, gpumem::base::Error>, Box<dyn Error>> {
    let target = Target::open(args.place.backend, args.place.device)?;
    let mut bench = Bench {
        target,
        clock: Clock::measure(),
        ops: args.ops,
        repeat: args.repeat,
        files,
        bar: spinner(),
        measurements: Vec::new(),
        scaled: Vec::new(),
    };
    bench.step(workload.name());
    let measured = match workload {
        Workload::Cold => cold::run(&mut bench),
        Workload::Hot => hot::run(&mut bench),
        Workload::Live => hot::run_live(&mut bench),
        Workload::Random => random::run(&mut bench),
        Workload::Threads => threads::run(&mut bench),
        Workload::ThreadsOneStream => threads::run_one_stream(&mut bench),
        Workload::CrossStream => cross_stream::run(&mut bench),
        Workload::Growing => growing::run(&mut bench),
        Workload::Checkerboard => checkerboard::run(&mut bench),
        Workload::Arena => arena::run(&mut bench),
        Workload::Replay => traces::run(&mut bench)?,
    };
    bench.bar.finish_and_clear();
    Ok(measured.and_then(|()| bench.target.report(&bench.clock, bench.measurements, bench.scaled)))
}

/// Runs each workload in a process of its own. The report names any that fails; its message is on
/// stderr.
fn apart(args: &Args, workloads: &[Workload], files: &[PathBuf]) -> Result<Report, Box<dyn Error>> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find the gpumem command itself: {e}"))?;
    let mut all: Option<Report> = None;
    let mut failed = Vec::new();
    for &workload in workloads {
        let mut child = Command::new(&program);
        child.args([
            "bench",
            "--json",
            "--device",
            &args.place.device.to_string(),
            "--repeat",
            &args.repeat.to_string(),
        ]);
        if let Some(ops) = args.ops {
            child.args(["--ops", &ops.to_string()]);
        }
        // Only the first says that there is no GPU.
        let on_host = all.as_ref().is_some_and(|r| r.backend == "host").then_some(Backend::Host);
        if let Some(backend) = args.place.backend.or(on_host).and_then(|b| b.to_possible_value()) {
            child.args(["--backend", backend.get_name()]);
        }
        child.arg(workload.name());
        if workload == Workload::Replay {
            child.args(files);
        }
        let output = child.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.map_err(|e| format!("cannot start {}: {e}", program.display()))?;
        match serde_json::from_slice::<Report>(&output.stdout) {
            Ok(report) => all = Some(report.after(all)),
            // No other workload could begin either.
            Err(_) if all.is_none() && output.status.code() == Some(i32::from(crate::exit_code::INPUT)) => break,
            Err(_) => {
                let (name, status) = (workload.name(), output.status);
                crate::report::say(format_args!("the workload {name} gave no result ({status})"));
                failed.push(workload.name().to_string());
            }
        }
    }
    let mut report = all.ok_or("no workload gave a result; see above")?;
    report.failed = failed;
    Ok(report)
}

/// A spinner, on stderr if that is a terminal. It has no thread, which would disturb the
/// measurement.
fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    // The template is a constant; without it the line looks different and works the same.
    if let Ok(style) = ProgressStyle::with_template("{spinner} measuring {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(words: &[&str]) -> Result<(Vec<Workload>, Vec<PathBuf>), String> {
        parse(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn the_names_of_the_command_line_are_those_of_the_output() {
        for workload in Workload::value_variants() {
            assert_eq!(Workload::from_str(workload.name(), false).as_ref(), Ok(workload));
        }
    }

    #[test]
    fn what_follows_replay_is_files() {
        let (workloads, files) = parsed(&["hot", "replay", "hot", "x.csv"]).unwrap();
        assert_eq!(workloads, [Workload::Hot, Workload::Replay]);
        assert_eq!(files, [PathBuf::from("hot"), PathBuf::from("x.csv")]);
        assert!(parsed(&["replay"]).unwrap_err().contains("needs files"));
        assert!(parsed(&["hot", "hot"]).unwrap_err().contains("twice"));
        let (all, files) = parsed(&[]).unwrap();
        assert!(files.is_empty() && all.len() + 1 == Workload::value_variants().len());
    }
}

//! `gpumem replay`: an allocation log through the allocator, timed and measured.

use crate::output::{one_on_stdout, Target};
use crate::plot::{self, Sample};
use crate::report;
use crate::session::{self, Place};
use crate::source;
use crate::trace::{self, Kind, Op, Trace};
use gpumem::base::{size, DeviceId, Error, StreamHandle};
use gpumem::context::{Context, Request};
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Operations between two looks at the progress bar, which are not timed.
const CHUNK: usize = 1 << 14;
/// About how many points a plot has.
const SAMPLES: usize = 4000;

/// Command line of `replay`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// How often to replay the log. After each pass, everything still live is freed; the next pass
    /// starts on the same pool.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Prints one JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
    /// Also plots live and mapped bytes over the operations, to this file. The replay pauses for
    /// each point, so its time and memory are not those of a replay without a plot.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The log, FILE.csv or FILE.csv.gz, or a recording; /dev/stdin reads standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The results of a replay. Field order is the order of the output; units are in the names.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The log's path as given.
    pub file: String,
    /// `host` or `cuda`.
    pub backend: &'static str,
    /// The device's ordinal.
    pub device: u32,
    /// Allocations and frees of the log, all passes together.
    pub ops: u64,
    /// Operations that returned an error. A free whose allocation failed is not attempted.
    pub failures: u64,
    /// The first error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<String>,
    /// Distinct streams in the log.
    pub streams: usize,
    /// Distinct threads in the log (replayed on one).
    pub threads: usize,
    /// Lines of the log that were not replayed: `allocate failure`, and operations on null.
    pub skipped_lines: u64,
    /// Largest sum of requested sizes live at once, counted from the log.
    pub peak_live_bytes: u64,
    /// Most physical memory the pool had mapped at once.
    pub peak_mapped_bytes: u64,
    /// Peak live ÷ peak mapped; null when nothing was mapped (with `GPUMEM_POOL=off`), and when
    /// operations failed: not all of the log was live then.
    pub utilisation: Option<f64>,
    /// Time of the loop over all operations ÷ operations.
    pub mean_ns_per_op: f64,
    /// Driver calls the operations made, by name. Calls that make streams before a pass, and frees
    /// after it, are not included.
    pub driver_calls: BTreeMap<&'static str, u64>,
    /// Each pass, when there was more than one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<PassReport>,
}

/// One pass of several.
#[derive(Debug, Serialize)]
pub struct PassReport {
    /// Most physical memory mapped during the pass.
    pub peak_mapped_bytes: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Time ÷ operations.
    pub mean_ns_per_op: f64,
    /// Driver calls the operations made, by name, without those not made.
    pub driver_calls: BTreeMap<&'static str, u64>,
}

/// Runs the command; `Ok(false)` when operations failed.
pub fn run(args: &Args) -> Result<bool, Box<dyn std::error::Error>> {
    if let Some(svg) = &args.svg {
        source::spare(&args.file, svg)?;
    }
    let svg = args.svg.as_deref().map(Target::new).transpose()?;
    let taken = one_on_stdout([("--svg -", svg.as_ref().is_some_and(Target::is_stdout)), ("--json", args.json)])?;
    let trace = trace::read(&args.file)?;
    let ctx = session::open(session::config(args.place.backend)?)?;
    let device = session::device(ctx, args.place.device)?;
    let streams = Streams::create(ctx, device, &trace.streams)?;
    let mut replay = Replay::new(ctx, device, &trace, &streams.handles);
    if args.svg.is_some() {
        let operations = trace.ops.len().saturating_mul(args.repeat as usize);
        replay.chunk = operations.div_ceil(SAMPLES).clamp(1, CHUNK);
        replay.curve = Some(Curve { sizes: vec![0; trace.slots], live: 0, samples: Vec::new() });
    }
    let bar = progress_bar(args, &trace);
    let mut passes = Vec::new();
    for _ in 0..args.repeat {
        passes.push(replay.pass(&bar)?);
    }
    bar.finish_and_clear();
    let curve = replay.curve.take();
    let report = replay.report(args, passes);
    if args.json {
        report::json(&report)?;
    } else {
        print(&report, taken)?;
    }
    if let (Some(to), Some(curve)) = (&svg, curve) {
        let name = args.file.file_name().unwrap_or_default().to_string_lossy();
        let title = format!("{name}, {} device", report.backend);
        plot::memory(to, &title, &curve.samples, report.peak_mapped_bytes)?;
    }
    Ok(report.failures == 0)
}

/// A progress bar, shown on stderr if that is a terminal.
fn progress_bar(args: &Args, trace: &Trace) -> ProgressBar {
    let total = u64::from(args.repeat).saturating_mul(trace.ops.len() as u64);
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    // The template is a constant; without it the bar looks plainer and works the same.
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} operations, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// A real stream for each stream value of the log: the two special values stand for themselves, as
/// they did where the log was written; every other gets a stream of its own. Destroyed on drop.
pub struct Streams<'a> {
    ctx: &'a Context,
    device: DeviceId,
    /// The streams, in the order of the log's values.
    pub handles: Vec<StreamHandle>,
    created: Vec<StreamHandle>,
}

impl<'a> Streams<'a> {
    /// Makes streams for the values of a log.
    pub fn create(ctx: &'a Context, device: DeviceId, values: &[u64]) -> Result<Streams<'a>, Error> {
        let mut streams = Streams { ctx, device, handles: Vec::with_capacity(values.len()), created: Vec::new() };
        for &value in values {
            let handle = match value {
                0 | 1 => StreamHandle::LEGACY,
                2 => StreamHandle::PER_THREAD,
                _ => {
                    let new = ctx.driver().stream_create(device)?;
                    streams.created.push(new);
                    new
                }
            };
            streams.handles.push(handle);
        }
        Ok(streams)
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        for &stream in &self.created {
            // The process ends here; a stream that cannot be destroyed ends with it.
            let _ = self.ctx.driver().stream_destroy(self.device, stream);
        }
    }
}

/// The state of a replay between passes.
pub struct Replay<'a> {
    ctx: &'a Context,
    device: DeviceId,
    trace: &'a Trace,
    streams: &'a [StreamHandle],
    /// The pointer in each slot; 0 when nothing is live there.
    slots: Vec<u64>,
    first_failure: Option<String>,
    driver_calls: BTreeMap<&'static str, u64>,
    /// Operations between two looks at the progress bar.
    chunk: usize,
    /// The samples for a plot, if one is wanted.
    curve: Option<Curve>,
}

/// Bytes live in the log and bytes mapped by the pool, over time.
struct Curve {
    /// Bytes live in each slot.
    sizes: Vec<u64>,
    /// Bytes live in all slots.
    live: u64,
    samples: Vec<Sample>,
}

impl Curve {
    /// Adds a sample: `mapped` bytes are mapped after `ops`.
    fn add(&mut self, ops: &[Op], mapped: u64) {
        let mut most = 0;
        for op in ops {
            let Some(size) = self.sizes.get_mut(op.slot as usize) else { continue };
            self.live = self.live.saturating_add(op.size).saturating_sub(std::mem::replace(size, op.size));
            most = most.max(self.live);
        }
        let operations = self.samples.last().map_or(0, |s| s.operations) + ops.len() as u64;
        self.samples.push(Sample { operations, live: most, mapped });
    }

    /// Notes that everything live has been freed.
    fn end_pass(&mut self) {
        self.live = 0;
        self.sizes.fill(0);
    }
}

/// One pass as measured.
pub struct Pass {
    /// Operations that failed.
    pub failures: u64,
    /// Most physical memory the pool had mapped at once, bytes.
    pub peak_mapped: u64,
    /// The time of the operations alone.
    pub time: Duration,
    /// Driver calls made during the pass.
    pub driver_calls: BTreeMap<&'static str, u64>,
}

impl<'a> Replay<'a> {
    /// A replay of `trace`, whose streams are `streams`. Nothing is allocated yet.
    pub fn new(ctx: &'a Context, device: DeviceId, trace: &'a Trace, streams: &'a [StreamHandle]) -> Replay<'a> {
        Replay {
            ctx,
            device,
            trace,
            streams,
            slots: vec![0; trace.slots],
            first_failure: None,
            driver_calls: BTreeMap::new(),
            chunk: CHUNK,
            curve: None,
        }
    }

    /// The error of the first operation that failed.
    pub fn first_failure(&self) -> Option<&str> {
        self.first_failure.as_deref()
    }

    /// Replays the log once and frees what it left live.
    pub fn pass(&mut self, bar: &ProgressBar) -> Result<Pass, Error> {
        self.ctx.reset_peaks(self.device)?;
        let before = self.ctx.driver_calls();
        let mut failures = 0;
        let mut time = Duration::ZERO;
        for (i, ops) in self.trace.ops.chunks(self.chunk).enumerate() {
            let start = Instant::now();
            failures += self.operations(ops, i * self.chunk);
            time += start.elapsed();
            bar.inc(ops.len() as u64);
            if let Some(curve) = &mut self.curve {
                curve.add(ops, self.ctx.stats(self.device)?.mapped);
            }
        }
        let driver_calls = self.driver_calls_since(&before);
        let peak_mapped = self.ctx.stats(self.device)?.peak_mapped;
        self.free_the_rest()?;
        Ok(Pass { failures, peak_mapped, time, driver_calls })
    }

    /// Runs the timed operations. `first` is the index of `ops[0]` in the log; returns how many
    /// operations failed.
    #[inline(never)]
    fn operations(&mut self, ops: &[Op], first: usize) -> u64 {
        let mut failures = 0;
        for (i, op) in ops.iter().enumerate() {
            let (Some(slot), Some(&stream)) =
                (self.slots.get_mut(op.slot as usize), self.streams.get(usize::from(op.stream)))
            else {
                // The parser hands out no such index.
                failures += 1;
                continue;
            };
            let result = match op.kind {
                Kind::Allocate => {
                    let request = Request { size: op.size, device: Some(self.device), stream, ..Request::default() };
                    self.ctx.malloc(&request).map(|ptr| *slot = ptr)
                }
                Kind::Free => match std::mem::take(slot) {
                    0 => continue, // its allocation failed, and was counted then
                    ptr => self.ctx.free_async(ptr, stream),
                },
            };
            if let Err(e) = result {
                failures += 1;
                if self.first_failure.is_none() {
                    self.first_failure = Some(describe(op, first + i, &e));
                }
            }
        }
        failures
    }

    fn free_the_rest(&mut self) -> Result<(), Error> {
        if let Some(curve) = &mut self.curve {
            curve.end_pass();
        }
        for slot in &mut self.slots {
            match std::mem::take(slot) {
                0 => {}
                ptr => self.ctx.free(ptr).map_err(|e| e.context("freeing what the log left live"))?,
            }
        }
        Ok(())
    }

    /// The calls made since `before`, which are also added to the calls of all passes.
    fn driver_calls_since(&mut self, before: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
        let before: BTreeMap<_, _> = before.iter().copied().collect();
        let mut made = BTreeMap::new();
        for (name, count) in self.ctx.driver_calls() {
            let new = count - before.get(name).copied().unwrap_or(0);
            *self.driver_calls.entry(name).or_default() += new;
            if new > 0 {
                made.insert(name, new);
            }
        }
        made
    }

    fn report(self, args: &Args, passes: Vec<Pass>) -> Report {
        let ops_per_pass = self.trace.ops.len() as u64;
        let ops = ops_per_pass * passes.len() as u64;
        let peak_mapped = passes.iter().map(|p| p.peak_mapped).max().unwrap_or(0);
        let failures = passes.iter().map(|p| p.failures).sum();
        let each = |p: &Pass| PassReport {
            peak_mapped_bytes: p.peak_mapped,
            failures: p.failures,
            mean_ns_per_op: mean_ns(p.time, ops_per_pass),
            driver_calls: p.driver_calls.clone(),
        };
        Report {
            file: args.file.display().to_string(),
            backend: self.ctx.driver().backend(),
            device: self.device.0,
            ops,
            failures,
            first_failure: self.first_failure,
            streams: self.trace.streams.len(),
            threads: self.trace.threads,
            skipped_lines: self.trace.failed_in_log + self.trace.null_in_log,
            peak_live_bytes: self.trace.peak_live_bytes,
            peak_mapped_bytes: peak_mapped,
            utilisation: (peak_mapped > 0 && failures == 0)
                .then(|| self.trace.peak_live_bytes as f64 / peak_mapped as f64),
            mean_ns_per_op: mean_ns(passes.iter().map(|p| p.time).sum(), ops),
            driver_calls: self.driver_calls,
            passes: if passes.len() > 1 { passes.iter().map(each).collect() } else { Vec::new() },
        }
    }
}

fn mean_ns(time: Duration, ops: u64) -> f64 {
    time.as_nanos() as f64 / ops as f64
}

#[cold]
fn describe(op: &Op, index: usize, e: &Error) -> String {
    match op.kind {
        Kind::Allocate => format!("operation {}, allocate {}: {e}", index + 1, size::human(op.size)),
        Kind::Free => format!("operation {}, free: {e}", index + 1),
    }
}

/// The result as a table, on stderr when stdout is `taken`.
fn print(r: &Report, taken: bool) -> io::Result<()> {
    let mut t = report::Table::default();
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
    t.row("peak live", report::bytes(r.peak_live_bytes));
    t.row("peak mapped", report::bytes(r.peak_mapped_bytes));
    let none = if r.failures > 0 { "none: operations failed" } else { "none: the pool mapped nothing" };
    t.row("utilisation", r.utilisation.map_or(none.to_string(), |u| format!("{u:.4}")));
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
    t.print_beside(taken)
}

fn passes_text(r: &Report) -> String {
    match r.passes.len() {
        0 => HumanCount(r.ops).to_string(),
        n => format!("{} in {n} passes", HumanCount(r.ops)),
    }
}

//! `gpumem plan`: buffers as CSV in, offsets in one arena out.

mod columns;
mod input;
mod output;
mod peak;
mod row;
mod summary;

use crate::output::{one_on_stdout, Target};
use crate::report;
use gpumem::base::size;
use gpumem::plan::{self, ArenaUse, Buffer, Effort, Layout, LayoutStatus, Problem, SolveOptions};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use input::Input;
use peak::Peak;
use std::error::Error;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A run shorter than this shows no progress.
const QUIET: Duration = Duration::from_secs(1);
/// The time between updates of the progress line.
const TICK: Duration = Duration::from_millis(100);

/// Set by the first Ctrl-C; the second ends the process.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Exit code of a process ended by an interrupt, as in shells.
const EXIT_INTERRUPTED: i32 = 130;

/// Command line of `plan`.
#[derive(clap::Args)]
pub struct Args {
    /// The buffers: FILE.csv or FILE.csv.gz; - reads standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The most bytes of the arena, or of each if there are several: a number, optionally with K,
    /// M, G or T (powers of 1024). 0 is no bytes at all; without the option there is no limit.
    #[arg(long, value_name = "N", value_parser = capacity)]
    capacity: Option<u64>,
    /// Seconds to search, instead of a fixed number of steps. The result may then differ from run
    /// to run.
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with = "fast")]
    time_limit: Option<Duration>,
    /// Threads to search with.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Tries a few greedy orders and does not search.
    #[arg(long)]
    fast: bool,
    /// Writes the input with an added column offset. F.csv may be the input file; - writes to
    /// standard output.
    #[arg(long, value_name = "F.csv")]
    out: Option<PathBuf>,
    /// Draws the layout: steps to the right, bytes up; - writes to standard output.
    #[arg(long, value_name = "F.svg")]
    svg: Option<PathBuf>,
    /// Prints one JSON object on stdout instead of a table.
    #[arg(long, conflicts_with = "report")]
    json: bool,
    /// Prints every buffer with its offset on stdout instead of a table, sorted by offset: lines of
    /// columns separated by tabs.
    #[arg(long)]
    report: bool,
}

fn capacity(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|e| e.message)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&s: &f64| s > 0.0);
    let duration = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    duration.ok_or_else(|| format!("{text:?} is not a time; write seconds above 0 and below 2^64, such as 10 or 0.5"))
}

/// Runs the command; `Ok(false)` when no layout was found.
pub fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let out = args.out.as_deref().map(Target::new).transpose()?;
    let svg = args.svg.as_deref().map(Target::new).transpose()?;
    let is_stdout = |target: &Option<Target>| target.as_ref().is_some_and(Target::is_stdout);
    let taken = one_on_stdout([
        ("--out -", is_stdout(&out)),
        ("--svg -", is_stdout(&svg)),
        ("--json", args.json),
        ("--report", args.report),
    ])?;
    apart(args, [&out, &svg])?;
    let mut input = Input::read(&args.file)?;
    input.places_apart()?;
    for arena in 0..input.problem.arenas().len() as u32 {
        input.problem.set_arena_capacity(arena, args.capacity).map_err(|e| e.message)?;
    }
    let peak = Peak::of(&input.problem);
    let layout = lay_out(&input, &peak, args)?;
    let fits = matches!(layout.status, LayoutStatus::Optimal | LayoutStatus::Feasible);
    if let Some(target) = out.as_ref().filter(|_| fits) {
        target.write(|out| output::csv(&input, &layout, out))?;
    }
    if let Some(target) = &svg {
        target.write(|out| out.write_all(plan::svg(&input.problem, &layout).as_bytes()))?;
    }
    let summary = summary::Report::new(&input, &peak, &layout);
    if args.report {
        Target::STDOUT.write(|out| out.write_all(plan::report(&input.problem, &layout).as_bytes()))?;
    } else if args.json {
        crate::report::json(&summary)?;
    } else {
        summary.print(taken)?;
    }
    if let Some(why) = &summary.reason {
        report::say(format_args!("{}: {why}", input.file));
    }
    // The process is ending, and freeing millions of names one by one would take a quarter of a
    // second.
    std::mem::forget((input.problem, layout));
    Ok(fits)
}

/// Refuses two results in one file, or a picture in place of the input.
fn apart(args: &Args, targets: [&Option<Target>; 2]) -> Result<(), String> {
    let stdin = args.file.as_os_str() == "-";
    match targets {
        [Some(Target::File { path: out, .. }), Some(Target::File { path: svg, .. })] if same_file(out, svg) => {
            Err(format!("--out and --svg both name {}; give each a file of its own", out.display()))
        }
        [_, Some(Target::File { path: svg, .. })] if !stdin && same_file(svg, &args.file) => {
            Err(format!("--svg names the input, {}; give the picture a file of its own", svg.display()))
        }
        _ => Ok(()),
    }
}

/// Whether both names lead to one place, which may not exist yet.
fn same_file(a: &Path, b: &Path) -> bool {
    let resolved = |path: &Path| {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        path.canonicalize().or_else(|_| folder.canonicalize().map(|f| f.join(path.file_name().unwrap_or_default())))
    };
    a == b || matches!((resolved(a), resolved(b)), (Ok(a), Ok(b)) if a == b)
}

/// Solves, and verifies the result.
fn lay_out(input: &Input, peak: &Peak, args: &Args) -> Result<Layout, Box<dyn Error>> {
    let problem = &input.problem;
    let layout = match hopeless(problem, peak, args.capacity) {
        Some(layout) => layout,
        None => solve(problem, args).map_err(|e| format!("{}: {}", input.file, e.message))?,
    };
    plan::verify(problem, &layout).map_err(|e| {
        format!("{}: {}; this is a bug in gpumem: please report it with the file", input.file, e.message)
    })?;
    Ok(layout)
}

fn solve(problem: &Problem, args: &Args) -> gpumem::base::Result<Layout> {
    let effort = if args.fast { Effort::Fast } else { Effort::Normal };
    let options = SolveOptions {
        effort,
        time_limit: args.time_limit,
        threads: args.threads,
        cancel: Some(&CANCEL),
        ..SolveOptions::default()
    };
    // Without the handler an interrupt just ends the process.
    let _ = ctrlc::set_handler(|| {
        if CANCEL.swap(true, Ordering::Relaxed) {
            std::process::exit(EXIT_INTERRUPTED);
        }
    });
    with_progress(|| plan::solve(problem, &options))
}

/// The answer, without a search, if the capacity is below the bytes live at one step.
fn hopeless(problem: &Problem, peak: &Peak, capacity: Option<u64>) -> Option<Layout> {
    // With several arenas the capacity is that of each.
    capacity.filter(|&c| c < peak.bytes && problem.arenas().len() == 1)?;
    let counts = |b: &&Buffer| b.occupies() && !problem.left_out().contains(b.kind);
    Some(Layout {
        slots: vec![None; problem.buffers().len()],
        arenas: vec![ArenaUse::default()],
        size: 0,
        lower_bound: peak.bytes,
        total_unshared: problem.buffers().iter().filter(counts).map(Buffer::extent).sum(),
        status: LayoutStatus::Infeasible,
        interrupted: false,
        elapsed: Duration::ZERO,
    })
}

/// Runs `work`, with progress on stderr if that is a terminal and the work takes long.
fn with_progress<T>(work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let (done, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(QUIET) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = spinner();
            while wait.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                bar.set_message(if CANCEL.load(Ordering::Relaxed) {
                    "stopping"
                } else {
                    "Ctrl-C takes the best so far"
                });
                bar.tick();
            }
            bar.finish_and_clear();
        });
        let result = work();
        drop(done);
        result
    })
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_elapsed(QUIET);
    // The template is a constant; without it the line looks different and works the same.
    if let Ok(style) = ProgressStyle::with_template("{spinner} planning ({elapsed}); {msg}") {
        bar.set_style(style);
    }
    bar
}

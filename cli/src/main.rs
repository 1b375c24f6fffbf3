//! The `gpumem` command: looks at the machine (`doctor`), replays allocation logs (`replay`),
//! measures (`bench`), lays buffers out (`plan`), runs other programs on gpumem (`run`), and shows
//! what they did (`view`, `stats`, `record`, `top`).

#![deny(unsafe_code)]
// println! and eprintln! panic if nobody reads their output; report.rs has functions that do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod doctor;
mod exit_code;
mod limits;
mod man;
mod output;
mod plan;
mod plot;
mod record;
mod replay;
mod report;
mod run;
mod self_test;
mod session;
mod settings;
mod source;
mod stats;
mod top;
mod trace;
mod view;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "gpumem", version, about = "GPU memory allocator: look at the machine, replay logs, measure, plan")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the driver, devices, limits and settings, and allocates, fills and checks some memory
    /// on each device.
    ///
    /// Exit code: 0 all is well; 1 something is wrong (the last lines say what).
    Doctor(doctor::Args),
    /// Replays an allocation log of RMM's logging adaptor, or a recording, and reports the time and
    /// memory it took.
    ///
    /// The log is CSV with the header Thread,Time,Action,Pointer,Size,Stream, plain or gzip. It is
    /// read whole before the replay starts. Operations run on one thread in the order of the log,
    /// whatever its Thread column says. Every distinct stream gets a stream of its own. Memory that
    /// a recording has on several devices is replayed on one.
    ///
    /// Exit code: 0 every operation succeeded; 1 some failed; 2 bad usage, bad input or no such
    /// device.
    Replay(replay::Args),
    /// Measures what allocating costs here: time, driver calls, device memory.
    ///
    /// Each workload runs in a process of its own, on a fresh pool. Times are host times; nothing
    /// runs on the device. A workload that does not fit the device is made smaller, and the output
    /// says so.
    ///
    /// Exit code: 0 everything was measured; 1 some of it failed, or the only named workload did; 2
    /// nothing could be measured, or bad usage.
    Bench(bench::Args),
    /// Gives every buffer of a file an offset in one arena, so that buffers live at the same step
    /// share no bytes.
    ///
    /// The file is CSV with a header; columns may be in any order. Required: id (any text, unique),
    /// lower (the first step at which the buffer is live), upper (the first at which it is no
    /// longer live) and size (bytes). start or begin may replace lower. end may replace upper, and
    /// is the last live step. Optional, and may be empty: alignment (a power of two), guard (bytes
    /// after the buffer that nothing else may use), offset (where it must be), hint (where it
    /// should be if possible), gaps (steps at which it holds nothing, such as "7-9 12-14") and
    /// arena (the number of the arena it must be in, - to leave the buffer out). Other columns,
    /// name for example, are ignored, and repeated by --out.
    ///
    /// Every layout is verified before it is written. The same file and options give the same
    /// layout, except with --time-limit or after Ctrl-C (SIGTERM), which takes the best layout so
    /// far.
    ///
    /// Exit code: 0 there is a layout; 1 none was found, within --capacity or with an arena for
    /// each offset that the file gives; 2 bad usage, bad input, or a result that could not be
    /// written, for example to a full disk or a closed pipe.
    Plan(plan::Args),
    /// Runs any CUDA program on gpumem, unchanged.
    ///
    /// Starts the program with libgpumem_preload.so preloaded. What it, and any program that it
    /// starts, allocates from CUDA then comes from gpumem. Settings are the library's environment
    /// variables. docs/spec/preload.md says which calls are served.
    ///
    /// Exit code: the program's; 2 when it cannot be run this way, with a line that says why.
    Run(run::Args),
    /// Converts recordings to formats that other tools read.
    ///
    /// GPUMEM_RECORD=FILE, gpumem run --record FILE and gpumem_record_start make recordings.
    ///
    /// Exit code: 0 the output is written; 2 bad usage or input.
    Record(record::Args),
    /// Turns a recording or a snapshot into a page for a browser.
    ///
    /// The page is self-contained and needs no network. It shows memory over time, the map of
    /// addresses, who holds what, what grew, the slow path and, after a failure, why it failed.
    /// Press ? on it for its keys; docs/recording.md explains it.
    ///
    /// Exit code: 0 the page is written, or was served until Ctrl-C; 2 bad usage or input.
    View(view::Args),
    /// Summarises a recording or a snapshot.
    ///
    /// Exit code: 0; 2 bad usage or input.
    Stats(stats::Args),
    /// Shows the counters of a running process that has GPUMEM_STATS_PAGE=on, until q is pressed.
    ///
    /// Exit code: 0; 2 when there is no such process or it publishes nothing.
    Top(top::Args),
    /// Writes the manual pages of this command into a folder.
    #[command(hide = true)]
    Man(man::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return print(&answer),
    };
    let result = match cli.command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Record(args) => record::run(&args),
        Command::View(args) => view::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Man(args) => man::run(&args, Cli::command()),
    };
    // Recordings of this process itself end here.
    if let Some(context) = gpumem::context::Context::existing() {
        context.leave_observers();
    }
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(exit_code::UNWELL),
        Err(e) => {
            report::say(e);
            ExitCode::from(exit_code::INPUT)
        }
    }
}

/// Prints help, the version, or what is wrong with the command line. Who closes the pipe has read
/// as much of it as they wanted.
fn print(answer: &clap::Error) -> ExitCode {
    match answer.print().and_then(|()| io::stdout().flush()) {
        Err(e) if !answer.use_stderr() && e.kind() != ErrorKind::BrokenPipe => {
            report::say(format_args!("standard output: cannot write: {e}"));
            ExitCode::from(exit_code::INPUT)
        }
        _ if answer.use_stderr() => ExitCode::from(exit_code::INPUT),
        _ => ExitCode::SUCCESS,
    }
}

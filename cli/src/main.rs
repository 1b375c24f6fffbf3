//! The `gpumem` command: looks at the machine (`doctor`), replays allocation logs (`replay`) and measures (`bench`).

#![deny(unsafe_code)]

mod bench;
mod doctor;
mod limits;
mod replay;
mod report;
mod self_test;
mod session;
mod settings;
mod trace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Exit code when the command did its work and what it looked at is not well: a failed operation, a failed check.
const EXIT_UNWELL: u8 = 1;
/// Exit code when the command could not do its work: bad usage, bad input, no such device. clap uses it too.
const EXIT_INPUT: u8 = 2;

#[derive(Parser)]
#[command(name = "gpumem", version, about = "GPU memory allocator: look at the machine, replay logs, measure")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows driver, devices, limits and settings, and allocates, fills and checks some memory on each device.
    ///
    /// Exit code: 0 all is well; 1 something is wrong (the last lines say what).
    Doctor(doctor::Args),
    /// Replays an allocation log in the format of RMM's logging adaptor and reports what it took.
    ///
    /// The log is CSV with the header Thread,Time,Action,Pointer,Size,Stream, plain or gzip. It is read whole before
    /// the replay starts. Operations run on one thread in the order of the log, whatever its Thread column says; every
    /// distinct stream gets a stream of its own.
    ///
    /// Exit code: 0 every operation succeeded; 1 some failed; 2 bad usage, bad input or no such device.
    Replay(replay::Args),
    /// Measures what allocating costs here: time, driver calls, device memory.
    ///
    /// Each workload runs in a process of its own, on a fresh pool. Times are the host's; nothing runs on the device.
    /// What does not fit the device is made smaller, and the output says so.
    ///
    /// Exit code: 0 everything was measured; 1 some of it failed; 2 nothing could be measured, or bad usage.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_UNWELL),
        Err(e) => {
            eprintln!("gpumem: {e}");
            ExitCode::from(EXIT_INPUT)
        }
    }
}

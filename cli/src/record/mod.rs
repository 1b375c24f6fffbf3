//! `gpumem record`: converts recordings to formats that other tools read.

mod perfetto;
mod rmm_csv;
mod torch;

pub use perfetto::mapped_points;

use crate::output::Target;
use crate::report;
use crate::source;
use clap::{Subcommand, ValueEnum};
use gpumem::observe::{History, Recording};
use std::path::{Path, PathBuf};

/// Command line of `record`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes a recording in another tool's format.
    Convert {
        /// The format.
        #[arg(long, value_enum)]
        to: Format,
        /// The file to write; stdout by default.
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
        /// The recording.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The log of RMM's logging_resource_adaptor.
    RmmCsv,
    /// Chrome's trace events, for ui.perfetto.dev.
    Perfetto,
    /// The pickle that torch.cuda.memory._dump_snapshot writes, for pytorch.org/memory_viz.
    TorchSnapshot,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<bool, Box<dyn std::error::Error>> {
    let Command::Convert { to, out, file } = &args.command;
    if let Some(out) = out {
        source::spare(file, out)?;
    }
    let target = out.as_deref().map_or(Ok(Target::STDOUT), Target::new)?;
    let recording = read(file, &source::read(file)?)?;
    // Text on a terminal is progress enough.
    let _busy = out.is_some().then(|| report::busy("converting"));
    let history = History::of(&recording);
    target.write(|mut sink| match to {
        Format::RmmCsv => rmm_csv::write(&recording, &history, &mut sink),
        Format::Perfetto => perfetto::write(&recording, &history, &mut sink),
        Format::TorchSnapshot => torch::write(&recording, &history, &mut sink),
    })?;
    Ok(true)
}

/// Parses a recording, and says on stderr what is missing in it. `file` is its name.
pub fn read(file: &Path, bytes: &[u8]) -> Result<Recording, String> {
    let recording = Recording::read(bytes).map_err(|e| format!("{}: {}", file.display(), e.message))?;
    if let Some(faults) = recording.faults() {
        report::say(format_args!("{}: {faults}", file.display()));
    }
    Ok(recording)
}

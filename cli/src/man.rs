//! The manual pages, made of what `--help` says: one for the command, one for each subcommand.

use crate::Cli;
use clap::CommandFactory;
use std::error::Error;
use std::path::PathBuf;

/// Command line of `man`.
#[derive(clap::Args)]
pub struct Args {
    /// An existing folder.
    folder: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let folder = args.folder.display();
    clap_mangen::generate_to(Cli::command(), &args.folder)
        .map_err(|e| format!("the manual pages cannot be written to {folder}: {e}"))?;
    Ok(true)
}

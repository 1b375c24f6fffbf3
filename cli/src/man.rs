//! The manual pages, made from the help texts: one for the command, one for each subcommand.

use clap::Command;
use std::error::Error;
use std::path::PathBuf;

/// Command line of `man`.
#[derive(clap::Args)]
pub struct Args {
    /// An existing folder.
    folder: PathBuf,
}

/// Writes the pages of `command`.
pub fn run(args: &Args, command: Command) -> Result<bool, Box<dyn Error>> {
    let folder = args.folder.display();
    clap_mangen::generate_to(command, &args.folder)
        .map_err(|e| format!("the manual pages cannot be written to {folder}: {e}"))?;
    Ok(true)
}

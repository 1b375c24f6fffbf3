//! `gpumem view`: one page that shows a recording or a snapshot without a network.

mod data;
mod page;
mod serve;

pub use data::{is_whole, totals};

use crate::output::Target;
use crate::record;
use crate::report;
use crate::source;
use gpumem::observe::recording::is_recording;
use gpumem::observe::{History, Recording};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Command line of `view`.
#[derive(clap::Args)]
pub struct Args {
    /// Serves the page on this local port until Ctrl-C; 0 takes a free one.
    #[arg(long, value_name = "N", conflicts_with = "out")]
    port: Option<u16>,
    /// Writes the page to this file. Without this and --port it is FILE.html, beside the input.
    #[arg(long, short, value_name = "PAGE")]
    out: Option<PathBuf>,
    /// The recording or the snapshot.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The contents of a file, by kind.
pub enum Seen {
    /// A recording, followed.
    Recording(Box<Recording>, Box<History>),
    /// A snapshot.
    Snapshot(Value),
}

/// Reads a recording or a snapshot.
pub fn read(file: &Path) -> Result<Seen, Box<dyn std::error::Error>> {
    let bytes = source::read(file)?;
    if is_recording(&bytes) {
        let recording = record::read(file, &bytes)?;
        drop(bytes);
        let history = History::of(&recording);
        return Ok(Seen::Recording(recording.into(), history.into()));
    }
    let wrong = |what: String| {
        format!(
            "{}: {what}; it is neither a recording (GPUMEM_RECORD) nor a snapshot (GPUMEM_SNAPSHOT_ON)",
            file.display()
        )
    };
    if bytes.is_empty() {
        return Err(wrong("the file is empty".into()).into());
    }
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(format!("no JSON: {e}")))?;
    match value.get("gpumem_snapshot").and_then(Value::as_u64) {
        Some(1) if value.get("report").is_some_and(Value::is_array) => Ok(Seen::Snapshot(value)),
        Some(1) => Err(wrong("a snapshot without its report".into()).into()),
        Some(n) => Err(format!("{}: a snapshot of version {n}; this gpumem reads version 1", file.display()).into()),
        None => Err(wrong("JSON without gpumem_snapshot".into()).into()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<bool, Box<dyn std::error::Error>> {
    let out = args.out.clone().unwrap_or_else(|| {
        let mut out = args.file.clone().into_os_string();
        out.push(".html");
        out.into()
    });
    let target = args.port.is_none().then(|| {
        source::spare(&args.file, &out)?;
        Target::new(&out)
    });
    let target = target.transpose()?;
    let name = args.file.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let seen = read(&args.file)?;
    let busy = report::busy("making the page");
    let data = match seen {
        Seen::Recording(recording, history) => data::of_recording(&name, &recording, &history),
        Seen::Snapshot(snapshot) => data::of_snapshot(&name, &snapshot),
    };
    let html = page::html(&name, &data)?;
    drop(busy);
    if let Some(target) = target {
        target.write(|to| to.write_all(html.as_bytes()))?;
        if !target.is_stdout() {
            report::line(out.display())?;
        }
    }
    if let Some(port) = args.port {
        serve::run(port, html)?;
    }
    Ok(true)
}

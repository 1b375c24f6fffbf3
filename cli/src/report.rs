//! What the commands print: one JSON object, or short aligned tables for people.

use gpumem::base::size;
pub use gpumem::driver::process::say;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

/// A line on stdout.
pub fn line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// One object and a newline on stdout.
pub fn json(report: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, report)?;
    writeln!(out)
}

/// A file's text for a line of a terminal: programs on a command line have lines of their own, and
/// names may have what a terminal obeys.
pub fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Lines of `label  value`, aligned.
#[derive(Default)]
pub struct Table {
    rows: Vec<(String, String)>,
}

impl Table {
    /// Adds a line.
    pub fn row(&mut self, label: impl Into<String>, value: impl Into<String>) {
        self.rows.push((label.into(), value.into()));
    }

    /// A line of its own, after an empty one.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.row("", "");
        self.row(text, "");
    }

    /// Writes them.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let width = self.rows.iter().filter(|(_, v)| !v.is_empty()).map(|(l, _)| l.chars().count()).max().unwrap_or(0);
        for (label, value) in &self.rows {
            writeln!(out, "{}", one_line(format!("{label:width$}  {value}").trim_end()))?;
        }
        Ok(())
    }
}

/// Shows on stderr, where that is a terminal, that something long is under way, until it is
/// dropped.
pub fn busy(with: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_message(with);
    // The template is a constant; without it the line looks different and works the same.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A size for people, and exactly.
pub fn bytes(n: u64) -> String {
    format!("{} ({} bytes)", size::human(n), HumanCount(n))
}

//! The commands' output: one JSON object, or short aligned tables for people.

use gpumem::base::size;
use gpumem::driver::process;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, StdoutLock, Write};
use std::time::Duration;

/// Says a line on stderr. File names in it may contain control characters.
pub fn say(text: impl Display) {
    process::say(one_line(&text.to_string()));
}

/// Standard output, named in errors.
pub struct Stdout(StdoutLock<'static>);

impl Stdout {
    /// Standard output for this thread alone.
    pub fn lock() -> Stdout {
        Stdout(io::stdout().lock())
    }

    fn named(e: io::Error) -> io::Error {
        io::Error::new(e.kind(), format!("standard output: cannot write: {e}"))
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(Stdout::named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(Stdout::named)
    }
}

/// Prints a line to stdout.
pub fn line(text: impl Display) -> io::Result<()> {
    writeln!(Stdout::lock(), "{text}")
}

/// Prints one object and a newline to stdout.
pub fn json(report: &impl Serialize) -> io::Result<()> {
    let mut out = Stdout::lock();
    serde_json::to_writer_pretty(&mut out, report)?;
    writeln!(out)
}

/// Makes a file's text safe for one line of a terminal: command lines may contain line breaks, and
/// names may contain control characters.
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

    /// Adds a heading after an empty line.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.row("", "");
        self.row(text, "");
    }

    /// Prints the lines to stdout, or to stderr where stdout is `taken` by another result.
    pub fn print_beside(&self, taken: bool) -> io::Result<()> {
        self.print(&mut beside(taken))
    }

    /// Writes the lines.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let width = self.rows.iter().filter(|(_, v)| !v.is_empty()).map(|(l, _)| l.chars().count()).max().unwrap_or(0);
        for (label, value) in &self.rows {
            writeln!(out, "{}", one_line(format!("{label:width$}  {value}").trim_end()))?;
        }
        Ok(())
    }
}

/// Where text for people goes: stdout, or stderr where stdout is `taken` by another result.
pub fn beside(taken: bool) -> Box<dyn Write> {
    match taken {
        true => Box::new(io::stderr().lock()),
        false => Box::new(Stdout::lock()),
    }
}

/// Shows on stderr, if that is a terminal, that something long is under way, until dropped.
pub fn busy(with: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_message(with);
    // The template is a constant; without it the line looks different and works the same.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A size for people, and the exact bytes.
pub fn bytes(n: u64) -> String {
    format!("{} ({} bytes)", size::human(n), HumanCount(n))
}

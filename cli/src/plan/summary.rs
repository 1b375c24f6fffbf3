//! The command's report on a layout: a table for people, or one JSON object.

use super::input::Input;
use super::peak::Peak;
use crate::report::Table;
use gpumem::base::size;
use gpumem::plan::{Layout, LayoutStatus, Place};
use indicatif::HumanCount;
use serde::Serialize;
use std::io;

/// A plan in numbers. Field order is the order of the output; sizes are bytes.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The file as given.
    pub file: String,
    /// How many buffers it has.
    pub buffers: usize,
    /// How many buffers have a place given by the file.
    pub fixed: usize,
    /// No arena can be smaller.
    pub lower_bound: u64,
    /// The arena's size, of all together if there are several; null without a layout.
    pub arena_size: Option<u64>,
    /// How far `arena_size` is above the lower bound, as a share of the bound; null without a
    /// layout.
    pub gap: Option<f64>,
    /// `optimal`, `feasible`, `infeasible` or `out_of_time`.
    pub status: &'static str,
    /// The time that planning took.
    pub seconds: f64,
    /// The size of all buffers side by side.
    pub total_unshared: u64,
    /// `total_unshared` less `arena_size`; null without a layout.
    pub saved: Option<u64>,
    /// The limit given.
    pub capacity: Option<u64>,
    /// The smallest arena found, within the capacity or not; null when none was looked for.
    pub best_size: Option<u64>,
    /// The first step at which most bytes are live.
    pub critical_step: u64,
    /// How many buffers are live at `critical_step`.
    pub critical_buffers: usize,
    /// How many bytes are live at `critical_step`.
    pub critical_bytes: u64,
    /// Whether the clock or an interrupt ended the search: another run may differ.
    pub interrupted: bool,
    /// Each arena, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arenas: Vec<OfArena>,
    /// Columns of the file that mean nothing to the planner.
    pub ignored_columns: Vec<String>,
    /// Why there is no layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One of several arenas, bytes; 0 without a layout.
#[derive(Debug, Serialize)]
pub struct OfArena {
    /// The end of its highest buffer.
    pub size: u64,
    /// The least size that its buffers can take.
    pub lower_bound: u64,
}

/// The most arenas for which the table has lines.
const MOST_LINES: usize = 8;

impl Report {
    /// A report on `layout` of `input`.
    pub fn new(input: &Input, peak: &Peak, layout: &Layout) -> Report {
        let fits = matches!(layout.status, LayoutStatus::Optimal | LayoutStatus::Feasible);
        let mut report = Report {
            file: input.file.clone(),
            buffers: input.problem.buffers().len(),
            fixed: input.problem.buffers().iter().filter(|b| matches!(b.place, Place::Fixed(_))).count(),
            lower_bound: layout.lower_bound,
            arena_size: fits.then_some(layout.size),
            gap: fits.then(|| layout.gap()),
            status: layout.status.name(),
            seconds: layout.elapsed.as_secs_f64(),
            total_unshared: layout.total_unshared,
            saved: fits.then(|| layout.saved()),
            capacity: input.problem.arenas().first().and_then(|a| a.capacity),
            best_size: Some(layout.size).filter(|&size| fits || size > 0),
            critical_step: peak.step,
            critical_buffers: peak.buffers,
            critical_bytes: peak.bytes,
            interrupted: layout.interrupted,
            arenas: Vec::new(),
            ignored_columns: input.header.ignored(),
            reason: None,
        };
        if input.problem.arenas().len() > 1 {
            let used = layout.arenas.iter().map(|a| OfArena { size: a.size, lower_bound: a.lower_bound });
            report.arenas = used.collect();
        }
        report.reason = report.why_not(layout.status);
        report
    }

    /// Why there is no layout, and what to do.
    fn why_not(&self, status: LayoutStatus) -> Option<String> {
        let each = if self.arenas.is_empty() { "" } else { " for each arena" };
        let capacity =
            self.capacity.map_or("no capacity".to_string(), |c| format!("the capacity of {}{each}", bytes(c)));
        let best =
            self.best_size.map_or(String::new(), |best| format!("; the smallest layout found has {}", bytes(best)));
        match status {
            LayoutStatus::Optimal | LayoutStatus::Feasible => None,
            LayoutStatus::Infeasible if each.is_empty() && self.capacity.is_some_and(|c| c < self.lower_bound) => {
                Some(format!(
                    "{capacity} is below the lower bound of {}: nothing fits (at step {}, {} buffers need {})",
                    bytes(self.lower_bound),
                    self.critical_step,
                    self.critical_buffers,
                    bytes(self.critical_bytes)
                ))
            }
            LayoutStatus::Infeasible => Some(format!("no layout fits {capacity}: proved{best}")),
            LayoutStatus::OutOfTime => Some(format!(
                "no layout within {capacity} was found{best}; give more time with --time-limit, or more capacity"
            )),
        }
    }

    /// A table, on stderr when stdout is `taken` by something else.
    pub fn print(&self, taken: bool) -> io::Result<()> {
        let mut t = Table::default();
        t.row("file", &self.file);
        let fixed = match self.fixed {
            0 => String::new(),
            n if n == self.buffers => {
                "; the file's column offset gives each its place, so there was nothing to plan".into()
            }
            n => format!("; the file's column offset gives {} of them their places", HumanCount(n as u64)),
        };
        t.row("buffers", format!("{}{fixed}", HumanCount(self.buffers as u64)));
        match (self.arena_size, self.best_size) {
            (Some(size), _) => t.row("arena size", bytes(size)),
            (None, Some(best)) => t.row("best size", format!("{}, too large", bytes(best))),
            (None, None) => {}
        }
        for (i, arena) in self.arenas.iter().enumerate().take(MOST_LINES).filter(|_| self.arena_size.is_some()) {
            t.row(format!("arena {i}"), bytes(arena.size));
        }
        t.row("lower bound", bytes(self.lower_bound));
        if let Some(gap) = self.gap {
            t.row("gap", format!("{:.2} %", 100.0 * gap));
        }
        if let Some(capacity) = self.capacity {
            t.row("capacity", bytes(capacity));
        }
        if let Some(saved) = self.saved {
            t.row("saved", format!("{} of {}", size::human(saved), size::human(self.total_unshared)));
        }
        let stopped = if self.interrupted { " (search stopped early)" } else { "" };
        t.row("status", format!("{}{stopped}", self.status.replace('_', " ")));
        t.row("time", format!("{:.3} s", self.seconds));
        t.row(
            "critical step",
            format!(
                "{} ({} buffers, {})",
                HumanCount(self.critical_step),
                HumanCount(self.critical_buffers as u64),
                size::human(self.critical_bytes)
            ),
        );
        if !self.ignored_columns.is_empty() {
            t.row("not understood", format!("columns {}", self.ignored_columns.join(", ")));
        }
        t.print_beside(taken)
    }
}

/// A size for people, and exactly.
fn bytes(n: u64) -> String {
    match n {
        1 => "1 byte".to_string(),
        0..1024 => format!("{n} bytes"),
        _ => crate::report::bytes(n),
    }
}

//! The command's report on a layout: a table for people, or one JSON object.

use super::input::Input;
use super::peak::Peak;
use crate::report::Table;
use crate::source::quote;
use gpumem::base::size;
use gpumem::plan::{Buffer, Layout, LayoutStatus, Place};
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

/// One of several arenas, bytes.
#[derive(Debug, Serialize)]
pub struct OfArena {
    /// The end of its highest buffer; 0 without a layout.
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
        report.reason = report.why_not(input, layout.status);
        report
    }

    /// Why there is no layout, and what to do.
    fn why_not(&self, input: &Input, status: LayoutStatus) -> Option<String> {
        let each = if self.arenas.is_empty() { "" } else { " for each arena" };
        let capacity =
            self.capacity.map_or("no capacity".to_string(), |c| format!("the capacity of {}{each}", bytes(c)));
        let in_all = if self.arenas.is_empty() { "" } else { " in all" };
        let best = self
            .best_size
            .map_or(String::new(), |best| format!("; the smallest layout found has {}{in_all}", bytes(best)));
        let at_step = || {
            let (step, buffers, needed) = (self.critical_step, self.critical_buffers, bytes(self.critical_bytes));
            format!("nothing fits (at step {step}, {buffers} buffers need {needed})")
        };
        let below = |least: u64| self.capacity.is_some_and(|c| c < least);
        let bound = bytes(self.lower_bound);
        let arena = self.arenas.iter().position(|a| below(a.lower_bound));
        match status {
            LayoutStatus::Optimal | LayoutStatus::Feasible => None,
            _ if each.is_empty() && below(self.critical_bytes) => {
                Some(format!("{capacity} is below the lower bound of {bound}: {}", at_step()))
            }
            _ if self.one_above(input).is_some() => self.one_above(input),
            LayoutStatus::Infeasible => Some(match (arena, self.capacity) {
                (Some(i), _) => {
                    let least = self.arenas.get(i).map_or(0, |a| a.lower_bound);
                    format!("{capacity} is below what arena {i} needs for its buffers, {}: nothing fits", bytes(least))
                }
                (None, Some(c)) if c.saturating_mul(self.arenas.len().max(1) as u64) < self.lower_bound => {
                    format!("{capacity} gives less in all than the lower bound of {bound}: {}", at_step())
                }
                _ => format!("no layout fits {capacity}: proved{best}"),
            }),
            // Without a division among the arenas, nothing is laid out.
            LayoutStatus::OutOfTime if self.best_size.is_none() && !self.interrupted => {
                let capacity = if self.capacity.is_some() { ", or give more capacity" } else { "" };
                Some(format!(
                    "some buffer with an offset found no arena that is free there; name an arena for it in the \
                     column arena, or change its offset{capacity}"
                ))
            }
            LayoutStatus::OutOfTime if self.capacity.is_none() => {
                Some("no layout was found in this time; give more with --time-limit".into())
            }
            LayoutStatus::OutOfTime => Some(format!(
                "no layout within {capacity} was found{best}; give more time with --time-limit, or more capacity"
            )),
        }
    }

    /// What is wrong if a buffer alone is above the capacity, by its offset or by its size.
    fn one_above(&self, input: &Input) -> Option<String> {
        let (capacity, problem) = (self.capacity?, &input.problem);
        let offset = |b: &Buffer| match b.place {
            Place::Fixed(at) => Some(at),
            _ => None,
        };
        let is_above = |b: &Buffer| {
            b.occupies() && !problem.left_out().contains(b.kind) && offset(b).unwrap_or(0) + b.extent() > capacity
        };
        let (i, buffer) = problem.buffers().iter().enumerate().find(|(_, b)| is_above(b))?;
        let (name, line) = (quote(buffer.name.as_deref().unwrap_or_default().as_bytes()), input.line(i));
        let takes = match offset(buffer) {
            Some(at) => format!("is fixed at offset {at} and ends at {}", bytes(at + buffer.extent())),
            None => format!("takes {}", bytes(buffer.extent())),
        };
        Some(format!("the buffer {name} (line {line}) {takes}, above the capacity of {}", bytes(capacity)))
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
        if self.arena_size.is_some() {
            // Those in use first.
            let mut arenas: Vec<(usize, u64)> = self.arenas.iter().map(|a| a.size).enumerate().collect();
            arenas.sort_by_key(|&(_, size)| size == 0);
            let more = arenas.split_off(MOST_LINES.min(arenas.len()));
            arenas.iter().for_each(|(i, size)| t.row(format!("arena {i}"), bytes(*size)));
            if !more.is_empty() {
                let size = bytes(more.iter().map(|(_, size)| size).sum());
                t.row("more arenas", format!("{}, {size} in all", HumanCount(more.len() as u64)));
            }
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

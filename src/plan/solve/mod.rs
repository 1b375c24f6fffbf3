//! The solver.

use super::layout::{ArenaUse, Layout, LayoutStatus, Slot};
use super::problem::Problem;
use crate::base::Result;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How hard to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// One good greedy order: microseconds for hundreds of buffers, for replanning at run time.
    Fast,
    /// Greedy orders, then a search whose steps are counted, so that the result does not depend on the machine.
    #[default]
    Normal,
}

/// How to solve.
#[derive(Clone, Copy, Debug, Default)]
pub struct SolveOptions<'a> {
    /// How hard to try.
    pub effort: Effort,
    /// Search up to this long, and longer than the effort alone would; `None` for as long as the effort takes.
    pub time_limit: Option<Duration>,
    /// Threads to search with; 0 and 1 search on the caller's.
    pub threads: u32,
    /// Set from another thread to stop early with the best so far.
    pub cancel: Option<&'a AtomicBool>,
}

/// Lays the buffers of `problem` out.
pub fn solve(problem: &Problem, options: &SolveOptions<'_>) -> Result<Layout> {
    let _ = options;
    let start = Instant::now();
    // Placeholder until the solver is in: every buffer its own bytes.
    let mut end = 0u64;
    let mut slots = Vec::with_capacity(problem.buffers().len());
    for b in problem.buffers() {
        let unit = b.alignment.max(problem.unit());
        let offset = end.next_multiple_of(unit);
        slots.push((!problem.left_out().contains(b.kind)).then_some(Slot { arena: 0, offset }));
        end = offset + b.extent();
    }
    Ok(Layout {
        slots,
        arenas: vec![ArenaUse { size: end, lower_bound: end }],
        size: end,
        lower_bound: 0,
        total_unshared: end,
        status: LayoutStatus::Feasible,
        interrupted: false,
        elapsed: start.elapsed(),
    })
}

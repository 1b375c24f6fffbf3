//! The solver.

mod budget;
mod first_fit;
mod glue;
mod instance;
mod niche;
mod order;
mod part;
mod repair;
mod skyline;

use super::layout::{ArenaUse, Layout, LayoutStatus, Slot};
use super::problem::{Buffer, Problem};
use crate::base::{Error, Result};
use budget::Budget;
use instance::{Instance, Item, Sections};
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
    let start = Instant::now();
    let ids: Vec<u32> = (0..problem.buffers().len() as u32).filter(|&i| { let b = &problem.buffers()[i as usize]; !problem.left_out().contains(b.kind) && b.occupies() }).collect();
    let bufs: Vec<&Buffer> = ids.iter().map(|&i| &problem.buffers()[i as usize]).collect();
    let sections = Sections::new(bufs.iter().map(|b| (b.lower, b.upper)));
    let grain = bufs.iter().fold(0, |g, b| gcd(g, b.extent())).max(1);
    let mut instance = Instance { items: vec![], totals: vec![0; sections.len()], floors: vec![0; sections.len()] };
    let mut diff = vec![0u64; sections.len() + 1];
    for b in &bufs {
        let (from, to) = sections.of(b.lower, b.upper);
        let size = b.extent() / grain;
        instance.items.push(Item { from, to, size, align: 1 });
        diff[from as usize] = diff[from as usize].wrapping_add(size);
        diff[to as usize] = diff[to as usize].wrapping_sub(size);
    }
    let mut sum = 0u64;
    for k in 0..sections.len() { sum = sum.wrapping_add(diff[k]); instance.totals[k] = sum; }
    let goal = problem.arenas()[0].capacity.map_or(0, |c| c / grain);
    let mut budget = Budget::new(std::env::var("NODES").map_or(1_000_000, |x| x.parse().unwrap()), options.time_limit.map(|t| start + t), options.cancel);
    let best = part::lay_out(&instance, goal, options.effort != Effort::Fast, &mut budget);
    let mut slots = vec![Some(Slot { arena: 0, offset: 0 }); problem.buffers().len()];
    for (k, &i) in ids.iter().enumerate() { slots[i as usize] = Some(Slot { arena: 0, offset: best.offsets[k] * grain }); }
    let size = best.size * grain;
    let lb = instance.bound() * grain;
    let _ = Error::internal("");
    Ok(Layout {
        slots,
        arenas: vec![ArenaUse { size, lower_bound: lb }],
        size,
        lower_bound: lb,
        total_unshared: 0,
        status: if best.size <= best.bound { LayoutStatus::Optimal } else { LayoutStatus::Feasible },
        interrupted: budget.interrupted(),
        elapsed: start.elapsed(),
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

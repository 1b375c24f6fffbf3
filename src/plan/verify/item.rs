//! The buffers to verify: their live ranges, their places, and their names in messages.

use crate::base::{Error, Result};
use crate::plan::problem::{Buffer, Problem, Reserved, Step};

/// A buffer that occupies bytes at some step and is not left out.
pub struct Item {
    pub id: u32,
    /// Bytes it occupies while live. The problem checks that this is at most 2^62.
    pub extent: u64,
    /// The arena that it must be in, if only one is possible.
    pub home: Option<usize>,
    /// Its bytes, if the layout has slots.
    pub at: Option<Bytes>,
}

/// Bytes `[start, end)` of an arena.
#[derive(Clone, Copy)]
pub struct Bytes {
    pub arena: usize,
    pub start: u64,
    pub end: u64,
}

pub fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::invalid(what))
}

/// The ranges of steps at which a buffer is live: `[lower, upper)` without its gaps.
pub fn live_ranges(buffer: &Buffer) -> impl Iterator<Item = (Step, Step)> + '_ {
    let mut from = buffer.lower;
    let ends = buffer.gaps.iter().map(|gap| (gap.lower, gap.upper)).chain([(buffer.upper, buffer.upper)]);
    ends.filter_map(move |(until, next)| {
        let range = (from, until);
        from = next;
        (range.0 < range.1).then_some(range)
    })
}

pub fn blocks_anything(reserved: &Reserved) -> bool {
    reserved.size > 0 && reserved.during.lower < reserved.during.upper
}

/// A buffer's index and name, for messages.
pub fn named(problem: &Problem, id: u32) -> String {
    match problem.buffers().get(id as usize).and_then(|b| b.name.as_deref()) {
        Some(name) => format!("buffer {id} ({name})"),
        None => format!("buffer {id}"),
    }
}

/// A placed buffer's index, name, bytes and steps, for messages.
pub fn described(problem: &Problem, id: u32, start: u64, end: u64) -> String {
    let (lower, upper, gaps) =
        problem.buffers().get(id as usize).map_or((0, 0, 0), |b| (b.lower, b.upper, b.gaps.len()));
    let but = if gaps > 0 { " but for its gaps" } else { "" };
    format!("{} in bytes [{start}, {end}) at steps [{lower}, {upper}){but}", named(problem, id))
}

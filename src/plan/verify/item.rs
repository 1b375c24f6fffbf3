//! What is verified: buffers, when they live, where they are, and how messages name them.

use crate::base::{Error, Result};
use crate::plan::problem::{Buffer, Problem, Reserved, Step};

/// A buffer that occupies bytes at some step and is not left out.
pub struct Item {
    pub id: u32,
    /// Bytes it occupies while live. At most 2^62: the problem checks.
    pub extent: u64,
    /// The arena that it can only be in, if there is but one.
    pub home: Option<usize>,
    /// Where it is, if the layout has slots.
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

/// The ranges of steps at which a buffer is live: what its gaps leave of `[lower, upper)`.
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

/// A buffer for messages: its number and name.
pub fn named(problem: &Problem, id: u32) -> String {
    match problem.buffers().get(id as usize).and_then(|b| b.name.as_deref()) {
        Some(name) => format!("buffer {id} ({name})"),
        None => format!("buffer {id}"),
    }
}

/// A placed buffer for messages: its number, bytes and steps.
pub fn described(problem: &Problem, id: u32, start: u64, end: u64) -> String {
    let (lower, upper, gaps) =
        problem.buffers().get(id as usize).map_or((0, 0, 0), |b| (b.lower, b.upper, b.gaps.len()));
    let but = if gaps > 0 { " but for its gaps" } else { "" };
    format!("{} in bytes [{start}, {end}) at steps [{lower}, {upper}){but}", named(problem, id))
}

//! What makes a problem contradict itself, said before anything is searched.

use super::arena::stride;
use super::gcd;
use crate::base::{Error, Result};
use crate::plan::problem::{Buffer, Interval, Place, Problem, MAX_BYTES};

/// Checks that everything adds up and that fixed buffers can be where they must be.
pub(super) fn check(problem: &Problem) -> Result<()> {
    sums(problem)?;
    fixed(problem)
}

/// The largest offset that any layout can come to must stay countable.
fn sums(problem: &Problem) -> Result<()> {
    let mut most = problem.reserved().iter().map(|r| u128::from(r.offset + r.size)).max().unwrap_or(0);
    for (id, buffer) in problem.buffers().iter().enumerate() {
        let unit = problem.unit();
        let stride = u128::from(buffer.alignment / gcd(buffer.alignment, unit)) * u128::from(unit);
        if let Place::Fixed(at) = buffer.place {
            most = most.max(u128::from(at) + u128::from(buffer.extent()));
        }
        // Each may have to be rounded up to its stride, twice in a layout that is turned over.
        most += u128::from(buffer.extent()) + 2 * (stride - 1);
        if most > u128::from(MAX_BYTES) {
            return Err(Error::invalid(format!(
                "buffers 0 to {id} add up to more than 2^62 bytes, alignment included; sizes are in bytes, are they?"
            )));
        }
    }
    Ok(())
}

/// Fixed buffers must be on the unit, and apart from one another and from reserved ranges.
fn fixed(problem: &Problem) -> Result<()> {
    let mut all: Vec<(u64, u64, u32, &Buffer)> = Vec::new();
    for (id, buffer) in (0u32..).zip(problem.buffers()) {
        let Place::Fixed(at) = buffer.place else { continue };
        if !at.is_multiple_of(stride(buffer.alignment, problem.unit())) {
            return Err(Error::invalid(format!(
                "{} is fixed at offset {at}, which is not a multiple of the unit, {}",
                named(id, buffer),
                problem.unit()
            )));
        }
        if buffer.occupies() && !problem.left_out().contains(buffer.kind) {
            all.push((at, at + buffer.extent(), id, buffer));
        }
    }
    all.sort_unstable_by_key(|f| (f.0, f.2));
    let home = |b: &Buffer| b.arena.or((problem.arenas().len() == 1).then_some(0));
    for (n, &(at, end, id, buffer)) in all.iter().enumerate() {
        let conflicts = |other: &Buffer| {
            home(buffer) == home(other)
                && home(buffer).is_some()
                && (!problem.reuse() || buffer.live().any(|a| other.live().any(|b| a.overlaps(b))))
        };
        for &(at2, end2, id2, other) in all[n + 1..].iter().take_while(|f| f.0 < end) {
            if conflicts(other) {
                return Err(Error::invalid(format!(
                    "{} is fixed at bytes [{at}, {end}) and {} at [{at2}, {end2}), and both are live at some step; \
                     move one, or end its live range earlier",
                    named(id, buffer),
                    named(id2, other)
                )));
            }
        }
        for range in problem.reserved().iter().filter(|r| Some(r.arena) == home(buffer) && r.size > 0) {
            let apart = range.offset + range.size <= at || end <= range.offset;
            let meets = |live: Interval| live.overlaps(range.during);
            if !apart && !range.during.is_empty() && buffer.live().any(meets) {
                return Err(Error::invalid(format!(
                    "{} is fixed at bytes [{at}, {end}), of which [{}, {}) are reserved at steps {}",
                    named(id, buffer),
                    range.offset,
                    range.offset + range.size,
                    range.during
                )));
            }
        }
    }
    Ok(())
}

/// A buffer for messages.
fn named(id: u32, buffer: &Buffer) -> String {
    match &buffer.name {
        Some(name) => format!("buffer {id} ({name})"),
        None => format!("buffer {id}"),
    }
}

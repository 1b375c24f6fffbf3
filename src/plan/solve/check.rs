//! What makes a problem contradict itself, said before anything is searched.

use super::arena::stride;
use super::numbers::gcd;
use crate::base::{Error, Result};
use crate::plan::problem::{Buffer, Interval, Place, Problem, MAX_BYTES};
use std::collections::BTreeMap;

/// Checks that everything adds up and that fixed buffers can be where they must be.
pub(super) fn check(problem: &Problem) -> Result<()> {
    sums(problem)?;
    fixed(problem)
}

/// The largest offset that any layout can come to must stay countable.
fn sums(problem: &Problem) -> Result<()> {
    let mut most = problem.reserved().iter().map(|r| u128::from(r.offset + r.size)).max().unwrap_or(0);
    for (id, buffer) in problem.buffers().iter().enumerate() {
        if problem.left_out().contains(buffer.kind) {
            continue;
        }
        let unit = problem.unit();
        let stride = u128::from(buffer.alignment / gcd(buffer.alignment, unit)) * u128::from(unit);
        if 2 * stride > u128::from(MAX_BYTES) {
            return Err(Error::invalid(format!(
                "{}: its offset must be a multiple of {stride} bytes, by its alignment {} and the unit {unit}, which no \
                 layout within 2^62 bytes can keep to; make the unit smaller",
                named(id as u32, buffer),
                buffer.alignment
            )));
        }
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
        if problem.left_out().contains(buffer.kind) {
            continue;
        }
        if !at.is_multiple_of(stride(buffer.alignment, problem.unit())) {
            return Err(Error::invalid(format!(
                "{} is fixed at offset {at}, which is not a multiple of the unit, {}",
                named(id, buffer),
                problem.unit()
            )));
        }
        if buffer.occupies() {
            all.push((at, at + buffer.extent(), id, buffer));
        }
    }
    let home = |b: &Buffer| b.arena.or((problem.arenas().len() == 1).then_some(0));
    apart(problem, &all, home)?;
    for &(at, end, id, buffer) in &all {
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

/// That no two of these fixed buffers of one arena share a byte while both are live: one sweep over the steps, with what
/// is live in order of offset.
fn apart(problem: &Problem, all: &[(u64, u64, u32, &Buffer)], home: impl Fn(&Buffer) -> Option<u32>) -> Result<()> {
    // (step, whether it begins, which): at equal steps ends come first.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (n, &(.., buffer)) in all.iter().enumerate().filter(|(_, f)| home(f.3).is_some()) {
        if problem.reuse() {
            for live in buffer.live() {
                events.extend([(live.lower, true, n), (live.upper, false, n)]);
            }
        } else {
            events.push((0, true, n));
        }
    }
    events.sort_unstable();
    let mut live: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    for (_, begins, n) in events {
        let (at, end, id, buffer) = all[n];
        let arena = home(buffer).unwrap_or(0);
        if !begins {
            live.remove(&(arena, at));
            continue;
        }
        let below = live.range((arena, 0)..=(arena, at)).next_back().map(|(_, &n)| all[n]).filter(|b| b.1 > at);
        let above = live.range((arena, at)..(arena, end)).next().map(|(_, &n)| all[n]);
        if let Some((at2, end2, id2, other)) = below.or(above) {
            let mut both = [(id, at, end, buffer), (id2, at2, end2, other)];
            both.sort_unstable_by_key(|b| b.0);
            let [(id, at, end, buffer), (id2, at2, end2, other)] = both;
            return Err(Error::invalid(format!(
                "{} is fixed at bytes [{at}, {end}) and {} at [{at2}, {end2}), and both are live at some step; \
                 move one, or end its live range earlier",
                named(id, buffer),
                named(id2, other)
            )));
        }
        live.insert((arena, at), n);
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

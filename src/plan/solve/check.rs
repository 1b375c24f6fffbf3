//! Finds contradictions in a problem before any search.

use super::arena::stride;
use super::taken::Taken;
use crate::base::{Error, Result};
use crate::plan::problem::{Buffer, BufferId, Interval, Place, Problem, Reserved, Step, MAX_BYTES};
use std::collections::BTreeMap;

/// Checks that sums stay in range and that fixed buffers can be at their offsets.
pub(super) fn check(problem: &Problem) -> Result<()> {
    // One pass suffices if no buffer is fixed: a pass over millions of buffers takes a twentieth of
    // a second.
    if sums(problem)? {
        places(problem)?;
    }
    Ok(())
}

/// Checks that everything movable above everything immovable stays within [`MAX_BYTES`]. Returns
/// whether any buffer is fixed.
fn sums(problem: &Problem) -> Result<bool> {
    let most = u128::from(MAX_BYTES);
    let end = |r: &&Reserved| r.offset + r.size;
    // The highest end of anything immovable, and the buffer or reserved range that it belongs to.
    let mut highest = problem.reserved().iter().filter(|r| r.blocks()).max_by_key(end).map(|r| (end(&r), Err(r)));
    let (mut sum, mut movable, mut any_fixed) = (0u128, 0u128, false);
    for (id, buffer) in (0u32..).zip(problem.buffers()) {
        if problem.left_out().contains(buffer.kind) {
            continue;
        }
        let unit = problem.unit();
        // As arena::stride, but in 128 bits, because the result may not fit in 64.
        let factor = buffer.alignment >> unit.trailing_zeros().min(buffer.alignment.trailing_zeros());
        let stride = u128::from(factor) * u128::from(unit);
        if 2 * stride > most {
            return Err(Error::invalid(format!(
                "{}: its offset must be a multiple of {stride} bytes, by its alignment {} and the unit {unit}, which no \
                 layout within 2^62 bytes can keep to; make the unit smaller",
                named(id, buffer),
                buffer.alignment
            )));
        }
        any_fixed |= matches!(buffer.place, Place::Fixed(_));
        if !buffer.occupies() {
            continue;
        }
        // Each buffer may be rounded up to its stride, twice if the layout is turned over.
        let bytes = u128::from(buffer.extent()) + 2 * (stride - 1);
        sum += bytes;
        match buffer.place {
            Place::Fixed(at) if highest.is_none_or(|(end, _)| end < at + buffer.extent()) => {
                highest = Some((at + buffer.extent(), Ok((id, buffer, at))));
            }
            Place::Fixed(_) => {}
            _ => movable += bytes,
        }
        if sum > most {
            return Err(Error::invalid(format!(
                "buffers 0 to {id} add up to more than 2^62 bytes, alignment included; sizes are in bytes, are they?"
            )));
        }
    }
    match highest {
        Some((end, what)) if movable > 0 && u128::from(end) + movable > most => {
            let what = match what {
                Ok((id, buffer, at)) => format!("{} is fixed at bytes [{at}, {end})", named(id, buffer)),
                Err(range) => format!("bytes [{}, {end}) of arena {} are reserved", range.offset, range.arena),
            };
            Err(Error::invalid(format!(
                "{what}: no room is left above it for the {movable} bytes, alignment included, of the buffers that are not \
                 fixed, since an arena has at most 2^62; make it end at {} or lower",
                most - movable
            )))
        }
        _ => Ok(any_fixed),
    }
}

/// Two fixed buffers that share a byte at some step, so that no layout exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The buffers, in order of adding.
    pub buffers: [BufferId; 2],
    /// The first step at which both are live; 0 where bytes are not reused.
    pub step: Step,
}

/// The arena that a buffer must be in, if there is only one choice.
fn home(problem: &Problem, buffer: &Buffer) -> Option<u32> {
    buffer.arena.or((problem.arenas().len() == 1).then_some(0))
}

/// Fixed buffers that take bytes: (offset, end, index, buffer).
fn fixed(problem: &Problem) -> impl Iterator<Item = (u64, u64, u32, &Buffer)> {
    let taking = |b: &Buffer| b.occupies() && !problem.left_out().contains(b.kind);
    (0u32..).zip(problem.buffers()).filter_map(move |(id, b)| match b.place {
        Place::Fixed(at) if taking(b) => Some((at, at + b.extent(), id, b)),
        _ => None,
    })
}

/// Checks that fixed buffers are on the unit, and overlap neither one another nor reserved ranges.
fn places(problem: &Problem) -> Result<()> {
    for (id, buffer) in (0u32..).zip(problem.buffers()) {
        let Place::Fixed(at) = buffer.place else { continue };
        if !problem.left_out().contains(buffer.kind) && !at.is_multiple_of(stride(buffer.alignment, problem.unit())) {
            return Err(Error::invalid(format!(
                "{} is fixed at offset {at}, which is not a multiple of the unit, {}",
                named(id, buffer),
                problem.unit()
            )));
        }
    }
    if let Some(Clash { buffers, .. }) = clash(problem) {
        let text = |id: BufferId| {
            let buffer = &problem.buffers()[id.index()];
            let Place::Fixed(at) = buffer.place else { return (named(id.0, buffer), String::new()) };
            (named(id.0, buffer), format!("[{at}, {})", at + buffer.extent()))
        };
        let [(one, bytes), (other, at)] = buffers.map(text);
        return Err(Error::invalid(format!(
            "{one} is fixed at bytes {bytes} and {other} at {at}, and both are live at some step; move one, or end its \
             live range earlier"
        )));
    }
    let Some((id, range)) = trespass(problem) else { return Ok(()) };
    let buffer = &problem.buffers()[id as usize];
    let Place::Fixed(at) = buffer.place else { return Ok(()) };
    Err(Error::invalid(format!(
        "{} is fixed at bytes [{at}, {}), of which [{}, {}) are reserved at steps {}",
        named(id, buffer),
        at + buffer.extent(),
        range.offset,
        range.offset + range.size,
        range.during
    )))
}

/// A fixed buffer and a reserved range of its arena that share a byte at some step, if any. It
/// sweeps once over the steps.
fn trespass(problem: &Problem) -> Option<(u32, &Reserved)> {
    let end = |r: &Reserved| r.offset + r.size;
    let mut reserved: Vec<_> =
        (problem.reserved().iter().filter(|r| r.blocks())).map(|r| ((r.arena, r.offset, end(r)), r)).collect();
    if reserved.is_empty() {
        return None;
    }
    let mut held: Vec<_> =
        fixed(problem).filter_map(|(at, end, id, b)| Some(((home(problem, b)?, at, end), id, b))).collect();
    reserved.sort_unstable_by_key(|r| r.0);
    held.sort_unstable_by_key(|h| h.0);
    // (step, whether it begins, whether it is reserved, its place): at equal steps ends come first.
    let mut events: Vec<(Step, bool, bool, usize)> = Vec::new();
    let mut both = |steps: Interval, is_reserved, place| {
        events.extend([(steps.lower, true, is_reserved, place), (steps.upper, false, is_reserved, place)]);
    };
    for (place, (.., buffer)) in held.iter().enumerate() {
        buffer.live().for_each(|live| both(live, false, place));
    }
    for (place, (_, range)) in reserved.iter().enumerate() {
        both(range.during, true, place);
    }
    events.sort_unstable();
    let mut kept_clear = Taken::new(reserved.iter().map(|r| r.0).collect());
    let mut in_use = Taken::new(held.iter().map(|h| h.0).collect());
    for (_, begins, is_reserved, place) in events {
        let (one, other) = if is_reserved { (&mut kept_clear, &in_use) } else { (&mut in_use, &kept_clear) };
        let bytes = if is_reserved { reserved[place].0 } else { held[place].0 };
        if let Some(met) = if begins { other.meeting(bytes) } else { None } {
            let (buffer, range) = if is_reserved { (met, place) } else { (place, met) };
            return Some((held[buffer].1, reserved[range].1));
        }
        one.set(place, begins);
    }
    None
}

/// Two fixed buffers of one arena that share a byte while both are live, if any. It sweeps once
/// over the steps, with live buffers in order of offset. With several arenas, it skips unbound
/// buffers, which may still find an arena without a clash.
pub fn clash(problem: &Problem) -> Option<Clash> {
    // (step, whether it begins, arena, first byte, end, buffer): at equal steps ends come first.
    let mut events: Vec<(Step, bool, u32, u64, u64, u32)> = Vec::new();
    for (at, end, id, buffer) in fixed(problem) {
        let Some(arena) = home(problem, buffer) else { continue };
        if problem.reuse() {
            for live in buffer.live() {
                events.extend([(live.lower, true, arena, at, end, id), (live.upper, false, arena, at, end, id)]);
            }
        } else {
            events.push((0, true, arena, at, end, id));
        }
    }
    events.sort_unstable();
    let mut live: BTreeMap<(u32, u64), (u64, u32)> = BTreeMap::new();
    for (step, begins, arena, at, end, id) in events {
        if !begins {
            live.remove(&(arena, at));
            continue;
        }
        let below = live.range((arena, 0)..=(arena, at)).next_back().filter(|(_, b)| b.0 > at);
        let above = live.range((arena, at)..(arena, end)).next();
        if let Some((_, &(_, other))) = below.or(above) {
            return Some(Clash { buffers: [id.min(other), id.max(other)].map(BufferId), step });
        }
        live.insert((arena, at), (end, id));
    }
    None
}

/// A buffer's name for messages.
fn named(id: u32, buffer: &Buffer) -> String {
    match &buffer.name {
        Some(name) => format!("buffer {id} ({name})"),
        None => format!("buffer {id}"),
    }
}

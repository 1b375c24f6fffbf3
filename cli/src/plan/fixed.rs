//! Fixed offsets that contradict each other: found before anything is solved, so that the message can name both lines.

use super::input::{Column, Input, InputError};
use gpumem::plan::{Place, Step};
use std::collections::BTreeMap;

/// Refuses two buffers at fixed offsets that share a byte at some step.
pub fn check(input: &Input) -> Result<(), InputError> {
    // (step, comes, buffer, first byte, end): at one step what goes is before what comes.
    let mut changes: Vec<(Step, bool, usize, u64, u64)> = Vec::new();
    for (i, b) in input.problem.buffers().iter().enumerate() {
        if let (Place::Fixed(at), true) = (b.place, b.occupies()) {
            let end = at.saturating_add(b.extent());
            changes.extend(b.live().flat_map(|l| [(l.lower, true, i, at, end), (l.upper, false, i, at, end)]));
        }
    }
    changes.sort_unstable();
    // What is live, by its first byte; apart, so only neighbours can meet.
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (step, comes, i, at, end) in changes {
        if !comes {
            live.remove(&at);
            continue;
        }
        let before = live.range(..=at).next_back().filter(|(_, &(its_end, _))| its_end > at);
        let after = live.range(at..).next().filter(|(&its_start, _)| its_start < end);
        if let Some((&start, &(its_end, other))) = before.or(after) {
            // The later line is the one to change.
            let (first, bytes, second) = if other < i { (other, start..its_end, i) } else { (i, at..end, other) };
            let expected = format!(
                "an offset apart from bytes {} to {} of line {}, as both buffers are live at step {step}",
                bytes.start,
                bytes.end - 1,
                input.line(first)
            );
            return Err(input.bad(second, Column::Offset, expected));
        }
        live.insert(at, (end, i));
    }
    Ok(())
}

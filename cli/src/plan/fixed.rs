//! Fixed offsets that contradict each other: found before anything is solved, so that the message
//! can name both lines.

use super::columns::Column;
use super::input::{Input, InputError};
use gpumem::plan::{Place, Step};
use std::collections::BTreeMap;

/// Refuses two buffers at fixed offsets that share a byte of one arena at some step. What is bound
/// to none of several arenas may still go where it is in the way of no buffer.
pub fn check(input: &Input) -> Result<(), InputError> {
    // (step, comes, buffer, first byte, end): at one step what goes is before what comes.
    let mut changes: Vec<(Step, bool, usize, u64, u64)> = Vec::new();
    let problem = &input.problem;
    let only = (problem.arenas().len() == 1).then_some(0);
    let home = |i: usize| problem.buffers().get(i).and_then(|b| b.arena).or(only);
    for (i, b) in problem.buffers().iter().enumerate() {
        let counts = b.occupies() && home(i).is_some() && !problem.left_out().contains(b.kind);
        if let (Place::Fixed(at), true) = (b.place, counts) {
            let end = at.saturating_add(b.extent());
            changes.extend(b.live().flat_map(|l| [(l.lower, true, i, at, end), (l.upper, false, i, at, end)]));
        }
    }
    changes.sort_unstable();
    // What is live, by arena and first byte; apart, so only neighbours can meet.
    let mut live: BTreeMap<(u32, u64), (u64, usize)> = BTreeMap::new();
    for (step, comes, i, at, end) in changes {
        let arena = home(i).unwrap_or_default();
        if !comes {
            live.remove(&(arena, at));
            continue;
        }
        let before = live.range((arena, 0)..=(arena, at)).next_back().filter(|(_, &(its_end, _))| its_end > at);
        let after = live.range((arena, at)..(arena, end)).next();
        if let Some((&(_, start), &(its_end, other))) = before.or(after) {
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
        live.insert((arena, at), (end, i));
    }
    Ok(())
}

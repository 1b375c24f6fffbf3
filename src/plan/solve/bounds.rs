//! Lower bounds that sums give: what is live at one step, and what cannot move.

use crate::plan::covered::covered;
use crate::plan::problem::{Buffer, Place, Problem, Reserved};

/// Bytes that any layout of `buffers` in `arena` needs: the largest live sum, reserved ranges included; the end of
/// whatever is fixed; without reuse everything side by side.
pub(super) fn of_arena<'a>(problem: &Problem, arena: u32, buffers: impl Iterator<Item = &'a Buffer> + Clone) -> u64 {
    let reserved: Vec<&Reserved> = problem.reserved().iter().filter(|r| r.arena == arena && r.blocks()).collect();
    let ends = reserved.iter().map(|r| r.offset + r.size);
    let fixed = buffers.clone().filter_map(|b| match b.place {
        Place::Fixed(at) => Some(at + b.extent()),
        _ => None,
    });
    let highest = ends.chain(fixed).max().unwrap_or(0);
    let unshared = if problem.reuse() { 0 } else { buffers.clone().map(Buffer::extent).sum() };
    peak(buffers, &[reserved]).max(highest).max(unshared)
}

/// Bytes that any layout of all `buffers` needs, whatever arenas they are in.
pub(super) fn of_all<'a>(problem: &Problem, buffers: impl Iterator<Item = &'a Buffer> + Clone) -> u64 {
    let arenas = problem.arenas().len() as u32;
    if arenas == 1 {
        return of_arena(problem, 0, buffers);
    }
    let reserved: Vec<Vec<&Reserved>> =
        (0..arenas).map(|a| problem.reserved().iter().filter(|r| r.arena == a && r.blocks()).collect()).collect();
    let by_arena: u64 = (0..arenas).map(|a| of_arena(problem, a, buffers.clone().filter(|b| b.arena == Some(a)))).sum();
    peak(buffers, &reserved).max(by_arena)
}

/// The largest sum of live buffers and reserved bytes at one step. `reserved` by arena: ranges of one may overlap and
/// count once, those of two do not.
fn peak<'a>(buffers: impl Iterator<Item = &'a Buffer>, reserved: &[Vec<&Reserved>]) -> u64 {
    // Step and bytes; at equal steps deaths come first.
    const BIRTH: u64 = 1 << 63;
    let mut events: Vec<(u64, u64)> = Vec::with_capacity(2 * buffers.size_hint().0);
    buffers.for_each(|b| events.extend(b.live().flat_map(|l| [(l.lower, b.extent() | BIRTH), (l.upper, b.extent())])));
    for ranges in reserved {
        events.extend(
            covered(ranges).into_iter().map(|(step, comes, bytes)| (step, bytes | if comes { BIRTH } else { 0 })),
        );
    }
    events.sort_unstable();
    let (mut live, mut most) = (0u64, 0);
    for (_, bytes) in events {
        live = if bytes & BIRTH != 0 { live + (bytes & !BIRTH) } else { live - bytes };
        most = most.max(live);
    }
    most
}

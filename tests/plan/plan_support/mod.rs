//! What the planner's tests share: problems to try, other people's greedy planners, and oracles.
//! All of it is naive on purpose, and none of it is shared with `src/plan`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod exhaustive;
pub mod generate;
pub mod greedy;
pub mod layouts;
pub mod paint;

use generate::{Features, Rng};
use gpumem::plan::{ArenaUse, Buffer, Layout, LayoutStatus, Place, Problem, Slot, Step};
use std::path::Path;
use std::time::Duration;

/// What all of A to F fit in, bytes.
pub const MIB: u64 = 1 << 20;

/// The problem in `tests/data/plan/NAME.1048576.csv`.
pub fn csv(name: &str) -> Problem {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/plan/{name}.1048576.csv"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("id,lower,upper,size"), "{}", path.display());
    let mut problem = Problem::new();
    for line in lines {
        let fields: Vec<u64> = line.split(',').map(|field| field.parse().unwrap()).collect();
        let [_, lower, upper, size] = fields[..] else { panic!("{}: {line}", path.display()) };
        problem.add(Buffer::new(size, lower, upper)).unwrap();
    }
    problem
}

/// The same buffers, ranges and settings with one arena of this capacity.
pub fn with_capacity(problem: &Problem, capacity: u64) -> Problem {
    let mut problem = problem.clone();
    problem.set_capacity(Some(capacity));
    problem
}

/// A problem of one arena by one of the generators: small ones mostly, up to about `most` buffers,
/// with features that the greedy planners can place in half of the cases.
pub fn any_problem(seed: u64, most: usize) -> Problem {
    let mut rng = Rng::new(seed);
    let count = rng.magnitude(most as u64) as usize;
    let steps = rng.magnitude(4 * count as u64);
    let bytes = [16, 1000, 1 << 20][rng.below(3) as usize];
    match rng.below(8) {
        0 => generate::random(seed, count, steps, bytes),
        1 => generate::training(seed, count),
        2 => generate::guillotine(seed, count, count as u64 + 3, bytes),
        3 => generate::guillotine_with_holes(seed, count, count / 4, count as u64 + 3, bytes),
        _ => {
            let features = Features { arenas: false, ..Features::some(&mut rng) };
            generate::with_features(seed, count, steps, bytes, features)
        }
    }
    .unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

/// Steps at which a buffer holds something.
pub fn live_at(buffer: &Buffer, step: Step) -> bool {
    buffer.lower <= step && step < buffer.upper && !buffer.gaps.iter().any(|g| g.lower <= step && step < g.upper)
}

/// The live ranges of a buffer, by walking along its gaps.
pub fn lives(buffer: &Buffer) -> Vec<(Step, Step)> {
    let mut lives = Vec::new();
    let mut from = buffer.lower;
    for gap in &buffer.gaps {
        lives.push((from, gap.lower));
        from = gap.upper;
    }
    lives.push((from, buffer.upper));
    lives.retain(|(lower, upper)| lower < upper);
    lives
}

/// Bytes that count, guard included; 0 for what occupies nothing.
pub fn occupied(buffer: &Buffer) -> u64 {
    if buffer.size == 0 || lives(buffer).is_empty() {
        0
    } else {
        buffer.size + buffer.guard
    }
}

/// Whether two buffers need different bytes of one arena.
pub fn together(problem: &Problem, a: &Buffer, b: &Buffer) -> bool {
    if occupied(a) == 0 || occupied(b) == 0 {
        return false;
    }
    !problem.reuse() || lives(a).iter().any(|x| lives(b).iter().any(|y| x.0.max(y.0) < x.1.min(y.1)))
}

/// What every offset of the buffer is a multiple of.
pub fn stride(problem: &Problem, buffer: &Buffer) -> u64 {
    let mut stride = buffer.alignment;
    while !stride.is_multiple_of(problem.unit()) {
        stride += buffer.alignment;
    }
    stride
}

/// Slots as a layout, everything else counted up from them step by step.
pub fn accounted(problem: &Problem, slots: Vec<Option<Slot>>) -> Layout {
    let slotted = || problem.buffers().iter().zip(&slots).filter_map(|(b, s)| Some((b, (*s)?)));
    let arenas: Vec<ArenaUse> = (0..problem.arenas().len() as u32)
        .map(|arena| {
            let inside = slotted().filter(|(b, s)| s.arena == arena && occupied(b) > 0);
            let ends = inside.clone().map(|(b, s)| s.offset + occupied(b));
            let reserved = problem.reserved().iter().filter(|r| r.arena == arena && r.size > 0 && !r.during.is_empty());
            let buffers: Vec<&Buffer> = inside.map(|(b, _)| b).collect();
            ArenaUse {
                size: ends.chain(reserved.map(|r| r.offset + r.size)).max().unwrap_or(0),
                lower_bound: most_live(problem, &buffers, Some(arena)),
            }
        })
        .collect();
    let size = arenas.iter().map(|a| a.size).sum();
    let buffers: Vec<&Buffer> = problem.buffers().iter().filter(|b| !problem.left_out().contains(b.kind)).collect();
    let lower_bound = most_live(problem, &buffers, None);
    Layout {
        total_unshared: buffers.iter().map(|b| occupied(b)).sum(),
        status: if size == lower_bound { LayoutStatus::Optimal } else { LayoutStatus::Feasible },
        slots,
        arenas,
        size,
        lower_bound,
        interrupted: false,
        elapsed: Duration::ZERO,
    }
}

/// The largest sum over `buffers` and the reserved ranges of an arena, or of all, at one step. It
/// can only be at a step where something begins.
pub fn most_live(problem: &Problem, buffers: &[&Buffer], arena: Option<u32>) -> u64 {
    let starts = buffers.iter().flat_map(|b| lives(b)).map(|(lower, _)| lower);
    let mut steps: Vec<Step> = starts.chain(problem.reserved().iter().map(|r| r.during.lower)).collect();
    steps.sort_unstable();
    steps.dedup();
    let sum = |step: &Step| -> u64 {
        let live: u64 = buffers.iter().filter(|b| live_at(b, *step)).map(|b| occupied(b)).sum();
        let arenas = (0..problem.arenas().len() as u32).filter(|a| arena.is_none_or(|only| only == *a));
        live + arenas.map(|a| reserved_bytes(problem, a, *step)).sum::<u64>()
    };
    steps.iter().map(sum).max().unwrap_or(0)
}

/// Bytes of an arena that are in some reserved range at a step.
fn reserved_bytes(problem: &Problem, arena: u32, step: Step) -> u64 {
    let here =
        problem.reserved().iter().filter(|r| r.arena == arena && r.during.lower <= step && step < r.during.upper);
    let mut ranges: Vec<(u64, u64)> = here.map(|r| (r.offset, r.offset + r.size)).collect();
    ranges.sort_unstable();
    let (mut bytes, mut until) = (0, 0);
    for (start, end) in ranges {
        bytes += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    bytes
}

/// Whether a problem has anything whose place is given.
pub fn has_obstacles(problem: &Problem) -> bool {
    !problem.reserved().is_empty() || problem.buffers().iter().any(|b| matches!(b.place, Place::Fixed(_)))
}

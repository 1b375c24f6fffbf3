//! What clock and cancellation end, and what is there then. A flag that is set from the start
//! stands for both: it is looked at in the same places. Nothing here measures time; what is
//! quadratic does not come to an end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::plan_support;

use gpumem::plan::{
    solve, verify, Arena, Buffer, Effort, Interval, Layout, LayoutStatus, Place, Problem, Reserved, SolveOptions,
};
use plan_support::generate::{self, Rng};
use plan_support::{any_problem, MIB};
use std::sync::atomic::AtomicBool;

static SET: AtomicBool = AtomicBool::new(true);

fn cancelled() -> SolveOptions<'static> {
    SolveOptions { cancel: Some(&SET), ..SolveOptions::default() }
}

fn fast() -> SolveOptions<'static> {
    SolveOptions { effort: Effort::Fast, ..SolveOptions::default() }
}

#[track_caller]
fn solved(problem: &Problem, options: &SolveOptions<'_>) -> Layout {
    let layout = solve(problem, options).unwrap();
    verify(problem, &layout).unwrap();
    layout
}

#[track_caller]
fn laid_out(problem: &Problem, options: &SolveOptions<'_>) -> Layout {
    let layout = solved(problem, options);
    assert!(matches!(layout.status, LayoutStatus::Optimal | LayoutStatus::Feasible), "{}", layout.status.name());
    layout
}

/// Buffers of many sizes over `steps` steps; few live for long.
fn many(seed: u64, count: u64, steps: u64, longest: u64) -> Vec<Buffer> {
    let rng = &mut Rng::new(seed);
    (0..count)
        .map(|_| {
            let lower = rng.below(steps);
            let life = 1 + if rng.below(7) == 0 { rng.below(longest) } else { rng.below(longest / 20 + 2) };
            Buffer { alignment: 1 << (4 * rng.below(3)), ..Buffer::new(rng.between(1, 100_000), lower, lower + life) }
        })
        .collect()
}

fn problem(buffers: impl IntoIterator<Item = Buffer>) -> Problem {
    let mut problem = Problem::new();
    for buffer in buffers {
        problem.add(buffer).unwrap();
    }
    problem
}

/// All greedy orders give a layout no larger than a few of them; the first alone is larger for some
/// problems.
#[test]
fn the_greedy_orders_after_the_first_are_ended() {
    for gaps in [false, true] {
        let mut larger = 0;
        for seed in 0..40 {
            let mut buffers = many(seed, 200, 300, 80);
            for b in buffers.iter_mut().filter(|b| gaps && b.upper - b.lower > 4) {
                b.gaps = vec![Interval::new(b.lower + 1, b.upper - 1)];
            }
            let p = problem(buffers);
            let (ended, few) = (laid_out(&p, &cancelled()), laid_out(&p, &fast()));
            assert!(ended.interrupted || ended.size == ended.lower_bound, "seed {seed}");
            larger += u32::from(ended.size > few.size);
        }
        assert!(larger > 10, "only {larger} of 40 are larger than a few orders make them; gaps: {gaps}");
    }
}

/// Of a few thousand buffers all are laid out in the first order; of more the rest is put on top,
/// and uses bytes again.
#[test]
fn the_first_greedy_order_is_cut_short_where_it_is_long() {
    let p = problem(many(1, 100_000, 20_000, 200));
    let (cut, few) = (laid_out(&p, &cancelled()), laid_out(&p, &fast()));
    assert!(cut.interrupted && !few.interrupted);
    assert!(cut.size > few.size + few.size / 50, "{} is the first order to its end: {}", cut.size, few.size);
    assert!(cut.size < 10 * few.size && cut.size < cut.total_unshared / 20, "{} of {}", cut.size, few.size);
    for count in [3_000, 4_096] {
        let p = problem(many(1, count, 1_000, 200));
        let (cut, few) = (laid_out(&p, &cancelled()), laid_out(&p, &fast()));
        assert!(cut.interrupted);
        assert!(cut.size < few.size + few.size / 5, "{} and {}: the first order was not made", cut.size, few.size);
    }
}

/// A few buffers in the way of one another at very many steps, and among very many obstacles.
#[test]
fn few_buffers_with_very_many_ranges_have_a_layout_without_time() {
    let with_gaps = |arena: u32| {
        let gaps = (0..10_000).map(|k| Interval::new(4 * k + 1, 4 * k + 2)).collect();
        Buffer { gaps, arena: Some(arena), ..Buffer::new(100, 0, 40_000) }
    };
    let mut p = problem((0..8).map(|_| with_gaps(0)));
    let layout = laid_out(&p, &cancelled());
    assert!(layout.interrupted && layout.size == 800);
    // Nor does a capacity that this first layout passes hide its size.
    let ranges = |k: u64| Interval::new(2 * (k % 1_000), 2 * (k % 1_000) + 1);
    for k in 0..70_000 {
        p.reserve(Reserved { arena: 0, offset: 10 * k, size: 10, during: ranges(k) }).unwrap();
    }
    assert!(laid_out(&p, &cancelled()).interrupted);
    p.set_capacity(Some(700_000));
    let layout = solved(&p, &cancelled());
    assert_eq!((layout.status, layout.interrupted, layout.size), (LayoutStatus::OutOfTime, true, 700_800));
    for arena in 1..3 {
        p.add_arena(Arena { capacity: Some(700), ..Arena::default() });
        (0..8).for_each(|_| _ = p.add(with_gaps(arena)).unwrap());
    }
    let layout = solved(&p, &cancelled());
    assert_eq!(layout.status, LayoutStatus::Infeasible, "eight of 100 bytes in 700");
    for arena in 1..3 {
        p.set_arena_capacity(arena, Some(800)).unwrap();
    }
    let layout = solved(&p, &cancelled());
    assert_eq!((layout.status, layout.size), (LayoutStatus::OutOfTime, 702_400));
}

#[test]
fn without_time_there_is_a_layout_whatever_is_in_the_way() {
    for seed in 0..20 {
        // Everything a problem can hold, and more of it than is laid out before the clock counts.
        let made = any_problem(seed, 300);
        let mut p = problem(many(seed, 9_000, 5_000, 200));
        p.add_arena(Arena::default());
        for b in made.buffers().iter().filter(|b| !matches!(b.place, Place::Fixed(_))) {
            p.add(Buffer { arena: None, ..b.clone() }).unwrap();
        }
        for (k, range) in made.reserved().iter().enumerate() {
            p.reserve(Reserved { arena: k as u32 % 2, ..range.clone() }).unwrap();
        }
        assert!(laid_out(&p, &cancelled()).interrupted, "seed {seed}");
        let needed = p.reserved().iter().map(|r| r.offset + r.size).max().unwrap_or(0) + MIB;
        p.set_capacity(Some(needed));
        let layout = laid_out(&p, &cancelled());
        assert!(layout.interrupted && layout.arenas[0].size <= needed, "seed {seed}");
    }
}

/// The first arena is filled as far as it goes, and the rest is in the second.
#[test]
fn many_buffers_are_divided_among_arenas() {
    let buffers = many(3, 60_000, 5_000, 16);
    let all = laid_out(&problem(buffers.clone()), &fast());
    let mut p = problem(buffers);
    p.set_capacity(Some(all.size / 2));
    p.add_arena(Arena::default());
    let layout = laid_out(&p, &fast());
    assert!(layout.arenas[0].size > all.size / 2 / 10 * 9, "{:?} of {}", layout.arenas, all.size);
    assert!(layout.size < all.size + all.size / 5, "{:?} of {}", layout.arenas, all.size);
    let again = laid_out(&p, &fast());
    assert_eq!((again.slots, again.arenas), (layout.slots, layout.arenas));
    let cut = laid_out(&p, &cancelled());
    assert!(cut.interrupted && cut.arenas[0].size <= all.size / 2);
}

/// What sums promise and a layout cannot keep moves on to an arena that has room.
#[test]
fn many_buffers_fit_into_arenas_that_have_room() {
    for seed in 0..4 {
        let buffers = generate::guillotine(seed, 6_000, 6_003, MIB).unwrap().buffers().to_vec();
        let mut p = problem(buffers);
        p.set_capacity(Some(MIB));
        p.add_arena(Arena { capacity: Some(MIB), ..Arena::default() });
        p.add_arena(Arena { capacity: Some(MIB), ..Arena::default() });
        // Bound to the last, it has the first claim there.
        p.add(Buffer { arena: Some(2), ..Buffer::new(1000, 0, 6_000) }).unwrap();
        // In nobody's way in the second only.
        p.add(Buffer { arena: Some(0), place: Place::Fixed(0), ..Buffer::new(64, 0, 6_000) }).unwrap();
        p.add(Buffer { place: Place::Fixed(0), ..Buffer::new(64, 0, 6_000) }).unwrap();
        let layout = laid_out(&p, &fast());
        let arenas = layout.slots.iter().rev().take(3).map(|s| s.unwrap().arena).collect::<Vec<_>>();
        assert_eq!(arenas, [1, 0, 2], "seed {seed}");
        p.add(Buffer { place: Place::Fixed(0), arena: Some(2), ..Buffer::new(1, 0, 6_000) }).unwrap();
        p.add(Buffer { place: Place::Fixed(0), ..Buffer::new(1, 0, 6_000) }).unwrap();
        assert_eq!(solved(&p, &fast()).status, LayoutStatus::OutOfTime, "seed {seed}: one too many at offset 0");
    }
}

/// Checks and bounds come before clock and flag count: so much is quick only where it is not all
/// compared with all.
#[test]
fn checks_and_bounds_of_many_things_end() {
    let count = 100_000;
    for beside in [true, false] {
        // Reserved and fixed in turn: bytes beside one another, or the same at other steps.
        let mut p = Problem::new();
        for k in 0..count {
            let (at, fixed_at, step) = if beside { (10 * k, 10 * k + 5, 0) } else { (0, 0, 2 * k) };
            let during = Interval::new(step, step + 1);
            p.reserve(Reserved { arena: 0, offset: at, size: 5, during }).unwrap();
            let lower = if beside { 0 } else { step + 1 };
            p.add(Buffer { place: Place::Fixed(fixed_at), ..Buffer::new(5, lower, lower + 1) }).unwrap();
        }
        p.add(Buffer::new(5, 0, 3)).unwrap();
        laid_out(&p, &cancelled());
    }
    let mut p = Problem::new();
    for arena in 0..count as u32 {
        p.add_arena(Arena::default());
        p.reserve(Reserved { arena, offset: 0, size: 5, during: Interval::new(0, 1) }).unwrap();
        p.add(Buffer { arena: Some(arena), ..Buffer::new(5, 0, 3) }).unwrap();
    }
    laid_out(&p, &cancelled());
}

/// Each arena may end at 2^62; what all take together must be countable, too.
#[test]
fn arenas_that_end_too_high_together_are_refused() {
    let mut p = Problem::new();
    let high = (1 << 62) - 1;
    for arena in 0..4 {
        if arena > 0 {
            p.add_arena(Arena::default());
        }
        let place = Place::Fixed(high);
        p.add(Buffer { place, arena: Some(arena), ..Buffer::new(1, 0, 1) }).unwrap();
        let layout = solve(&p, &fast());
        match arena {
            0..3 => assert_eq!(layout.unwrap().size, (u64::from(arena) + 1) * (high + 1)),
            _ => assert!(layout.unwrap_err().message.contains("2^64")),
        }
    }
}

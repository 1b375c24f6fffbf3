//! Fixed buffers in hard problems: the search goes around them, and plain first fit is the worst
//! that can happen.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::plan_support;

use gpumem::plan::{solve, verify, Buffer, Interval, Layout, Place, Problem, Reserved, SolveOptions};
use plan_support::generate::Rng;
use plan_support::{accounted, csv, greedy, MIB};
use test_support::rounds;

fn solved(problem: &Problem) -> Layout {
    let layout = solve(problem, &SolveOptions::default()).unwrap();
    assert_eq!(verify(problem, &layout), Ok(()));
    layout
}

/// The problem with one buffer in `share` fixed where `layout` has it.
fn with_some_fixed(problem: &Problem, layout: &Layout, share: u64, rng: &mut Rng) -> Problem {
    let mut fixed = Problem::new();
    for (buffer, slot) in problem.buffers().iter().zip(&layout.slots) {
        let mut buffer = buffer.clone();
        if rng.one_in(share) {
            buffer.place = Place::Fixed(slot.unwrap().offset);
        }
        fixed.add(buffer).unwrap();
    }
    fixed
}

/// What fits 1 MiB exactly nearly always does when some of it is fixed there. With floors where
/// obstacles end, it took a fifth more.
#[test]
fn a_hard_problem_with_fixed_buffers_still_fits() {
    let mut exact = 0;
    for (name, share) in [("A", 20), ("B", 10), ("B", 100), ("E", 20), ("F", 100)] {
        let problem = csv(name);
        let layout = solved(&problem);
        assert_eq!(layout.size, MIB, "{name}");
        let fixed = with_some_fixed(&problem, &layout, share, &mut Rng::new(share));
        let size = solved(&fixed).size;
        assert!(size <= MIB + MIB / 100, "{name}, one in {share} fixed: {size}");
        exact += u32::from(size == MIB);
    }
    assert!(exact >= 4, "only {exact} of 5 fit exactly");
}

/// Wherever they are fixed: never worse than the greedy planners around them.
#[test]
fn never_worse_than_greedy_around_fixed_buffers() {
    for seed in 0..rounds(80) {
        let rng = &mut Rng::new(seed);
        let problem = plan_support::generate::random(seed, rng.between(8, 80) as usize, 60, 1000).unwrap();
        // Greedy layouts leave the fixed ones far up, with holes below.
        let made = greedy::all(&problem).pop().unwrap();
        let fixed = with_some_fixed(&problem, &accounted(&problem, made.slots), 5, rng);
        let layout = solved(&fixed);
        for other in greedy::all(&fixed) {
            assert!(layout.size <= other.size, "seed {seed}: {} makes {}, not {}", other.name, other.size, layout.size);
        }
    }
}

/// What is fixed where bytes are reserved is refused if both are there at some step, and only then.
#[test]
fn fixed_buffers_keep_out_of_reserved_ranges() {
    let (mut refused, mut kept) = (0, 0);
    for seed in 0..rounds(2_000) {
        let rng = &mut Rng::new(seed);
        let mut problem = Problem::new();
        problem.add_arena(Default::default());
        // One below the other, so that no two buffers meet.
        for k in 0..rng.between(1, 5) {
            let lower = rng.below(20);
            let mut buffer = Buffer::new(rng.between(1, 8), lower, lower + rng.between(1, 9));
            if buffer.upper - lower > 2 {
                buffer.gaps = vec![Interval::new(lower + 1, lower + 2)];
            }
            (buffer.place, buffer.arena) = (Place::Fixed(8 * k), Some(rng.below(2) as u32));
            problem.add(buffer).unwrap();
        }
        for _ in 0..rng.between(1, 4) {
            let lower = rng.below(30);
            let during = Interval::new(lower, lower + rng.below(9));
            let (arena, offset, size) = (rng.below(2) as u32, rng.below(40), rng.below(9));
            problem.reserve(Reserved { arena, offset, size, during }).unwrap();
        }
        let meet = |b: &Buffer, r: &Reserved| {
            let Place::Fixed(at) = b.place else { return false };
            let steps = (r.during.lower..r.during.upper).any(|step| plan_support::live_at(b, step));
            b.arena == Some(r.arena) && steps && at.max(r.offset) < (at + b.size).min(r.offset + r.size)
        };
        let any = problem.buffers().iter().any(|b| problem.reserved().iter().any(|r| meet(b, r)));
        match solve(&problem, &SolveOptions::default()) {
            Ok(layout) => assert!(!any && verify(&problem, &layout).is_ok(), "seed {seed}: {problem:?}"),
            Err(e) => assert!(any && e.message.contains("are reserved"), "seed {seed}: {e} {problem:?}"),
        }
        (refused, kept) = if any { (refused + 1, kept) } else { (refused, kept + 1) };
    }
    assert!(refused > 100 && kept > 100, "{refused} {kept}");
}

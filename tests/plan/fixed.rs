//! Fixed buffers in hard problems: the search goes around them, and plain first fit is the worst that can happen.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::plan_support;

use gpumem::plan::{solve, verify, Layout, Place, Problem, SolveOptions};
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

/// What fits 1 MiB exactly nearly always does when some of it is fixed there. With floors where obstacles end, it took a
/// fifth more.
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

//! What the planner's other tests stand on, seen without a solver: generators, greedy planners, and
//! all orders.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::plan_support;

use gpumem::plan::{verify, Buffer, Problem};
use plan_support::generate::{self, Features, Rng};
use plan_support::{accounted, csv, exhaustive, greedy, occupied, MIB};

#[test]
fn generated_problems_are_as_promised() {
    for seed in 0..200 {
        let rng = &mut Rng::new(seed);
        let (count, holes) = (rng.between(1, 200) as usize, rng.below(50) as usize);
        let (width, height) = (rng.between(1, 300) + 250 / count as u64, rng.between(250, 1 << 30));
        let cut = generate::guillotine(seed, count, width, height).unwrap();
        assert_eq!(cut.buffers().len(), count);
        let every = |problem: &Problem, step: u64| -> u64 {
            let live = problem.buffers().iter().filter(|b| b.lower <= step && step < b.upper);
            live.map(|b| b.size).sum()
        };
        assert!((0..width).all(|step| every(&cut, step) == height), "seed {seed}");
        let holed = generate::guillotine_with_holes(seed, count, holes, width, height).unwrap();
        assert!((count..=count + holes).contains(&holed.buffers().len()));
        assert!((0..width).all(|step| every(&holed, step) <= height), "seed {seed}");
        assert!((0..width).any(|step| every(&holed, step) == height), "seed {seed}");
        assert_eq!(holed, generate::guillotine_with_holes(seed, count, holes, width, height).unwrap());

        let training = generate::training(seed, count).unwrap();
        assert_eq!(training.buffers().len(), count);
        assert!(training.buffers().iter().all(|b| b.size % 512 == 0 && occupied(b) > 0), "seed {seed}");
        let random = generate::random(seed, count, width, height).unwrap();
        assert_eq!(random.buffers().len(), count);
        let inside = |b: &Buffer| (1..=height).contains(&b.size) && b.lower < b.upper && b.upper <= width;
        assert!(random.buffers().iter().all(inside), "seed {seed}");
        // That there is a layout is shown by making one: bound buffers first, in arenas that have
        // room for them.
        let problem = generate::with_features(seed, count, width, 1000, Features::ALL).unwrap();
        let arenas = problem.arenas().len() as u32;
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|i| problem.buffers()[*i].arena.is_none());
        let slots = greedy::place(&problem, &order, greedy::Fit::First, |_| arenas - 1);
        assert_eq!(verify(&problem, &accounted(&problem, slots)), Ok(()), "seed {seed}");
    }
    let e = generate::guillotine(1, 7, 2, 3).unwrap_err();
    assert!(e.message.contains("2 steps by 3 bytes") && e.message.contains("1 to 6"), "{e}");
    assert!(generate::guillotine(1, 0, 2, 3).is_err() && generate::guillotine(1, 1, 0, 3).is_err());
    for extreme in [0, 1, u64::MAX] {
        let _ = generate::random(1, 50, extreme, extreme);
        let _ = generate::with_features(1, 50, extreme, extreme, Features::ALL);
        let _ = generate::guillotine(1, 50, extreme, extreme);
    }
    assert_eq!(generate::random(1, 3, 0, 0).unwrap().buffers()[2], Buffer::new(1, 0, 1));
}

/// The oracle must find what no single greedy planner finds: otherwise it shows nothing.
#[test]
fn trying_all_orders_beats_every_greedy_planner_at_times() {
    let mut better = 0;
    for seed in 0..1500 {
        let problem = exhaustive::tiny(seed);
        if problem.arenas().len() == 1 {
            let (optimum, _) = exhaustive::optimum(&problem);
            let best = greedy::all(&problem).into_iter().map(|r| r.size).min().unwrap();
            assert!(optimum <= best, "seed {seed}");
            better += u32::from(optimum < best);
        }
    }
    assert!(better >= 10, "{better}");
}

#[test]
fn no_greedy_planner_comes_near_a_mib() {
    for name in ["A", "B", "C", "D", "E", "F"] {
        let best = greedy::all(&csv(name)).into_iter().map(|r| r.size).min().unwrap();
        assert!(best > MIB + MIB / 10, "{name}: {best}");
    }
}

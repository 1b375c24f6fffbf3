//! Several arenas with capacities: a division is found where there is one. And what each gets of
//! the time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::plan_support;

use gpumem::plan::{solve, verify, Arena, Buffer, Effort, Layout, LayoutStatus, Place, Problem, SolveOptions};
use plan_support::generate::Rng;
use plan_support::{csv, MIB};

fn solved(problem: &Problem) -> Layout {
    let layout = solve(problem, &SolveOptions::default()).unwrap();
    assert_eq!(verify(problem, &layout), Ok(()), "{problem:?}");
    layout
}

fn fits(layout: &Layout) -> bool {
    matches!(layout.status, LayoutStatus::Optimal | LayoutStatus::Feasible)
}

fn with_arenas(capacities: &[u64], buffers: impl Iterator<Item = Buffer>) -> Problem {
    let mut problem = Problem::new();
    problem.set_capacity(Some(capacities[0]));
    for &capacity in &capacities[1..] {
        problem.add_arena(Arena { name: None, capacity: Some(capacity) });
    }
    buffers.for_each(|b| _ = problem.add(b).unwrap());
    problem
}

/// Two copies of a problem that fills 1 MiB to the byte fill two arenas of 1 MiB, and not two of
/// which one is smaller.
#[test]
fn two_copies_fill_two_arenas() {
    for name in ["A", "E"] {
        let one = csv(name);
        let copies = || one.buffers().iter().chain(one.buffers()).cloned();
        let layout = solved(&with_arenas(&[MIB, MIB], copies()));
        assert!(fits(&layout), "{name}: {}", layout.status.name());
        assert_eq!(layout.size, 2 * MIB, "{name}");
        let layout = solved(&with_arenas(&[MIB, MIB - 1], copies()));
        assert_eq!(layout.status, LayoutStatus::Infeasible, "{name}");
    }
}

/// Whether each buffer can be given an arena and an offset, all others alike: by trying everything.
fn possible(buffers: &[Buffer], capacities: &[u64], placed: &mut Vec<(usize, u32, u64)>) -> bool {
    if placed.len() == buffers.len() {
        return true;
    }
    let free = |b: &Buffer, a: u32, at: u64, placed: &[(usize, u32, u64)]| {
        b.arena.is_none_or(|bound| bound == a)
            && at + b.size <= capacities[a as usize]
            && placed.iter().all(|&(i, arena, other)| {
                let o = &buffers[i];
                let meets = b.lower < o.upper && o.lower < b.upper && arena == a;
                !meets || at >= other + o.size || at + b.size <= other
            })
    };
    let left: Vec<usize> = (0..buffers.len()).filter(|i| placed.iter().all(|p| p.0 != *i)).collect();
    for i in left {
        for a in 0..capacities.len() as u32 {
            // Some order with everything at the lowest free offset of its arena reaches a layout if
            // there is one.
            let Some(at) = (0..capacities[a as usize]).find(|&at| free(&buffers[i], a, at, placed)) else { continue };
            placed.push((i, a, at));
            let found = possible(buffers, capacities, placed);
            placed.pop();
            if found {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_division_is_found_where_there_is_one() {
    let (mut found, mut none) = (0, 0);
    for seed in 0..400 {
        let rng = &mut Rng::new(seed);
        let steps = rng.between(2, 6);
        let buffers: Vec<Buffer> = (0..rng.between(3, 6))
            .map(|_| {
                let lower = rng.below(steps);
                let mut buffer = Buffer::new(rng.between(1, 8), lower, rng.between(lower + 1, steps));
                buffer.arena = rng.one_in(4).then(|| rng.below(2) as u32);
                buffer
            })
            .collect();
        let most = buffers.iter().map(|b| b.size).max().unwrap();
        let capacities = [rng.between(most, most + 6), rng.between(most, most + 6)];
        let layout = solved(&with_arenas(&capacities, buffers.iter().cloned()));
        let expected = possible(&buffers, &capacities, &mut Vec::new());
        assert_eq!(fits(&layout), expected, "seed {seed}: {capacities:?} {buffers:?}");
        (found, none) = if expected { (found + 1, none) } else { (found, none + 1) };
    }
    assert!(found > 50 && none > 50, "{found} {none}");
}

/// What is fixed and bound to no arena must not wait until bound buffers have filled all of them;
/// nor may it take the room of one where another arena has room for both.
#[test]
fn what_is_fixed_finds_an_arena_beside_what_is_bound() {
    let bound = |arena: u32| Buffer { arena: Some(arena), ..Buffer::new(10, 0, 2) };
    let fixed = Buffer { place: Place::Fixed(0), ..Buffer::new(5, 0, 2) };
    let mut free = Problem::new();
    free.add_arena(Arena::default());
    [bound(0), bound(1), fixed.clone()].into_iter().for_each(|b| _ = free.add(b).unwrap());
    let tight = with_arenas(&[10, 10], [bound(0), fixed].into_iter());
    for (problem, size) in [(free, 25), (tight, 15)] {
        let layout = solved(&problem);
        assert!(fits(&layout), "{}: {problem:?}", layout.status.name());
        assert_eq!(layout.size, size, "{problem:?}");
    }
}

/// A buffer that no arena is large enough for is a proof, without any search.
#[test]
fn a_buffer_larger_than_every_arena_is_refused() {
    let fixed = Buffer { place: Place::Fixed(6), ..Buffer::new(5, 0, 2) };
    for buffer in [Buffer::new(11, 0, 2), fixed] {
        let layout = solved(&with_arenas(&[10, 10], [buffer.clone()].into_iter()));
        assert_eq!((layout.status, layout.size), (LayoutStatus::Infeasible, 0));
        assert!(fits(&solved(&with_arenas(&[10, 11], [buffer].into_iter()))));
    }
}

/// An arena that cannot reach its bound leaves steps to those after it, of which one needs them.
#[test]
fn each_arena_has_its_share_of_the_steps() {
    let mut rng = Rng::new(7);
    let (one, bound_to) = (csv("A"), |arena: u32| move |b: &Buffer| Buffer { arena: Some(arena), ..b.clone() });
    // Padding keeps these above their bound.
    let aligned = one.buffers().iter().map(bound_to(0)).map(|b| Buffer { alignment: 64 << rng.below(7), ..b });
    let needing = one.buffers().iter().map(bound_to(1));
    let mut problem = with_arenas(&[2 * MIB, MIB], aligned.chain(needing));
    // With an arena that takes anything, no other division is looked for.
    problem.add_arena(Arena::default());
    let layout = solved(&problem);
    assert!(fits(&layout), "{}: {:?}", layout.status.name(), layout.arenas);
    assert!(layout.arenas[0].size > layout.arenas[0].lower_bound);
}

/// With a time limit, an arena that cannot reach its bound leaves time to those after it.
#[test]
fn each_arena_has_its_share_of_the_time() {
    let mut rng = Rng::new(7);
    let mut problem = Problem::new();
    problem.add_arena(Arena::default());
    let count = 20_000;
    for k in 0..count {
        let lower = rng.below(count);
        let mut buffer = Buffer::new(rng.between(1, 100_000), lower, (lower + rng.between(1, 200)).min(count + 1));
        buffer.arena = Some(u32::from(k % 4 == 0));
        problem.add(buffer).unwrap();
    }
    let sizes = |options: SolveOptions<'_>| -> Vec<u64> {
        let layout = solve(&problem, &options).unwrap();
        assert_eq!(verify(&problem, &layout), Ok(()));
        layout.arenas.iter().map(|a| a.size).collect()
    };
    let quick = sizes(SolveOptions { effort: Effort::Fast, ..SolveOptions::default() });
    let timed = sizes(SolveOptions { time_limit: Some(std::time::Duration::from_secs(2)), ..SolveOptions::default() });
    assert!(timed[0] <= quick[0] && timed[1] <= quick[1], "{timed:?}, {quick:?}");
}

//! A flip's work is spread over the calls in front of it and behind it. Where that work is done
//! decides nothing: not what is handed out, and not what is mapped.

use crate::pool_support::{checked, Rig, PAGE};
use gpumem::base::size::{GIB, KIB};
use gpumem::base::StreamHandle;
use gpumem::pool::PoolOptions;
use proptest::collection::vec;
use proptest::prelude::*;

/// What a workload does next: allocate so many bytes, or free one of those that live.
#[derive(Clone, Copy, Debug)]
enum Op {
    Malloc(u64),
    Free(usize),
}

/// Small objects, large blocks of any size up to a few pages, and some of many pages, which soon
/// find no room in one piece.
fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (1u64..64 * KIB).prop_map(Op::Malloc),
        3 => (64 * KIB..3 * PAGE).prop_map(Op::Malloc),
        2 => (PAGE..20 * PAGE).prop_map(Op::Malloc),
        1 => (1u64..12).prop_map(|pages| Op::Malloc(pages * PAGE)),
        6 => any::<usize>().prop_map(Op::Free),
    ]
}

/// Bytes that live at once.
const MOST: u64 = 60 * PAGE;

/// Plays the operations, several times over, from an empty live set each time. Returns where
/// everything was put, from the first block on, and how many stitches and flips that took.
/// `between` is called between any two operations with some live block.
fn play(ops: &[Op], passes: usize, grain: u64, between: impl Fn(&Rig, Option<u64>)) -> (Vec<u64>, u64, u64) {
    let options = PoolOptions {
        first_extent: grain,
        max_extent: grain,
        extents_per_request: u64::MAX,
        slack_floor: 0,
        slack_permille: 0,
        ..PoolOptions::default()
    };
    let rig = Rig::new(checked(GIB), options);
    let s = rig.stream();
    let mut places = Vec::new();
    for _ in 0..passes {
        let mut live: Vec<(u64, u64)> = Vec::new();
        let free = |live: &mut Vec<(u64, u64)>, which: usize| {
            if !live.is_empty() {
                let at = which % live.len();
                let (p, size) = live.swap_remove(at);
                check(&rig, s, p, size);
                rig.free(p, s);
                between(&rig, live.first().map(|x| x.0));
            }
        };
        for &op in ops {
            match op {
                Op::Free(which) => free(&mut live, which),
                Op::Malloc(size) => {
                    while live.iter().map(|x| x.1).sum::<u64>() + size > MOST {
                        free(&mut live, size as usize);
                    }
                    let p = rig.malloc(size, s);
                    rig.fill(s, p, size.min(PAGE), p);
                    live.push((p, size));
                    places.push(p);
                    between(&rig, Some(p));
                }
            }
        }
        while !live.is_empty() {
            free(&mut live, 0);
        }
    }
    rig.books();
    let (stitches, mapped) = (rig.pool.stats().stitches, rig.mapped());
    rig.close();
    let first = places.first().copied().unwrap_or(0);
    (places.iter().map(|p| p.wrapping_sub(first)).collect(), stitches, mapped)
}

fn check(rig: &Rig, s: StreamHandle, p: u64, size: u64) {
    rig.check(s, p, size.min(PAGE), p);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Asking about a pointer has everything done that is left to do, and what was found ahead
    /// forgotten.
    #[test]
    fn when_a_flips_work_is_done_decides_nothing(ops in vec(op(), 60..240), large in any::<bool>()) {
        let grain = if large { 4 * PAGE } else { PAGE };
        let spread = play(&ops, 4, grain, |_, _| {});
        let at_once = play(&ops, 4, grain, |rig, p| drop(p.map(|p| rig.pool.info(p))));
        prop_assert_eq!(spread, at_once);
    }
}

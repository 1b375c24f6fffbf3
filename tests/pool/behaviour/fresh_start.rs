//! A heap that runs low after much stitching starts afresh as long as that pays.

use crate::pool_support::{checked, Rig, PAGE};
use gpumem::base::size::GIB;
use gpumem::base::StreamHandle;
use gpumem::driver::Call;
use gpumem::pool::PoolOptions;

const ROUNDS: usize = 60;

/// Blocks of any size up to 30 pages, a third of them freed, until something of 90 pages fits only
/// if it is put together; then all are freed. Checks every block.
fn work(rig: &Rig, s: StreamHandle, rng: &mut fastrand::Rng) {
    let mut live: Vec<(u64, u64)> = Vec::new();
    let malloc = |size: u64, live: &mut Vec<(u64, u64)>| {
        let p = rig.malloc(size, s);
        rig.fill(s, p, size, p);
        live.push((p, size));
    };
    let free = |(p, size): (u64, u64)| {
        rig.check(s, p, size, p);
        rig.free(p, s);
    };
    while live.iter().map(|x| x.1).sum::<u64>() < 260 * PAGE {
        malloc(PAGE + rng.u64(0..30 * PAGE), &mut live);
        if rng.u8(0..3) == 0 {
            free(live.swap_remove(rng.usize(0..live.len())));
        }
    }
    while live.iter().map(|x| x.1).sum::<u64>() > 170 * PAGE {
        free(live.swap_remove(rng.usize(0..live.len())));
    }
    malloc(90 * PAGE, &mut live);
    live.into_iter().for_each(free);
}

/// Mapping calls in each round of work whose seed is that round's of `seeds`; and what is mapped
/// for it in the end. A block of so many pages is live all the time.
fn calls(seeds: impl Fn(usize) -> u64, stays: u64) -> (Vec<usize>, u64) {
    let rig = Rig::new(checked(8 * GIB), PoolOptions { slack_floor: 0, ..PoolOptions::default() });
    let s = rig.stream();
    let kept = (stays > 0).then(|| rig.malloc(stays * PAGE, s));
    let calls = (0..ROUNDS)
        .map(|round| {
            rig.fault.start_recording();
            work(&rig, s, &mut fastrand::Rng::with_seed(seeds(round)));
            rig.fault.stop_recording().iter().filter(|&&c| c == Call::Map).count()
        })
        .collect();
    rig.books();
    let mapped = rig.mapped() - stays * PAGE;
    kept.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
    (calls, mapped)
}

#[test]
fn work_that_repeats_maps_nothing_again() {
    let (calls, _) = calls(|_| 7, 0);
    assert!(calls[0] > 50, "{calls:?}");
    assert!(calls[1..].iter().all(|&n| n == 0), "{calls:?}");
}

/// Blocks that grow where they are take back what was mapped behind them the time before.
#[test]
fn growth_that_repeats_maps_nothing_again() {
    let rig = Rig::new(checked(8 * GIB), PoolOptions { slack_floor: 0, ..PoolOptions::default() });
    let s = rig.stream();
    let rounds = [(); 8].map(|()| {
        rig.fault.start_recording();
        let mut rng = fastrand::Rng::with_seed(3);
        let mut live: Vec<(u64, u64)> = Vec::new();
        for _ in 0..200 {
            let pages = live.iter().map(|x| x.1).sum::<u64>();
            match rng.u8(0..4) {
                0 if !live.is_empty() || pages > 260 => rig.free(live.swap_remove(rng.usize(..live.len())).0, s),
                1 if !live.is_empty() && pages < 240 => {
                    let (p, size) = live.swap_remove(rng.usize(..live.len()));
                    let more = size + rng.u64(1..20);
                    live.push((rig.pool.realloc(p, more * PAGE, s).unwrap(), more));
                }
                _ if pages < 240 => {
                    let size = rng.u64(1..30);
                    live.push((rig.malloc(size * PAGE, s), size));
                }
                _ => rig.free(live.swap_remove(rng.usize(..live.len())).0, s),
            }
        }
        live.into_iter().for_each(|(p, _)| rig.free(p, s));
        let calls = rig.fault.stop_recording();
        rig.books();
        [Call::Map, Call::CopyAsync].map(|which| calls.iter().filter(|&&c| c == which).count())
    });
    assert!(rounds[0][0] > 50, "{rounds:?}");
    assert!(rounds[4..].iter().all(|n| n[0] == 0), "maps and copies: {rounds:?}");
    rig.close();
}

/// Programs have weights, tables and states that stay.
#[test]
fn work_that_repeats_beside_what_stays_maps_nothing_again() {
    let (_, alone) = calls(|_| 7, 0);
    for (stays, seed) in [(1, 7), (1, 8), (30, 7), (60, 9)] {
        let (calls, mapped) = calls(|_| seed, stays);
        assert!(calls[0] > 50, "{calls:?}");
        assert!(calls[8..].iter().all(|&n| n == 0), "{stays} pages stay: {calls:?}");
        assert!(seed != 7 || mapped <= alone + alone / 8, "{stays} pages stay: {mapped} mapped, {alone} without");
    }
}

/// Starting afresh has everything mapped again where the next round asks for other sizes: it must
/// become rare. Then the heap maps hardly more, in two thirds of the rounds, than one that never
/// runs low.
#[test]
fn work_that_never_repeats_is_seldom_mapped_again() {
    let seeds = |round| round as u64;
    let late = |calls: &[usize]| calls[ROUNDS / 3..].iter().sum::<usize>();
    let (never_low, mapped_never_low) = calls(seeds, 200);
    for stays in [0, 1] {
        let (low, mapped) = calls(seeds, stays);
        assert!(late(&low) <= late(&never_low) + 400, "{low:?} with {stays} pages that stay, {never_low:?} with 200");
        assert!(mapped <= mapped_never_low + mapped_never_low / 20, "{mapped} and {mapped_never_low}");
    }
}

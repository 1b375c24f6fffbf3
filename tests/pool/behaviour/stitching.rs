//! What moving memory costs, counted in driver calls, and that what was moved is found again.

use crate::pool_support::{checked, late, Rig, D, PAGE};
use gpumem::base::size::{GIB, MIB};
use gpumem::base::StreamHandle;
use gpumem::driver::{Call, Driver};
use gpumem::pool::PoolOptions;
use test_support::Rng;

/// Calls that change what is mapped.
const MAPPING: [Call; 5] = [Call::PhysCreate, Call::PhysRelease, Call::Map, Call::SetAccess, Call::Unmap];

/// Extents of one page.
fn pages() -> PoolOptions {
    PoolOptions {
        first_extent: PAGE,
        max_extent: PAGE,
        extents_per_request: u64::MAX,
        slack_floor: 0,
        ..PoolOptions::default()
    }
}

/// Calls that `f` makes, by the kinds above.
fn counted(rig: &Rig, f: impl FnOnce()) -> [u64; 5] {
    rig.fault.start_recording();
    f();
    let made = rig.fault.stop_recording();
    MAPPING.map(|kind| made.iter().filter(|&&c| c == kind).count() as u64)
}

/// A sequence that needs stitches: blocks of changing sizes come and go, all are gone at the end.
/// Each is written when it comes and read when it goes.
fn churn(rig: &Rig, s: StreamHandle, seed: u64, steps: u64, most: u64) {
    let mut rng = Rng::new(seed);
    let mut next = |below: u64| rng.below(below);
    let mut live: Vec<(u64, u64, u64)> = Vec::new();
    let mut sum = 0;
    for id in 0..steps {
        let size = (next(24) + 1) * MIB;
        while sum + size > most {
            let (p, n, id) = live.swap_remove(next(live.len() as u64) as usize);
            rig.check(s, p, n, id);
            rig.free(p, s);
            sum -= n;
        }
        let p = rig.malloc(size, s);
        rig.fill(s, p, size, id);
        live.push((p, size, id));
        sum += size;
        if id % 16 == 0 {
            rig.books();
        }
    }
    for (p, n, id) in live {
        rig.check(s, p, n, id);
        rig.free(p, s);
    }
}

/// Allocates, after blocks that are drawn at random have ended until there is room within `most`.
fn replace(rig: &Rig, s: StreamHandle, rng: &mut Rng, live: &mut Vec<(u64, u64)>, (size, most): (u64, u64)) {
    while live.iter().map(|b| b.1).sum::<u64>() + size > most {
        let (p, _) = live.swap_remove(rng.below(live.len() as u64) as usize);
        rig.free(p, s);
    }
    live.push((rig.malloc(size, s), size));
}

#[test]
fn what_repeats_is_stitched_once() {
    let rig = Rig::new(checked(2 * GIB), PoolOptions { slack_floor: 0, ..PoolOptions::default() });
    let s = rig.stream();
    let mut first = 0;
    for pass in 0..4 {
        let calls = counted(&rig, || churn(&rig, s, 5, 400, 256 * MIB));
        if pass == 0 {
            first = rig.mapped();
            assert!(calls[2] > calls[0] && rig.pool.stats().moved > 0, "the sequence moves nothing: {calls:?}");
        } else {
            assert_eq!(calls, [0; 5], "pass {pass}");
        }
        assert_eq!(rig.mapped(), first, "pass {pass}");
    }
    rig.close();
}

/// Once a heap has moved many times its peak, old addresses give way to a run where it can continue
/// most of what a request needs.
#[test]
fn what_never_repeats_gives_up_old_addresses_and_moves_less() {
    let tight = PoolOptions { earned_permille: 0, ..PoolOptions::default() };
    let rig = Rig::new(checked(4 * GIB), tight);
    let s = rig.stream();
    let (mut rng, mut live) = (Rng::new(7), Vec::new());
    let parts = [(); 8].map(|()| {
        counted(&rig, || {
            for _ in 0..1_000 {
                let size = 2 * MIB + rng.below(254 * MIB);
                replace(&rig, s, &mut rng, &mut live, (size, 2 * GIB));
            }
            rig.books();
        })
    });
    let later = parts[1..].iter().fold([0, 0], |sum, calls| [sum[0] + calls[2], sum[1] + calls[4]]);
    assert!(later[0] < 7_000 && later[1] < later[0], "{parts:?}: an extent and more was mapped for each request");
    live.into_iter().for_each(|(p, _)| rig.free(p, s));
    rig.close();
}

/// Work that repeats gets them back: the second time it maps again what they were, the third
/// nothing.
#[test]
fn what_repeats_keeps_its_old_addresses_from_the_second_time_on() {
    let tight = PoolOptions { earned_permille: 0, ..pages() };
    let rig = Rig::new(checked(2 * GIB), tight);
    let s = rig.stream();
    let passes = [(); 5].map(|()| counted(&rig, || churn(&rig, s, 5, 4_000, 256 * MIB)));
    assert!(passes[0][4] > 0, "{passes:?}: nothing was in the way");
    assert!(passes[1][2] > 0 && passes[1][4] == 0, "{passes:?}: the second time shows that it repeats");
    assert_eq!(passes[2..], [[0; 5]; 3], "{passes:?}");
    rig.close();
}

#[test]
fn contents_survive_what_is_unmapped_while_work_runs_late() {
    let mut in_the_way = 0;
    for seed in 1..4 {
        let rig = Rig::new(late(seed, 2 * GIB), PoolOptions { wait: false, ..pages() });
        let (s, t) = (rig.stream(), rig.stream());
        let calls = counted(&rig, || {
            for pass in 0..4 {
                churn(&rig, s, 2 * pass, 400, 96 * MIB);
                churn(&rig, t, 2 * pass + 1, 400, 96 * MIB);
            }
        });
        in_the_way += calls[4];
        rig.close();
    }
    assert!(in_the_way > 0, "nothing was in the way");
}

/// Coarse extents are exchanged for finer ones only once the device has passed them.
#[test]
fn contents_survive_what_is_exchanged_while_work_runs_late() {
    let tight = PoolOptions { earned_permille: 0, finer: true, slack_floor: 0, ..PoolOptions::default() };
    let (mut exchanged, mut mapped) = (0, 0);
    for seed in 1..4 {
        let rig = Rig::new(late(seed, 2 * GIB), PoolOptions { wait: false, ..tight });
        let s = rig.stream();
        let calls = counted(&rig, || churn(&rig, s, seed, 3_000, 256 * MIB));
        exchanged += calls[1];
        mapped += rig.mapped() / MIB;
        rig.close();
    }
    assert!(exchanged > 0 && mapped < 950, "{exchanged} extents were exchanged, {mapped} MiB are mapped for 768");
}

/// Exchange is for work that never repeats. Other work takes all its memory back from the third
/// pass on.
#[test]
fn what_repeats_is_exchanged_in_its_first_pass_only() {
    let tight = PoolOptions { earned_permille: 0, finer: true, slack_floor: 0, ..PoolOptions::default() };
    let rig = Rig::new(checked(2 * GIB), tight);
    let s = rig.stream();
    let passes = [(); 5].map(|()| counted(&rig, || churn(&rig, s, 5, 400, 256 * MIB)));
    assert!(passes[0][1] > 0 && passes[1][1] == 0, "{passes:?}: releases");
    assert_eq!(passes[2..], [[0; 5]; 3], "{passes:?}");
    rig.close();
}

/// Two blocks that share a page strand it until both are freed. So where memory is tight, a large
/// block begins with a page, unless that is more than the limit allows.
#[test]
fn a_large_block_shares_no_page_where_memory_is_tight() {
    let place = |finer: bool, limit: u64, size: u64| {
        let rig = Rig::new(checked(GIB), PoolOptions { finer, limit, earned_permille: 0, ..PoolOptions::default() });
        let s = rig.stream();
        let [a, b] = [(); 2].map(|()| rig.malloc(size, s));
        let mapped = rig.mapped();
        rig.books();
        [a, b].into_iter().for_each(|p| rig.free(p, s));
        rig.close();
        (b.is_multiple_of(PAGE), mapped / MIB)
    };
    let (small, large) = (31 * MIB, 65 * MIB);
    assert_eq!(place(false, u64::MAX, large), (false, 130), "not tight");
    assert_eq!(place(true, u64::MAX, large), (true, 132), "tight");
    assert_eq!(place(true, 130 * MIB, large), (false, 130), "at the limit");
    assert_eq!(place(true, u64::MAX, small), (false, 62), "a page would be too much of a small one");
}

/// Blocks of 2 to 256 MiB that end at random, at most 3 GiB of them at a time. Returns what is live
/// in the end.
fn large_blocks(rig: &Rig, s: StreamHandle, seed: u64, steps: u32) -> Vec<(u64, u64)> {
    let (mut rng, mut live) = (Rng::new(seed), Vec::new());
    for _ in 0..steps {
        let size = (64 * MIB + rng.below(192 * MIB)) >> rng.below(6);
        replace(rig, s, &mut rng, &mut live, (size, 3 * GIB));
    }
    live
}

/// Memory is tight, too, for a heap that nearly fills its device, and moves memory for ever.
#[test]
fn large_blocks_share_no_pages_on_a_nearly_full_device() {
    let shares = [4, 16].map(|gib| {
        let rig = Rig::new(checked(gib * GIB), PoolOptions::default());
        let s = rig.stream();
        let live = large_blocks(&rig, s, 3, 6_000);
        let large = live.iter().filter(|b| b.1 >= 64 * MIB);
        let (apart, all) = large.fold((0, 0), |(n, all), b| (n + u64::from(b.0.is_multiple_of(PAGE)), all + 1));
        live.iter().for_each(|&(p, _)| rig.free(p, s));
        rig.close();
        100 * apart / all
    });
    assert!(shares[0] > 75 && shares[1] < 60, "{shares:?} % of the large blocks begin with a page");
}

/// Work that repeats there is decided alike each time, and maps nothing from the third pass on.
#[test]
fn what_repeats_settles_on_a_nearly_full_device() {
    for mib in [3_700, 3_900, 4_200] {
        let rig = Rig::new(checked(mib * MIB), PoolOptions::default());
        let s = rig.stream();
        let passes = [(); 5]
            .map(|()| counted(&rig, || large_blocks(&rig, s, 5, 3_000).iter().for_each(|&(p, _)| rig.free(p, s))));
        assert!(passes[0][2] > 1_000, "{mib} MiB, {passes:?}: nothing was in the way");
        assert_eq!(passes[2..], [[0; 5]; 3], "{mib} MiB, {passes:?}");
        rig.close();
    }
}

/// What is free at the start of a span is continued in front, where a live block follows it: only
/// what is missing moves.
#[test]
fn a_run_goes_in_front_of_what_is_free_there() {
    let rig = Rig::new(checked(GIB), PoolOptions { slack_permille: 0, ..pages() });
    let s = rig.stream();
    // The first span starts the reservation and has no addresses in front of it.
    let first = rig.malloc(PAGE, s);
    let span = rig.malloc(6 * PAGE, s);
    rig.free(span, s);
    let [x, a] = [4, 2].map(|n| rig.malloc(n * PAGE, s));
    assert_eq!((x, a), (span, span + 4 * PAGE), "from the start while nothing was moved");
    let y = rig.malloc(3 * PAGE, s);
    rig.fill(s, a, 2 * PAGE, 1);
    rig.free(x, s);
    rig.free(y, s);
    let mut z = 0;
    let calls = counted(&rig, || z = rig.malloc(7 * PAGE, s));
    assert_eq!(calls, [0, 0, 3, 1, 0], "the three pages of the other span are mapped");
    assert_eq!(z, x - 3 * PAGE);
    rig.fill(s, z, 7 * PAGE, 2);
    rig.check(s, a, 2 * PAGE, 1);
    rig.check(s, z, 7 * PAGE, 2);
    [z, a].into_iter().for_each(|p| rig.free(p, s));
    rig.books();
    let small = rig.malloc(5 * PAGE, s);
    assert_eq!(small, z, "small blocks are cut from the start");
    [first, small].into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn contents_and_order_survive_flips_while_work_runs_late() {
    for seed in 1..6 {
        let rig = Rig::new(late(seed, 2 * GIB), PoolOptions { wait: false, ..pages() });
        let (s, t) = (rig.stream(), rig.stream());
        for pass in 0..3 {
            churn(&rig, s, 3, 60, 96 * MIB);
            // Whatever was flipped and freed without being passed yet must not come to another
            // stream.
            let p = rig.malloc(40 * MIB, t);
            rig.fill(t, p, 40 * MIB, 1000 + pass);
            rig.check(t, p, 40 * MIB, 1000 + pass);
            rig.free(p, t);
        }
        assert!(rig.pool.stats().moved > 0);
        rig.close();
    }
}

#[test]
fn a_flipped_run_is_as_young_as_its_youngest_extent() {
    let rig = Rig::new(late(2, GIB), PoolOptions { slack_permille: 0, ..pages() });
    let (s, t) = (rig.stream(), rig.stream());
    for pass in 0..2 {
        // Side by side, so that the free ones are at no end of a span.
        let all = rig.malloc(9 * PAGE, s);
        rig.free(all, s);
        let [x, a, y, b] = [3, 1, 4, 1].map(|n| rig.malloc(n * PAGE, s));
        rig.host.hold(D, s).unwrap();
        rig.fill(s, x, 3 * PAGE, 1);
        rig.fill(s, y, 4 * PAGE, 2);
        rig.free(x, s);
        rig.free(y, s);
        // Leaves half a page of the run free, which the kernels held back are still to write.
        let mut run = 0;
        let calls = counted(&rig, || run = rig.malloc(7 * PAGE - MIB, s));
        assert_eq!(calls == [0; 5], pass == 1, "flipped the second time: {calls:?}");
        // Stream t has no memory of its own yet.
        let other = (pass == 1).then(|| rig.malloc(MIB / 2, t));
        if let Some(p) = other {
            rig.fill(t, p, MIB / 2, 3);
            rig.host.stream_sync(D, t).unwrap();
        }
        rig.host.release(D, s).unwrap();
        rig.sync();
        if let Some(p) = other {
            rig.check(t, p, MIB / 2, 3);
            rig.free(p, t);
        }
        [run, a, b].into_iter().for_each(|p| rig.free(p, s));
        rig.sync();
        assert!(rig.host.reports().is_empty(), "{:#?}", rig.host.reports());
    }
    rig.close();
}

/// After a flip its pieces leave their regions bit by bit: whatever is called next, nothing of them
/// is handed out, and what is decided is what was decided the first time.
#[test]
fn what_a_flip_took_is_not_handed_out_while_it_leaves() {
    type Next = fn(&Rig, StreamHandle, &mut Vec<(u64, u64, u64)>);
    fn get(rig: &Rig, s: StreamHandle, live: &mut Vec<(u64, u64, u64)>, size: u64) {
        let (p, id) = (rig.malloc(size, s), 100 + live.len() as u64);
        rig.fill(s, p, size, id);
        live.push((p, size, id));
    }
    fn give(rig: &Rig, s: StreamHandle, live: &mut Vec<(u64, u64, u64)>, at: usize) {
        let (p, size, id) = live.swap_remove(at);
        rig.check(s, p, size, id);
        rig.free(p, s);
    }
    let next: [Next; 7] = [
        |rig, s, live| get(rig, s, live, PAGE),
        |rig, s, live| (0..3).for_each(|_| get(rig, s, live, 1000)),
        |rig, s, live| (0..3).for_each(|_| give(rig, s, live, 0)),
        |rig, s, live| {
            get(rig, s, live, 1000);
            get(rig, s, live, PAGE / 2);
            give(rig, s, live, 1);
            get(rig, s, live, 3 * PAGE);
        },
        |rig, s, live| {
            give(rig, s, live, 2);
            get(rig, s, live, 2 * PAGE);
            give(rig, s, live, 0);
            get(rig, s, live, 2 * PAGE);
        },
        // The second goes for the first in the quick list, which is joined with what is free next
        // to it.
        |rig, s, live| (0..2).for_each(|i| give(rig, s, live, i)),
        |_, _, _| {},
    ];
    for (which, next) in next.into_iter().enumerate() {
        let rig = Rig::new(checked(GIB), PoolOptions { slack_permille: 0, ..pages() });
        let s = rig.stream();
        let mut first: Vec<u64> = Vec::new();
        for pass in 0..3 {
            let all = rig.malloc(24 * PAGE, s);
            rig.free(all, s);
            let mut live: Vec<(u64, u64, u64)> = Vec::new();
            (0..24).for_each(|_| get(&rig, s, &mut live, PAGE));
            // Every other one goes: twelve pieces.
            (0..12).rev().for_each(|i| {
                let (p, size, id) = live.remove(2 * i);
                rig.check(s, p, size, id);
                rig.free(p, s);
            });
            let calls = counted(&rig, || get(&rig, s, &mut live, 11 * PAGE + MIB));
            assert_eq!(calls == [0; 5], pass > 0, "{which}, pass {pass}: {calls:?}");
            next(&rig, s, &mut live);
            live.iter().for_each(|&(p, size, id)| rig.check(s, p, size, id));
            let places: Vec<u64> = live.iter().map(|x| x.0).collect();
            first = if pass == 0 { places.clone() } else { first };
            assert_eq!(places, first, "{which}, pass {pass}");
            rig.books();
            while !live.is_empty() {
                give(&rig, s, &mut live, 0);
            }
        }
        rig.close();
    }
}

#[test]
fn aliases_are_bounded() {
    let most = 40;
    let rig = Rig::new(checked(2 * GIB), PoolOptions { max_aliases: most, ..pages() });
    let s = rig.stream();
    let mut rng = Rng::new(1);
    let mut live = Vec::new();
    let (mut peak, mut unmapped) = (0, 0);
    for i in 0..300 {
        rig.fault.start_recording();
        live.push(rig.malloc((rng.below(20) + 1) * MIB, s));
        let now = rig.fault.stop_recording().iter().filter(|&&c| c == Call::Unmap).count();
        // No more than one stitch leaves.
        assert!(now <= 16, "{now} unmapped by request {i}");
        unmapped += now;
        if live.len() > 16 {
            let p = live.swap_remove(rng.below(live.len() as u64) as usize);
            rig.free(p, s);
        }
        let aliases = rig.pool.layout(1).matches("[!").count();
        peak = peak.max(aliases);
        // At most those of one stitch more: they go with the next.
        assert!(aliases <= most + 16, "{aliases} after {i}");
        rig.books();
    }
    assert!(peak > most / 2, "{peak} are no test of the bound");
    assert!(unmapped > 0);
    live.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

/// Requests that move more extents than one may unmap do not outrun the bound.
#[test]
fn aliases_are_bounded_where_each_request_moves_many() {
    let most = 400;
    let rig = Rig::new(checked(32 * GIB), PoolOptions { max_aliases: most, ..pages() });
    let s = rig.stream();
    let mut rng = Rng::new(1);
    let (mut live, mut largest) = (Vec::new(), 0);
    for i in 0..300 {
        live.push(rig.malloc(rng.between(400, 1200) * PAGE, s));
        if live.len() > 8 {
            let p = live.swap_remove(rng.below(live.len() as u64) as usize);
            rig.free(p, s);
        }
        let aliases = rig.pool.stats().zombies / PAGE;
        largest = largest.max(aliases);
        assert!(aliases <= most as u64 + 8 * 1200, "{aliases} after {i}");
    }
    assert!(largest > 2 * most as u64, "{largest} are no test of the bound");
    rig.books();
    live.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

/// A pool that moves memory for ever keeps old addresses of 64 GiB, and of 16 times what it maps:
/// the index has entries for them.
#[test]
fn old_addresses_are_bounded_by_what_is_mapped() {
    let rig = Rig::new(checked(64 * GIB), PoolOptions { earned_permille: 0, ..PoolOptions::default() });
    let s = rig.stream();
    let mut rng = Rng::new(1);
    let mut live = Vec::new();
    let (mut held, mut most) = (0, 0);
    for i in 0..20_000 {
        let size = rng.between(MIB, 256 * MIB);
        while held + size > 2 * GIB {
            let (p, size) = live.swap_remove(rng.below(live.len() as u64) as usize);
            rig.free(p, s);
            held -= size;
        }
        live.push((rig.malloc(size, s), size));
        held += size;
        let stats = rig.pool.stats();
        let kept = 64 * GIB + 16 * stats.mapped;
        most = most.max(stats.zombies);
        // What one request moves goes with the next.
        assert!(stats.zombies <= kept + 2 * GIB, "{} of {kept} after {i}", stats.zombies);
    }
    assert!(most > 90 * GIB, "{most} is no test of the bound");
    rig.books();
    live.into_iter().for_each(|(p, _)| rig.free(p, s));
    rig.close();
}

#[test]
fn trim_unmaps_every_alias_before_it_releases_memory() {
    let rig = Rig::new(checked(2 * GIB), PoolOptions { slack_floor: 0, ..PoolOptions::default() });
    let s = rig.stream();
    churn(&rig, s, 9, 200, 200 * MIB);
    let before = rig.pool.stats();
    assert!(before.zombies > 0, "nothing was moved");
    for keep in [before.mapped / 2, PAGE, 0] {
        rig.pool.trim(keep).unwrap();
        rig.books();
        let (after, device) = (rig.pool.stats(), rig.host.mem_info(D).unwrap());
        assert_eq!(after.zombies, 0);
        assert_eq!(device.total - device.free, after.mapped, "no alias keeps released memory");
        assert!(after.mapped <= keep);
    }
    churn(&rig, s, 9, 200, 200 * MIB);
    rig.close();
}

#[test]
fn memory_short_of_the_limit_is_released_with_its_aliases() {
    let rig = Rig::new(checked(2 * GIB), pages());
    let (s, t) = (rig.stream(), rig.stream());
    churn(&rig, s, 9, 200, 200 * MIB);
    rig.pool.set_limit(rig.mapped()).unwrap();
    // All of it is free; another stream needs it in a piece of its own kind.
    let p = rig.malloc_with(150 * MIB, t, gpumem::pool::AllocFlags::SINGLE_HANDLE);
    rig.books();
    let device = rig.host.mem_info(D).unwrap();
    assert_eq!(device.total - device.free, rig.mapped());
    rig.free(p, t);
    rig.close();
}

#[test]
fn the_first_gibibyte_is_one_extent() {
    let rig = Rig::new(checked(2 * GIB), PoolOptions { slack_floor: 0, ..PoolOptions::default() });
    let s = rig.stream();
    let calls = counted(&rig, || {
        let p = rig.malloc(GIB, s);
        rig.free(p, s);
    });
    assert_eq!(calls, [1, 0, 1, 1, 0]);
    rig.close();
}

#[test]
fn a_checkerboard_of_64_mib_takes_two_moves_a_square() {
    let (squares, square) = (64, 64 * MIB);
    let rig = Rig::new(checked(8 * GIB), PoolOptions::default());
    let s = rig.stream();
    let blocks: Vec<u64> = (0..squares).map(|_| rig.malloc(square, s)).collect();
    blocks.iter().step_by(2).for_each(|&p| rig.free(p, s));
    let mapped = rig.mapped();
    let mut p = 0;
    let calls = counted(&rig, || p = rig.malloc(squares / 2 * square, s));
    assert_eq!((calls[0], calls[1], calls[4]), (0, 0, 0), "nothing is created, released or unmapped: {calls:?}");
    assert!(calls[2] <= squares && calls[3] == 1, "{calls:?}");
    assert_eq!(rig.mapped(), mapped);
    rig.free(p, s);
    blocks.iter().skip(1).step_by(2).for_each(|&p| rig.free(p, s));
    rig.close();
}

//! Moving memory or mapping more: what a workload that never repeats earns, and one that repeats
//! does not.

use crate::pool_support::{checked, request, Rig};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::driver::Call;
use gpumem::pool::PoolOptions;
use std::collections::VecDeque;

const PEAK: u64 = 2 * GIB;

/// Blocks that grow to 32 MiB and end at random, `PEAK` bytes of them at a time.
struct Work {
    rig: Rig,
    stream: StreamHandle,
    live: Vec<(u64, u64)>,
    bytes: u64,
    rng: fastrand::Rng,
}

impl Work {
    fn new(device: u64, options: PoolOptions) -> Work {
        let rig = Rig::new(checked(device), options);
        Work { stream: rig.stream(), rig, live: Vec::new(), bytes: 0, rng: fastrand::Rng::with_seed(1) }
    }

    /// So many operations; returns how many extents were moved for them.
    fn play(&mut self, operations: u32) -> u64 {
        let before = self.rig.pool.stats().moved;
        for _ in 0..operations {
            let old = self.live.len().checked_sub(1).map(|most| self.rng.usize(..=most));
            match old {
                Some(i) if self.bytes > PEAK || self.rng.u8(..) < 8 => self.end_one(i),
                // A block grows as a list does that is concatenated: a new one, and then the old
                // one goes.
                Some(i) if self.rng.u8(..) >= 13 => {
                    let size = self.live[i].1;
                    let size =
                        if size < 32 * MIB { size + size / 8 + self.rng.u64(4 * KIB..size / 4) } else { 64 * KIB };
                    self.add(size);
                    self.end_one(i);
                }
                _ => {
                    let size = self.rng.u64(64 * KIB..4 * MIB);
                    self.add(size);
                }
            }
        }
        self.rig.pool.validate().unwrap();
        self.rig.pool.stats().moved - before
    }

    fn add(&mut self, size: u64) {
        self.live.push((self.rig.malloc(size, self.stream), size));
        self.bytes += size;
    }

    fn end_one(&mut self, i: usize) {
        let (p, size) = self.live.swap_remove(i);
        self.rig.free(p, self.stream);
        self.bytes -= size;
    }

    fn end(&mut self) {
        self.live.drain(..).for_each(|(p, _)| self.rig.free(p, self.stream));
        self.bytes = 0;
    }
}

fn tight() -> PoolOptions {
    PoolOptions { earned_permille: 0, finer: true, ..PoolOptions::default() }
}

/// A limit that leaves as much as is live is no reason to move memory for ever, however large the
/// device is.
#[test]
fn a_limit_leaves_its_own_part_to_others_and_not_the_devices() {
    let [mut limited, mut free] = [2 * PEAK, 0].map(|limit| {
        let w = Work::new(64 * GIB, PoolOptions::default());
        w.rig.pool.set_limit(limit).unwrap();
        w
    });
    let moves = [&mut limited, &mut free].map(|w| {
        w.play(40_000);
        w.play(10_000)
    });
    assert!(moves[0] <= 2 * moves[1], "{moves:?} extents moved");
}

#[test]
fn what_never_repeats_moves_less_and_less() {
    let [mut auto, mut tight] = [PoolOptions::default(), tight()].map(|o| Work::new(16 * GIB, o));
    let moves = [&mut auto, &mut tight].map(|w| {
        w.play(40_000);
        w.play(10_000)
    });
    assert!(moves[0] * 4 < moves[1], "{moves:?} extents moved");
    let mapped = [&auto, &tight].map(|w| w.rig.mapped());
    assert!(mapped[0] <= PEAK + PEAK / 100 * 27 && mapped[1] <= PEAK + PEAK / 8, "{mapped:?}");
}

/// Phases of ever other sizes: a heap that starts afresh maps its stock again, and that earns it
/// room as moves do, until it maps hardly anything.
#[test]
fn what_the_stock_is_mapped_again_for_earns() {
    let rig = Rig::new(checked(64 * GIB), PoolOptions::default());
    let s = rig.stream();
    let (mut rng, mut size) = (fastrand::Rng::with_seed(1), 2 * MIB);
    let (mut live, mut bytes) = (Vec::new(), 0);
    let maps = [(); 4].map(|()| {
        rig.fault.start_recording();
        for _ in 0..20 {
            while bytes < PEAK {
                size = if size > 64 * MIB { 2 * MIB } else { size + 100 * KIB };
                live.push((rig.malloc(size, s), size));
                bytes += size;
            }
            rng.shuffle(&mut live);
            for (p, size) in live.split_off(live.len() / 10) {
                rig.free(p, s);
                bytes -= size;
            }
        }
        rig.pool.validate().unwrap();
        rig.fault.stop_recording().iter().filter(|&&c| c == Call::Map).count()
    });
    assert!(maps[1] * 3 < maps[0] && (maps[2] + maps[3]) * 20 < maps[0], "{maps:?} extents mapped");
    assert!(rig.mapped() <= PEAK / 100 * 127, "{} bytes mapped", rig.mapped());
    live.into_iter().for_each(|(p, _)| rig.free(p, s));
    rig.close();
}

/// Stitches leave free memory between two blocks alone. So a queue of blocks up to 1 GiB finds most
/// of what it needs there once one of the two is freed; else it moves an extent and more for each
/// request.
#[test]
fn a_queue_of_large_blocks_seldom_moves() {
    let live_at_most = 16 * GIB;
    let rig = Rig::new(checked(96 * GIB), PoolOptions::default());
    let s = rig.stream();
    let (mut rng, mut live, mut bytes) = (fastrand::Rng::with_seed(1), VecDeque::new(), 0);
    let moves = [(); 6].map(|()| {
        let before = rig.pool.stats().moved;
        for _ in 0..4_000 {
            let size = rng.u64(2 * MIB..GIB);
            while bytes + size > live_at_most {
                let Some((p, size)) = live.pop_front() else { break };
                rig.free(p, s);
                bytes -= size;
            }
            live.push_back((rig.malloc(size, s), size));
            bytes += size;
        }
        rig.pool.validate().unwrap();
        rig.pool.stats().moved - before
    });
    assert!(moves[1..].iter().all(|&n| n < 2_000), "{moves:?} extents moved");
    let mapped = rig.mapped();
    assert!(mapped <= live_at_most / 100 * 127, "{mapped} bytes mapped");
    live.into_iter().for_each(|(p, _)| rig.free(p, s));
    rig.close();
}

/// What a heap once had live is no excuse for mapping as much again once a trim has given it back.
#[test]
fn a_trim_gives_up_what_its_memory_was_needed_for() {
    let rig = Rig::new(checked(16 * GIB), PoolOptions::default());
    let s = rig.stream();
    // The heap is never empty, so that it does not start afresh.
    let stays = rig.malloc(MIB, s);
    let large = rig.malloc(4 * GIB, s);
    rig.free(large, s);
    rig.sync();
    rig.pool.trim(0).unwrap();
    let mut live: Vec<u64> = (0..32).map(|_| rig.malloc(64 * MIB, s)).collect();
    let mapped = rig.mapped();
    for i in (0..16).rev() {
        rig.free(live.remove(2 * i), s);
    }
    // Fits in between only when moved together.
    live.push(rig.malloc(512 * MIB, s));
    assert!(rig.mapped() <= mapped + 64 * MIB, "{} mapped, {mapped} before", rig.mapped());
    live.into_iter().chain([stays]).for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn what_repeats_stays_as_tight_as_it_was() {
    let mapped = [PoolOptions::default(), tight()].map(|o| {
        let mut w = Work::new(16 * GIB, o);
        for _ in 0..12 {
            w.rng = fastrand::Rng::with_seed(7);
            w.play(600);
            w.end();
        }
        w.rig.pool.stats().peak_mapped
    });
    assert_eq!(mapped[0], mapped[1]);
}

/// On a device that is nearly full nothing is bought: hardly more is mapped than by a pool that
/// never buys, or than leaves the reserve. Nothing fails that a tight pool has room for.
#[test]
fn a_full_device_is_left_its_reserve() {
    let device = PEAK + PEAK / 4;
    let never = PoolOptions { earned_permille: 0, ..PoolOptions::default() };
    let [mut auto, mut never, mut tight] = [PoolOptions::default(), never, tight()].map(|o| Work::new(device, o));
    for w in [&mut tight, &mut never, &mut auto] {
        w.play(30_000);
    }
    let mapped = [&auto, &never, &tight].map(|w| w.rig.pool.stats().peak_mapped);
    // What is needed is mapped whatever the reserve, and the coarse extents of a heap that has
    // bought strand more.
    assert!(mapped[0] <= mapped[1].max(device - device / 16) + 128 * MIB, "{mapped:?}");
    assert!(mapped[2] < mapped[0], "{mapped:?}");
}

/// A request that fails was never live: heaps do not map for it later.
#[test]
fn a_request_in_vain_is_no_reason_to_map() {
    let mut w = Work::new(64 * GIB, tight());
    w.rig.pool.set_limit(4 * PEAK).unwrap();
    w.play(20_000);
    let error = w.rig.pool.malloc(&request(4 * PEAK - MIB, w.stream)).unwrap_err();
    assert_eq!(error.status, Status::OutOfMemory);
    w.play(10_000);
    let stats = w.rig.pool.stats();
    assert!(stats.mapped <= PEAK + PEAK / 8, "{} bytes mapped", stats.mapped);
    w.end();
    w.rig.close();
}

/// Buffers are made on one stream and freed on the next, so that heaps have their peaks at
/// different times. Returns the most mapped and the most live, in bytes. A request that is made
/// `in_vain` changes neither.
fn hand_over(seed: u64, in_vain: bool) -> (u64, u64) {
    let rig = Rig::new(checked(16 * GIB), PoolOptions::default());
    let streams = [(); 3].map(|()| rig.stream());
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut live, mut bytes, mut peak) = (Vec::new(), 0, 0);
    for turn in 0..40_000 {
        if in_vain && turn == 1_000 {
            let error = rig.pool.malloc(&request(16 * GIB - MIB, streams[0])).unwrap_err();
            assert_eq!(error.status, Status::OutOfMemory);
        }
        let size = ((64 * KIB) << rng.u32(0..10)) + rng.u64(..64 * KIB);
        live.push((rig.malloc(size, streams[turn % 3]), size));
        bytes += size;
        peak = peak.max(bytes);
        if live.len() > 64 {
            let (p, size) = live.remove(rng.usize(..16));
            rig.free(p, streams[(turn + 1) % 3]);
            bytes -= size;
        }
    }
    rig.pool.validate().unwrap();
    let mapped = rig.pool.stats().peak_mapped;
    live.into_iter().for_each(|(p, _)| rig.free(p, streams[0]));
    rig.close();
    (mapped, peak)
}

/// What is mapped follows what is live together, and not what each heap has had, nor what was asked
/// for in vain.
#[test]
fn heaps_share_one_budget() {
    for in_vain in [false, true] {
        let (mut mapped, mut peaks) = (0, 0);
        for seed in 1..6 {
            let (m, p) = hand_over(seed, in_vain);
            mapped += m;
            peaks += p;
        }
        // Each heap by itself would map 1.7 times as much as is live.
        assert!(mapped <= peaks + peaks * 3 / 10, "{mapped} bytes mapped for {peaks} live, {in_vain}");
    }
}

/// What was bought goes back like any other free memory.
#[test]
fn what_was_bought_is_given_up_for_a_request() {
    let mut w = Work::new(4 * GIB, PoolOptions { bought_permille: 300, ..tight() });
    w.play(20_000);
    let free = w.rig.mapped() - w.rig.pool.stats().live;
    assert!(free > PEAK / 20, "{free} bytes free");
    w.rig.pool.set_limit(w.rig.mapped()).unwrap();
    let stranded = w.rig.mapped() / 20;
    let p = w.rig.malloc((free - stranded.min(free / 2)) / 2, w.stream);
    w.rig.free(p, w.stream);
    w.end();
    w.rig.sync();
    w.rig.pool.trim(0).unwrap();
    assert_eq!(w.rig.mapped(), 0);
}

//! What was learnt in one phase of a program and is no reason in the next.

use crate::behaviour::shared::Work;
use crate::pool_support::request;
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::StreamHandle;
use gpumem::driver::host::HostOptions;
use gpumem::driver::Call;
use gpumem::pool::AllocFlags;

/// Nothing has been done yet, on a device that runs work at once.
fn work(streams: usize, device: u64) -> Work {
    let mut w = Work::new(streams, HostOptions { bytes_per_device: device, ..HostOptions::default() });
    w.rng = fastrand::Rng::with_seed(1);
    w
}

/// So many blocks of 1 MiB to `largest` that end at random, at most `peak` bytes of them at a time.
/// What is refused is left out.
fn play(w: &mut Work, blocks: u32, largest: u64, peak: u64) {
    for _ in 0..blocks {
        let size = (MIB as f64 * ((largest / MIB) as f64).powf(w.rng.f64())) as u64;
        while w.bytes + size > peak {
            let i = w.rng.usize(..w.live.len());
            w.end_one(i);
        }
        w.turn += 1;
        let s = w.streams[w.turn % w.streams.len()];
        if let Ok(p) = w.rig.pool.malloc(&request(size, s)) {
            w.live.push((p, size, s));
            w.bytes += size;
        }
    }
}

/// Memory that was given back for being unused is not mapped again for less work, whatever there
/// was once.
#[test]
fn a_peak_that_is_past_excuses_nothing() {
    for streams in [1, 4] {
        let mut w = work(streams, 64 * GIB);
        // No heap is ever empty, so that none starts afresh.
        let stay: Vec<(u64, StreamHandle)> = w.streams.iter().map(|&s| (w.rig.malloc(4 * KIB, s), s)).collect();
        play(&mut w, 2_000, 64 * MIB, 16 * GIB);
        w.end();
        for _ in 0..8 {
            w.rig.pool.trim_unused(0).unwrap();
        }
        assert!(w.rig.mapped() < GIB, "{} bytes stay mapped", w.rig.mapped());
        w.rig.pool.reset_peaks();
        play(&mut w, 4_000, 256 * MIB, 2 * GIB);
        let mapped = w.rig.pool.stats().peak_mapped;
        assert!(mapped <= 2 * GIB * 7 / 5, "{streams} streams: {mapped} bytes mapped");
        w.end();
        stay.into_iter().for_each(|(p, s)| w.rig.free(p, s));
        w.rig.close();
    }
}

/// The same for memory with a handle of its own.
#[test]
fn dedicated_memory_that_is_gone_excuses_nothing() {
    let mapped = [0, 16].map(|dedicated| {
        let mut w = work(3, 64 * GIB);
        let s = w.streams[0];
        let alone = AllocFlags::SINGLE_HANDLE;
        let large: Vec<u64> = (0..dedicated).map(|_| w.rig.malloc_with(GIB, s, alone)).collect();
        play(&mut w, 300, 16 * MIB, 256 * MIB);
        large.into_iter().for_each(|p| w.rig.free(p, s));
        w.rig.sync();
        // Blocks go round the streams: made on one, freed on the next.
        let mut blocks: Vec<u64> = w.live.drain(..).map(|b| b.0).collect();
        for turn in 0..60_000 {
            let size = ((64 * KIB) << w.rng.u32(0..10)) + w.rng.u64(..64 * KIB);
            blocks.push(w.rig.malloc(size, w.streams[turn % 3]));
            if blocks.len() > 64 {
                w.rig.free(blocks.remove(w.rng.usize(..16)), w.streams[(turn + 1) % 3]);
            }
            if turn == 20_000 {
                w.rig.pool.reset_peaks();
            }
        }
        w.rig.pool.stats().peak_mapped
    });
    assert!(mapped[1] <= mapped[0] + mapped[0] / 10, "{mapped:?} bytes mapped");
}

/// Once memory has been scarce, new extents are fine; once it is plenty again, they are not.
#[test]
fn fine_extents_end_with_scarcity() {
    let extents = [true, false].map(|scarce| {
        let mut w = work(1, 96 * GIB);
        // The heap is never empty, so that it does not start afresh.
        w.rig.malloc(MIB, w.streams[0]);
        w.rig.pool.set_limit(if scarce { 4 * GIB + GIB / 2 } else { 0 }).unwrap();
        play(&mut w, 3_000, 64 * MIB, 4 * GIB);
        w.rig.pool.set_limit(0).unwrap();
        play(&mut w, 3_000, 512 * MIB, 48 * GIB);
        w.rig.pool.stats().extents
    });
    assert!(extents[0] < extents[1] * 2, "{extents:?} extents");
}

/// On a device without room nothing is created in vain over and over: what it has left is known.
#[test]
fn a_full_device_is_not_asked_for_ever() {
    let mut w = work(4, 4 * GIB + GIB / 10 * 4);
    play(&mut w, 3_000, 64 * MIB, 4 * GIB);
    w.rig.fault.start_recording();
    play(&mut w, 1_000, 64 * MIB, 4 * GIB);
    let created = w.rig.fault.stop_recording().iter().filter(|&&c| c == Call::PhysCreate).count();
    assert!(created < 1_000, "{created} extents created");
}

/// Work that repeats on one stream costs nothing also while another stream holds a little.
#[test]
fn a_small_neighbour_makes_nothing_move() {
    let mut w = work(1, 64 * GIB);
    let other = w.rig.stream();
    let little = w.rig.malloc(4 * KIB, other);
    let mut mapped = 0;
    for _ in 0..30 {
        w.rng = fastrand::Rng::with_seed(7);
        w.rig.fault.start_recording();
        play(&mut w, 1_000, 256 * MIB, 2 * GIB);
        w.end();
        mapped = w.rig.fault.stop_recording().iter().filter(|&&c| c == Call::Map).count();
    }
    assert_eq!(mapped, 0);
    w.rig.free(little, other);
    w.rig.close();
}

/// What streams have left in stock when they took turns serves all of them, though none of them
/// frees any more.
#[test]
fn streams_in_turns_need_no_more_than_one() {
    let mut w = work(1, 64 * GIB);
    let streams: Vec<StreamHandle> = (0..6).map(|_| w.rig.stream()).collect();
    for turn in 0..12 {
        w.streams[0] = streams[turn % 6];
        play(&mut w, 1_000, 256 * MIB, 2 * GIB);
        w.end();
        // The program waits, which the pool does not see.
        w.rig.sync();
    }
    let mapped = w.rig.pool.stats().peak_mapped;
    assert!(mapped <= 3 * GIB, "{mapped} bytes mapped");
}

/// The driver charges for each extent, so a heap that only grows has far fewer than blocks, also
/// once live blocks strand more than its slack. What few pages hold is one extent.
#[test]
fn a_heap_that_only_grows_has_few_extents() {
    for size in [64 << 10, 2 * MIB, 3 * MIB, 4 * MIB] {
        let w = work(1, 64 * GIB);
        let s = w.streams[0];
        let blocks: Vec<u64> = (0..4 * GIB / size).map(|_| w.rig.malloc(size, s)).collect();
        let extents = w.rig.pool.stats().extents;
        assert!(extents <= 300, "{extents} extents for blocks of {size} bytes");
        blocks.into_iter().for_each(|p| w.rig.free(p, s));
        w.rig.close();
    }
    for size in [7 * MIB, 15 * MIB, 31 * MIB] {
        let w = work(1, 64 * GIB);
        let p = w.rig.malloc(size, w.streams[0]);
        assert_eq!(w.rig.pool.stats().extents, 1, "{}", w.rig.pool.dump());
        w.rig.free(p, w.streams[0]);
        w.rig.close();
    }
    let w = work(1, 64 * GIB);
    let s = w.streams[0];
    let mut rng = fastrand::Rng::with_seed(3);
    let mut live = Vec::new();
    for _ in 0..12_000 {
        // Grows slowly to 8 GiB: two are allocated for each that is freed.
        if rng.u8(0..3) == 0 && !live.is_empty() {
            w.rig.free(live.swap_remove(rng.usize(..live.len())), s);
        } else {
            live.push(w.rig.malloc(rng.u64(1..4 * MIB), s));
        }
    }
    let stats = w.rig.pool.stats();
    assert!(stats.extents <= 600, "{} extents for {} blocks", stats.extents, live.len());
    assert!(stats.mapped <= stats.peak_live + stats.peak_live / 10, "{stats:?}");
    live.into_iter().for_each(|p| w.rig.free(p, s));
    w.rig.close();
}

/// A block that grows by little each time is made of extents, not of pages.
#[test]
fn a_block_that_grows_is_no_heap_of_pages() {
    let w = work(1, 64 * GIB);
    let s = w.streams[0];
    let mut p = w.rig.malloc(MIB, s);
    for step in 1..1_000 {
        p = w.rig.pool.realloc(p, (1 + step) * MIB, s).unwrap();
    }
    let extents = w.rig.pool.stats().extents;
    assert!(extents <= 200, "{extents} extents");
    w.rig.free(p, s);
    w.rig.close();
}

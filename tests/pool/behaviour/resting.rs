//! Memory of streams that rest: what they have freed is everybody's once the device has passed it.

use crate::pool_support::{checked, late, request, Rig};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::StreamHandle;
use gpumem::driver::Call;
use gpumem::pool::PoolOptions;
use test_support::Rng;

/// How a program waits before it uses another stream.
#[derive(Clone, Copy, Debug)]
enum Wait {
    /// For the stream, through gpumem.
    Stream,
    /// For the device, through gpumem.
    Device,
    /// By itself: gpumem is told nothing, and has to ask.
    Itself,
}

fn use_and_free(rig: &Rig, s: StreamHandle, sizes: &[u64]) {
    let all: Vec<u64> = sizes.iter().map(|&n| rig.malloc(n, s)).collect();
    for (i, (&p, &n)) in all.iter().zip(sizes).enumerate() {
        rig.fill(s, p, n, i as u64);
        rig.check(s, p, n, i as u64);
    }
    all.into_iter().for_each(|p| rig.free(p, s));
}

#[test]
fn streams_that_take_turns_share_their_memory() {
    let sizes = [40 * MIB, 30 * MIB, 20 * MIB, 9 * MIB, 700 * KIB, 300];
    for wait in [Wait::Stream, Wait::Device, Wait::Itself] {
        let rig = Rig::new(checked(8 * GIB), PoolOptions::default());
        for _ in 0..60 {
            let s = rig.stream();
            use_and_free(&rig, s, &sizes);
            match wait {
                Wait::Stream => rig.pool.sync_stream(s).unwrap(),
                Wait::Device => rig.pool.sync_device().unwrap(),
                Wait::Itself => rig.sync(),
            }
        }
        let (mapped, live) = (rig.pool.stats().mapped, sizes.iter().sum::<u64>());
        // What a stream keeps of its own: the start of its first extent.
        assert!(mapped <= 4 * live + 64 * MIB, "{wait:?}: {} MiB mapped for {} live", mapped / MIB, live / MIB);
        rig.close();
    }
}

/// Each stream frees with no marker behind it, and never comes back to record one.
#[test]
fn what_hundreds_of_streams_have_left_is_asked_about() {
    for host in [checked(32 * GIB), late(5, 32 * GIB)] {
        let rig = Rig::new(host, PoolOptions::default());
        // That much was live once is no excuse.
        let first = rig.stream();
        let large = rig.malloc(8 * GIB, first);
        rig.free(large, first);
        rig.sync();
        rig.pool.trim(0).unwrap();
        rig.pool.reset_peaks();
        for _ in 0..200 {
            let s = rig.stream();
            let all = [(); 4].map(|()| rig.malloc(25 * MIB, s));
            all.into_iter().for_each(|p| rig.free(p, s));
            rig.sync();
        }
        let mapped = rig.pool.stats().peak_mapped;
        assert!(mapped <= 400 * MIB, "{} MiB mapped for 100 live", mapped / MIB);
        rig.close();
    }
}

/// What one stream leaves, the next takes over where it is mapped.
#[test]
fn streams_that_take_turns_stop_mapping() {
    let rig = Rig::new(checked(32 * GIB), PoolOptions::default());
    let turn = || {
        let s = rig.stream();
        let all = [(); 4].map(|()| rig.malloc(25 * MIB, s));
        all.into_iter().for_each(|p| rig.free(p, s));
        rig.sync();
    };
    (0..100).for_each(|_| turn());
    rig.fault.start_recording();
    (0..100).for_each(|_| turn());
    let maps = rig.fault.stop_recording().iter().filter(|c| **c == Call::Map).count();
    assert!(maps <= 100, "{maps} extents mapped for 400 requests");
    rig.close();
}

/// A stream that has freed its last small object keeps a slab for it, which must not keep an extent
/// from streams that want one.
#[test]
fn empty_slabs_of_resting_streams_are_no_stock_of_their_own() {
    let rig = Rig::new(checked(32 * GIB), PoolOptions::default());
    for _ in 0..400 {
        let s = rig.stream();
        use_and_free(&rig, s, &[1000]);
    }
    let mapped = rig.pool.stats().mapped;
    assert!(mapped <= 128 * MIB, "{} MiB mapped for 400 objects that are free", mapped / MIB);
    rig.close();
}

/// A stream that rests has left less than the request, with no marker behind it.
#[test]
fn what_one_stream_has_left_is_part_of_a_larger_request() {
    for host in [checked(8 * GIB), late(5, 8 * GIB)] {
        let rig = Rig::new(host, PoolOptions::default());
        let (first, second) = (rig.stream(), rig.stream());
        let live = [(); 4].map(|()| rig.malloc(400 * MIB, first));
        use_and_free(&rig, second, &[300 * MIB]);
        rig.sync();
        let large = rig.malloc(500 * MIB, first);
        let mapped = rig.pool.stats().mapped;
        assert!(mapped <= 2164 * MIB, "{} MiB mapped for 2100 live", mapped / MIB);
        live.into_iter().chain([large]).for_each(|p| rig.free(p, first));
        rig.close();
    }
}

#[test]
fn a_stream_that_comes_later_takes_over_from_one_that_rests() {
    let rig = Rig::new(checked(8 * GIB), PoolOptions::default());
    let (first, second) = (rig.stream(), rig.stream());
    use_and_free(&rig, first, &[64 * MIB; 32]);
    rig.sync();
    let before = rig.pool.stats().mapped;
    use_and_free(&rig, second, &[64 * MIB; 32]);
    let after = rig.pool.stats().mapped;
    assert!(after <= before + before / 20, "{} MiB, then {} MiB mapped", before / MIB, after / MIB);
    rig.close();
}

/// Streams and the device are waited for late and in any order: nobody gets memory that is still in
/// use, which the device checks.
#[test]
fn what_a_sync_settles_is_done() {
    for seed in 0..20 {
        let rig = Rig::new(late(seed, 2 * GIB), PoolOptions::default());
        let streams: Vec<StreamHandle> = (0..4).map(|_| rig.stream()).collect();
        for round in 0..12usize {
            let (s, t) = (streams[round % 4], streams[(round + 1) % 4]);
            use_and_free(&rig, s, &[3 * MIB, 17 * MIB, 90 * KIB]);
            use_and_free(&rig, t, &[5 * MIB, 17 * MIB]);
            match round % 3 {
                0 => rig.pool.sync_stream(s).unwrap(),
                1 => rig.pool.sync_device().unwrap(),
                _ => {}
            }
            let p = rig.pool.malloc(&request(21 * MIB, streams[(round + 2) % 4])).unwrap();
            rig.fill(streams[(round + 2) % 4], p, 21 * MIB, 77);
            rig.free(p, streams[(round + 2) % 4]);
        }
        rig.sync();
        assert!(rig.host.reports().is_empty(), "seed {seed}: {}", rig.host.reports()[0]);
        rig.books();
    }
}

/// A sync of a stream that is unknown to the pool, or is being captured, is the driver's.
#[test]
fn a_sync_asks_for_no_memory() {
    let rig = Rig::small();
    let s = rig.stream();
    rig.pool.sync_stream(s).unwrap();
    rig.pool.sync_device().unwrap();
    assert_eq!((rig.pool.stats().streams, rig.pool.stats().mapped), (0, 0));
    rig.malloc(MIB, s);
    rig.host.begin_capture(s).unwrap();
    assert!(rig.pool.sync_stream(s).is_err());
}

/// Far more streams than a request looks at, which take turns: each frees what others have
/// allocated.
#[test]
fn hundreds_of_streams_together_keep_to_half_more_than_is_live() {
    let rig = Rig::new(checked(64 * GIB), PoolOptions::default());
    let streams = [(); 256].map(|()| rig.stream());
    let (mut rng, mut live, mut bytes) = (Rng::new(5), Vec::new(), 0);
    for _ in 0..2000 {
        let s = streams[rng.below(256) as usize];
        for _ in 0..10 {
            let size = rng.below(MIB) << rng.below(7);
            live.push((rig.malloc(size, s), size));
            bytes += size;
        }
        while bytes > 8 * GIB {
            let (p, size) = live.swap_remove(rng.below(live.len() as u64) as usize);
            rig.free(p, s);
            bytes -= size;
        }
    }
    let mapped = rig.pool.stats().peak_mapped;
    assert!(mapped <= 13 * GIB, "{} MiB mapped for 8 GiB", mapped / MIB);
    live.into_iter().for_each(|(p, _)| rig.free(p, streams[0]));
    rig.close();
}

//! How much physical memory the pool has: limits, trimming, remapping, and counters that add up.

use crate::pool_support::{checked, late, page_extents, request, Rig, D, GIB_DEVICE, PAGE};
use gpumem::base::size::{self, GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::driver::fault::FaultRule;
use gpumem::driver::{Call, Driver};
use gpumem::pool::{AllocFlags, AllocRequest, PoolOptions, Scope};

#[test]
fn the_limit_is_kept_to_the_byte() {
    let limit = 64 * MIB;
    for flags in [AllocFlags::default(), AllocFlags::SINGLE_HANDLE] {
        let rig = Rig::new(checked(GIB), PoolOptions { limit, ..PoolOptions::default() });
        let s = rig.stream();
        let all = rig.malloc_with(limit, s, flags);
        assert_eq!(rig.mapped(), limit);
        let e = rig.pool.malloc(&request(1, s)).unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory);
        rig.free(all, s);
        let more = rig.pool.malloc(&request(limit + 1, s)).unwrap_err();
        assert_eq!(more.status, Status::OutOfMemory);
        let blocks: Vec<u64> = (0..32).map(|_| rig.malloc_with(PAGE, s, flags)).collect();
        assert_eq!(rig.mapped(), limit);
        assert!(rig.pool.malloc(&request(1, s)).is_err());
        blocks.into_iter().for_each(|p| rig.free(p, s));
        assert_eq!(rig.pool.stats().peak_mapped, limit);
        rig.close();
    }
}

/// Each size class keeps an empty slab, but no heap grows while it has such a slab.
#[test]
fn a_heap_grows_for_no_object_while_it_has_empty_slabs() {
    let rig = Rig::new(checked(GIB), PoolOptions::default());
    let streams = [(); 3].map(|()| rig.stream());
    for _ in 0..2 {
        for size in (256..=64 * KIB).step_by(256) {
            for s in streams {
                let object = rig.malloc(size, s);
                rig.fill(s, object, size, size);
                rig.check(s, object, size, size);
                rig.free(object, s);
            }
        }
    }
    assert_eq!(rig.mapped(), 3 * PAGE);
    rig.close();
}

#[test]
fn out_of_memory_names_the_pieces_when_less_than_one_is_left() {
    for (limit, kept, n) in [(MIB, 0, 1), (3 * MIB, 256, 2 * MIB)] {
        let rig = Rig::new(checked(GIB), PoolOptions { limit, ..PoolOptions::default() });
        let s = rig.stream();
        let kept = (kept > 0).then(|| rig.malloc(kept, s));
        let e = rig.pool.malloc(&request(n, s)).unwrap_err();
        assert!(e.status == Status::OutOfMemory && e.message.contains("mapped in pieces of 2.00 MiB"), "{e}");
        assert_eq!(e.message.contains("Free memory"), kept.is_some(), "{e}");
        kept.into_iter().for_each(|p| rig.free(p, s));
        rig.close();
    }
    let rig = Rig::new(checked(64 * MIB), PoolOptions { page_size: GIB, ..PoolOptions::default() });
    let e = rig.pool.malloc(&request(100, rig.stream())).unwrap_err();
    assert!(e.message.contains("mapped in pieces of 1.00 GiB") && e.message.contains("GPUMEM_PAGE_SIZE"), "{e}");
    assert!(!e.message.contains("Free memory"), "{e}");
    rig.close();
}

/// A cache that allocates until it is refused, and then lets one block go, waits for nothing.
#[test]
fn what_cannot_fit_beside_what_is_live_is_refused_at_once() {
    let rig = Rig::new(late(2, GIB), PoolOptions { limit: 64 * MIB, ..PoolOptions::default() });
    let s = rig.stream();
    let mut blocks: Vec<u64> = (0..32).map(|_| rig.malloc(2 * MIB, s)).collect();
    blocks.iter().for_each(|&p| rig.fill(s, p, 2 * MIB, p));
    let mapped = rig.mapped();
    rig.fault.start_recording();
    for _ in 0..20 {
        assert_eq!(rig.pool.malloc(&request(2 * MIB, s)).unwrap_err().status, Status::OutOfMemory);
        rig.free(blocks.remove(0), s);
        blocks.push(rig.malloc(2 * MIB, s));
    }
    let calls = rig.fault.stop_recording();
    let asked = calls.iter().filter(|&&c| c != Call::MemInfo && c != Call::StreamId).count();
    assert_eq!((asked, rig.mapped()), (0, mapped), "{calls:?}");
    // So it is while the device cannot say what it has.
    rig.fault.set_rule(Some(FaultRule::nth_of(Call::MemInfo, 0).lasting()));
    assert_eq!(rig.pool.malloc(&request(2 * MIB, s)).unwrap_err().status, Status::OutOfMemory);
    rig.fault.set_rule(None);
    blocks.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

/// A pool with 32 pages of old addresses, no limit, and these blocks live on a stream.
fn with_old_addresses() -> (Rig, StreamHandle, Vec<u64>) {
    let rig = Rig::new(checked(GIB), PoolOptions { limit: 64 * PAGE, ..page_extents() });
    let s = rig.stream();
    let mut blocks: Vec<u64> = (0..64).map(|_| rig.malloc(PAGE, s)).collect();
    let half = blocks.iter().copied().step_by(2).collect::<Vec<_>>();
    half.iter().for_each(|&p| rig.free(p, s));
    blocks.retain(|p| !half.contains(p));
    blocks.push(rig.malloc(32 * PAGE, s));
    assert_eq!(rig.pool.stats().zombies, 32 * PAGE);
    rig.pool.set_limit(0).unwrap();
    (rig, s, blocks)
}

/// If the system refuses mappings, old addresses go before the request is refused.
#[test]
fn refused_mappings_make_old_addresses_go() {
    let (rig, s, mut blocks) = with_old_addresses();
    rig.fault.set_rule(Some(FaultRule::nth_of(Call::Map, 3).with_status(Status::OutOfMemory).lasting()));
    assert!(rig.pool.malloc(&request(16 * PAGE, s)).is_err());
    assert_eq!(rig.pool.stats().zombies, 0);
    rig.fault.set_rule(None);
    blocks.push(rig.malloc(16 * PAGE, s));
    blocks.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

/// A dedicated allocation does not fail for a mapping that old addresses have taken.
#[test]
fn a_dedicated_allocation_is_mapped_once_old_addresses_are_gone() {
    let (rig, s, mut blocks) = with_old_addresses();
    rig.pool.sync_device().unwrap();
    rig.fault.set_rule(Some(FaultRule::nth_of(Call::Map, 0).with_status(Status::OutOfMemory)));
    blocks.push(rig.malloc_with(16 * PAGE, s, AllocFlags::SINGLE_HANDLE));
    assert_eq!(rig.pool.stats().zombies, 0);
    rig.fault.set_rule(None);
    blocks.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn a_request_that_there_are_no_addresses_for_says_so() {
    for call in [Call::VaReserve, Call::Map] {
        let rig = Rig::new(checked(GIB), PoolOptions { va_size: 8 * MIB, ..PoolOptions::default() });
        let s = rig.stream();
        let first = rig.malloc(MIB, s);
        rig.fault.set_rule(Some(FaultRule::nth_of(call, 0).with_status(Status::OutOfMemory).lasting()));
        let e = rig.pool.malloc(&request(100 * MIB, s)).unwrap_err();
        assert!(e.status == Status::OutOfMemory && e.message.contains("could not be mapped: "), "{e}");
        assert!(!e.message.contains("As much is free"), "{e}");
        // Later, memory itself is lacking.
        rig.fault.set_rule(None);
        let e = rig.pool.malloc(&request(2 * GIB, s)).unwrap_err();
        assert!(e.status == Status::OutOfMemory && !e.message.contains("could not be mapped"), "{e}");
        rig.free(first, s);
        rig.close();
    }
}

#[test]
fn out_of_memory_says_what_there_was_and_leaves_everything_as_it_was() {
    let whole = "It is more than the whole device has: ask";
    for (limit, n, advice) in [
        (0, 220, "Free memory, or ask"),
        (0, 300, whole),
        (200, 180, "Free memory, raise the limit (GPUMEM_LIMIT or the program's own), or ask"),
        (200, 220, "Raise the limit (GPUMEM_LIMIT or the program's own), or ask"),
        (200, 300, whole),
    ] {
        let (limit, n) = (limit * MIB, n * MIB);
        let rig = Rig::new(late(1, 256 * MIB), PoolOptions { limit, ..PoolOptions::default() });
        let s = rig.stream();
        let kept: Vec<(u64, u64)> = [100, 50 * KIB, 30 * MIB, 90 * MIB].map(|n| (rig.malloc(n, s), n)).into();
        kept.iter().for_each(|&(p, n)| rig.fill(s, p, n, n));
        let before = rig.pool.stats();
        let e = rig.pool.malloc(&request(n, s)).unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory);
        for part in [n.to_string().as_str(), &size::human(n), "device 0", "256.00 MiB", advice] {
            assert!(e.message.contains(part), "{part} is not in: {e}");
        }
        assert!(e.message.contains(if limit == 0 { "no limit is set" } else { "the limit is 200.00 MiB" }), "{e}");
        rig.books();
        let after = rig.pool.stats();
        assert_eq!((after.live, after.requested, after.mallocs), (before.live, before.requested, before.mallocs));
        assert_eq!(after.out_of_memory, before.out_of_memory + 1);
        assert!(after.mapped <= before.mapped);
        let next = rig.malloc(60 * MIB, s);
        kept.iter().for_each(|&(p, n)| rig.check(s, p, n, n));
        kept.iter().map(|b| b.0).chain([next]).for_each(|p| rig.free(p, s));
        rig.close();
    }
}

#[test]
fn a_lower_limit_gives_free_memory_back_and_a_higher_one_is_usable() {
    let rig = Rig::small();
    let s = rig.stream();
    let [p, q] = [40, 60].map(|n| rig.malloc(n * MIB, s));
    rig.free(q, s);
    rig.sync();
    rig.pool.set_limit(50 * MIB).unwrap();
    assert!(rig.mapped() <= 50 * MIB);
    assert!(rig.pool.malloc(&request(20 * MIB, s)).is_err());
    // Below what is live: nothing more, but nothing lost.
    rig.pool.set_limit(10 * MIB).unwrap();
    assert!(rig.pool.malloc(&request(MIB, s)).is_err());
    rig.books();
    rig.pool.set_limit(60 * MIB).unwrap();
    let r = rig.malloc(20 * MIB, s);
    assert_eq!(rig.mapped(), 60 * MIB);
    rig.pool.set_limit(0).unwrap();
    let t = rig.malloc(200 * MIB, s);
    [p, r, t].into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn trim_keeps_what_it_is_told_to_within_an_extent() {
    let pages =
        PoolOptions { max_extent: PAGE, first_extent: PAGE, extents_per_request: u64::MAX, ..PoolOptions::default() };
    let rig = Rig::new(checked(GIB), pages);
    let (s, t) = (rig.stream(), rig.stream());
    for keep in [90 * MIB, 61 * MIB, 20 * MIB + 1, 3 * MIB, 0] {
        let blocks: Vec<u64> = (1..=13).map(|n| rig.malloc(n * MIB, if n % 2 == 0 { s } else { t })).collect();
        blocks.iter().for_each(|&p| rig.free(p, s));
        rig.sync();
        let before = rig.pool.stats();
        let released = rig.pool.trim(keep).unwrap();
        let after = rig.pool.stats();
        assert_eq!(before.mapped - after.mapped, released);
        assert!(after.mapped <= keep && after.mapped + PAGE > keep, "{} for {keep}", after.mapped);
        assert_eq!(after.holes + after.mapped, after.reserved, "what is not mapped is hole again");
        let m = rig.host.mem_info(D).unwrap();
        assert_eq!(m.total - m.free, after.mapped);
        rig.books();
    }
    assert_eq!(rig.pool.trim(0).unwrap(), 0);
    rig.close();
}

#[test]
fn trim_leaves_what_the_device_may_still_use() {
    let rig = Rig::new(late(5, GIB_DEVICE), PoolOptions::default());
    let (s, t) = (rig.stream(), rig.stream());
    let [p, q] = [s, t].map(|s| rig.malloc(8 * MIB, s));
    rig.fill(s, p, 8 * MIB, 1);
    rig.host.hold(D, s).unwrap();
    rig.free(p, s);
    rig.free(q, t);
    rig.pool.trim(0).unwrap();
    assert!(rig.mapped() >= 8 * MIB);
    rig.books();
    rig.host.release(D, s).unwrap();
    rig.close();
}

#[test]
fn preallocated_memory_is_there_for_every_stream() {
    let rig = Rig::new(checked(GIB), PoolOptions { prealloc: 100 * MIB - 1, ..PoolOptions::default() });
    assert_eq!(rig.mapped(), 100 * MIB);
    rig.books();
    let (s, t) = (rig.stream(), rig.stream());
    // Other streams take whole extents over, here of 32 MiB, and the last one of 4.
    let blocks = [(s, 30 * MIB), (StreamHandle::LEGACY, 30 * MIB), (t, 36 * MIB)];
    let blocks = blocks.map(|(s, n)| (rig.malloc(n, s), s));
    assert_eq!(rig.mapped(), 100 * MIB, "{}", rig.pool.dump());
    blocks.into_iter().for_each(|(p, s)| rig.free(p, s));
    rig.close();
}

#[test]
fn a_free_beyond_the_threshold_gives_memory_back() {
    let threshold = 20 * MIB;
    for named in [true, false] {
        let rig = Rig::new(checked(GIB), PoolOptions { trim_threshold: threshold, ..PoolOptions::default() });
        let s = rig.stream();
        let blocks: Vec<u64> = (0..20).map(|_| rig.malloc(10 * MIB, s)).collect();
        for p in blocks {
            rig.pool.free(p, named.then_some(s)).unwrap();
            let st = rig.pool.stats();
            assert!(st.mapped <= st.live + threshold, "named: {named}, {st:?}");
            rig.books();
        }
        assert!(rig.mapped() >= threshold - PAGE, "not more than was asked for");
        rig.close();
    }
}

/// So does the end of an arena.
#[test]
fn the_end_of_a_scope_beyond_the_threshold_gives_memory_back() {
    let threshold = 20 * MIB;
    let rig = Rig::new(checked(GIB), PoolOptions { trim_threshold: threshold, ..PoolOptions::default() });
    let (s, scope) = (rig.stream(), Scope::new(1, None));
    for _ in 0..20 {
        rig.pool.malloc(&AllocRequest { scope: Some(&scope), ..request(10 * MIB, s) }).unwrap();
    }
    rig.pool.free_scope(&scope);
    assert!(rig.mapped() <= threshold, "{:?}", rig.pool.stats());
    rig.close();
}

/// Memory that only waits cannot go. Old addresses stay for the work that repeats there.
#[test]
fn a_free_beyond_the_threshold_leaves_old_addresses() {
    let rig = Rig::new(late(1, GIB), PoolOptions { trim_threshold: 64 * MIB, ..page_extents() });
    let (s, t) = (rig.stream(), rig.stream());
    let blocks: Vec<u64> = (0..8).map(|_| rig.malloc(8 * MIB, s)).collect();
    blocks.iter().step_by(2).for_each(|&p| rig.free(p, s));
    let moved = rig.malloc(32 * MIB, s);
    rig.pool.sync_device().unwrap();
    let before = rig.pool.stats().zombies;
    assert!(before > 0);
    let waits = rig.malloc(100 * MIB, s);
    rig.fill(t, waits, 100 * MIB, 1);
    rig.free(waits, t);
    assert_eq!(rig.pool.stats().zombies, before);
    blocks.into_iter().skip(1).step_by(2).chain([moved]).for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn memory_of_a_checkerboard_is_one_block_again_without_growth() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let s = rig.stream();
    for (size, count) in [(8 * MIB, 256), (20 * MIB, 100), (6 * MIB, 300)] {
        let blocks: Vec<u64> = (0..count).map(|_| rig.malloc(size, s)).collect();
        rig.fill(s, blocks[1], size, 1);
        blocks.iter().step_by(2).for_each(|&p| rig.free(p, s));
        let before = rig.pool.stats();
        assert!(before.largest_free < 2 * size && before.largest_without_growth >= count / 2 * size);
        let one = rig.malloc(count / 2 * size, s);
        let after = rig.pool.stats();
        assert_eq!(after.mapped, before.mapped, "it grew");
        assert_eq!(after.stitches, before.stitches + 1);
        assert!(after.moved > before.moved && after.free == 0);
        rig.fill(s, one, count / 2 * size, 2);
        rig.check(s, blocks[1], size, 1);
        rig.check(s, one, count / 2 * size, 2);
        rig.books();
        blocks.iter().skip(1).step_by(2).chain([&one]).for_each(|&p| rig.free(p, s));
        rig.sync();
        rig.pool.trim(0).unwrap();
        assert_eq!(rig.mapped(), 0);
    }
    rig.close();
}

#[test]
fn old_addresses_of_moved_memory_become_holes_when_the_device_has_passed() {
    let rig = Rig::new(late(2, GIB_DEVICE), PoolOptions { limit: 64 * MIB, ..PoolOptions::default() });
    let s = rig.stream();
    for round in 0..30 {
        let blocks: Vec<u64> = (0..16).map(|_| rig.malloc(4 * MIB, s)).collect();
        blocks.iter().for_each(|&p| rig.fill(s, p, 4 * MIB, p));
        blocks.iter().step_by(2).for_each(|&p| rig.free(p, s));
        let one = rig.malloc(32 * MIB, s);
        rig.fill(s, one, 32 * MIB, round);
        rig.books();
        let st = rig.pool.stats();
        assert_eq!(st.mapped + st.holes + st.zombies, st.reserved);
        blocks.iter().skip(1).step_by(2).for_each(|&p| rig.check(s, p, 4 * MIB, p));
        blocks.iter().skip(1).step_by(2).chain([&one]).for_each(|&p| rig.free(p, s));
        rig.sync();
        assert!(st.zombies <= 3 * 32 * MIB, "{st:?}");
    }
    assert!(rig.pool.stats().moved >= 8);
    rig.pool.trim(u64::MAX).unwrap();
    assert_eq!(rig.pool.stats().zombies, 0, "reaped without giving memory back");
    rig.close();
}

#[test]
fn the_counters_add_up() {
    let rig =
        Rig::new(late(9, GIB_DEVICE), PoolOptions { limit: 300 * MIB, max_extent: 8 * MIB, ..PoolOptions::default() });
    let streams = [rig.stream(), rig.stream(), rig.stream()];
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut x = 1u64;
    let mut next = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % n
    };
    let (mut requested, mut mallocs, mut frees) = (0, 0, 0);
    for step in 0..600 {
        let s = streams[next(3) as usize];
        if next(5) < 3 {
            let bits = 1 + next(25);
            let size = next(1 << bits);
            let flags = if next(10) == 0 { AllocFlags::SINGLE_HANDLE } else { AllocFlags::default() };
            if let Ok(p) = rig.pool.malloc(&gpumem::pool::AllocRequest { flags, ..request(size, s) }) {
                live.push((p, size));
                requested += size;
                mallocs += 1;
            }
        } else if !live.is_empty() {
            let at = next(live.len() as u64) as usize;
            let (p, size) = live.swap_remove(at);
            rig.pool.free(p, (next(2) == 0).then_some(s)).unwrap();
            requested -= size;
            frees += 1;
        }
        if step % 97 == 96 {
            rig.pool.trim(next(200) * MIB).unwrap();
        }
        let b = rig.books();
        let st = rig.pool.stats();
        assert_eq!((st.requested, st.mallocs, st.frees), (requested, mallocs, frees));
        let usable: u64 = live.iter().map(|&(p, _)| rig.pool.info(p).unwrap().usable).sum();
        assert_eq!(st.live, usable, "live is what was handed out");
        let slack = b.live + b.slabs + b.dedicated - st.live;
        assert!(slack <= b.slabs);
        // Freed dedicated memory is mapped until it is buried; zombies are not counted, their
        // memory is elsewhere.
        let graves = st.mapped - (st.live + slack + st.free + st.waiting);
        assert!(graves + st.zombies == b.zombies, "{st:?} {b:?}");
        assert_eq!(st.reserved, st.holes + st.zombies + st.mapped);
        assert!(st.mapped <= 300 * MIB && st.largest_free <= st.free);
    }
    live.into_iter().for_each(|(p, _)| rig.pool.free(p, None).unwrap());
    rig.pool.reset_peaks();
    let st = rig.pool.stats();
    assert_eq!((st.peak_live, st.peak_mapped), (0, st.mapped));
    rig.close();
}

/// At the limit, free memory of a stream that rests and that nothing can move serves others as it
/// is, however often others asked in vain before; it is neither refused nor given back first.
#[test]
fn a_free_block_of_a_resting_stream_serves_at_the_limit() {
    for vain in [0, 40] {
        let rig = Rig::new(checked(GIB), PoolOptions { limit: 64 * MIB, ..PoolOptions::default() });
        let (a, b) = (rig.stream(), rig.stream());
        let whole = rig.malloc(64 * MIB, a);
        rig.free(whole, a);
        let blocks = [20, 24, 20].map(|n| rig.malloc(n * MIB, a));
        rig.fill(a, blocks[1], 24 * MIB, 1);
        rig.free(blocks[1], a);
        for _ in 0..vain {
            assert_eq!(rig.pool.malloc(&request(30 * MIB, b)).unwrap_err().status, Status::OutOfMemory);
        }
        let p = rig.malloc(24 * MIB, b);
        assert_eq!((p, rig.mapped()), (blocks[1], 64 * MIB));
        rig.free(p, b);
        [blocks[0], blocks[2]].into_iter().for_each(|p| rig.free(p, a));
        rig.close();
    }
}

/// The most that was live is known to the byte for one stream, whatever happened between two looks.
#[test]
fn peaks_need_no_look_at_the_right_moment() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let (a, b) = (rig.stream(), rig.stream());
    for p in [rig.malloc(600 * MIB, a), rig.malloc(400 * MIB, a)] {
        rig.free(p, a);
    }
    rig.free(rig.malloc(500, a), a);
    assert_eq!(rig.pool.stats().peak_live, 1000 * MIB);
    // Of a second one the bound is the sum, and no more than was mapped.
    rig.free(rig.malloc(100 * MIB, b), b);
    let st = rig.pool.stats();
    assert!((1000 * MIB..=1100 * MIB).contains(&st.peak_live) && st.peak_live <= st.peak_mapped, "{st:?}");
    rig.pool.reset_peaks();
    assert_eq!(rig.pool.stats().peak_live, 0);
    rig.free(rig.malloc_with(3 * MIB, a, AllocFlags::SINGLE_HANDLE), a);
    assert_eq!(rig.pool.stats().peak_live, 4 * MIB, "pages of 2 MiB");
    rig.close();
}

/// A request that no device can meet claims memory for a moment, and leaves no peak.
#[test]
fn the_peak_of_what_is_mapped_is_no_more_than_the_device_has() {
    let rig = Rig::new(checked(GIB), PoolOptions::default());
    let s = rig.stream();
    rig.free(rig.malloc(512 * MIB, s), s);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let s = rig.stream();
                for _ in 0..50 {
                    if let Ok(p) = rig.pool.malloc(&request(900 * MIB, s)) {
                        rig.free(p, s);
                    }
                }
            });
        }
    });
    assert!(rig.pool.stats().peak_mapped <= GIB);
}

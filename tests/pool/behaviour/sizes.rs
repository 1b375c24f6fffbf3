//! Sizes and alignments: nothing, too much, and everything between.

use crate::pool_support::{checked, request, Rig, D, PAGE};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::driver::Driver;
use gpumem::pool::{AllocFlags, AllocRequest, Pool, PoolOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

#[test]
fn no_bytes_are_a_pointer_like_any_other() {
    let rig = Rig::small();
    let s = rig.stream();
    for flags in [AllocFlags::default(), AllocFlags::SINGLE_HANDLE, AllocFlags::GUARD] {
        let all: BTreeSet<u64> = (0..20).map(|_| rig.malloc_with(0, s, flags)).collect();
        assert_eq!(all.len(), 20, "unique");
        assert!(!all.contains(&0));
        for p in all {
            assert_eq!(rig.pool.info(p).unwrap().requested, 0);
            rig.free(p, s);
            assert_eq!(rig.pool.free(p, Some(s)).unwrap_err().status, Status::DoubleFree, "{flags:?}");
        }
    }
    rig.close();
}

#[test]
fn every_size_is_usable_to_its_last_byte() {
    let rig = Rig::small();
    let s = rig.stream();
    let mut sizes: Vec<u64> = (0..=25).flat_map(|b| [(1 << b) - 1, 1 << b, (1 << b) + 1]).collect();
    sizes.retain(|&n| n > 0);
    let blocks: Vec<(u64, u64)> = sizes.iter().map(|&n| (rig.malloc(n, s), n)).collect();
    for (i, &(p, n)) in blocks.iter().enumerate() {
        let info = rig.pool.info(p).unwrap();
        assert!(info.base == p && info.requested == n && info.usable >= n, "{info:?}");
        assert!(n < 128 * KIB || info.usable - n < 8 * KIB, "{n} wastes {}", info.usable - n);
        rig.fill(s, p, n, i as u64);
    }
    blocks.iter().enumerate().for_each(|(i, &(p, n))| rig.check(s, p, n, i as u64));
    rig.books();
    blocks.iter().for_each(|&(p, _)| rig.free(p, s));
    rig.close();
}

#[test]
fn sizes_that_cannot_be_are_out_of_memory_and_change_nothing() {
    let rig = Rig::small();
    let s = rig.stream();
    let kept = rig.malloc(3 * MIB, s);
    rig.fill(s, kept, 3 * MIB, 1);
    let before = rig.pool.stats();
    let mut refused = 0;
    for size in [u64::MAX, u64::MAX - 511, u64::MAX - PAGE, i64::MAX as u64 + 1, i64::MAX as u64, 1 << 44, GIB + 1] {
        for flags in [0, 1, 2, 4] {
            for align in [0, 256, 1 << 20, GIB] {
                let r = AllocRequest { align, flags: AllocFlags(flags), ..request(size, s) };
                let e = rig.pool.malloc(&r).unwrap_err();
                assert_eq!(e.status, Status::OutOfMemory, "{size} {flags} {align}: {e}");
                assert!(e.message.contains(&size.to_string()), "{e}");
                refused += 1;
            }
        }
        let counted = rig.pool.stats().out_of_memory;
        assert_eq!(rig.pool.realloc(kept, size, s).unwrap_err().status, Status::OutOfMemory);
        assert_eq!(rig.pool.stats().out_of_memory, counted + 1, "realloc to {size} bytes");
    }
    let after = rig.pool.stats();
    assert!(after.out_of_memory >= refused);
    assert_eq!((after.mapped, after.live, after.allocations), (before.mapped, before.live, before.allocations));
    rig.check(s, kept, 3 * MIB, 1);
    rig.free(kept, s);
    rig.close();
}

#[test]
fn every_alignment_is_kept_and_costs_addresses_only() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let s = rig.stream();
    for bit in 0..=30 {
        let align = 1u64 << bit;
        for size in [0, 1, 300, 5000, 70_000, MIB + 1, 5 * MIB] {
            let p = rig.pool.malloc(&AllocRequest { align, ..request(size, s) }).unwrap();
            assert_eq!(p % align.max(256), 0, "{size} at {align}");
            rig.fill(s, p, size, 1);
            rig.books();
            let mapped = rig.mapped();
            assert!(mapped <= size.next_multiple_of(PAGE) + PAGE, "{size} at {align} maps {mapped}");
            rig.check(s, p, size, 1);
            rig.free(p, s);
            rig.sync();
            rig.pool.trim(0).unwrap();
        }
    }
    // All at once, so that blocks of one alignment lie between those of others.
    let all: Vec<u64> = (0..=30)
        .flat_map(|bit| [1u64, 100_000, 3 * MIB].map(|size| (1u64 << bit, size)))
        .map(|(align, size)| {
            let p = rig.pool.malloc(&AllocRequest { align, ..request(size, s) }).unwrap();
            assert_eq!(p % align, 0);
            p
        })
        .collect();
    rig.books();
    all.into_iter().rev().for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn bad_alignments_and_flags_are_refused() {
    let rig = Rig::small();
    let s = rig.stream();
    for align in [3, 257, 768, GIB - 1, GIB + 1, 2 * GIB, 1 << 63, u64::MAX] {
        for flags in [0, 1, 4] {
            let e = rig.pool.malloc(&AllocRequest { align, flags: AllocFlags(flags), ..request(100, s) }).unwrap_err();
            assert!(e.status == Status::Invalid && e.message.contains(&align.to_string()), "{e}");
        }
    }
    for flags in [8, 1 << 30, AllocFlags::SEPARATE.0 | 8, u32::MAX] {
        let e = rig.pool.malloc(&AllocRequest { flags: AllocFlags(flags), ..request(100, s) }).unwrap_err();
        assert_eq!(e.status, Status::Invalid, "{flags}: {e}");
    }
    assert_eq!(rig.mapped(), 0);
    rig.close();
}

#[test]
fn page_size_is_the_least_extent() {
    for page in [PAGE, 2 * PAGE, 8 * PAGE, GIB] {
        let rig = Rig::new(checked(4 * GIB), PoolOptions { page_size: page, ..PoolOptions::default() });
        let s = rig.stream();
        let blocks = [1, PAGE + 1, 3 * PAGE].map(|n| rig.malloc(n, s));
        let st = rig.pool.stats();
        assert_eq!(st.mapped % page, 0);
        assert!(st.mapped / st.extents >= page, "{st:?}");
        let single = rig.malloc_with(1, s, AllocFlags::SINGLE_HANDLE);
        assert_eq!(rig.mapped(), st.mapped + page);
        blocks.into_iter().chain([single]).for_each(|p| rig.free(p, s));
        rig.close();
    }
    let driver: Arc<dyn Driver> = Rig::small().host;
    for page in [3 * PAGE, 2 * GIB, PAGE + 1, u64::MAX] {
        let made = Pool::new(driver.clone(), D, PoolOptions { page_size: page, ..PoolOptions::default() });
        let e = made.err().unwrap();
        assert!(e.status == Status::Config && e.message.contains(&page.to_string()), "{e}");
    }
}

#[test]
fn reservations_follow_one_another() {
    let options = PoolOptions { va_size: 16 * MIB, ..PoolOptions::default() };
    let rig = Rig::new(checked(GIB), options);
    let s = rig.stream();
    // Larger than a reservation, and more of them than one holds.
    let mut blocks = vec![(rig.malloc(40 * MIB, s), 40 * MIB)];
    blocks.extend((0..20).map(|_| (rig.malloc(5 * MIB, s), 5 * MIB)));
    for (i, &(p, n)) in blocks.iter().enumerate() {
        rig.fill(s, p, n, i as u64);
    }
    rig.books();
    assert!(rig.pool.stats().reserved >= 140 * MIB);
    blocks.iter().enumerate().for_each(|(i, &(p, n))| rig.check(s, p, n, i as u64));
    blocks.iter().for_each(|&(p, _)| rig.free(p, s));
    rig.close();
}

#[test]
fn ids_are_unique_and_never_reused() {
    let rig = Rig::small();
    let other = Rig::small();
    let mut seen = BTreeSet::new();
    for rig in [&rig, &other] {
        let streams = [rig.stream(), rig.stream(), StreamHandle::LEGACY];
        for round in 0..50 {
            for (i, size) in [100u64, 40_000, MIB].into_iter().enumerate() {
                let s = streams[(round + i) % 3];
                let flags = if round % 10 == 0 { AllocFlags::SINGLE_HANDLE } else { AllocFlags::default() };
                let p = rig.malloc_with(size, s, flags);
                let id = rig.pool.info(p).unwrap().id;
                assert!(id != 0 && seen.insert(id), "{id:#x} came twice");
                rig.pool.free(p, None).unwrap();
            }
        }
    }
    rig.close();
    other.close();
}

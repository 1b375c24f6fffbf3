//! Realloc: in place where it can be, a copy elsewhere, and the old block whole when it fails.

use crate::pool_support::{checked, late, Rig, GIB_DEVICE, PAGE};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::Status;
use gpumem::driver::{Call, FaultRule};
use gpumem::pool::{AllocFlags, PoolOptions, Resized};

#[test]
fn a_block_grows_in_place_by_mapping_behind_it() {
    let rig = Rig::small();
    let s = rig.stream();
    let p = rig.malloc(4 * MIB, s);
    rig.fill(s, p, 4 * MIB, 1);
    for size in [5 * MIB, 9 * MIB, 64 * MIB, 200 * MIB] {
        rig.fault.start_recording();
        assert_eq!(rig.pool.realloc(p, size, s).unwrap(), p, "{size}");
        let calls = rig.fault.stop_recording();
        assert!(!calls.contains(&Call::CopyAsync), "{calls:?}");
        assert!(calls.contains(&Call::Map));
        let i = rig.pool.info(p).unwrap();
        assert!(i.requested == size && i.usable >= size);
        rig.books();
        rig.check(s, p, 4 * MIB, 1);
    }
    assert!(rig.mapped() <= 202 * MIB);
    rig.free(p, s);
    assert!(rig.pool.stats().peak_live >= 200 * MIB, "the most it was, though it is gone");
    rig.close();
}

/// A large block that is lent by another stream may have been wanted at the start of a page; it
/// need not move to one.
#[test]
fn a_lent_block_moves_with_the_alignment_asked_for() {
    let tight = PoolOptions { finer: true, earned_permille: 0, ..PoolOptions::default() };
    let rig = Rig::new(checked(4 * GIB), tight);
    let (s, t) = (rig.stream(), rig.stream());
    let whole = rig.malloc(GIB, s);
    rig.free(whole, s);
    let beside = rig.malloc(MIB, s);
    rig.sync();
    let mapped = rig.mapped();
    let lent = rig.malloc(128 * MIB + 512, t);
    assert_eq!(rig.mapped(), mapped, "nothing was lent");
    let Resized::Not(away) = rig.pool.realloc_here(lent, 2 * GIB, t).unwrap() else { panic!("it grew in place") };
    let away = format!("{away:?}");
    assert!(away.contains("align: 512"), "{away}");
    [(lent, t), (beside, s)].into_iter().for_each(|(p, s)| rig.free(p, s));
    rig.close();
}

#[test]
fn a_block_grows_into_free_memory_behind_it_and_shrinks_where_it_is() {
    let pages = PoolOptions { first_extent: PAGE, max_extent: PAGE, ..PoolOptions::default() };
    let rig = Rig::new(checked(GIB), pages);
    let s = rig.stream();
    let all = rig.malloc(12 * MIB, s);
    rig.free(all, s);
    let [p, q, r] = [4, 4, 4].map(|n| rig.malloc(n * MIB, s));
    assert_eq!((q, r), (p + 4 * MIB, q + 4 * MIB), "side by side");
    rig.fill(s, p, 4 * MIB, 1);
    rig.fill(s, r, 4 * MIB, 3);
    rig.free(q, s);
    let mapped = rig.mapped();
    assert_eq!(rig.pool.realloc(p, 7 * MIB, s).unwrap(), p);
    rig.books();
    assert_eq!(rig.pool.realloc(p, 8 * MIB, s).unwrap(), p);
    rig.fill(s, p, 8 * MIB, 2);
    for size in [8 * MIB - 1, 6 * MIB, MIB, 100 * KIB, 1, 0] {
        assert_eq!(rig.pool.realloc(p, size, s).unwrap(), p, "{size}");
        assert_eq!(rig.pool.info(p).unwrap().requested, size);
        rig.books();
    }
    assert_eq!(rig.mapped(), mapped);
    // What it gave up is usable.
    let again = rig.malloc(7 * MIB, s);
    assert!(again > p && again < r);
    rig.check(s, r, 4 * MIB, 3);
    [p, r, again].into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

/// A block that grew into free memory behind it has used that memory.
#[test]
fn what_a_block_grew_into_is_not_unused() {
    let rig = Rig::small();
    let s = rig.stream();
    let all = rig.malloc(100 * MIB, s);
    rig.free(all, s);
    let p = rig.malloc(4 * MIB, s);
    rig.pool.trim_unused(u64::MAX).unwrap();
    assert_eq!(rig.pool.realloc(p, 100 * MIB, s).unwrap(), p);
    rig.free(p, s);
    assert_eq!(rig.pool.trim_unused(0).unwrap(), 0);
    rig.close();
}

#[test]
fn a_copy_has_the_same_contents() {
    let rig = Rig::new(late(3, GIB_DEVICE), PoolOptions::default());
    let (s, t) = (rig.stream(), rig.stream());
    let sizes = [0, 100, 5000, 60 * KIB, 200 * KIB, 3 * MIB, 10 * MIB];
    for (from, to) in sizes.iter().flat_map(|&a| sizes.map(|b| (a, b))) {
        let none = AllocFlags::default();
        for (flags, stream) in [(none, s), (none, t), (AllocFlags::GUARD, s), (AllocFlags::SINGLE_HANDLE, s)] {
            let p = rig.malloc_with(from, s, flags);
            // Something behind it, so that it cannot simply grow.
            let wall = rig.malloc(200 * KIB, s);
            // All that is usable is kept, not only what was asked for.
            let kept = rig.pool.info(p).unwrap().usable.min(to);
            rig.fill(s, p, kept, from ^ to);
            if stream != s {
                rig.order(s, stream);
            }
            let q = rig.pool.realloc(p, to, stream).unwrap();
            let i = rig.pool.info(q).unwrap();
            assert_eq!((i.requested, i.flags), (to, flags));
            rig.check(stream, q, kept, from ^ to);
            rig.fill(stream, q, to, 7);
            rig.free(q, stream);
            rig.free(wall, s);
        }
    }
    rig.close();
}

#[test]
fn a_failed_realloc_leaves_the_old_block_whole() {
    let rig = Rig::small();
    let s = rig.stream();
    for (size, flags) in [(1000, 0), (MIB, 0), (10 * MIB, 0), (MIB, 1)] {
        let p = rig.malloc_with(size, s, AllocFlags(flags));
        let wall = rig.malloc(MIB, s);
        rig.fill(s, p, size, 1);
        let before = rig.pool.info(p).unwrap();
        let limit = rig.mapped();
        rig.pool.set_limit(limit).unwrap();
        let e = rig.pool.realloc(p, 300 * MIB, s).unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory, "{e}");
        rig.pool.set_limit(0).unwrap();
        rig.fault.set_rule(Some(FaultRule::nth_of(Call::CopyAsync, 0)));
        let e = rig.pool.realloc(p, 300 * MIB, s).map(|q| assert_eq!(q, p, "without a copy")).err();
        assert!(e.is_none_or(|e| e.status == Status::Driver));
        rig.fault.set_rule(None);
        let after = rig.pool.info(p).unwrap();
        assert!(after.id == before.id && after.base == before.base);
        rig.check(s, p, size, 1);
        rig.books();
        rig.free(p, s);
        rig.free(wall, s);
        rig.sync();
        rig.pool.trim(0).unwrap();
    }
    rig.close();
}

/// Shrinking gives the tail back to the block's own stream; another stream that uses the block may
/// not be done with it.
#[test]
fn the_tail_of_a_shrunk_block_waits_for_recorded_streams() {
    for seed in 0..20 {
        let rig = Rig::new(late(seed, GIB_DEVICE), PoolOptions::default());
        let (s, t) = (rig.stream(), rig.stream());
        let p = rig.malloc(8 * MIB, s);
        rig.fill(s, p, 8 * MIB, 1);
        rig.order(s, t);
        rig.pool.record_stream(p, t).unwrap();
        rig.host.hold(crate::pool_support::D, t).unwrap();
        rig.check(t, p, 8 * MIB, 1);
        let q = rig.pool.realloc(p, 2 * MIB, s).unwrap();
        let tail = rig.malloc(6 * MIB, s);
        rig.fill(s, tail, 6 * MIB, 2);
        rig.host.release(crate::pool_support::D, t).unwrap();
        rig.order(t, s);
        rig.free(q, s);
        rig.free(tail, s);
        rig.close();
    }
}

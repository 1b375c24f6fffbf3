//! Allocations with a physical handle of their own.

use crate::pool_support::{late, request, Rig, D, GIB_DEVICE, PAGE};
use gpumem::base::size::MIB;
use gpumem::base::Status;
use gpumem::driver::host::{Kernel, ReportKind};
use gpumem::driver::Driver;
use gpumem::pool::{AllocFlags, AllocRequest, PoolOptions};

#[test]
fn a_single_handle_is_one_handle_and_stays_where_it_is() {
    let rig = Rig::new(crate::pool_support::checked(64 * MIB), PoolOptions::default());
    let s = rig.stream();
    let before = rig.pool.stats();
    let p = rig.malloc_with(21 * MIB, s, AllocFlags::SINGLE_HANDLE);
    assert_eq!(rig.pool.stats().extents, before.extents + 1);
    rig.fill(s, p, 21 * MIB, 1);
    // Shortage all around it: everything else is moved.
    let blocks: Vec<u64> = (0..10).map(|_| rig.malloc(4 * MIB, s)).collect();
    blocks.iter().step_by(2).for_each(|&p| rig.free(p, s));
    let big = rig.malloc(18 * MIB, s);
    assert!(rig.pool.stats().moved > 0);
    rig.check(s, p, 21 * MIB, 1);
    blocks.iter().skip(1).step_by(2).chain([&p, &big]).for_each(|&p| rig.free(p, s));
    rig.close();
}

#[test]
fn exported_memory_shows_the_same_bytes_where_it_is_imported() {
    let (here, there) = (Rig::small(), Rig::small());
    let (s, t) = (here.stream(), there.stream());
    let p = here.malloc_with(5 * MIB, s, AllocFlags::EXPORTABLE);
    here.fill(s, p, 5 * MIB, 42);
    let fd = here.pool.export_fd(p).unwrap();
    let q = there.pool.import_fd(&fd, 5 * MIB, t).unwrap();
    there.check(t, q, 5 * MIB, 42);
    there.fill(t, q, 5 * MIB, 43);
    here.check(s, p, 5 * MIB, 43);
    for rig in [&here, &there] {
        rig.books();
    }
    here.free(p, s);
    here.close();
    there.check(t, q, 5 * MIB, 43);
    assert_eq!(there.pool.import_fd(&fd, 50 * MIB, t).unwrap_err().status, Status::Invalid);
    assert_eq!(there.pool.import_fd(&fd, 0, t).unwrap_err().status, Status::Invalid);
    there.books();
    there.free(q, t);
    there.close();
    let pooled = here.malloc(MIB, s);
    let single = here.malloc_with(MIB, s, AllocFlags::SINGLE_HANDLE);
    for p in [pooled, single] {
        let e = here.pool.export_fd(p).unwrap_err();
        assert!(e.status == Status::Invalid && e.message.contains("EXPORTABLE"), "{e}");
        here.free(p, s);
    }
    // An importer has to name a size, and there is no memory of 0 bytes.
    let empty = here.malloc_with(0, s, AllocFlags::EXPORTABLE);
    let e = here.pool.export_fd(empty).unwrap_err();
    assert!(e.status == Status::Invalid && e.message.contains("0 bytes; there is nothing to export"), "{e}");
    here.free(empty, s);
    here.close();
}

/// What is exported starts where the importer's memory starts, also with a guard behind it.
#[test]
fn guarded_memory_is_the_same_where_it_is_imported() {
    let (here, there) = (Rig::small(), Rig::small());
    let (s, t) = (here.stream(), there.stream());
    let flags = AllocFlags(AllocFlags::EXPORTABLE.0 | AllocFlags::GUARD.0);
    let p = here.malloc_with(1000, s, flags);
    here.fill(s, p, 1000, 42);
    let q = there.pool.import_fd(&here.pool.export_fd(p).unwrap(), 1000, t).unwrap();
    there.check(t, q, 1000, 42);
    let end = p + here.pool.info(p).unwrap().usable;
    assert_eq!(end % PAGE, 0);
    here.host.launch(D, s, Kernel::new("overrun").writes(end..end + 1)).unwrap();
    here.sync();
    assert_eq!(here.host.take_reports().len(), 1);
    here.free(p, s);
    there.free(q, t);
    here.close();
    there.close();
}

/// A guarded block ends as near to its guard as the alignment that every block has allows.
#[test]
fn a_guarded_block_keeps_the_alignment() {
    let rig = Rig::small();
    let s = rig.stream();
    for align in [0, 1, 16, 64, 128, 256, 512, 4096] {
        for size in [1, 255, 256, 257, 1001, PAGE - 1, PAGE, PAGE + 1] {
            let flags = AllocFlags::GUARD;
            let p = rig.pool.malloc(&AllocRequest { align, flags, ..request(size, s) }).unwrap();
            let promised = align.max(256);
            assert_eq!(p % promised, 0, "{size} bytes at a multiple of {align}");
            let usable = rig.pool.info(p).unwrap().usable;
            assert!(usable >= size && usable < size + promised, "{usable} bytes in front of the guard for {size}");
            rig.free(p, s);
        }
    }
    rig.close();
}

#[test]
fn the_byte_after_a_guarded_block_faults() {
    let rig = Rig::small();
    let s = rig.stream();
    for size in [0, 1, 256, 1000, PAGE - 1, PAGE, 3 * MIB] {
        let p = rig.malloc_with(size, s, AllocFlags::GUARD);
        let i = rig.pool.info(p).unwrap();
        assert!(i.usable >= size && i.usable - size <= 256, "{i:?}");
        rig.fill(s, p, i.usable, 1);
        rig.sync();
        assert!(rig.host.reports().is_empty());
        let after = p + i.usable;
        for at in [after, after + PAGE - 1] {
            rig.host.launch(D, s, Kernel::new("overrun").writes(at..at + 1)).unwrap();
        }
        rig.sync();
        let kinds: Vec<_> = rig.host.take_reports().iter().map(|r| r.kind).collect();
        assert_eq!(kinds, [ReportKind::Fault; 2], "{size}");
        rig.books();
        rig.free(p, s);
    }
    rig.close();
}

#[test]
fn freed_dedicated_memory_stays_mapped_until_the_device_is_done_with_it() {
    for seed in 0..10 {
        let rig = Rig::new(late(seed, GIB_DEVICE), PoolOptions::default());
        let (s, t) = (rig.stream(), rig.stream());
        let p = rig.malloc_with(3 * MIB, s, AllocFlags::SINGLE_HANDLE);
        rig.fill(s, p, 3 * MIB, 1);
        rig.order(s, t);
        rig.pool.record_stream(p, t).unwrap();
        rig.host.hold(D, t).unwrap();
        rig.check(t, p, 3 * MIB, 1);
        rig.free(p, s);
        rig.pool.trim(0).unwrap();
        assert_eq!(rig.mapped(), 4 * MIB, "still in use");
        rig.books();
        rig.host.release(D, t).unwrap();
        rig.close();
    }
}

/// The next allocation finds it gone, and so does a trim at intervals.
#[test]
fn freed_dedicated_memory_goes_once_the_device_has_passed_it() {
    let rig = Rig::new(late(1, GIB_DEVICE), PoolOptions::default());
    let s = rig.stream();
    for round in 0..3 {
        let p = rig.malloc_with(64 * MIB, s, AllocFlags::SINGLE_HANDLE);
        assert_eq!(rig.mapped(), 64 * MIB, "round {round}");
        rig.fill(s, p, 64 * MIB, round);
        rig.host.hold(D, s).unwrap();
        rig.free(p, s);
        rig.host.release(D, s).unwrap();
        rig.host.stream_sync(D, s).unwrap();
    }
    assert_eq!((rig.pool.trim_unused(0).unwrap(), rig.mapped()), (64 * MIB, 0));
    rig.close();
}

/// NCCL and others keep what they know of such memory by its addresses, for a while after it is
/// freed.
#[test]
fn addresses_of_single_handles_are_not_handed_out_again_soon() {
    for flags in [AllocFlags::SINGLE_HANDLE, AllocFlags::EXPORTABLE] {
        let rig = Rig::small();
        let s = rig.stream();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let p = rig.malloc_with(2 * MIB, s, flags);
            assert!(seen.insert(p), "{p:#x} again");
            rig.free(p, s);
            rig.sync();
            rig.pool.trim(0).unwrap();
            rig.books();
        }
        rig.close();
    }
}

//! Pointers that are wrong, and questions about those that are right.

use crate::pool_support::{request, Rig, D};
use gpumem::base::size::{KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::pool::{AllocFlags, AllocRequest};

/// A pool with live memory around freed memory of every kind: the freed pointers.
fn with_freed(rig: &Rig, s: StreamHandle) -> (Vec<u64>, Vec<u64>) {
    let kinds = [(1000, 0), (60 * KIB, 0), (MIB, 0), (9 * MIB, 0), (3 * MIB, 1), (1000, 4), (0, 0)];
    let make = |&(size, flags): &(u64, u32)| rig.malloc_with(size, s, AllocFlags(flags));
    let keep: Vec<u64> = kinds.iter().map(make).collect();
    let gone: Vec<u64> = kinds.iter().map(make).collect();
    let more: Vec<u64> = kinds.iter().map(make).collect();
    gone.iter().for_each(|&p| rig.free(p, s));
    (keep.into_iter().chain(more).collect(), gone)
}

#[test]
fn a_double_free_is_an_error_and_counted() {
    let rig = Rig::small();
    let (s, t) = (rig.stream(), rig.stream());
    let (live, gone) = with_freed(&rig, s);
    let before = (rig.pool.stats(), rig.pool.layout(1));
    let mut n = 0;
    for &p in &gone {
        for stream in [Some(s), Some(t), None] {
            let e = rig.pool.free(p, stream).unwrap_err();
            assert!(e.status == Status::DoubleFree && e.message.contains(&format!("{p:#x}")), "{e}");
            n += 1;
        }
        // Questions, and what changes nothing, are refused and are no double frees.
        for e in [rig.pool.info(p).err(), rig.pool.realloc(p, 10, s).err(), rig.pool.record_stream(p, s).err()] {
            assert_eq!(e.unwrap().status, Status::DoubleFree);
        }
    }
    let after = rig.pool.stats();
    assert_eq!(after.double_frees, before.0.double_frees + n);
    assert_eq!((after.live, after.frees, after.mapped), (before.0.live, before.0.frees, before.0.mapped));
    assert_eq!(rig.pool.layout(1), before.1);
    rig.books();
    live.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn unknown_and_interior_pointers_are_errors_and_counted() {
    let rig = Rig::small();
    let s = rig.stream();
    let (live, _) = with_freed(&rig, s);
    let before = (rig.pool.stats(), rig.pool.layout(1));
    let local = 0u64;
    let mut wrong = vec![1, 8, 256, u64::MAX, u64::MAX - 511, &raw const local as u64, live[0] ^ (1 << 46)];
    for &p in &live {
        let usable = rig.pool.info(p).unwrap().usable;
        wrong.extend([p + 1, p + usable / 2, p + usable - 1].into_iter().filter(|&w| w < p + usable));
    }
    for &p in &wrong {
        let e = rig.pool.free(p, Some(s)).unwrap_err();
        assert!(e.status == Status::UnknownPointer && e.message.contains(&format!("{p:#x}")), "{e}");
        if let Ok(i) = rig.pool.info_containing(p) {
            assert!(e.message.contains(&format!("{} bytes inside", p - i.base)), "{e}");
        }
    }
    let after = rig.pool.stats();
    assert_eq!(after.unknown_pointers - before.0.unknown_pointers, wrong.len() as u64);
    assert_eq!((after.live, after.frees, after.double_frees), (before.0.live, before.0.frees, 0));
    assert_eq!(rig.pool.layout(1), before.1);
    live.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn info_tells_what_was_asked_for() {
    let rig = Rig::small();
    let (s, t) = (rig.stream(), rig.stream());
    for (size, flags, tag) in
        [(0, 0, 0), (777, 0, 0), (777, 0, 5), (5 * MIB, 0, 7), (MIB, 1, 8), (MIB + 1, 2, 9), (10, 4, 3)]
    {
        let before = rig.malloc(MIB, s);
        let stream = if tag % 2 == 0 { s } else { t };
        let p = rig.pool.malloc(&AllocRequest { flags: AllocFlags(flags), tag, ..request(size, stream) }).unwrap();
        let i = rig.pool.info(p).unwrap();
        assert_eq!((i.base, i.requested, i.device, i.stream, i.tag), (p, size, D, stream, tag));
        assert!(i.flags == AllocFlags(flags) && i.usable >= size);
        for at in [p, p + i.usable / 2, p + i.usable.max(1) - 1] {
            assert_eq!(rig.pool.info_containing(at).unwrap(), i, "{at:#x}");
        }
        assert!(rig.pool.info_containing(p + i.usable.max(1)).map_or(true, |j| j.base != p));
        rig.free(p, stream);
        assert!(rig.pool.info_containing(p).is_err());
        rig.free(before, s);
    }
    rig.close();
}

/// A small seeded generator: only the variety matters.
fn next(x: &mut u64) -> u64 {
    *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *x >> 33
}

#[test]
fn containing_agrees_with_an_oracle() {
    let rig = Rig::small();
    let s = rig.stream();
    let mut x = 1;
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut everywhere: Vec<u64> = Vec::new();
    for _ in 0..400 {
        if live.len() > 60 {
            let (p, _) = live.swap_remove(next(&mut x) as usize % live.len());
            rig.free(p, s);
        }
        let size = next(&mut x) % (1 << (next(&mut x) % 22));
        let p = rig.malloc(size, s);
        let usable = rig.pool.info(p).unwrap().usable;
        live.push((p, usable));
        everywhere.extend([p, p + usable / 3, p + usable]);
        let at = everywhere[next(&mut x) as usize % everywhere.len()];
        let want = live.iter().find(|(p, n)| (*p..p + n).contains(&at)).map(|b| b.0);
        assert_eq!(rig.pool.info_containing(at).ok().map(|i| i.base), want, "{at:#x}");
    }
    live.into_iter().for_each(|(p, _)| rig.free(p, s));
    rig.close();
}

#[test]
fn the_dump_lists_every_region_and_tells_tags_and_streams() {
    let rig = Rig::small();
    let (s, t) = (rig.stream(), rig.stream());
    let p = rig.pool.malloc(&AllocRequest { tag: 4711, ..request(3 * MIB, s) }).unwrap();
    let small = rig.pool.malloc(&AllocRequest { tag: 4712, ..request(100, s) }).unwrap();
    let q = rig.malloc(5 * MIB, t);
    let flags = AllocFlags::SINGLE_HANDLE;
    let single = rig.pool.malloc(&AllocRequest { tag: 4713, flags, ..request(MIB, s) }).unwrap();
    let flags = AllocFlags::GUARD;
    let guarded = rig.pool.malloc(&AllocRequest { tag: 4714, flags, ..request(1000, s) }).unwrap();
    let gone = rig.malloc(2 * MIB, s);
    rig.free(gone, t);
    let dump = rig.pool.dump();
    let pieces: Vec<u64> = dump
        .lines()
        .filter_map(|l| l.trim().strip_prefix("0x"))
        .map(|l| u64::from_str_radix(l.split(' ').next().unwrap(), 16).unwrap())
        .collect();
    assert!(pieces.is_sorted() && [p, q, single, gone].iter().all(|p| pieces.contains(p)), "{dump}");
    assert!(dump.contains("tag 4711") && dump.contains(&format!("stream {t}")), "{dump}");
    let info = rig.pool.info(p).unwrap();
    assert!(dump.contains(&format!(", tag 4711, id {}\n", info.id)), "{dump}");
    assert!(dump.contains("[X] live"), "no legend:\n{dump}");
    assert!(dump.contains("1 of ") && dump.contains(" objects of 256 in use, tag 4712\n"), "{dump}");
    for (p, bytes, tag) in [(single, MIB, 4713), (guarded, 1000, 4714)] {
        let id = rig.pool.info(p).unwrap().id;
        let whose = format!(" mapped, {bytes} asked for, stream {s}, tag {tag}, id {id}\n");
        assert!(dump.contains(&whose), "{whose} is not in:\n{dump}");
    }
    [p, small, q, single, guarded].into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

#[test]
fn the_dump_has_equal_neighbours_on_one_line() {
    let rig = Rig::small();
    let s = rig.stream();
    let all: Vec<u64> = (0..4).map(|_| rig.malloc(2 * MIB, s)).collect();
    let (first, last) = (rig.pool.info(all[0]).unwrap().id, rig.pool.info(all[3]).unwrap().id);
    assert!(all.windows(2).all(|w| w[1] == w[0] + 2 * MIB), "they are not neighbours: {all:x?}");
    let dump = rig.pool.dump();
    assert!(dump.contains(" 4 x [2.00 MiB] heap ") && dump.contains(&format!(", ids {first} to {last}\n")), "{dump}");
    // What differs is on a line of its own.
    rig.free(all[1], s);
    let dump = rig.pool.dump();
    assert!(dump.contains(" 2 x [2.00 MiB] heap ") && dump.contains(&format!(", id {first}\n")), "{dump}");
    [0, 2, 3].into_iter().for_each(|i| rig.free(all[i], s));
    rig.close();
}

/// A free region and a later block share the last slot of a live block.
#[test]
fn interior_pointers_are_found_beside_free_memory() {
    let rig = Rig::small();
    let s = rig.stream();
    for size in (66 * KIB..130 * KIB).step_by(1536) {
        let (a, gap, b) = (rig.malloc(100 * KIB, s), rig.malloc(128 * KIB, s), rig.malloc(128 * KIB, s));
        rig.free(gap, s);
        let p = rig.malloc(size, s);
        for at in [0, 1, size / 2, size - 1] {
            assert_eq!(rig.pool.info_containing(p + at).unwrap().base, p, "{at} of {size} bytes");
        }
        for q in [a, b] {
            assert_eq!(rig.pool.info_containing(q + 100 * KIB - 1).unwrap().base, q);
        }
        let usable = rig.pool.info(p).unwrap().usable;
        let behind = rig.pool.info_containing(p + usable).map(|i| i.base);
        assert!(behind.is_err() || behind == Ok(b), "{behind:?}: what follows the block is not the block");
        [a, b, p].into_iter().for_each(|q| rig.free(q, s));
    }
    rig.close();
}

/// While a block is live it is found, whatever other threads free and allocate beside it.
#[test]
fn interior_pointers_are_found_beside_other_threads() {
    let rig = Rig::small();
    let s = rig.stream();
    let p = rig.malloc(100 * KIB, s);
    let neighbour = rig.malloc(200 * KIB, s);
    let fence = rig.malloc(100 * KIB, s);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|t| {
        t.spawn(|| {
            let mut at = neighbour;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                rig.free(at, s);
                at = rig.malloc(200 * KIB, s);
            }
            rig.free(at, s);
        });
        for i in 0..300_000u64 {
            let found = rig.pool.info_containing(p + 100 * KIB - 1).map(|i| i.base);
            if found != Ok(p) {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
                panic!("look {i}: {found:?}");
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    [p, fence].into_iter().for_each(|q| rig.free(q, s));
    rig.close();
}

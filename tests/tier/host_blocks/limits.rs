//! What may be pinned, when it is, and when it goes.

use super::*;

#[test]
fn what_is_promised_can_be_given_however_small_parts_lie() {
    let r = rig(&limited(2));
    // Every block is shared, then one part of each is left: 2 chunks pinned, hardly anything used.
    let parts: Vec<_> = (0..2 * CHUNK / 4096).map(|_| r.take(4096).unwrap()).collect();
    assert_eq!((r.stats().shared, r.usage().available), (2 * CHUNK, 0));
    let mut seen = std::collections::BTreeSet::new();
    let kept: Vec<_> = parts.into_iter().filter(|p| seen.insert(p.pieces()[0].addr / BLOCK)).collect();
    assert_eq!((kept.len() as u64, r.stats().free), (2 * CHUNK / BLOCK, 0));
    let left = r.usage().available / BLOCK * BLOCK;
    let mine = r.manager.reserve(Request::exact(HOST, left)).unwrap();
    let take = |_| r.tier.allocate(NODE, BLOCK, Some(&mine)).unwrap();
    let mut whole: Vec<_> = (0..9).map(take).collect();
    r.tier.settle();
    assert_eq!(r.stats().pinned, 3 * CHUNK, "nothing is pinned once more ahead of need");
    whole.extend((9..left / BLOCK).map(take));
    r.check();
    let s = r.stats();
    assert!(s.pinned > 2 * CHUNK && s.pinned <= 2 * CHUNK + s.stranded(), "{s:?}");
    says(r.take(BLOCK), Status::OutOfMemory, &["HOST 3"]);
    drop((kept, whole, mine));
    r.assert_empty();
}

#[test]
fn the_limit_is_pinned_to_its_last_block_and_no_further() {
    let r = rig(&HostOptions {
        nodes: vec![HostNode { id: NODE, capacity: LIMIT, limit: CHUNK + 5 * BLOCK + 77 }],
        ..options()
    });
    let all: Vec<_> = (0..21).map(|_| r.take(BLOCK).unwrap()).collect();
    r.check();
    assert_eq!(r.stats().pinned, 21 * BLOCK);
    says(r.take(BLOCK), Status::OutOfMemory, &["HOST 3"]);
    drop(all);
    r.assert_empty();
}

#[test]
fn the_end_below_the_limit_is_left_to_who_needs_it() {
    let r = rig(&HostOptions {
        nodes: vec![HostNode { id: NODE, capacity: LIMIT, limit: CHUNK + 5 * BLOCK }],
        ..options()
    });
    let a = r.take(15 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!((r.stats().pinned, r.stats().free), (CHUNK, BLOCK), "less than half a chunk is no chunk to pin ahead");
    let b = r.take(3 * BLOCK).unwrap();
    assert_eq!(r.stats().pinned, CHUNK + 5 * BLOCK);
    drop((a, b));
    r.assert_empty();
}

#[test]
fn free_chunks_make_way_for_one_piece() {
    let r = rig(&limited(4));
    r.tier.prepare(NODE, 4 * CHUNK).unwrap();
    let small = r.take(BLOCK).unwrap();
    assert_eq!(r.stats().chunks, 4);
    let large = r.one(3 * CHUNK).unwrap();
    let s = r.stats();
    assert_eq!((s.pinned, s.chunks, large.pieces().len()), (4 * CHUNK, 2, 1), "three chunks gave way");
    drop(large);
    // Now a block in the middle of what was one piece is in use.
    let many: Vec<_> = (0..4 * CHUNK / BLOCK - 1).map(|_| r.take(BLOCK).unwrap()).collect();
    let odd: Vec<_> = many.into_iter().filter(|m| (m.pieces()[0].addr / BLOCK).is_multiple_of(2)).collect();
    says(r.one(2 * BLOCK), Status::OutOfMemory, &["HOST 3", "128.00 KiB asked", "in pieces", "longest of 64.00 KiB"]);
    let pieces = r.take(8 * BLOCK).unwrap();
    assert_eq!(pieces.pieces().len(), 8);
    r.check();
    drop((small, odd, pieces));
    r.assert_empty();
}

#[test]
fn prepare_pins_and_trim_unpins() {
    let r = rig(&options());
    r.tier.prepare(NODE, 3 * CHUNK + 1).unwrap();
    assert_eq!((r.stats().free, r.stats().chunks), (4 * CHUNK, 4));
    r.tier.prepare(NODE, 2 * CHUNK).unwrap();
    assert_eq!(r.stats().chunks, 4, "as much is free already");
    let memory = r.take(BLOCK).unwrap();
    assert_eq!(r.tier.trim(NODE, 2 * CHUNK - BLOCK + 1).unwrap(), CHUNK, "15 blocks and two chunks stay");
    assert_eq!((r.stats().free, r.stats().pinned), (3 * CHUNK - BLOCK, 3 * CHUNK));
    assert_eq!(r.tier.trim(NODE, u64::MAX).unwrap(), 0);
    says(r.tier.prepare(NODE, LIMIT), Status::OutOfMemory, &["HOST 3", "limit"]);
    says(r.tier.prepare(NODE, u64::MAX), Status::OutOfMemory, &["HOST 3"]);
    assert_eq!(r.tier.trim(NODE, 0).unwrap(), 2 * CHUNK);
    assert_eq!(r.stats().pinned, CHUNK, "of which something is given out");
    drop(memory);
    r.assert_empty();
}

#[test]
fn memory_is_pinned_ahead_of_need() {
    let r = rig(&options());
    let a = r.take(8 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!((r.stats().chunks, r.stats().pins), (1, 1), "half a chunk is free");
    let b = r.take(BLOCK).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().chunks, 2);
    r.fault.set_rule(Some(FaultRule::nth_of(Call::HostAllocOn, 0).lasting()));
    let c = r.take(16 * BLOCK).unwrap();
    assert_eq!(c.pieces().len(), 1, "nobody had to pin it now");
    r.tier.settle();
    r.fault.set_rule(None);
    drop((a, b, c));
    r.assert_empty();
}

/// `GPUMEM_PINNED_LIMIT` may be any size: more than a space can have counts as what it can.
#[test]
fn a_limit_above_what_any_machine_has_is_one_that_never_refuses() {
    let nodes = vec![HostNode { id: NODE, capacity: u64::MAX, limit: u64::MAX }];
    let r = rig(&HostOptions { nodes, ..options() });
    let (capacity, limit) = (r.usage().capacity, r.usage().limit);
    assert!(limit == capacity && limit > 1 << 50, "{limit} of {capacity}");
    drop(r.take(3 * BLOCK).unwrap());
    r.check();
}

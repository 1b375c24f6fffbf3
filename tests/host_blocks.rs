//! Pinned memory in blocks: what is given out, what is pinned for it, and what happens when that is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Error, Status};
use gpumem::driver::host::{HostDriver, HostOptions as DeviceOptions};
use gpumem::driver::{Call, Counted, Driver, Fault, FaultRule};
use gpumem::tier::host::{HostNode, HostOptions, HostStats, Piece};
use gpumem::tier::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

const BLOCK: u64 = 64 * KIB;
const CHUNK: u64 = 16 * BLOCK;
const LIMIT: u64 = 64 * CHUNK;
const NODE: u32 = 3;
const HOST: SpaceId = SpaceId::new(Tier::Host, NODE);

/// A tier of one node, or two, on a driver that counts and fails calls.
struct Rig {
    counted: Arc<Counted>,
    fault: Arc<Fault>,
    manager: Arc<Manager>,
    tier: HostTier,
}

fn options() -> HostOptions {
    let node = HostNode { id: NODE, capacity: 4 * LIMIT, limit: LIMIT };
    HostOptions { block_bytes: BLOCK, blocks: 16, chunks: 1, nodes: vec![node], thresholds: Thresholds::default() }
}

fn rig(options: &HostOptions) -> Rig {
    let counted = Arc::new(Counted::new(HostDriver::new(DeviceOptions::default()).unwrap()));
    let fault = Arc::new(Fault::new(counted.clone()));
    let manager = Arc::new(Manager::new());
    let tier = HostTier::new(fault.clone(), manager.clone(), options).unwrap();
    Rig { counted, fault, manager, tier }
}

fn limited(chunks: u64) -> HostOptions {
    HostOptions { nodes: vec![HostNode { id: NODE, capacity: 4 * LIMIT, limit: chunks * CHUNK }], ..options() }
}

impl Rig {
    fn stats(&self) -> HostStats {
        self.tier.stats(NODE).unwrap()
    }

    fn take(&self, bytes: u64) -> Result<HostMemory, Error> {
        self.tier.allocate(NODE, bytes, None)
    }

    fn one(&self, bytes: u64) -> Result<HostMemory, Error> {
        self.tier.contiguous(NODE, bytes, None)
    }

    fn usage(&self) -> SpaceUsage {
        self.manager.usage(HOST).unwrap()
    }

    /// Every equation holds, here and in the space.
    #[track_caller]
    fn check(&self) {
        self.tier.settle();
        self.tier.validate().unwrap();
        self.manager.validate().unwrap();
    }

    /// Nothing is given out, and everything that was pinned can go.
    #[track_caller]
    fn assert_empty(&self) {
        self.check();
        let (s, u) = (self.stats(), self.usage());
        assert_eq!((s.blocks, s.shared, s.parts, s.free), (0, 0, 0, s.pinned), "{s:?}");
        assert_eq!((u.used, u.unreserved, u.promised, u.beyond, u.available), (0, 0, 0, 0, u.limit), "{u:?}");
        assert_eq!(self.tier.trim(NODE, 0).unwrap(), s.pinned);
        assert_eq!((self.stats().pinned, self.stats().chunks), (0, 0));
        let count = |call| self.counted.count(call);
        assert_eq!(count(Call::HostFree), self.stats().pins, "each chunk is unpinned once");
    }
}

#[track_caller]
fn says<T: std::fmt::Debug>(result: Result<T, Error>, status: Status, parts: &[&str]) {
    let e = result.unwrap_err();
    assert_eq!(e.status, status, "{e}");
    for part in parts {
        assert!(e.message.contains(part), "{e:?} does not say {part:?}");
    }
}

fn lengths(memory: &HostMemory) -> Vec<u64> {
    memory.pieces().iter().map(|p| p.bytes).collect()
}

/// The bytes of a piece.
fn bytes(piece: &Piece) -> &mut [u8] {
    // SAFETY: memory of the tier that the test holds, and looks at from one thread at a time.
    unsafe { std::slice::from_raw_parts_mut(piece.addr as *mut u8, piece.bytes as usize) }
}

// ---- what is given out ------------------------------------------------------------------------------------------

#[test]
fn nothing_is_pinned_before_it_is_needed() {
    let r = rig(&HostOptions { chunks: 4, ..options() });
    let u = r.usage();
    assert_eq!((u.capacity, u.limit, u.used), (4 * LIMIT, LIMIT, 0));
    assert_eq!((r.stats(), r.counted.count(Call::HostAllocOn)), (HostStats::default(), 0));
    assert_eq!((r.tier.nodes(), r.tier.block_bytes()), (vec![NODE], BLOCK));
    let memory = r.take(1).unwrap();
    r.tier.settle();
    assert_eq!((r.stats().chunks, r.stats().pinned), (4, 4 * CHUNK), "the chunks of the first use");
    drop(memory);
    r.assert_empty();
    let _memory = r.take(1).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().chunks, 1, "they are pinned once, not again after they have been trimmed");
}

#[test]
fn memory_comes_in_whole_blocks_and_few_pieces() {
    let r = rig(&options());
    let a = r.take(5 * BLOCK + 1).unwrap();
    assert_eq!((a.bytes(), a.counted(), lengths(&a)), (5 * BLOCK + 1, 6 * BLOCK, vec![5 * BLOCK + 1]));
    let b = r.take(3 * BLOCK).unwrap();
    assert_eq!(b.pieces(), [Piece { addr: a.pieces()[0].addr + 6 * BLOCK, bytes: 3 * BLOCK }]);
    assert_eq!(r.usage().used, 9 * BLOCK);
    r.tier.settle();
    assert_eq!(r.stats().chunks, 2, "less than half a chunk was free");
    drop(a);
    // 6 and 7 blocks are free in the first chunk, 16 in the second.
    let c = r.take(16 * BLOCK + 5 * BLOCK).unwrap();
    assert_eq!(lengths(&c), [16 * BLOCK, 5 * BLOCK], "the longest run, and the shortest that has the rest");
    let d = r.take(BLOCK / 2 + 1).unwrap();
    assert_eq!((d.counted(), lengths(&d)), (BLOCK, vec![BLOCK / 2 + 1]));
    r.check();
    drop((b, c, d));
    r.assert_empty();
}

#[test]
fn small_requests_share_blocks() {
    let r = rig(&options());
    let sizes = [1, 4096, 4097, 10_000, BLOCK / 2, 256];
    let all: Vec<_> = sizes.iter().map(|&n| r.take(n).unwrap()).collect();
    for (memory, want) in all.iter().zip([4096, 4096, 8192, 16384, BLOCK / 2, 4096]) {
        assert_eq!((memory.pieces().len(), memory.counted()), (1, want));
        assert!(memory.pieces()[0].addr.is_multiple_of(want), "{memory:?}");
    }
    let one: Vec<_> = [1, 257, 2048, 2049].iter().map(|&n| r.one(n).unwrap()).collect();
    for (memory, want) in one.iter().zip([256, 512, 2048, 4096]) {
        assert_eq!(memory.counted(), want);
        assert!(memory.pieces()[0].addr.is_multiple_of(want), "{memory:?}");
    }
    let parts: u64 = all.iter().chain(&one).map(HostMemory::counted).sum();
    let s = r.stats();
    assert_eq!((s.parts, s.shared, s.blocks, r.usage().used), (parts, 2 * BLOCK, 0, parts));
    r.check();
    drop((all, one));
    r.assert_empty();
}

#[test]
fn one_piece_may_be_larger_than_a_chunk() {
    let r = rig(&options());
    let a = r.one(5 * CHUNK + 1).unwrap();
    assert_eq!((lengths(&a), a.counted()), (vec![5 * CHUNK + 1], 5 * CHUNK + BLOCK));
    assert!(a.pieces()[0].addr.is_multiple_of(1 << 20));
    r.tier.settle();
    let s = r.stats();
    assert_eq!((s.chunks, s.pinned), (2, 6 * CHUNK + BLOCK), "one of its own, and one ahead of need");
    let at = a.pieces()[0].addr;
    drop(a);
    let b = r.one(2 * CHUNK).unwrap();
    assert_eq!(b.pieces()[0].addr, at, "its blocks are as good as any");
    drop(b);
    r.assert_empty();
}

#[test]
fn blocks_of_a_page_have_no_parts_for_pieces() {
    let r = rig(&HostOptions { block_bytes: 4096, blocks: 4, ..options() });
    let (a, b) = (r.take(1).unwrap(), r.one(100).unwrap());
    assert_eq!((a.counted(), b.counted()), (4096, 256));
    drop((a, b));
    r.assert_empty();
}

// ---- whose it is ------------------------------------------------------------------------------------------------

#[test]
fn memory_is_counted_in_reservations_and_outside() {
    let r = rig(&options());
    let mine = r.manager.reserve(Request::exact(HOST, 4 * BLOCK)).unwrap();
    let a = r.tier.allocate(NODE, 3 * BLOCK, Some(&mine)).unwrap();
    assert_eq!((mine.drawn(), a.reservation(), r.usage().unreserved), (3 * BLOCK, Some(mine.id()), 0));
    says(r.tier.allocate(NODE, 2 * BLOCK, Some(&mine)), Status::OutOfMemory, &["reservation 1", "drawn"]);
    mine.attach_thread().unwrap();
    let b = r.take(BLOCK).unwrap();
    assert_eq!((mine.drawn(), b.reservation()), (4 * BLOCK, Some(mine.id())));
    r.manager.detach_thread(r.tier.space(NODE).unwrap()).unwrap();
    let c = r.take(1).unwrap();
    assert_eq!((c.reservation(), r.usage().unreserved), (None, 4096));
    mine.release().unwrap();
    r.check();
    assert_eq!(r.usage().unreserved, 4 * BLOCK + 4096);
    drop((a, b, c, mine));
    r.assert_empty();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut two = options();
    two.nodes.push(HostNode { id: 9, capacity: LIMIT, limit: u64::MAX });
    let r = rig(&two);
    assert_eq!(r.tier.space(9).unwrap().limit(), LIMIT, "cut to the capacity");
    says(r.take(0), Status::Invalid, &["0 bytes"]);
    says(r.take(u64::MAX), Status::OutOfMemory, &["no machine"]);
    says(r.one(1 << 62), Status::OutOfMemory, &["more than any space"]);
    says(r.take(LIMIT + 1), Status::OutOfMemory, &["HOST 3", "asked"]);
    says(r.tier.allocate(4, 1, None), Status::Invalid, &["node 4", "3, 9"]);
    let other = r.manager.reserve(Request::exact(SpaceId::new(Tier::Host, 9), BLOCK)).unwrap();
    says(r.tier.allocate(NODE, 1, Some(&other)), Status::Invalid, &["HOST 9", "HOST 3"]);
    assert_eq!(r.stats(), HostStats::default(), "nothing was pinned");
    for bad in [
        HostOptions { block_bytes: 2048, ..options() },
        HostOptions { block_bytes: 12 << 10, ..options() },
        HostOptions { block_bytes: 2 * GIB, ..options() },
        HostOptions { blocks: 0, ..options() },
        HostOptions { nodes: Vec::new(), ..options() },
    ] {
        let manager = Arc::new(Manager::new());
        assert_eq!(HostTier::new(r.fault.clone(), manager, &bad).err().unwrap().status, Status::Invalid, "{bad:?}");
    }
}

#[test]
fn memory_outlives_its_tier() {
    let r = rig(&HostOptions { chunks: 3, ..options() });
    let memory = r.take(2 * BLOCK).unwrap();
    let counted = r.counted.clone();
    drop(r.tier);
    assert_eq!(counted.count(Call::HostFree), 0);
    bytes(&memory.pieces()[0]).fill(7);
    thread::spawn(move || drop(memory)).join().unwrap();
    assert_eq!(counted.count(Call::HostFree), counted.count(Call::HostAllocOn), "the last of it takes everything");
    r.manager.validate().unwrap();
    assert_eq!(r.manager.usage(HOST).unwrap().used, 0);
}

#[test]
fn one_piece_is_a_buffer_for_files() {
    let r = rig(&options());
    let memory = r.one(2 * BLOCK).unwrap();
    let addr = memory.pieces()[0].addr;
    let mut buffer = memory.into_buffer().unwrap();
    assert_eq!((buffer.addr(), buffer.len(), r.usage().used), (addr, 2 * BLOCK, 2 * BLOCK));
    buffer.bytes_mut().fill(3);
    drop(buffer);
    says(r.one(1000).unwrap().into_buffer(), Status::Invalid, &["1000 B", "4096"]);
    let (a, _b) = (r.take(15 * BLOCK).unwrap(), r.take(5 * BLOCK).unwrap());
    drop(a);
    let pieces = r.take(20 * BLOCK).unwrap();
    assert!(pieces.pieces().len() > 1);
    says(pieces.into_buffer(), Status::Invalid, &["pieces", "one piece"]);
    drop(_b);
    r.assert_empty();
}

// ---- what may be pinned -----------------------------------------------------------------------------------------

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
    let whole: Vec<_> = (0..left / BLOCK).map(|_| r.tier.allocate(NODE, BLOCK, Some(&mine)).unwrap()).collect();
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

// ---- refusals ---------------------------------------------------------------------------------------------------

#[test]
fn a_refusal_says_what_was_asked_and_leaves_all_as_it_was() {
    let r = rig(&options());
    let refuse = FaultRule::nth_of(Call::HostAllocOn, 0).with_status(Status::OutOfMemory);
    r.fault.set_rule(Some(refuse.lasting()));
    let parts = ["HOST 3", "64.00 KiB more could not be pinned", "0 B pinned", "limit is 64.00 MiB", "ulimit -l is"];
    says(r.take(100), Status::OutOfMemory, &parts);
    says(r.one(BLOCK), Status::OutOfMemory, &parts);
    says(r.tier.prepare(NODE, 1), Status::OutOfMemory, &parts);
    assert_eq!(
        (r.stats().pinned, r.stats().refused, r.usage().used),
        (0, 6, 0),
        "each tried for a chunk, then for less"
    );
    r.check();
    r.fault.set_rule(Some(refuse));
    let memory = r.take(3 * BLOCK).unwrap();
    assert_eq!((r.stats().pinned, lengths(&memory)), (3 * BLOCK, vec![3 * BLOCK]), "less than a chunk was to be had");
    // An error of another kind is not tried again.
    r.fault.set_rule(Some(FaultRule::nth_of(Call::HostAllocOn, 0)));
    says(r.take(CHUNK), Status::Driver, &["HOST 3"]);
    r.fault.set_rule(None);
    drop(memory);
    r.assert_empty();
}

#[test]
fn whichever_pin_is_refused_counters_stay_exact() {
    for n in 0..8 {
        let r = rig(&options());
        r.fault.set_rule(Some(FaultRule::nth_of(Call::HostAllocOn, n).with_status(Status::OutOfMemory).lasting()));
        let mut held = Vec::new();
        let mut refused = 0;
        for i in 0..40 {
            let bytes = [3 * BLOCK, 100, 2 * CHUNK + 1, BLOCK / 2][i % 4];
            let memory = if i % 3 == 0 { r.one(bytes) } else { r.take(bytes) };
            match memory {
                Ok(memory) => held.push(memory),
                Err(e) => {
                    assert_eq!(e.status, Status::OutOfMemory);
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
        r.check();
        assert_eq!(r.usage().used, held.iter().map(HostMemory::counted).sum::<u64>());
        assert_eq!(r.stats().pins, n.min(r.counted.count(Call::HostAllocOn)));
        r.fault.set_rule(None);
        held.push(r.take(4 * CHUNK).unwrap());
        drop(held);
        r.assert_empty();
    }
}

#[test]
fn growth_that_is_refused_is_left_to_who_needs_it() {
    let r = rig(&options());
    let a = r.take(2 * BLOCK).unwrap();
    r.fault.set_rule(Some(FaultRule::nth_of(Call::HostAllocOn, 0).with_status(Status::OutOfMemory).lasting()));
    let b = r.take(10 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!((r.stats().refused, r.stats().chunks), (1, 1));
    let c = r.take(4 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().refused, 1, "not tried again and again");
    drop(c);
    let c = r.take(4 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().refused, 1, "blocks that came back let no more be pinned");
    says(r.take(BLOCK), Status::OutOfMemory, &["could not be pinned"]);
    r.fault.set_rule(None);
    let d = r.take(BLOCK).unwrap();
    assert_eq!(r.stats().chunks, 2);
    let e = r.take(9 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().chunks, 3, "once somebody succeeded it goes on");
    drop((a, b, c, d, e));
    r.assert_empty();
}

#[test]
fn a_chunk_that_cannot_be_unpinned_stays() {
    let r = rig(&limited(2));
    r.tier.prepare(NODE, 2 * CHUNK).unwrap();
    r.fault.set_rule(Some(FaultRule::nth_of(Call::HostFree, 0).lasting()));
    says(r.tier.trim(NODE, 0), Status::Driver, &["unpinning 1.00 MiB of HOST 3"]);
    says(r.one(2 * CHUNK), Status::Driver, &["unpinning"]);
    r.check();
    assert_eq!((r.stats().pinned, r.stats().free, r.usage().used), (2 * CHUNK, 2 * CHUNK, 0));
    let memory = r.take(2 * CHUNK).unwrap();
    r.fault.set_rule(None);
    drop(memory);
    r.assert_empty();
}

// ---- several threads --------------------------------------------------------------------------------------------

#[test]
fn who_comes_while_memory_is_pinned_shares_it() {
    for _ in 0..20 {
        let r = rig(&options());
        r.fault.slow_down(Some((Call::HostAllocOn, Duration::from_millis(2))));
        let start = Barrier::new(8);
        let held: Vec<_> = thread::scope(|scope| {
            let ask = || {
                start.wait();
                r.take(BLOCK).unwrap()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        r.tier.settle();
        assert_eq!((r.stats().pins, held.len()), (1, 8), "eight blocks of one chunk");
        drop(held);
        r.assert_empty();
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// Small ones, some blocks, and now and then more than a chunk.
    fn bytes(&mut self) -> u64 {
        match self.below(10) {
            0..=4 => 1 + self.below(BLOCK),
            5..=8 => 1 + self.below(6 * BLOCK),
            _ => 1 + self.below(2 * CHUNK),
        }
    }
}

/// What is given out, by address, as the test knows it.
#[derive(Default)]
struct Oracle {
    ranges: Mutex<BTreeMap<u64, u64>>,
}

impl Oracle {
    fn add(&self, p: &Piece) {
        let mut ranges = self.ranges.lock().unwrap();
        let before = ranges.range(..p.addr + p.bytes).next_back();
        assert!(before.is_none_or(|(addr, bytes)| addr + bytes <= p.addr), "{p:x?} overlaps {before:x?}");
        ranges.insert(p.addr, p.bytes);
    }

    fn remove(&self, p: &Piece) {
        assert_eq!(self.ranges.lock().unwrap().remove(&p.addr), Some(p.bytes));
    }
}

struct Mine {
    memory: HostMemory,
    pattern: u8,
}

impl Mine {
    fn new(memory: HostMemory, pattern: u8, oracle: &Oracle) -> Mine {
        assert_eq!(lengths(&memory).iter().sum::<u64>(), memory.bytes());
        for piece in memory.pieces() {
            assert!(piece.bytes > 0);
            oracle.add(piece);
            bytes(piece).fill(pattern);
        }
        Mine { memory, pattern }
    }

    fn end(self, oracle: &Oracle) {
        for piece in self.memory.pieces() {
            assert!(bytes(piece).iter().all(|b| *b == self.pattern), "somebody wrote into {piece:x?}");
            // Before it goes back: another may have it at once.
            oracle.remove(piece);
        }
    }
}

#[test]
fn threads_never_share_a_byte_and_counters_are_exact() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 5;
    let r = rig(&HostOptions { chunks: 2, ..limited(16) });
    let (oracle, meet) = (Oracle::default(), Barrier::new(THREADS));
    let held = Mutex::new(vec![0u64; THREADS]);
    let mine = r.manager.reserve(Request::exact(HOST, 2 * CHUNK)).unwrap();
    thread::scope(|scope| {
        for t in 0..THREADS {
            let (r, oracle, meet, held, mine) = (&r, &oracle, &meet, &held, &mine);
            scope.spawn(move || {
                let mut rng = Rng(t as u64 * 77);
                let mut all: Vec<Mine> = Vec::new();
                for round in 0..ROUNDS {
                    for step in 0..400u64 {
                        match rng.below(20) {
                            0..=10 => {
                                let (bytes, from) = (rng.bytes(), (rng.below(4) == 0).then_some(mine));
                                let got = match rng.below(3) {
                                    0 => r.tier.contiguous(NODE, bytes, from),
                                    _ => r.tier.allocate(NODE, bytes, from),
                                };
                                match got {
                                    Ok(memory) => all.push(Mine::new(memory, (step as u8) ^ (t as u8) << 5, oracle)),
                                    Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{e}"),
                                }
                            }
                            11 if t == 0 => drop(r.tier.trim(NODE, rng.below(CHUNK)).unwrap()),
                            12 if t == 1 => drop(r.tier.prepare(NODE, rng.below(2 * CHUNK))),
                            _ if !all.is_empty() => {
                                let at = rng.below(all.len() as u64) as usize;
                                all.swap_remove(at).end(oracle);
                            }
                            _ => {}
                        }
                    }
                    held.lock().unwrap()[t] = all.iter().map(|m| m.memory.counted()).sum();
                    if meet.wait().is_leader() {
                        r.check();
                        let s = r.stats();
                        assert_eq!(
                            (r.usage().used, s.blocks + s.parts),
                            (held.lock().unwrap().iter().sum(), r.usage().used)
                        );
                        // What lies in shared blocks is pinned once more, and no further.
                        assert!(s.peak <= 20 * CHUNK, "{s:?}");
                        println!("round {round}: {s}, {} pins", s.pins);
                    }
                    meet.wait();
                }
                all.into_iter().for_each(|m| m.end(oracle));
            });
        }
    });
    assert!(oracle.ranges.lock().unwrap().is_empty());
    let s = r.stats();
    assert!(s.pins > 16, "chunks came and went: {s:?}");
    drop(mine);
    r.assert_empty();
}

#[test]
fn reservations_of_all_there_is_never_fail_on_any_thread() {
    const THREADS: u64 = 4;
    let r = rig(&limited(8));
    thread::scope(|scope| {
        for t in 0..THREADS {
            let r = &r;
            scope.spawn(move || {
                let mine = r.manager.reserve(Request::exact(HOST, 2 * CHUNK)).unwrap();
                let mut rng = Rng(t);
                let mut all: Vec<HostMemory> = Vec::new();
                for _ in 0..2000 {
                    let bytes = [1 + rng.below(BLOCK / 2), 1 + rng.below(6 * BLOCK)][rng.below(2) as usize];
                    // As it is counted: what fits the reservation must be given.
                    let counted = match bytes.next_power_of_two().max(4096) {
                        part if part <= BLOCK / 2 => part,
                        _ => bytes.div_ceil(BLOCK) * BLOCK,
                    };
                    while mine.drawn() + counted > mine.size() {
                        all.swap_remove(rng.below(all.len() as u64) as usize);
                    }
                    let memory = r.tier.allocate(NODE, bytes, Some(&mine)).unwrap();
                    assert_eq!(memory.counted(), counted);
                    all.push(memory);
                }
            });
        }
    });
    r.assert_empty();
}

#[test]
fn nodes_are_separate() {
    let nodes = [0, 1].map(|id| HostNode { id, capacity: LIMIT, limit: CHUNK }).to_vec();
    let r = rig(&HostOptions { nodes, ..options() });
    let (a, b) = (r.tier.allocate(0, CHUNK, None).unwrap(), r.tier.allocate(1, CHUNK, None).unwrap());
    assert_eq!((a.node(), b.node()), (0, 1));
    says(r.tier.allocate(1, 1, None), Status::OutOfMemory, &["HOST 1"]);
    drop(a);
    assert_eq!((r.tier.stats(0).unwrap().free, r.tier.stats(1).unwrap().free), (CHUNK, 0));
    r.tier.settle();
    r.tier.validate().unwrap();
}

#[test]
fn this_machine_has_a_tier() {
    let driver = HostDriver::new(DeviceOptions::default()).unwrap();
    let manager = Arc::new(Manager::new());
    let tier = HostTier::new(driver as Arc<dyn Driver>, manager.clone(), &HostOptions::default()).unwrap();
    let node = tier.nodes()[0];
    let memory = tier.allocate(node, 5 * MIB + 5, None).unwrap();
    memory.pieces().iter().for_each(|p| bytes(p).fill(1));
    assert_eq!(memory.counted(), 6 * MIB);
    drop(memory);
    tier.settle();
    assert_eq!(tier.stats(node).unwrap().pinned, 512 * MIB);
    tier.validate().unwrap();
}

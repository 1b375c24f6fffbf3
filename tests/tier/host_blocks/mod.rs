//! Pinned memory in blocks: what is given out, what is pinned for it, and what happens when that is
//! refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod limits;
mod refusals;
mod threads;

use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Error, Status};
use gpumem::driver::host::{HostDriver, HostOptions as DeviceOptions};
use gpumem::driver::{Call, Counted, Driver, Fault, FaultRule};
use gpumem::tier::host::{HostNode, HostOptions, HostStats, Piece};
use gpumem::tier::*;
use std::sync::{Arc, Mutex};
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
fn bytes(piece: Piece) -> &'static mut [u8] {
    // SAFETY: memory of the tier that the test holds, and looks at from one thread at a time.
    unsafe { std::slice::from_raw_parts_mut(piece.addr as *mut u8, piece.bytes as usize) }
}

// ---- what is given out --------------------------------------------------------------------------

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

// ---- whose it is --------------------------------------------------------------------------------

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
    says(r.take(u64::MAX), Status::OutOfMemory, &["any machine"]);
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
    bytes(memory.pieces()[0]).fill(7);
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
    memory.pieces().iter().for_each(|p| bytes(*p).fill(1));
    assert_eq!(memory.counted(), 6 * MIB);
    drop(memory);
    tier.settle();
    assert_eq!(tier.stats(node).unwrap().pinned, 512 * MIB);
    tier.validate().unwrap();
}

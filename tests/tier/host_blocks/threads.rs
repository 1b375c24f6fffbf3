//! Several threads at once.

use super::*;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use test_support::Rng;

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

/// Small ones, some blocks, and now and then more than a chunk.
fn any_bytes(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0..=4 => 1 + rng.below(BLOCK),
        5..=8 => 1 + rng.below(6 * BLOCK),
        _ => 1 + rng.below(2 * CHUNK),
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
            bytes(*piece).fill(pattern);
        }
        Mine { memory, pattern }
    }

    fn end(self, oracle: &Oracle) {
        for piece in self.memory.pieces() {
            assert!(bytes(*piece).iter().all(|b| *b == self.pattern), "somebody wrote into {piece:x?}");
            // Before it goes back: another may have it at once.
            oracle.remove(piece);
        }
    }
}

/// One step of a thread.
fn act(r: &Rig, t: usize, step: u64, rng: &mut Rng, all: &mut Vec<Mine>, oracle: &Oracle, mine: &Reservation) {
    match rng.below(20) {
        0..=10 => {
            let (bytes, from) = (any_bytes(rng), (rng.below(4) == 0).then_some(mine));
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

#[test]
fn threads_never_share_a_byte_and_counters_are_exact() {
    const THREADS: u64 = 8;
    const ROUNDS: usize = 5;
    let r = rig(&HostOptions { chunks: 2, ..limited(16) });
    let oracle = Oracle::default();
    let mine = r.manager.reserve(Request::exact(HOST, 2 * CHUNK)).unwrap();
    let mut own: Vec<(Rng, Vec<Mine>)> = (0..THREADS).map(|t| (Rng::new(t * 77), Vec::new())).collect();
    for round in 0..ROUNDS {
        thread::scope(|scope| {
            for (t, (rng, all)) in own.iter_mut().enumerate() {
                let (r, oracle, mine) = (&r, &oracle, &mine);
                scope.spawn(move || (0..400).for_each(|step| act(r, t, step, rng, all, oracle, mine)));
            }
        });
        r.check();
        let s = r.stats();
        let held = own.iter().flat_map(|o| &o.1).map(|m| m.memory.counted()).sum();
        assert_eq!((r.usage().used, s.blocks + s.parts), (held, held));
        // What lies in shared blocks is pinned once more, and no further.
        assert!(s.peak <= 20 * CHUNK, "{s:?}");
        println!("round {round}: {s}, {} pins", s.pins);
        // Now and then all of it goes, so that chunks are pinned anew however the threads were run.
        if round % 2 == 1 {
            own.iter_mut().flat_map(|o| o.1.drain(..)).for_each(|m| m.end(&oracle));
            r.tier.trim(NODE, 0).unwrap();
        }
    }
    own.into_iter().flat_map(|o| o.1).for_each(|m| m.end(&oracle));
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
                let mut rng = Rng::new(t);
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

//! The pool against a model: random operations on several streams, with simulated kernels using
//! every block, on the checking host device. The model is a list of what is live; the device checks
//! order; `validate()` checks the pool after every step.
//!
//! Streams die with work pending and others take their handles, and captures begin right after a
//! hit on the same stream: with `still()` in `src/pool/calls/resolve.rs` made to return `true`,
//! every run here fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::base::{DeviceId, StreamHandle};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::Driver;
use gpumem::pool::{AllocRequest, Pool, PoolOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use test_support::{rounds, Rng};

const DEV: DeviceId = DeviceId(0);
const PAGE: u64 = 2 << 20;
const MAX_LIVE: u64 = 160 * PAGE;

/// Sizes over the whole range: 1 B to 24 MiB, each power of two as likely.
fn any_size(rng: &mut Rng) -> u64 {
    let top = rng.below(25);
    (1 << top) + rng.below(1 << top)
}

/// What the model knows of a live block.
#[derive(Clone, Debug)]
struct Live {
    size: u64,
    stream: usize,
    /// The pattern that the block holds.
    pattern: u64,
    /// Its own stream is gone and it is used on another since, so a free without a stream would
    /// name the wrong order.
    orphan: bool,
    /// Other streams that used it and were recorded.
    users: Vec<usize>,
    id: u64,
}

struct Model {
    host: Arc<HostDriver>,
    pool: Pool,
    streams: Vec<StreamHandle>,
    live: BTreeMap<u64, Live>,
    bytes: u64,
    rng: Rng,
    next_pattern: u64,
    ids: std::collections::HashSet<u64>,
    refused: u64,
    /// Whether the device keeps up with the host for now.
    keeps_up: bool,
    /// In waves, only two streams allocate, and most of what is live goes before more comes.
    waves: bool,
    ebbs: bool,
    /// How often a heap has started afresh beside live blocks.
    fresh_starts: u64,
}

fn stride(size: u64) -> u64 {
    (size / 4).max(8)
}

impl Model {
    fn new(seed: u64, wait: bool, watch: bool) -> Model {
        Model::with(seed, PoolOptions { wait, watch, ..PoolOptions::default() })
    }

    fn with(seed: u64, options: PoolOptions) -> Model {
        let host =
            HostDriver::new(HostOptions { bytes_per_device: 256 * PAGE, ..HostOptions::simulation(seed) }).unwrap();
        let (limit, max_extent) = (200 * PAGE, 4 * PAGE);
        let options = PoolOptions { va_size: 64 << 30, limit, max_extent, slack_floor: 0, ..options };
        let driver: Arc<dyn Driver> = host.clone();
        let pool = Pool::new(driver, DEV, options).unwrap();
        let mut streams: Vec<_> = (0..5).map(|_| host.stream_create(DEV).unwrap()).collect();
        streams.push(StreamHandle::LEGACY);
        Model {
            host,
            pool,
            streams,
            live: BTreeMap::new(),
            bytes: 0,
            rng: Rng::new(seed),
            next_pattern: 0,
            ids: std::collections::HashSet::new(),
            refused: 0,
            keeps_up: false,
            waves: false,
            ebbs: false,
            fresh_starts: 0,
        }
    }

    fn pick(&mut self) -> Option<u64> {
        if self.live.is_empty() {
            return None;
        }
        let n = self.rng.below(self.live.len() as u64) as usize;
        self.live.keys().nth(n).copied()
    }

    fn write(&mut self, ptr: u64, size: u64, stream: usize) -> u64 {
        self.next_pattern += 1;
        let k = Kernel::write_pattern(format!("write {ptr:#x}"), ptr..ptr + size, self.next_pattern, stride(size));
        self.host.launch(DEV, self.streams[stream], k).unwrap();
        self.next_pattern
    }

    fn check(&mut self, ptr: u64, size: u64, pattern: u64, stream: usize) {
        let k = Kernel::check_pattern(format!("check {ptr:#x}"), ptr..ptr + size, pattern, stride(size));
        self.host.launch(DEV, self.streams[stream], k).unwrap();
    }

    /// Makes `to` wait for everything on `from`: what a caller does before using or freeing memory
    /// elsewhere.
    fn join(&self, from: usize, to: usize) {
        if from != to {
            let e = self.host.event_create(DEV).unwrap();
            self.host.event_record(DEV, e, self.streams[from]).unwrap();
            self.host.stream_wait(DEV, self.streams[to], e).unwrap();
            self.host.event_destroy(DEV, e).unwrap();
        }
    }

    fn malloc(&mut self) {
        let size = any_size(&mut self.rng);
        let stream = self.rng.below(if self.waves { 2 } else { 6 }) as usize;
        let align = if self.rng.below(8) == 0 { 1 << self.rng.below(23) } else { 0 };
        if self.bytes + size > MAX_LIVE {
            return self.free();
        }
        let req = AllocRequest { size, align, stream: self.streams[stream], ..AllocRequest::default() };
        let ptr = match self.pool.malloc(&req) {
            Ok(ptr) => ptr,
            Err(e) => {
                assert_eq!(e.status, gpumem::base::Status::OutOfMemory, "{e}");
                self.refused += 1;
                return;
            }
        };
        assert_eq!(ptr % align.max(256), 0, "alignment {align}");
        let end = ptr + size.max(1);
        if let Some((&p, l)) = self.live.range(..end).next_back() {
            assert!(p + l.size <= ptr, "{ptr:#x}+{size} overlaps the live {p:#x}+{}", l.size);
        }
        let info = self.pool.info(ptr).unwrap();
        assert_eq!((info.base, info.requested), (ptr, size));
        assert!(info.usable >= size);
        assert!(self.ids.insert(info.id), "an allocation id came twice");
        let pattern = self.write(ptr, size, stream);
        self.live.insert(ptr, Live { size, stream, pattern, orphan: false, users: Vec::new(), id: info.id });
        self.bytes += size;
    }

    fn free(&mut self) {
        let Some(ptr) = self.pick() else { return };
        let block = self.live.remove(&ptr).unwrap();
        self.bytes -= block.size;
        assert_eq!(self.pool.info(ptr).unwrap().id, block.id);
        self.check(ptr, block.size, block.pattern, block.stream);
        let stock = self.pool.stats().stock;
        match self.rng.below(4) {
            // On another stream, which the caller has made wait for the last use.
            0 if block.users.is_empty() => {
                let other = self.rng.below(6) as usize;
                self.join(block.stream, other);
                self.pool.free(ptr, Some(self.streams[other])).unwrap();
            }
            1 if !block.orphan => self.pool.free(ptr, None).unwrap(),
            _ => self.pool.free(ptr, Some(self.streams[block.stream])).unwrap(),
        }
        // Only a fresh start puts memory in stock then.
        let stays = self.live.values().any(|l| l.stream == block.stream);
        self.fresh_starts += u64::from(stays && self.pool.stats().stock > stock);
    }

    fn use_elsewhere(&mut self) {
        let Some(ptr) = self.pick() else { return };
        let block = self.live[&ptr].clone();
        let other = self.rng.below(6) as usize;
        self.join(block.stream, other);
        self.pool.record_stream(ptr, self.streams[other]).unwrap();
        self.check(ptr, block.size, block.pattern, other);
        self.live.get_mut(&ptr).unwrap().users.push(other);
    }

    fn realloc(&mut self) {
        let Some(ptr) = self.pick() else { return };
        let block = self.live[&ptr].clone();
        let size = any_size(&mut self.rng);
        if !block.users.is_empty() || self.bytes + size > MAX_LIVE {
            return;
        }
        match self.pool.realloc(ptr, size, self.streams[block.stream]) {
            Ok(new) => {
                self.live.remove(&ptr);
                self.bytes = self.bytes - block.size + size;
                let id = self.pool.info(new).unwrap().id;
                // The copy is checked by its first word: the pattern's other words depend on the
                // size.
                self.check(new, block.size.min(size).min(8), block.pattern, block.stream);
                let pattern = self.write(new, size, block.stream);
                self.live
                    .insert(new, Live { size, stream: block.stream, pattern, orphan: false, users: Vec::new(), id });
            }
            Err(e) => assert_eq!(e.status, gpumem::base::Status::OutOfMemory, "{e}"),
        }
    }

    /// The stream dies with work pending; the next one may get its handle.
    fn replace_stream(&mut self) {
        let n = self.rng.below(5) as usize;
        let users: Vec<u64> = self.live.iter().filter(|(_, l)| l.users.contains(&n)).map(|(&p, _)| p).collect();
        if !users.is_empty() {
            return;
        }
        // A stream that goes on using the blocks waits for the dying one first.
        self.join(n, 5);
        self.host.stream_destroy(DEV, self.streams[n]).unwrap();
        for block in self.live.values_mut().filter(|l| l.stream == n) {
            block.stream = 5;
            block.orphan = true;
        }
        self.streams[n] = self.host.stream_create(DEV).unwrap();
    }

    /// A capture begins between two hits on one stream. What is allocated in it is used on any
    /// stream, as the graph may be launched anywhere: with nothing to order that after what the
    /// captured stream did before.
    fn capture(&mut self) {
        let n = self.rng.below(5) as usize;
        let s = self.streams[n];
        let size = any_size(&mut self.rng);
        let request = |size| AllocRequest { size, stream: s, ..AllocRequest::default() };
        if self.bytes + 5 * size > MAX_LIVE {
            return;
        }
        let Ok(warm) = self.pool.malloc(&request(size)) else { return };
        self.write(warm, size, n);
        self.pool.free(warm, Some(s)).unwrap();
        self.host.begin_capture(s).unwrap();
        let mut made = Vec::new();
        for i in 0..self.rng.below(6) {
            // The size that is in the stream's quick list, and others.
            let size = if i % 2 == 0 { size } else { 1 + self.rng.below(size) };
            let Ok(ptr) = self.pool.malloc(&request(size)) else { continue };
            if self.rng.below(3) == 0 {
                self.pool.free(ptr, Some(s)).unwrap();
            } else {
                made.push((ptr, size));
            }
        }
        assert!(self.host.end_capture(s).unwrap(), "the capture was lost");
        for (ptr, size) in made {
            let stream = self.rng.below(6) as usize;
            let pattern = self.write(ptr, size, stream);
            let id = self.pool.info(ptr).unwrap().id;
            self.live.insert(ptr, Live { size, stream, pattern, orphan: true, users: Vec::new(), id });
            self.bytes += size;
        }
    }

    fn step(&mut self) {
        self.ebbs = self.waves && self.bytes > if self.ebbs { MAX_LIVE / 5 } else { MAX_LIVE - 12 * PAGE };
        match self.rng.below(1000) {
            0..=399 if self.ebbs => self.free(),
            450..=749 if self.waves && !self.ebbs => self.malloc(),
            0..=444 => self.malloc(),
            445..=449 => self.capture(),
            450..=899 => self.free(),
            900..=939 => self.use_elsewhere(),
            940..=989 => self.realloc(),
            990..=993 => self.replace_stream(),
            994..=996 => {
                let keep = self.rng.below(200) * PAGE;
                // A trim on demand ends sharing, so there is none while streams may come to it.
                if self.keeps_up {
                    self.pool.trim_unused(keep).unwrap();
                } else {
                    self.pool.trim(keep).unwrap();
                }
            }
            997 => self.host.device_sync(DEV).unwrap(),
            _ => {
                let n = self.rng.below(6) as usize;
                self.host.stream_sync(DEV, self.streams[n]).unwrap();
            }
        }
    }

    fn finish(mut self) {
        while !self.live.is_empty() {
            self.free();
        }
        self.host.device_sync(DEV).unwrap();
        // The first marks what was freed since; the simulated device may take its time to pass the
        // mark.
        self.pool.trim(0).unwrap();
        self.host.device_sync(DEV).unwrap();
        self.pool.trim(0).unwrap();
        self.pool.validate().unwrap();
        let s = self.pool.stats();
        assert_eq!((s.mapped, s.live, s.requested, s.allocations), (0, 0, 0, 0), "{}", self.pool.dump());
        let m = self.host.mem_info(DEV).unwrap();
        assert_eq!(m.free, m.total, "physical memory leaked");
        assert_eq!(self.host.take_reports(), vec![]);
        println!(
            "{} stitches, {} extents moved, {} growths, {} requests refused, {} fresh starts",
            s.stitches, s.moved, s.growths, self.refused, self.fresh_starts
        );
        // Hardly ever where only empty heaps do; what a shared heap has besides is not known here.
        assert!(!self.waves || self.fresh_starts > 2, "{} fresh starts beside live blocks", self.fresh_starts);
        assert!(s.stitches > 20, "the run must have stitched to mean anything");
        assert!(self.waves || self.pool.has_shared_heap(), "the run never shared a heap");
    }
}

fn run(seed: u64, steps: u64, wait: bool, watch: bool) {
    play(Model::new(seed, wait, watch), seed, steps);
}

fn play(mut m: Model, seed: u64, steps: u64) {
    for step in 0..steps {
        // In the middle the device keeps up: only then do streams come to share a heap, and the
        // less of it there is, the more seeds end before they do.
        m.keeps_up = (steps / 5..steps / 5 * 4).contains(&step);
        m.host.keep_up(m.keeps_up);
        m.step();
        if let Err(e) = m.pool.validate() {
            panic!("seed {seed}, step {step}: {e}\n{}", m.pool.dump());
        }
        let reports = m.host.take_reports();
        assert!(reports.is_empty(), "seed {seed}, step {step}: {reports:?}");
        let s = m.pool.stats();
        let (count, bytes) = (m.live.len() as u64, m.live.values().map(|l| l.size).sum::<u64>());
        assert_eq!((s.allocations, s.requested), (count, bytes), "seed {seed}, step {step}");
        assert!(s.mapped <= 200 * PAGE, "the limit holds");
    }
    m.finish();
}

#[test]
fn random_operations_with_settled_reuse() {
    run(1, rounds(12_000), false, true);
    run(2, rounds(12_000), false, true);
}

#[test]
fn random_operations_with_waits_on_the_device() {
    run(3, rounds(12_000), true, true);
}

#[test]
fn random_operations_where_the_driver_is_asked_which_stream_it_is() {
    run(4, rounds(8000), false, false);
    run(5, rounds(8000), true, false);
}

#[test]
fn random_operations_in_waves() {
    for seed in [6, 7] {
        play(Model { waves: true, ..Model::new(seed, seed == 6, true) }, seed, rounds(12_000));
    }
}

/// A tight pool may exchange coarse extents for finer ones.
#[test]
fn random_operations_in_a_tight_pool() {
    for seed in [8, 9] {
        let tight = PoolOptions { wait: seed == 8, finer: true, earned_permille: 0, ..PoolOptions::default() };
        play(Model::with(seed, tight), seed, rounds(12_000));
    }
}

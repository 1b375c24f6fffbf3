//! Several devices: peers at every kind of map, copies across, limits, reservations over all of
//! them, and a model of two pools whose memory is used and freed on streams of both.
//!
//! Beside `tests/pool/behaviour/devices.rs` (flags and growth) and `streams_across.rs` (each call
//! that takes a stream).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::arena::capture::CaptureOptions;
use gpumem::base::size::{GIB, MIB};
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::config::Limit;
use gpumem::context::{Config, Context, Request, What};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{CaptureMode, Driver};
use gpumem::observe::{Kind, Recording};
use gpumem::pool::AllocFlags;
use gpumem::tier::evict::Goal;
use gpumem::tier::{Amount, Reservation, SpaceId, Strategy, Tier, Wait};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Few bytes are touched, as memory of the host device that is never written costs nothing.
const STRIDE: u64 = MIB;

struct Rig {
    host: Arc<HostDriver>,
    ctx: Context,
    /// One of each device.
    streams: Vec<StreamHandle>,
}

impl Rig {
    fn new(options: HostOptions, config: Config) -> Rig {
        let devices = options.devices;
        let host = HostDriver::new(options).unwrap();
        let ctx = Context::new(host.clone() as Arc<dyn Driver>, config).unwrap();
        let streams = (0..devices).map(|d| host.stream_create(DeviceId(d)).unwrap()).collect();
        Rig { host, ctx, streams }
    }

    fn devices(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.streams.len() as u32).map(DeviceId)
    }

    fn stream(&self, d: DeviceId) -> StreamHandle {
        self.streams[d.0 as usize]
    }

    fn malloc(&self, d: DeviceId, size: u64, flags: AllocFlags) -> u64 {
        self.ctx.malloc(&Request { size, stream: self.stream(d), flags, ..Request::default() }).unwrap()
    }

    fn sync(&self) {
        self.devices().for_each(|d| self.host.device_sync(d).unwrap());
    }

    /// A kernel of `user` writes, and one of `reader` compares.
    fn exchange(&self, user: DeviceId, reader: DeviceId, p: u64, size: u64) {
        let id = p ^ u64::from(user.0);
        self.host.launch(user, self.stream(user), Kernel::write_pattern("write", p..p + size, id, STRIDE)).unwrap();
        self.host.device_sync(user).unwrap();
        self.host.launch(reader, self.stream(reader), Kernel::check_pattern("check", p..p + size, id, STRIDE)).unwrap();
        self.host.device_sync(reader).unwrap();
    }

    /// Every device works on the memory; those that may not are caught at it, all others are not.
    #[track_caller]
    fn is_reached(&self, what: &str, owner: DeviceId, p: u64, size: u64, peers: bool) {
        self.sync();
        for user in self.devices() {
            for (user, reader) in [(user, owner), (owner, user)] {
                self.exchange(user, reader, p, size);
                let reports = self.host.take_reports();
                if peers || user == reader {
                    assert!(reports.is_empty(), "{what} of device {owner}, {user} to {reader}: {reports:#?}");
                } else {
                    let text = format!("{reports:?}");
                    assert!(
                        text.contains("is not accessible from device"),
                        "{what} of device {owner}, {user} to {reader}: {text}"
                    );
                }
            }
        }
    }

    fn finish(self) {
        self.sync();
        self.ctx.validate().unwrap();
        for _ in 0..2 {
            self.ctx.trim(0).unwrap();
            self.sync();
        }
        assert!(self.host.reports().is_empty(), "{:#?}", self.host.reports());
        for d in self.devices() {
            let (stats, memory) = (self.ctx.stats(d).unwrap(), self.host.mem_info(d).unwrap());
            assert_eq!((stats.mapped, stats.live, stats.allocations), (0, 0, 0), "device {d}");
            assert_eq!(memory.free, memory.total, "device {d}: physical memory leaked");
        }
    }
}

fn checking(devices: u32, peers: bool) -> HostOptions {
    HostOptions { devices, peers, check: true, bytes_per_device: 2 * GIB, ..HostOptions::default() }
}

/// Devices, with peers and without.
const MACHINES: [(u32, bool); 5] = [(2, true), (2, false), (3, true), (5, false), (8, true)];

#[test]
fn stitched_memory_is_reached_by_those_that_may() {
    for (devices, peers) in MACHINES {
        let rig = Rig::new(checking(devices, peers), Config { limit: Limit::Bytes(512 * MIB), ..Config::default() });
        for owner in rig.devices() {
            let blocks: Vec<u64> = (0..15).map(|_| rig.malloc(owner, 32 * MIB, AllocFlags(0))).collect();
            blocks.iter().skip(1).step_by(2).for_each(|&p| rig.ctx.free(p).unwrap());
            rig.sync();
            let before = rig.ctx.stats(owner).unwrap().stitches;
            let big = rig.malloc(owner, 128 * MIB, AllocFlags(0));
            assert!(rig.ctx.stats(owner).unwrap().stitches > before, "only stitching can meet it");
            rig.is_reached("stitched memory", owner, big, 128 * MIB, peers);
            for &p in blocks.iter().step_by(2) {
                rig.is_reached("a neighbour", owner, p, 32 * MIB, peers);
                rig.ctx.free(p).unwrap();
            }
            rig.ctx.free(big).unwrap();
        }
        rig.finish();
    }
}

#[test]
fn memory_that_grows_in_place_is_reached_by_those_that_may() {
    for (devices, peers) in MACHINES {
        let rig = Rig::new(checking(devices, peers), Config::default());
        for owner in rig.devices() {
            let mut p = rig.malloc(owner, 3 * MIB, AllocFlags(0));
            for size in [3 * MIB, 20 * MIB, 90 * MIB, 300 * MIB] {
                p = rig.ctx.realloc(p, size, rig.stream(owner)).unwrap();
                rig.is_reached("grown memory", owner, p, size, peers);
            }
            rig.ctx.free_async(p, rig.stream(owner)).unwrap();
        }
        rig.finish();
    }
}

#[test]
fn restored_memory_is_reached_by_those_that_may() {
    for (devices, peers) in MACHINES {
        let rig = Rig::new(checking(devices, peers), Config::default());
        for owner in rig.devices() {
            let p = rig.malloc(owner, 12 * MIB, AllocFlags::EVICTABLE);
            for _ in 0..2 {
                rig.is_reached("evictable memory", owner, p, 12 * MIB, peers);
                rig.exchange(owner, owner, p, 12 * MIB);
                assert_eq!(rig.ctx.shift(What::One(p), Goal::Lower, None, None).unwrap().items, 1);
                assert_eq!(rig.ctx.shift(What::One(p), Goal::Device, None, None).unwrap().items, 1);
                // The contents came back with it, for the others too.
                for reader in rig.devices().filter(|&d| peers || d == owner) {
                    let k = Kernel::check_pattern("restored", p..p + 12 * MIB, p ^ u64::from(owner.0), STRIDE);
                    rig.host.launch(reader, rig.stream(reader), k).unwrap();
                }
                rig.sync();
                assert!(rig.host.reports().is_empty(), "{:#?}", rig.host.reports());
                rig.is_reached("restored memory", owner, p, 12 * MIB, peers);
            }
            rig.ctx.free(p).unwrap();
        }
        rig.finish();
    }
}

#[test]
fn memory_of_a_capture_is_reached_by_those_that_may() {
    for (devices, peers) in MACHINES {
        let rig = Rig::new(checking(devices, peers), Config::default());
        for owner in rig.devices() {
            let s = rig.stream(owner);
            let capture = rig.ctx.capture_begin(s, CaptureOptions::default()).unwrap();
            rig.host.capture_begin(owner, s, CaptureMode::Global).unwrap();
            let made: Vec<u64> = [3, 40, 100].map(|m| rig.malloc(owner, m * MIB, AllocFlags(0))).into();
            for (&p, m) in made.iter().zip([3, 40, 100]) {
                rig.host.launch(owner, s, Kernel::write_pattern("in the graph", p..p + m * MIB, p, STRIDE)).unwrap();
            }
            let graph = rig.host.capture_end(owner, s).unwrap();
            rig.ctx.capture_end(&capture).unwrap();
            for _ in 0..2 {
                rig.host.graph_launch(owner, graph, s).unwrap();
                rig.host.device_sync(owner).unwrap();
                for (&p, m) in made.iter().zip([3, 40, 100]) {
                    for reader in rig.devices().filter(|&d| peers || d == owner) {
                        let k = Kernel::check_pattern("the graph's work", p..p + m * MIB, p, STRIDE);
                        rig.host.launch(reader, rig.stream(reader), k).unwrap();
                    }
                    rig.is_reached("memory of a capture", owner, p, m * MIB, peers);
                }
            }
            rig.host.graph_destroy(owner, graph).unwrap();
            rig.ctx.capture_release(&capture).unwrap();
            made.iter().for_each(|&p| rig.ctx.free(p).unwrap());
        }
        rig.finish();
    }
}

/// Peers are not needed for copies: round all devices, with the source freed behind each copy and
/// its memory taken by others.
#[test]
fn copies_go_round_all_devices() {
    for (devices, peers) in [(2, true), (2, false), (8, true), (8, false)] {
        for seed in 0..4 {
            let options =
                HostOptions { devices, peers, bytes_per_device: 2 * GIB, ..HostOptions::simulation(100 * seed + 7) };
            let rig = Rig::new(options, Config::default());
            let size = 9 * MIB + 4096 * seed;
            let d0 = DeviceId(0);
            let mut p = rig.malloc(d0, size, AllocFlags(0));
            rig.host.launch(d0, rig.stream(d0), Kernel::write_pattern("first", p..p + size, 5, STRIDE)).unwrap();
            for turn in 1..=2 * devices {
                let (from, to) = (DeviceId((turn - 1) % devices), DeviceId(turn % devices));
                let q = rig.malloc(to, size, AllocFlags(0));
                let done = rig.host.event_create(from).unwrap();
                rig.host.event_record(from, done, rig.stream(from)).unwrap();
                rig.host.stream_wait(to, rig.stream(to), done).unwrap();
                rig.host.event_destroy(from, done).unwrap();
                rig.host.copy_async(to, q, p, size, rig.stream(to)).unwrap();
                // On a stream of the device that it was copied to, which is not the memory's.
                rig.ctx.free_async(p, rig.stream(to)).unwrap();
                let other = rig.malloc(from, size, AllocFlags(0));
                let k = Kernel::write_pattern("a later owner", other..other + size, 1 + u64::from(turn), STRIDE);
                rig.host.launch(from, rig.stream(from), k).unwrap();
                rig.ctx.free_async(other, rig.stream(from)).unwrap();
                p = q;
            }
            let last = DeviceId(2 * devices % devices);
            rig.host.launch(last, rig.stream(last), Kernel::check_pattern("last", p..p + size, 5, STRIDE)).unwrap();
            rig.ctx.free_async(p, rig.stream(last)).unwrap();
            rig.finish();
        }
    }
}

/// What one device is short of no other has to give, and what is set for one holds for no other.
#[test]
fn each_device_has_its_own_limit() {
    for devices in [2, 3, 8] {
        let rig = Rig::new(checking(devices, true), Config { limit: Limit::Bytes(GIB), ..Config::default() });
        let limit = |d: DeviceId| 64 * MIB * u64::from(d.0 + 1);
        for d in rig.devices() {
            rig.ctx.set_limit(d, limit(d)).unwrap();
        }
        let mut all = Vec::new();
        for d in rig.devices() {
            for _ in 0..=d.0 {
                all.push((d, rig.malloc(d, 64 * MIB, AllocFlags(0))));
            }
            let one_more = Request { size: 2 * MIB, stream: rig.stream(d), ..Request::default() };
            let e = rig.ctx.malloc(&one_more).unwrap_err();
            assert_eq!(e.status, Status::OutOfMemory, "device {d}: {e}");
            assert_eq!(rig.ctx.stats(d).unwrap().mapped, limit(d), "device {d}");
        }
        // Room on the last device is none on the others.
        let last = DeviceId(devices - 1);
        let k = all.iter().position(|a| a.0 == last).unwrap();
        rig.ctx.free(all.swap_remove(k).1).unwrap();
        for d in rig.devices() {
            let again = rig.ctx.malloc(&Request { size: 64 * MIB, stream: rig.stream(d), ..Request::default() });
            assert_eq!(again.is_ok(), d == last, "device {d}: {again:?}");
            all.extend(again.ok().map(|p| (d, p)));
        }
        // A limit that is raised on one device lets that one grow, and no other.
        rig.ctx.set_limit(DeviceId(0), 4 * limit(DeviceId(0))).unwrap();
        for d in rig.devices() {
            let more = rig.ctx.malloc(&Request { size: 64 * MIB, stream: rig.stream(d), ..Request::default() });
            assert_eq!(more.is_ok(), d.0 == 0, "device {d}: {more:?}");
            all.extend(more.ok().map(|p| (d, p)));
        }
        all.into_iter().for_each(|(_, p)| rig.ctx.free(p).unwrap());
        rig.finish();
    }
}

fn reserve(rig: &Rig, strategy: Strategy, bytes: u64, wait: Wait) -> gpumem::base::Result<Reservation> {
    let request = gpumem::tier::Request::new(strategy, Amount::Exact(bytes)).wait(wait);
    rig.ctx.tiers().unwrap().manager().reserve(request)
}

const fn gpu(d: u32) -> SpaceId {
    SpaceId::new(Tier::Gpu, d)
}

/// Any device will do: the one with the most room is taken, and it is one device's promise, drawn
/// from on that device only.
#[test]
fn a_reservation_of_any_device_goes_where_the_most_room_is() {
    for devices in [2, 4, 8] {
        let rig = Rig::new(checking(devices, true), Config { limit: Limit::Bytes(GIB), ..Config::default() });
        // Device d has (d + 1) * 32 MiB in use, so the first has the most room.
        let live: Vec<u64> =
            rig.devices().map(|d| rig.malloc(d, 32 * MIB * u64::from(d.0 + 1), AllocFlags(0))).collect();
        let any = Strategy::Tier(Tier::Gpu);
        let mut held = Vec::new();
        for d in 0..devices {
            // As much as makes this device the one with the least room.
            let r = reserve(&rig, any.clone(), 400 * MIB, Wait::No).unwrap();
            assert_eq!(r.space(), gpu(d), "{devices} devices");
            held.push(r);
        }
        // No device has as much any more, all together have: a promise is one device's.
        let e = reserve(&rig, any.clone(), 600 * MIB, Wait::No).unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory, "{e}");
        for (d, r) in rig.devices().zip(&held) {
            rig.ctx.attach_stream(r, rig.stream(d)).unwrap();
            let p = rig.malloc(d, 100 * MIB, AllocFlags(0));
            assert_eq!(r.drawn(), 100 * MIB, "device {d}");
            // On another device's stream nothing is drawn from it.
            let next = DeviceId((d.0 + 1) % devices);
            let drawn = held[next.0 as usize].drawn();
            let q = rig.malloc(next, 10 * MIB, AllocFlags(0));
            assert_eq!(r.drawn(), 100 * MIB, "device {d}");
            // Freed by a stream of yet another device, the bytes go back to where they came from.
            let far = rig.stream(DeviceId((d.0 + devices - 1) % devices));
            rig.ctx.free_async(p, far).unwrap();
            rig.ctx.free_async(q, far).unwrap();
            assert_eq!((r.drawn(), held[next.0 as usize].drawn()), (0, drawn), "device {d}");
        }
        for r in &held {
            assert_eq!(r.release().unwrap().drawn, 0);
        }
        for (d, p) in rig.devices().zip(live) {
            let usage = rig.ctx.tiers().unwrap().manager().usage(gpu(d.0)).unwrap();
            assert_eq!((usage.used, usage.promised), (32 * MIB * u64::from(d.0 + 1), 0), "device {d}");
            rig.ctx.free(p).unwrap();
        }
        rig.ctx.tiers().unwrap().manager().validate().unwrap();
        rig.finish();
    }
}

/// Who waits for any device is served by the first that has room, also when a stream of another
/// device frees.
#[test]
fn a_wait_for_any_device_ends_when_one_has_room() {
    for freed in 0..3 {
        let rig = Rig::new(checking(3, true), Config { limit: Limit::Bytes(256 * MIB), ..Config::default() });
        rig.ctx.tiers().unwrap();
        let live: Vec<u64> = rig.devices().map(|d| rig.malloc(d, 200 * MIB, AllocFlags(0))).collect();
        let wait = Wait::For(Duration::from_secs(100));
        let got = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| reserve(&rig, Strategy::Tier(Tier::Gpu), 150 * MIB, wait).unwrap());
            while rig.ctx.tiers().unwrap().manager().waiters() == 0 {
                std::thread::yield_now();
            }
            let far = rig.stream(DeviceId((freed + 1) % 3));
            rig.ctx.free_async(live[freed as usize], far).unwrap();
            waiter.join().unwrap()
        });
        assert_eq!(got.space(), gpu(freed));
        got.release().unwrap();
        for d in rig.devices().filter(|d| d.0 != freed) {
            rig.ctx.free(live[d.0 as usize]).unwrap();
        }
        rig.finish();
    }
}

// ---- the model ----------------------------------------------------------------------------------

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// What the model knows of a live block.
#[derive(Clone)]
struct Live {
    size: u64,
    device: DeviceId,
    /// The stream, of any device, that has been told of all its use.
    stream: usize,
    pattern: u64,
    /// The stream that it was allocated on is also `stream`, so a free without a stream is right.
    at_home: bool,
    /// Others that used it and were recorded.
    recorded: bool,
}

struct Model {
    rig: Rig,
    /// Two of each device, and each device's legacy stream.
    streams: Vec<(DeviceId, StreamHandle)>,
    live: BTreeMap<u64, Live>,
    rng: Rng,
    patterns: u64,
    across: u64,
}

/// So close together that large requests must stitch.
const MODEL_LIMIT: u64 = 256 * MIB;
const MODEL_LIVE: u64 = 232 * MIB;

impl Model {
    fn new(seed: u64) -> Model {
        let options = HostOptions { devices: 2, bytes_per_device: GIB, ..HostOptions::simulation(seed) };
        let config = Config { limit: Limit::Bytes(MODEL_LIMIT), va_size: 64 * GIB, ..Config::default() };
        let rig = Rig::new(options, config);
        let mut streams = Vec::new();
        for d in rig.devices() {
            streams.push((d, rig.stream(d)));
            streams.push((d, rig.host.stream_create(d).unwrap()));
            streams.push((d, StreamHandle::LEGACY));
        }
        Model { rig, streams, live: BTreeMap::new(), rng: Rng(seed), patterns: 0, across: 0 }
    }

    fn bytes_on(&self, d: DeviceId) -> u64 {
        self.live.values().filter(|l| l.device == d).map(|l| l.size).sum()
    }

    fn any_stream(&mut self) -> usize {
        self.rng.below(self.streams.len() as u64) as usize
    }

    fn pick(&mut self) -> Option<u64> {
        let n = (!self.live.is_empty()).then(|| self.rng.below(self.live.len() as u64) as usize)?;
        self.live.keys().nth(n).copied()
    }

    /// The handle of a stream, for a call that has no device: a default stream is the current
    /// device's.
    fn named(&mut self, n: usize) -> StreamHandle {
        let (d, s) = self.streams[n];
        let current = if s == StreamHandle::LEGACY { d } else { DeviceId(self.rng.below(2) as u32) };
        self.rig.host.set_current_device(current).unwrap();
        s
    }

    fn join(&self, from: usize, to: usize) {
        if from == to {
            return;
        }
        let ((df, sf), (dt, st)) = (self.streams[from], self.streams[to]);
        let e = self.rig.host.event_create(df).unwrap();
        self.rig.host.event_record(df, e, sf).unwrap();
        self.rig.host.stream_wait(dt, st, e).unwrap();
        self.rig.host.event_destroy(df, e).unwrap();
    }

    fn stride(size: u64) -> u64 {
        (size / 4).max(8)
    }

    fn write(&mut self, p: u64, size: u64, stream: usize) -> u64 {
        self.patterns += 1;
        let (d, s) = self.streams[stream];
        let k = Kernel::write_pattern(format!("write {p:#x}"), p..p + size, self.patterns, Self::stride(size));
        self.rig.host.launch(d, s, k).unwrap();
        self.patterns
    }

    fn check(&self, p: u64, size: u64, pattern: u64, stream: usize) {
        let (d, s) = self.streams[stream];
        let k = Kernel::check_pattern(format!("check {p:#x}"), p..p + size, pattern, Self::stride(size));
        self.rig.host.launch(d, s, k).unwrap();
    }

    fn size(&mut self) -> u64 {
        let top = self.rng.below(25);
        (1 << top) + self.rng.below(1 << top)
    }

    fn malloc(&mut self) {
        let (size, stream) = (self.size(), self.any_stream());
        let (device, s) = self.streams[stream];
        if self.bytes_on(device) + size > MODEL_LIVE {
            return self.free();
        }
        let request = Request { size, stream: s, device: Some(device), ..Request::default() };
        let p = match self.rig.ctx.malloc(&request) {
            Ok(p) => p,
            Err(e) => return assert_eq!(e.status, Status::OutOfMemory, "{e}"),
        };
        if let Some((&q, l)) = self.live.range(..p + size).next_back() {
            assert!(q + l.size <= p, "{p:#x}+{size} overlaps the live {q:#x}+{}", l.size);
        }
        assert_eq!(self.rig.ctx.info(p).unwrap().device, device);
        let pattern = self.write(p, size, stream);
        self.live.insert(p, Live { size, device, stream, pattern, at_home: true, recorded: false });
    }

    fn free(&mut self) {
        let Some(p) = self.pick() else { return };
        let block = self.live.remove(&p).unwrap();
        self.check(p, block.size, block.pattern, block.stream);
        match self.rng.below(3) {
            0 if block.at_home => self.rig.ctx.free(p).unwrap(),
            // On another stream, of either device.
            1 if !block.recorded => {
                let to = self.any_stream();
                self.join(block.stream, to);
                self.across += u64::from(self.streams[to].0 != block.device);
                let s = self.named(to);
                self.rig.ctx.free_async(p, s).unwrap();
            }
            _ => {
                self.across += u64::from(self.streams[block.stream].0 != block.device);
                let s = self.named(block.stream);
                self.rig.ctx.free_async(p, s).unwrap();
            }
        }
    }

    /// Another stream, of either device, has it from now on.
    fn pass_on(&mut self) {
        let Some(p) = self.pick() else { return };
        let to = self.any_stream();
        let block = self.live[&p].clone();
        if block.recorded || to == block.stream {
            return;
        }
        self.join(block.stream, to);
        self.check(p, block.size, block.pattern, to);
        let pattern = self.write(p, block.size, to);
        self.live.insert(p, Live { stream: to, pattern, at_home: false, ..block });
    }

    /// Another stream reads it, and is announced.
    fn record(&mut self) {
        let Some(p) = self.pick() else { return };
        let to = self.any_stream();
        let block = self.live[&p].clone();
        self.join(block.stream, to);
        let s = self.named(to);
        self.rig.ctx.record_stream(p, s).unwrap();
        self.check(p, block.size, block.pattern, to);
        self.live.insert(p, Live { recorded: true, ..block });
    }

    fn realloc(&mut self) {
        let Some(p) = self.pick() else { return };
        let (block, size) = (self.live[&p].clone(), self.size());
        if block.recorded || self.bytes_on(block.device) + size > MODEL_LIVE {
            return;
        }
        let s = self.named(block.stream);
        match self.rig.ctx.realloc(p, size, s) {
            Ok(q) => {
                self.live.remove(&p);
                assert_eq!(self.rig.ctx.info(q).unwrap().device, block.device);
                self.check(q, block.size.min(size).min(8), block.pattern, block.stream);
                let pattern = self.write(q, size, block.stream);
                self.live.insert(q, Live { size, pattern, at_home: false, ..block });
            }
            Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{e}"),
        }
    }

    /// The contents of a block on either device, in a new one of the stream's device.
    fn copy(&mut self) {
        let Some(p) = self.pick() else { return };
        let (block, to) = (self.live[&p].clone(), self.any_stream());
        let (device, s) = self.streams[to];
        if self.bytes_on(device) + block.size > MODEL_LIVE {
            return;
        }
        let request = Request { size: block.size, stream: s, device: Some(device), ..Request::default() };
        let Ok(q) = self.rig.ctx.malloc(&request) else { return };
        self.join(block.stream, to);
        self.rig.host.copy_async(device, q, p, block.size, s).unwrap();
        self.join(to, block.stream);
        self.live.insert(q, Live { device, stream: to, at_home: true, recorded: false, ..block });
    }

    fn step(&mut self) {
        match self.rng.below(1000) {
            0..=419 => self.malloc(),
            420..=819 => self.free(),
            820..=879 => self.pass_on(),
            880..=919 => self.record(),
            920..=959 => self.realloc(),
            960..=984 => self.copy(),
            985..=989 => {
                let (d, keep) = (DeviceId(self.rng.below(2) as u32), self.rng.below(MODEL_LIMIT));
                self.rig.ctx.trim_device(d, keep).unwrap();
            }
            n => self.rig.host.device_sync(DeviceId((n % 2) as u32)).unwrap(),
        }
    }
}

#[test]
fn a_model_of_two_devices() {
    let mut stitches = [0, 0];
    for (seed, steps) in [(1, 12_000), (2, 6_000), (3, 6_000)] {
        let mut m = Model::new(seed);
        for step in 0..steps {
            m.step();
            let reports = m.rig.host.take_reports();
            assert!(reports.is_empty(), "seed {seed}, step {step}: {reports:?}");
            if step % 16 == 0 {
                m.rig.ctx.validate().unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e}"));
            }
            for d in [0, 1].map(DeviceId) {
                let s = m.rig.ctx.stats(d).unwrap();
                let blocks = m.live.values().filter(|l| l.device == d);
                assert_eq!(
                    (s.allocations, s.requested),
                    (blocks.count() as u64, m.bytes_on(d)),
                    "seed {seed}, step {step}, device {d}"
                );
                assert!(s.mapped <= MODEL_LIMIT, "seed {seed}, step {step}: device {d} has {} bytes mapped", s.mapped);
            }
        }
        assert!(m.across > steps / 20, "{} frees on a stream of another device", m.across);
        for (d, all) in stitches.iter_mut().enumerate() {
            *all += m.rig.ctx.stats(DeviceId(d as u32)).unwrap().stitches;
        }
        while !m.live.is_empty() {
            m.free();
        }
        m.rig.finish();
    }
    assert!(stitches.iter().all(|&n| n > 5), "{stitches:?} stitches: the runs must have done that to mean anything");
}

/// Each event names the device whose memory it is about, whichever is the current one, and whether
/// a request is a hit or not.
#[test]
fn events_name_their_device() {
    let rig = Rig::new(HostOptions { devices: 2, ..HostOptions::default() }, Config::default());
    let (ctx, other) = (&rig.ctx, DeviceId(1));
    let dir = tempfile::tempdir().unwrap();
    let file = ctx.record_start(&dir.path().join("a.gmrec"), None).unwrap();
    let on = |flags| ctx.malloc(&Request { size: 3 * MIB, device: Some(other), flags, ..Request::default() }).unwrap();
    for _ in 0..3 {
        let p = on(AllocFlags::default());
        ctx.free(p).unwrap();
        ctx.device_sync().unwrap();
    }
    let exported = on(AllocFlags::EXPORTABLE);
    let imported = ctx.import_fd(other, &ctx.export_fd(exported).unwrap(), 3 * MIB).unwrap();
    let resized = rig.malloc(other, 3 * MIB, AllocFlags::default());
    let resized = ctx.realloc(resized, 64 * MIB, rig.stream(other)).unwrap();
    let resized = ctx.realloc(resized, 63 * MIB, rig.stream(other)).unwrap();
    ctx.realloc(resized, 1 << 50, rig.stream(DeviceId(0))).unwrap_err();
    let moved = on(AllocFlags::EVICTABLE);
    ctx.shift(What::One(moved), Goal::Lower, None, None).unwrap();
    ctx.shift(What::One(moved), Goal::Device, None, None).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    let [promoted, kept] = [on(AllocFlags::default()), on(AllocFlags::default())];
    ctx.arena_promote(promoted).unwrap();
    ctx.arena_exit(&arena, &[kept]).unwrap();
    let owned = on(AllocFlags::default());
    assert!(ctx.free_id(owned, ctx.info(owned).unwrap().id, None).unwrap());
    let capture = ctx.capture_begin(rig.stream(other), CaptureOptions::default()).unwrap();
    rig.malloc(other, 3 * MIB, AllocFlags::default());
    ctx.capture_abort(&capture).unwrap();
    [exported, imported, resized, moved, promoted, kept].iter().for_each(|&p| ctx.free(p).unwrap());
    rig.sync();
    ctx.trim_device(other, 0).unwrap();
    ctx.record_stop().unwrap();
    let recording = Recording::open(&file).unwrap();
    let of_no_device = |k| matches!(k, Kind::ArenaEnter | Kind::ArenaExit);
    let mut events = recording.events.iter().map(|e| e.event);
    assert_eq!(events.find(|e| e.device != 1 && !of_no_device(e.kind)), None);
    let count = |kind| recording.events.iter().filter(|e| e.event.kind == kind).count();
    assert_eq!([Kind::Evict, Kind::Restore, Kind::Move, Kind::OutOfMemory].map(count), [1, 1, 2, 1]);
    assert!(count(Kind::Malloc) >= 7 && count(Kind::Growth) >= 1 && count(Kind::Free) >= 11);
    assert!([Kind::Create, Kind::Release, Kind::Map, Kind::Unmap].map(count).iter().all(|&n| n > 0));
}

/// As above, where the driver's own allocator has the memory.
#[test]
fn events_name_their_device_without_a_pool() {
    let rig =
        Rig::new(HostOptions { devices: 2, ..HostOptions::default() }, Config { pool: false, ..Config::default() });
    let (ctx, other) = (&rig.ctx, DeviceId(1));
    let dir = tempfile::tempdir().unwrap();
    let file = ctx.record_start(&dir.path().join("a.gmrec"), None).unwrap();
    let [freed, resized, owned] = [(); 3].map(|()| rig.malloc(other, 3 * MIB, AllocFlags::default()));
    ctx.free(freed).unwrap();
    ctx.free_async(ctx.realloc(resized, MIB, rig.stream(DeviceId(0))).unwrap(), rig.stream(DeviceId(0))).unwrap();
    assert!(ctx.free_id(owned, ctx.info(owned).unwrap().id, None).unwrap());
    ctx.record_stop().unwrap();
    let events: Vec<_> =
        Recording::open(&file).unwrap().events.iter().map(|e| (e.event.kind, e.event.device)).collect();
    let count = |kind| events.iter().filter(|e| **e == (kind, 1)).count();
    assert_eq!(([Kind::Malloc, Kind::Free].map(count), events.len()), ([4, 4], 8), "{events:?}");
}

//! Default streams and several devices: for every call that takes a stream, which stream a handle
//! names, and that memory of one device which is used on a stream of another is never handed out
//! too early.
//!
//! The host device runs its streams late and in surprising orders and checks every access, so a
//! call that orders on the wrong stream is a race in some of the seeds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::arena::DebugMode;
use gpumem::base::{size::MIB, DeviceId, Result, Status, StreamHandle};
use gpumem::context::{Config, Context, Request, What};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{CaptureMode, Driver};
use gpumem::pool::AllocFlags;
use gpumem::tier::evict::Goal;
use std::sync::Arc;
use test_support::rounds;

const D0: DeviceId = DeviceId(0);
const D1: DeviceId = DeviceId(1);
fn seeds() -> u64 {
    rounds(8)
}
const BYTES: u64 = 8 * MIB;
/// Bytes between the words of patterns.
const STRIDE: u64 = 64 << 10;

struct Rig {
    host: Arc<HostDriver>,
    ctx: Context,
    /// A stream of device 1.
    far: StreamHandle,
}

impl Rig {
    fn new(seed: u64, config: Config) -> Rig {
        let options = HostOptions { devices: 2, bytes_per_device: 1 << 30, ..HostOptions::simulation(seed) };
        let host = HostDriver::new(options).unwrap();
        let ctx = Context::new(host.clone() as Arc<dyn Driver>, config).unwrap();
        let far = host.stream_create(D1).unwrap();
        Rig { host, ctx, far }
    }

    fn malloc(&self, device: DeviceId, stream: StreamHandle, size: u64, flags: u32) -> u64 {
        let flags = AllocFlags(flags);
        self.ctx.malloc(&Request { size, device: Some(device), stream, flags, ..Request::default() }).unwrap()
    }

    fn write(&self, label: &'static str, dev: DeviceId, s: StreamHandle, p: u64) {
        self.host.launch(dev, s, Kernel::write_pattern(label, p..p + BYTES, 1, STRIDE)).unwrap();
    }

    /// All there is on device 1, in pieces, so that what was freed too early is among it; each is
    /// written to.
    fn take_all(&self, s: StreamHandle) {
        for _ in 0..3 {
            let q = self.malloc(D1, s, BYTES, 0);
            self.write("a later owner", D1, s, q);
        }
    }

    fn finish(&self, what: &str, seed: u64) {
        self.host.device_sync(D0).unwrap();
        self.host.device_sync(D1).unwrap();
        let reports = self.host.take_reports();
        assert!(reports.is_empty(), "{what}, seed {seed}: {}", reports[0]);
        self.ctx.validate().unwrap();
    }
}

/// Ends the use of memory of device 1 that `stream`, of device 0 by the rule, was given to use.
type End = fn(&Rig, u64, StreamHandle) -> Result<()>;

/// Every call that takes a stream beside memory.
const ENDS: [(&str, u32, End); 9] = [
    ("free_async", 0, |rig, p, s| rig.ctx.free_async(p, s)),
    ("free_async of memory of its own", AllocFlags::SINGLE_HANDLE.0, |rig, p, s| rig.ctx.free_async(p, s)),
    ("free_id_async", 0, |rig, p, s| {
        let id = rig.ctx.info(p)?.id;
        rig.ctx.free_id(p, id, Some(s)).map(|freed| assert!(freed))
    }),
    ("realloc_async", 0, |rig, p, s| {
        let q = rig.ctx.realloc(p, 2 * BYTES, s)?;
        rig.host.launch(D0, s, Kernel::check_pattern("the old contents", q..q + BYTES, 1, STRIDE))?;
        rig.write("the new size", D0, s, q + BYTES);
        rig.ctx.free_async(q, s)
    }),
    ("realloc_async to less", 0, |rig, p, s| {
        let q = rig.ctx.realloc(p, BYTES / 2, s)?;
        rig.ctx.free_async(q, s)
    }),
    ("record_stream", 0, |rig, p, s| {
        rig.ctx.record_stream(p, s)?;
        rig.ctx.free(p)
    }),
    ("record_stream before the use", 0, |rig, p, s| {
        rig.ctx.record_stream(p, s)?;
        rig.write("a later use", D0, s, p);
        rig.ctx.free_async(p, rig.far)
    }),
    ("record_stream of memory of its own", AllocFlags::SINGLE_HANDLE.0, |rig, p, s| {
        rig.ctx.record_stream(p, s)?;
        rig.ctx.free(p)
    }),
    ("unhold, and evict", AllocFlags::EVICTABLE.0, |rig, p, s| {
        rig.ctx.hold(p)?;
        rig.ctx.unhold(p, s)?;
        rig.ctx.shift(What::One(p), Goal::Lower, None, None).map(drop)
    }),
];

#[test]
fn memory_of_one_device_follows_a_stream_of_another() {
    for (what, flags, end) in ENDS {
        for seed in 0..seeds() {
            let rig = Rig::new(seed, Config::default());
            // Memory of device 1, with another device current: the handle names device 0's streams.
            rig.host.set_current_device(D0).unwrap();
            let streams = [StreamHandle::LEGACY, StreamHandle::PER_THREAD, rig.host.stream_create(D0).unwrap()];
            let s = streams[seed as usize % 3];
            let p = rig.malloc(D1, rig.far, BYTES, flags);
            rig.host.stream_sync(D1, rig.far).unwrap();
            rig.write("device 0 works on it", D0, s, p);
            end(&rig, p, s).unwrap_or_else(|e| panic!("{what} on {s}, seed {seed}: {e}"));
            rig.take_all(rig.far);
            rig.finish(what, seed);
            // And with device 1 current, where the default streams are that device's.
            rig.host.set_current_device(D1).unwrap();
            let s = if s.is_default() { s } else { rig.far };
            let p = rig.malloc(D1, rig.far, BYTES, flags);
            rig.host.stream_sync(D1, rig.far).unwrap();
            if what == "realloc_async" || what == "record_stream before the use" {
                continue;
            }
            rig.write("device 1 works on it", D1, s, p);
            end(&rig, p, s).unwrap_or_else(|e| panic!("{what} on {s}, seed {seed}: {e}"));
            rig.take_all(rig.far);
            rig.finish(what, seed);
        }
    }
}

/// A move out waits for the stream that its options name.
#[test]
fn a_move_waits_for_a_stream_of_another_device() {
    for seed in 0..seeds() {
        let rig = Rig::new(seed, Config::default());
        let here = |d, tag| {
            let flags = AllocFlags::EVICTABLE;
            let s = if d == D1 { rig.far } else { StreamHandle::LEGACY };
            let req = Request { size: BYTES, device: Some(d), stream: s, flags, tag, ..Request::default() };
            rig.ctx.malloc(&req).unwrap()
        };
        let all = [here(D0, 7), here(D1, 7), here(D1, 8)];
        rig.host.device_sync(D1).unwrap();
        for p in all {
            rig.write("device 0 works on it", D0, StreamHandle::LEGACY, p);
        }
        rig.ctx.shift(What::Tag(7), Goal::Lower, Some(StreamHandle::LEGACY), None).unwrap();
        rig.ctx.shift(What::One(all[2]), Goal::Lower, Some(StreamHandle::LEGACY), None).unwrap();
        rig.take_all(rig.far);
        rig.finish("shift", seed);
    }
}

/// The same handle, and the same thread, with one device after the other.
#[test]
fn a_hit_does_not_take_one_devices_default_stream_for_anothers() {
    for s in [StreamHandle::LEGACY, StreamHandle::PER_THREAD] {
        for seed in 0..seeds() {
            let rig = Rig::new(seed, Config::default());
            rig.host.set_current_device(D1).unwrap();
            for _ in 0..4 {
                // Device 1's pool knows the handle as its own.
                let p = rig.malloc(D1, s, BYTES, 0);
                rig.write("device 1's own", D1, s, p);
                rig.ctx.free_async(p, s).unwrap();
            }
            let p = rig.malloc(D1, s, BYTES, 0);
            rig.host.device_sync(D1).unwrap();
            rig.host.set_current_device(D0).unwrap();
            rig.write("device 0 works on it", D0, s, p);
            rig.ctx.free_async(p, s).unwrap();
            rig.host.set_current_device(D1).unwrap();
            rig.take_all(s);
            rig.finish("a hit", seed);
        }
    }
}

/// Where a call names a device, a default stream is that device's.
#[test]
fn a_device_that_is_named_says_whose_default_stream_is_meant() {
    for seed in 0..seeds() {
        let rig = Rig::new(seed, Config::default());
        rig.host.set_current_device(D0).unwrap();
        let p = rig.malloc(D1, StreamHandle::LEGACY, BYTES, 0);
        assert_eq!(rig.ctx.info(p).unwrap().device, D1);
        rig.write("on device 1's default stream", D1, StreamHandle::LEGACY, p);
        // In the order of the stream that it was allocated on.
        rig.ctx.free(p).unwrap();
        rig.take_all(StreamHandle::LEGACY);
        rig.finish("a named device", seed);
    }
}

/// The relay settles what it is given: it is reused, not stranded.
#[test]
fn memory_that_another_device_freed_is_reused() {
    let rig = Rig::new(1, Config::default());
    let s = rig.host.stream_create(D0).unwrap();
    for _ in 0..100 {
        let p = rig.malloc(D1, rig.far, BYTES, 0);
        rig.host.stream_sync(D1, rig.far).unwrap();
        rig.write("device 0 works on it", D0, s, p);
        rig.ctx.free_async(p, s).unwrap();
        rig.host.stream_sync(D0, s).unwrap();
        rig.host.device_sync(D1).unwrap();
    }
    let mapped = rig.ctx.stats(D1).unwrap().peak_mapped;
    assert!(mapped <= 128 * MIB, "{mapped} bytes mapped for {BYTES} live");
    rig.finish("reuse", 1);
}

/// What an arena frees follows the streams of other devices that it was recorded on, under the
/// detector too.
#[test]
fn arenas_wait_for_other_devices() {
    for poison in [false, true] {
        for seed in 0..seeds() {
            let arena_debug = DebugMode { check: poison, poison, ..DebugMode::default() };
            let rig = Rig::new(seed, Config { arena_debug, ..Config::default() });
            let arena = rig.ctx.arena_enter("").unwrap();
            let p = rig.malloc(D1, rig.far, BYTES, 0);
            rig.host.stream_sync(D1, rig.far).unwrap();
            rig.write("device 0 works on it", D0, StreamHandle::LEGACY, p);
            rig.ctx.record_stream(p, StreamHandle::LEGACY).unwrap();
            rig.ctx.arena_exit(&arena, &[]).unwrap();
            rig.take_all(rig.far);
            rig.finish("an arena", seed);
        }
    }
}

#[test]
fn a_captured_stream_of_another_device_is_refused_and_nothing_is_lost() {
    let rig = Rig::new(3, Config::default());
    let s = rig.host.stream_create(D0).unwrap();
    let p = rig.malloc(D1, rig.far, BYTES, 0);
    rig.host.capture_begin(D0, s, CaptureMode::Relaxed).unwrap();
    for e in [
        rig.ctx.free_async(p, s).unwrap_err(),
        rig.ctx.realloc(p, MIB, s).unwrap_err(),
        rig.ctx.record_stream(p, s).unwrap_err(),
    ] {
        assert_eq!(e.status, Status::Capturing, "{e}");
    }
    rig.host.capture_end(D0, s).unwrap();
    assert_eq!(rig.ctx.info(p).unwrap().requested, BYTES);
    rig.ctx.free_async(p, s).unwrap();
    rig.finish("capture", 3);
}

/// A use that was announced and that cannot be waited for when the memory is freed: nobody gets it
/// before both devices are idle.
#[test]
fn an_announced_use_that_is_captured_meanwhile_is_waited_for_in_the_end() {
    for seed in 0..seeds() {
        let rig = Rig::new(seed, Config::default());
        let s = rig.host.stream_create(D0).unwrap();
        let p = rig.malloc(D1, rig.far, BYTES, 0);
        rig.host.stream_sync(D1, rig.far).unwrap();
        rig.write("device 0 works on it", D0, s, p);
        rig.ctx.record_stream(p, s).unwrap();
        rig.host.capture_begin(D0, s, CaptureMode::Relaxed).unwrap();
        rig.ctx.free(p).unwrap();
        rig.take_all(rig.far);
        assert!(rig.host.end_capture(s).unwrap(), "the capture was spoilt");
        rig.take_all(rig.far);
        rig.finish("capture", seed);
        rig.ctx.trim(0).unwrap();
        rig.finish("trim", seed);
    }
}

#[test]
fn without_the_pool_the_rule_is_the_same() {
    for seed in 0..seeds() {
        let rig = Rig::new(seed, Config { pool: false, ..Config::default() });
        rig.host.set_current_device(D0).unwrap();
        let p = rig.malloc(D1, rig.far, BYTES, 0);
        rig.host.stream_sync(D1, rig.far).unwrap();
        rig.write("device 0 works on it", D0, StreamHandle::LEGACY, p);
        let q = rig.ctx.realloc(p, 2 * BYTES, StreamHandle::LEGACY).unwrap();
        assert_eq!(rig.ctx.info(q).unwrap().device, D1);
        rig.host.launch(D0, StreamHandle::LEGACY, Kernel::check_pattern("contents", q..q + BYTES, 1, STRIDE)).unwrap();
        rig.ctx.free_async(q, StreamHandle::LEGACY).unwrap();
        rig.finish("no pool", seed);
    }
}

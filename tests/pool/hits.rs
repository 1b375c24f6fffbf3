//! What a hit costs in driver calls: none. Every kind of call is counted, at the boundary that the
//! pool uses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pool_support;

use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{DeviceId, StreamHandle};
use gpumem::context::config::StreamCheck;
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::{Call, Driver};
use gpumem::pool::PoolOptions;
use pool_support::{checked, Rig, D};
use std::collections::BTreeMap;
use std::sync::Arc;

const PAIRS: u64 = 1000;
/// Small ones, both sides of the border between slabs and blocks, and blocks up to many extents.
const SIZES: [u64; 12] =
    [256, 1000, 4 * KIB, 64 * KIB, 64 * KIB + 1, 100_000, MIB, 2 * MIB, 17 * MIB + 13, 64 * MIB, 256 * MIB, GIB];

fn context(devices: u32, stream_check: StreamCheck) -> (Arc<HostDriver>, Context) {
    let host = HostDriver::new(HostOptions { devices, bytes_per_device: 8 * GIB, ..HostOptions::default() }).unwrap();
    let ctx = Context::new(host.clone(), Config { stream_check, ..Config::default() }).unwrap();
    (host, ctx)
}

fn request(size: u64, stream: StreamHandle) -> Request<'static> {
    Request { size, stream, ..Request::default() }
}

/// The calls made since `before`, by name, those that were made only.
fn since(ctx: &Context, before: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    let now = ctx.driver_calls();
    assert_eq!(now.len(), before.len());
    now.into_iter().zip(before).map(|((name, n), b)| (name, n - b.1)).filter(|(_, n)| *n > 0).collect()
}

/// The calls that pairs of each size make on `s` once a first pair is done, with `others` other
/// blocks live.
fn calls_of_pairs(ctx: &Context, s: StreamHandle, others: u64) -> BTreeMap<&'static str, u64> {
    let kept: Vec<u64> = (0..others).map(|i| ctx.malloc(&request(200 + i * 977, s)).unwrap()).collect();
    let mut calls = BTreeMap::new();
    for size in SIZES {
        let p = ctx.malloc(&request(size, s)).unwrap();
        ctx.free_async(p, s).unwrap();
        let before = ctx.driver_calls();
        for _ in 0..PAIRS {
            assert_eq!(ctx.malloc(&request(size, s)).unwrap(), p, "{size} bytes: not what was freed last");
            ctx.free_async(p, s).unwrap();
        }
        for (name, n) in since(ctx, &before) {
            *calls.entry(name).or_default() += n;
        }
    }
    kept.into_iter().for_each(|p| ctx.free_async(p, s).unwrap());
    ctx.validate().unwrap();
    calls
}

#[test]
fn a_hit_makes_no_driver_call() {
    for others in [0, 1000] {
        for legacy in [false, true] {
            let (host, ctx) = context(1, StreamCheck::Auto);
            let s = if legacy { StreamHandle::LEGACY } else { host.stream_create(D).unwrap() };
            let calls = calls_of_pairs(&ctx, s, others);
            assert!(calls.is_empty(), "{others} other blocks, {s}: {calls:?}");
        }
    }
}

#[test]
fn without_a_watch_an_allocation_asks_once_which_stream_it_is_and_a_free_nothing() {
    let (host, ctx) = context(1, StreamCheck::Driver);
    let s = host.stream_create(D).unwrap();
    let calls = calls_of_pairs(&ctx, s, 1000);
    assert_eq!(calls, BTreeMap::from([("stream_id", PAIRS * SIZES.len() as u64)]));
    // The legacy stream is always itself.
    let (_, ctx) = context(1, StreamCheck::Driver);
    assert_eq!(calls_of_pairs(&ctx, StreamHandle::LEGACY, 1000), BTreeMap::new());
}

/// What one stream allocates and another frees takes the short way both times: no call but one
/// marker for a whole batch.
#[test]
fn a_free_on_another_stream_and_a_block_cut_to_size_are_hits_too() {
    let (host, ctx) = context(1, StreamCheck::Auto);
    let (s, t) = (host.stream_create(D).unwrap(), host.stream_create(D).unwrap());
    let known = ctx.malloc(&request(100, t)).unwrap();
    // Free memory of the stream, and all kinds of slabs, with room.
    let space = ctx.malloc(&request(256 * MIB, s)).unwrap();
    let objects = [256, 1000, 4 * KIB, 64 * KIB];
    let small: Vec<u64> = objects.iter().flat_map(|&n| [n; 2]).map(|n| ctx.malloc(&request(n, s)).unwrap()).collect();
    ctx.free_async(space, s).unwrap();
    let before = ctx.driver_calls();
    let mut blocks = Vec::new();
    // Sizes that were never freed.
    for size in objects.into_iter().chain((1..12).map(|i| i * 100_000)) {
        blocks.push(ctx.malloc_hit(size, s).unwrap_or_else(|| panic!("{size} bytes: no hit")).get());
    }
    assert_eq!(since(&ctx, &before), BTreeMap::new());
    // Four objects and 100,000 to 300,000 bytes: neither 16 frees nor 1 MiB, so no marker is due.
    let (few, others) = blocks.split_at(7);
    for (i, &p) in few.iter().enumerate() {
        assert!(ctx.free_hit(p, Some(t)), "block {i}");
        assert!(!ctx.free_hit(p, Some(t)), "block {i} is freed already");
    }
    assert_eq!(since(&ctx, &before), BTreeMap::new());
    for &p in others {
        assert!(ctx.free_hit(p, Some(t)));
    }
    let calls = since(&ctx, &before);
    assert!(calls["event_record"] > 0 && calls["event_record"] == calls["stream_is_capturing"], "{calls:?}");
    assert!(calls.keys().all(|&c| c.starts_with("event_") || c == "stream_is_capturing"), "{calls:?}");
    // More than any device has, also where rounding up overflows.
    for size in [u64::MAX, u64::MAX - 511, u64::MAX - 512, 1 << 60] {
        assert!(ctx.malloc_hit(size, s).is_none());
    }
    small.into_iter().for_each(|p| ctx.free_async(p, s).unwrap());
    ctx.free_async(known, t).unwrap();
    ctx.validate().unwrap();
}

/// Which device a stream belongs to need not be asked either: the device's pool knows it.
#[test]
fn with_several_devices_created_streams_hit_without_calls() {
    let (host, ctx) = context(2, StreamCheck::Auto);
    let streams = [D, DeviceId(1)].map(|d| host.stream_create(d).unwrap());
    for size in SIZES {
        // The first pair of each is what makes the others hits.
        for s in streams {
            let p = ctx.malloc(&request(size, s)).unwrap();
            ctx.free_async(p, s).unwrap();
        }
        let before = ctx.driver_calls();
        for _ in 0..PAIRS {
            // In turn, so that the thread's cache has to hold both.
            let [p, q] = streams.map(|s| ctx.malloc_hit(size, s).expect("a hit").get());
            assert!(ctx.free_hit(p, Some(streams[0])), "{size} bytes on device 0");
            assert!(ctx.free_hit(q, None), "{size} bytes on device 1, in its own order");
        }
        assert_eq!(since(&ctx, &before), BTreeMap::new(), "{size} bytes");
        for (d, s) in [D, DeviceId(1)].into_iter().zip(streams) {
            let p = ctx.malloc_hit(size, s).expect("a hit").get();
            assert_eq!(ctx.info(p).unwrap().device, d);
            assert!(ctx.free_hit(p, Some(s)));
        }
    }
    ctx.validate().unwrap();
}

/// With other streams about, frees in a stream's own order are marked in batches: 64 MiB at first.
#[test]
fn frees_in_a_heaps_own_order_are_marked_in_batches_that_grow() {
    let rig = Rig::new(checked(GIB), PoolOptions::default());
    let (s, t) = (rig.stream(), rig.stream());
    let (p, q) = (rig.malloc(16 * MIB, s), rig.malloc(MIB, t));
    rig.free(p, s);
    let records = |frees: u64| {
        rig.fault.start_recording();
        for _ in 0..frees {
            let p = rig.malloc(16 * MIB, s);
            rig.free(p, s);
        }
        let calls = rig.fault.stop_recording();
        let count = |call| calls.iter().filter(|&&c| c == call).count() as u64;
        // A marker may be recorded only on a stream that is asked for.
        assert_eq!(count(Call::EventRecord), count(Call::StreamIsCapturing), "{calls:?}");
        count(Call::EventRecord)
    };
    // Four frees of 16 MiB are a batch; the one above was the first of them.
    assert_eq!(records(2), 0);
    assert_eq!(records(1), 1);
    // Four batches of 64 MiB that nobody asks for, then batches of 128.
    assert_eq!(records(3 * 4), 3);
    assert_eq!((records(7), records(1)), (0, 1));
    assert_eq!(records(3 * 8), 3);
    assert_eq!((records(15), records(1)), (0, 1));
    // Up to 4 GiB, 256 frees.
    records(256 * 40);
    assert_eq!(records(256 * 8), 8);
    rig.free(q, t);
    rig.close();
}

/// A stream that finds too little asks for a marker: the owner's next free records one, and batches
/// are small again.
#[test]
fn somebody_who_waits_makes_the_next_free_record_and_batches_small_again() {
    let rig = Rig::new(checked(GIB), PoolOptions::default());
    let (s, t) = (rig.stream(), rig.stream());
    let free_pairs = |n: u64| {
        rig.fault.start_recording();
        for _ in 0..n {
            let p = rig.malloc(16 * MIB, s);
            rig.free(p, s);
        }
        rig.fault.stop_recording().iter().filter(|&&c| c == Call::EventRecord).count()
    };
    let first = rig.malloc(100 * MIB, t);
    // Batches have grown to 512 MiB.
    assert_eq!(free_pairs(4 * (4 + 8 + 16)), 12);
    assert_eq!(free_pairs(20), 0);
    let q = rig.malloc(16 * MIB, t);
    assert_eq!(free_pairs(1), 1, "t looked into the heap of s, found what has no marker, and asked");
    assert_eq!(free_pairs(3), 0);
    assert_eq!(free_pairs(1), 1, "64 MiB again");
    rig.free(q, t);
    rig.free(first, t);
    rig.close();
}

/// Frees that another stream's heap waits for: 16 of them or 1 MiB, twice as many after every eight
/// batches.
#[test]
fn frees_that_another_heap_waits_for_are_marked_in_batches_that_grow() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let (s, t) = (rig.stream(), rig.stream());
    let warm = rig.malloc(100, t);
    let mut blocks: Vec<u64> = (0..20_000).map(|_| rig.malloc(256, s)).collect();
    let mut records = |frees: usize| {
        let from = blocks.len() - frees;
        let now = blocks.split_off(from);
        rig.fault.start_recording();
        now.into_iter().for_each(|p| rig.free(p, t));
        rig.fault.stop_recording().iter().filter(|&&c| c == Call::EventRecord).count()
    };
    assert_eq!((records(15), records(1)), (0, 1));
    assert_eq!(records(7 * 16), 7);
    assert_eq!((records(31), records(1)), (0, 1));
    assert_eq!(records(7 * 32), 7);
    assert_eq!((records(63), records(1)), (0, 1));
    blocks.into_iter().for_each(|p| rig.free(p, t));
    // Large ones by their bytes.
    let t = rig.stream();
    let warm_too = rig.malloc(100, t);
    let large: Vec<u64> = (0..8).map(|_| rig.malloc(512 * KIB, s)).collect();
    rig.fault.start_recording();
    large.into_iter().for_each(|p| rig.free(p, t));
    let calls = rig.fault.stop_recording();
    assert_eq!(calls.iter().filter(|&&c| c == Call::EventRecord).count(), 4, "1 MiB each: {calls:?}");
    rig.free(warm, s);
    rig.free(warm_too, s);
    rig.close();
}

//! Processes that are killed while they evict to a mount.

use super::killed::{is_killed, kill, look, spawn};
use super::*;
use gpumem::base::{DeviceId, StreamHandle};
use gpumem::context::config::{Config, DiskMount, Limit, PinnedBlocks};
use gpumem::context::{Context, Request, What};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::AllocFlags;
use gpumem::tier::evict::{Goal, To};
use gpumem::tier::Tier;
use std::collections::VecDeque;
use std::time::Duration;
use test_support::rounds;

const CHILD: &str = "GPUMEM_TEST_EVICTING";
const NAME: &str = "disk_store::evicting::killed_evictions_leave_nothing_that_passes_for_data";
const D: DeviceId = DeviceId(0);
const S: StreamHandle = StreamHandle::LEGACY;
/// How often each allocation of a child is evicted: a file each time.
const TIMES: u64 = 6;

fn length(seed: u64, number: u64) -> u64 {
    // Of one chunk of a context's stores, and of some.
    (1 + random(seed ^ 0xFFFF, number) % (20 * MIB)) >> (random(seed, number) % 4 * 3)
}

fn context(mount: &Path) -> (Arc<HostDriver>, Context) {
    let host = HostDriver::new(HostOptions { bytes_per_device: 256 * MIB, ..HostOptions::default() }).unwrap();
    let config = Config {
        pinned_blocks: PinnedBlocks { block_bytes: MIB, blocks: 8, chunks: 1 },
        pinned_limit: Limit::Bytes(128 * MIB),
        disks: vec![DiskMount { path: mount.to_path_buf(), limit: None }],
        mover: false,
        ..Config::default()
    };
    let ctx = Context::new(host.clone(), config).unwrap();
    (host, ctx)
}

/// Evictable memory with the random bytes of a number, in a file. Odd ones go there by way of the
/// host.
fn evicted(host: &HostDriver, ctx: &Context, seed: u64, number: u64) -> (u64, Vec<u8>) {
    let mut data = vec![0; length(seed, number) as usize];
    fill(seed + number, 0, &mut data);
    let flags = AllocFlags::EVICTABLE;
    let p = ctx.malloc(&Request { size: data.len() as u64, flags, stream: S, ..Request::default() }).unwrap();
    host.copy_async(D, p, data.as_ptr() as u64, data.len() as u64, S).unwrap();
    host.stream_sync(D, S).unwrap();
    if number % 2 == 1 {
        ctx.shift(What::One(p), Goal::Lower, Some(S), None).unwrap();
    }
    ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Disk)), Some(S), None).unwrap();
    (p, data)
}

/// Evicts, restores and frees until it is killed. The files' numbers are those of the evictions,
/// [`TIMES`] of each allocation.
fn child(role: &str) {
    let (seed, mount) = role.split_once(' ').unwrap();
    let seed: u64 = seed.parse().unwrap();
    let (host, ctx) = context(Path::new(mount));
    println!("\nopen");
    let mut live = VecDeque::new();
    for number in 0.. {
        let (p, _) = evicted(&host, &ctx, seed, number);
        for time in 1..TIMES {
            let back = if time % 2 == 0 { Goal::Device } else { Goal::Nearer(To::Tier(Tier::Host)) };
            ctx.shift(What::One(p), back, None, None).unwrap();
            ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Disk)), Some(S), None).unwrap();
        }
        live.push_back(p);
        if live.len() > 3 {
            ctx.free(live.pop_front().unwrap()).unwrap();
        }
    }
}

#[test]
fn killed_evictions_leave_nothing_that_passes_for_data() {
    if let Ok(role) = std::env::var(CHILD) {
        return child(&role);
    }
    let kills = rounds(30);
    let mount = Mount::new("evicting");
    let (mut left, mut partial, mut none) = (0, 0, 0);
    for i in 0..10 * kills {
        // Some kills must hit a file that is being written, however the machine is loaded.
        if i >= kills && partial > 2 {
            break;
        }
        let seed = i * 1_000_003;
        let mut child = spawn(NAME, CHILD, format!("{seed} {}", mount.0.display()));
        kill(&mut child, Duration::from_micros(random(seed, 7) % 120_000));
        is_killed(child);
        let (files, torn) = look(&mount, seed, TIMES, length);
        (left, partial, none) = (left + files, partial + torn, none + u64::from(files == 0));

        // The next process evicts there itself: the dead one's files go, and its own bytes are what
        // comes back.
        let (host, ctx) = context(&mount.0);
        let (p, data) = evicted(&host, &ctx, seed ^ 0xABCD, i);
        let store = ctx.tiers().unwrap().disks().mount(0).unwrap().store().unwrap();
        assert_eq!(store.reclaimed().files, files, "after kill {i}");
        assert_eq!(mount.stores(), [store.dir()], "after kill {i}");
        assert_eq!(files_in(&store.dir()), 1, "after kill {i}");
        ctx.shift(What::One(p), Goal::Device, None, None).unwrap();
        let mut back = vec![0; data.len()];
        host.copy_async(D, back.as_mut_ptr() as u64, p, data.len() as u64, S).unwrap();
        host.stream_sync(D, S).unwrap();
        assert!(back == data, "other bytes came back after kill {i}");
        ctx.free(p).unwrap();
        drop((store, ctx));
        assert_eq!(mount.stores(), Vec::<PathBuf>::new(), "after kill {i}");
    }
    println!("{left} files were left and removed, {partial} of them not whole; {none} times there was none");
    assert!(partial > 2 && left > partial, "{left} left, {partial} not whole: killed at the wrong moments");
}

/// Files of a store but for its lock.
fn files_in(dir: &Path) -> usize {
    files(dir).iter().filter(|name| *name != "lock").count()
}

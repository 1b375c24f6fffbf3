//! Processes that are killed while they evict to a mount.

use super::*;
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::config::{Config, DiskMount, Limit, PinnedBlocks};
use gpumem::context::{Context, Request, What};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::AllocFlags;
use gpumem::tier::disk::inspect;
use gpumem::tier::evict::Goal;
use gpumem::tier::Tier;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CHILD: &str = "GPUMEM_TEST_EVICTING";
const NAME: &str = "evicting::killed_evictions_leave_nothing_that_passes_for_data";
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

/// Evictable memory with the random bytes of a number, in a file. Odd ones go there by way of the host.
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
    ctx.shift(What::One(p), Goal::Tier(Tier::Disk), Some(S), None).unwrap();
    (p, data)
}

/// Evicts, restores and frees until it is killed. The files' numbers are those of the evictions, [`TIMES`] of each allocation.
fn child(role: &str) {
    let (seed, mount) = role.split_once(' ').unwrap();
    let seed: u64 = seed.parse().unwrap();
    let (host, ctx) = context(Path::new(mount));
    println!("\nopen");
    let mut live = VecDeque::new();
    for number in 0.. {
        let (p, _) = evicted(&host, &ctx, seed, number);
        for time in 1..TIMES {
            let back = if time % 2 == 0 { Goal::Device } else { Goal::Tier(Tier::Host) };
            ctx.shift(What::One(p), back, None, None).unwrap();
            ctx.shift(What::One(p), Goal::Tier(Tier::Disk), Some(S), None).unwrap();
        }
        live.push_back(p);
        if live.len() > 3 {
            ctx.free(live.pop_front().unwrap()).unwrap();
        }
    }
}

fn spawn(mount: &Path, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture"]).env(CHILD, format!("{seed} {}", mount.display()));
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// What the killed one left: every file that passes for whole holds what its eviction moved. Returns files, and how many are
/// not whole.
fn look(mount: &Mount, seed: u64) -> (usize, usize) {
    let disk = os(Engine::Auto);
    let (mut count, mut partial) = (0, 0);
    for path in mount.stores().iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(|e| e.unwrap().path()) {
        let Some(end) = path.extension() else { continue };
        count += 1;
        // Those that the store tries the file system with have none.
        let number = path.file_stem().unwrap().to_str().unwrap().parse::<u64>().map(|file| file / TIMES);
        let whole = inspect(&*disk, &path, |offset, part| {
            let number = number.as_ref().expect("a whole file has a number");
            assert_eq!(differs(seed + number, offset, part), None, "{} passes for whole", path.display());
        });
        match whole {
            Ok(bytes) => assert_eq!(bytes, length(seed, number.unwrap()), "{}", path.display()),
            Err(e) => {
                assert_eq!(e.status, Status::Corrupt, "{e}");
                assert_eq!(end, "part", "{} has the name of a finished write: {e}", path.display());
                partial += 1;
            }
        }
    }
    (count, partial)
}

#[test]
fn killed_evictions_leave_nothing_that_passes_for_data() {
    if let Ok(role) = std::env::var(CHILD) {
        return child(&role);
    }
    const KILLS: u64 = 120;
    let mount = Mount::new("evicting");
    let (mut left, mut partial, mut none) = (0, 0, 0);
    for i in 0..KILLS {
        let seed = i * 1_000_003;
        let mut child = spawn(&mount.0, seed);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|l| l == "open")), "never opened");
        std::thread::sleep(Duration::from_micros(random(seed, 7) % 120_000));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
        let (files, torn) = look(&mount, seed);
        (left, partial, none) = (left + files, partial + torn, none + usize::from(files == 0));

        // The next process evicts there itself: the dead one's files go, and its own bytes are what comes back.
        let (host, ctx) = context(&mount.0);
        let (p, data) = evicted(&host, &ctx, seed ^ 0xABCD, i);
        let store = ctx.tiers().unwrap().disks().mount(0).unwrap().store().unwrap();
        assert_eq!(store.reclaimed().files, files as u64, "after kill {i}");
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
    let kills = KILLS as usize;
    assert!(partial > kills / 10 && left > partial, "{left} left, {partial} not whole: killed at the wrong moments");
}

/// Files of a store but for its lock.
fn files_in(dir: &Path) -> usize {
    files(dir).iter().filter(|name| *name != "lock").count()
}

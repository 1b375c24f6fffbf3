//! Repeats the same work for hours, with a line each minute: mapped and live memory, this process's
//! memory, and the time of an operation.
//!
//! Live memory stays within bounds, so nothing may grow once the work has settled: mapped memory
//! and host memory are compared between the second and the last quarter of all minutes, and the
//! soak fails when they drift.

#[allow(dead_code)]
#[path = "../header.rs"]
mod header;

use clap::Parser;
use fastrand::Rng;
use header::Header;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MIB: f64 = (1 << 20) as f64;
/// The most bytes that each thread has live.
const LIVE: u64 = 512 << 20;
/// Growth that is no drift: this part, plus these bytes.
const PART: f64 = 0.02;
const SLACK: f64 = 4.0 * MIB;

/// Works libgpumem.so for a long time and fails when memory drifts. GPUMEM_BACKEND and the rest are
/// as the environment has them.
#[derive(Parser)]
struct Options {
    /// The shared library
    #[arg(long)]
    library: PathBuf,
    /// The folder with gpumem.h
    #[arg(long, default_value = "include")]
    include: PathBuf,
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    #[arg(long, default_value_t = 4)]
    threads: u64,
    /// Seconds that a line is about, instead of a minute
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Bytes lost in each thousand operations, to see that a drift is found
    #[arg(long, default_value_t = 0, hide = true)]
    leak: u64,
}

fn main() -> ExitCode {
    match soak(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("gpumem-soak: {why}");
            ExitCode::from(1)
        }
    }
}

type Status = i32;

/// The functions that the work calls.
#[derive(Clone, Copy)]
struct Api {
    malloc: unsafe extern "C" fn(usize, u64, *mut u64) -> Status,
    free: unsafe extern "C" fn(u64, u64) -> Status,
    realloc: unsafe extern "C" fn(u64, usize, u64, *mut u64) -> Status,
    stream: unsafe extern "C" fn(*mut u64) -> Status,
    end_stream: unsafe extern "C" fn(u64) -> Status,
    enter: unsafe extern "C" fn(*mut u64) -> Status,
    exit: unsafe extern "C" fn(u64, *const u64, usize, *mut u64) -> Status,
    stats: unsafe extern "C" fn(i32, *mut u64) -> Status,
    validate: unsafe extern "C" fn() -> Status,
}

/// The figures of a line, without the time.
#[derive(Clone, Copy)]
struct Sample {
    mapped: f64,
    live: f64,
    host: f64,
    nanoseconds: f64,
}

fn soak(options: &Options) -> Result<(), String> {
    let header = Header::read(&options.include.join("gpumem"))?;
    let stats = header.structs.get("gpumem_stats").ok_or("the headers have no gpumem_stats")?;
    let at = |name: &str| stats.fields.iter().find(|f| f.name == name).map_or(0, |f| f.offset / 8);
    // SAFETY: gpumem's library, whose start has no conditions.
    let library = unsafe { libloading::Library::new(&options.library) }
        .map_err(|e| format!("{}: {e}", options.library.display()))?;
    macro_rules! get {
        ($name:literal) => {
            // SAFETY: the type is that of the header.
            *unsafe { library.get($name.as_bytes()) }.map_err(|e| format!("{}: {e}", $name))?
        };
    }
    let api = Api {
        malloc: get!("gpumem_malloc_async"),
        free: get!("gpumem_free_async"),
        realloc: get!("gpumem_realloc_async"),
        stream: get!("gpumem_stream_create"),
        end_stream: get!("gpumem_stream_destroy"),
        enter: get!("gpumem_arena_enter"),
        exit: get!("gpumem_arena_exit"),
        stats: get!("gpumem_stats_get"),
        validate: get!("gpumem_validate"),
    };
    let (over, ops) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut samples: Vec<Sample> = Vec::new();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads)
            .map(|t| {
                let (over, ops) = (&over, &ops);
                scope.spawn(move || work(&api, t, over, ops, options.leak))
            })
            .collect();
        let lines = (options.minutes * 60).div_ceil(options.seconds.max(1));
        println!("   time  mapped MiB  live MiB  host MiB  ns an operation");
        let mut result = Ok(());
        for line in 1..=lines {
            let (begun, before) = (Instant::now(), ops.load(Relaxed));
            while begun.elapsed().as_secs() < options.seconds && !workers.iter().any(|w| w.is_finished()) {
                std::thread::sleep(Duration::from_millis(200));
            }
            if workers.iter().any(|w| w.is_finished()) {
                break;
            }
            let mut words = vec![0u64; stats.size.div_ceil(8)];
            words[0] = stats.size as u64;
            // SAFETY: a structure of the size that it says.
            if unsafe { (api.stats)(0, words.as_mut_ptr()) } != 0 {
                result = Err("gpumem_stats_get fails".to_owned());
                break;
            }
            let done = (ops.load(Relaxed) - before).max(1) as f64;
            let sample = Sample {
                mapped: words[at("mapped")] as f64,
                live: words[at("live")] as f64,
                host: resident()?,
                nanoseconds: begun.elapsed().as_nanos() as f64 * options.threads as f64 / done,
            };
            samples.push(sample);
            println!(
                "{:>6} s  {:>10.1}  {:>8.1}  {:>8.1}  {:>15.0}",
                line * options.seconds,
                sample.mapped / MIB,
                sample.live / MIB,
                sample.host / MIB,
                sample.nanoseconds
            );
        }
        over.store(true, Relaxed);
        for worker in workers {
            worker.join().map_err(|_| "a thread stopped".to_owned())??;
        }
        result
    })?;
    // SAFETY: takes nothing.
    if unsafe { (api.validate)() } != 0 {
        return Err("gpumem_validate finds something wrong".to_owned());
    }
    // The library ends itself at process exit.
    std::mem::forget(library);
    judge(&samples)?;
    println!("gpumem-soak: {} operations in {} s, no drift", ops.load(Relaxed), start.elapsed().as_secs());
    Ok(())
}

/// Whether the last quarter has more than the second.
fn judge(samples: &[Sample]) -> Result<(), String> {
    let quarter = samples.len() / 4;
    if quarter == 0 {
        println!("note: too short to see a drift; it takes four lines");
        return Ok(());
    }
    let median = |of: &[Sample], what: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = of.iter().map(what).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (second, last) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
    for (name, what) in [("mapped memory", (|s| s.mapped) as fn(&Sample) -> f64), ("host memory", |s| s.host)] {
        let (then, now) = (median(second, what), median(last, what));
        if now > then * (1.0 + PART) + SLACK {
            return Err(format!(
                "{name} drifts: {:.1} MiB in the second quarter, {:.1} in the last",
                then / MIB,
                now / MIB
            ));
        }
    }
    let (then, now) = (median(second, |s| s.nanoseconds), median(last, |s| s.nanoseconds));
    println!("an operation took {then:.0} ns in the second quarter and {now:.0} ns in the last");
    Ok(())
}

/// Resident memory of this process, bytes, without that of a simulated device.
fn resident() -> Result<f64, String> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap_or_default();
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0.0);
    Ok(kib * 1024.0)
}

/// One thread's work: blocks of every size come and go, some in arenas, on streams that come and go
/// too.
fn work(api: &Api, number: u64, over: &AtomicBool, ops: &AtomicU64, leak: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(number);
    let say = |what: &str, status: Status| match status {
        0 => Ok(()),
        _ => Err(format!("{what} ends with {status}")),
    };
    let mut streams = [0u64; 4];
    for s in &mut streams {
        // SAFETY: a place for a stream.
        say("gpumem_stream_create", unsafe { (api.stream)(s) })?;
    }
    let (mut live, mut bytes): (Vec<(u64, u64, u64)>, u64) = (Vec::new(), 0);
    while !over.load(Relaxed) {
        for _ in 0..1000 {
            let stream = streams[rng.usize(0..4)];
            let size = match rng.u32(0..40) {
                0 => rng.u64(1 << 20..64 << 20),
                1..=9 => rng.u64(64 << 10..2 << 20),
                _ => rng.u64(1..16 << 10),
            };
            while bytes + size > LIVE {
                let (p, n, s) = live.swap_remove(rng.usize(0..live.len()));
                // SAFETY: live, and ordered on its stream.
                say("gpumem_free_async", unsafe { (api.free)(p, s) })?;
                bytes -= n;
            }
            let mut p = 0u64;
            // SAFETY: a live stream and a place for the pointer.
            say("gpumem_malloc_async", unsafe { (api.malloc)(size as usize, stream, &mut p) })?;
            live.push((p, size, stream));
            bytes += size;
            if rng.u32(0..50) == 0 {
                let at = rng.usize(0..live.len());
                let (p, n, s) = live[at];
                let (now, mut moved) = (n / 2 + 1, 0u64);
                // SAFETY: live, and ordered on its stream.
                say("gpumem_realloc_async", unsafe { (api.realloc)(p, now as usize, s, &mut moved) })?;
                live[at] = (moved, now, s);
                bytes = bytes - n + now;
            }
        }
        ops.fetch_add(1000, Relaxed);
        // A step of a program, whose memory goes all at once.
        let (mut arena, mut ignored) = (0u64, 0u64);
        // SAFETY: places for a handle and a pointer.
        unsafe {
            say("gpumem_arena_enter", (api.enter)(&mut arena))?;
            for _ in 0..20 {
                say("gpumem_malloc_async", (api.malloc)(rng.usize(1..100_000), streams[0], &mut ignored))?;
            }
            say("gpumem_arena_exit", (api.exit)(arena, std::ptr::null(), 0, std::ptr::null_mut()))?;
        }
        ops.fetch_add(22, Relaxed);
        if leak > 0 {
            // SAFETY: as above; nobody frees it.
            say("gpumem_malloc_async", unsafe { (api.malloc)(leak as usize, streams[0], &mut ignored) })?;
        }
        if rng.u32(0..20) == 0 {
            let at = rng.usize(0..4);
            let old = streams[at];
            for (p, n, s) in live.extract_if(.., |(_, _, s)| *s == old) {
                // SAFETY: live, and ordered on its stream.
                say("gpumem_free_async", unsafe { (api.free)(p, s) })?;
                bytes -= n;
            }
            // SAFETY: nothing is live on it, and nobody else knows it.
            say("gpumem_stream_destroy", unsafe { (api.end_stream)(old) })?;
            // SAFETY: a place for a stream.
            say("gpumem_stream_create", unsafe { (api.stream)(&mut streams[at]) })?;
        }
    }
    for (p, _, s) in live {
        // SAFETY: live, and ordered on its stream.
        say("gpumem_free_async", unsafe { (api.free)(p, s) })?;
    }
    Ok(())
}

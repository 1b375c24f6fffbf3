//! What is said at the end of the process, with `GPUMEM_STATS`: calls, memory, time.

use crate::served::{self, Served};
use crate::settings;
use gpumem::base::size::{human, MIB};
use gpumem::driver::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::Once;
use std::time::Instant;

static ON: AtomicBool = AtomicBool::new(false);
static EXITING: AtomicBool = AtomicBool::new(false);

static MADE: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);
/// Requests that the driver was left to serve,
static LEFT: AtomicU64 = AtomicU64::new(0);
/// look-ups, and those that got one of gpumem's functions.
static LOOKED_UP: AtomicU64 = AtomicU64::new(0);
static REPLACED: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK_LIVE: AtomicU64 = AtomicU64::new(0);
/// What the driver would hold: see [`rounded`].
static DRIVER: AtomicU64 = AtomicU64::new(0);
static PEAK_DRIVER: AtomicU64 = AtomicU64::new(0);
/// The most that devices had mapped which have been reset.
static ENDED_MAPPED: AtomicU64 = AtomicU64::new(0);

/// What the driver takes for a request: whole blocks of 2 MiB from 1 MiB on, else units of 512 bytes. It holds more where those
/// leave gaps.
fn rounded(bytes: u64) -> u64 {
    let unit = if bytes >= MIB { 2 * MIB } else { 512 };
    bytes.checked_next_multiple_of(unit).unwrap_or(bytes)
}

/// Whether anything is counted that costs time.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Whether exit handlers run.
pub fn is_exiting() -> bool {
    EXITING.load(Relaxed)
}

extern "C" fn exits() {
    EXITING.store(true, Relaxed);
}

/// Called when a device is started.
pub fn watch_exit() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        ON.store(settings::get().stats, Relaxed);
        // SAFETY: a function of this library, which stays loaded, and does not unwind.
        unsafe { libc::atexit(exits) };
    });
}

pub fn looked_up() {
    LOOKED_UP.fetch_add(1, Relaxed);
}

pub fn replaced() {
    REPLACED.fetch_add(1, Relaxed);
}

/// A request was left to the driver.
#[inline]
pub fn left() {
    LEFT.fetch_add(1, Relaxed);
}

#[inline]
pub fn made(bytes: u64) {
    if is_on() {
        MADE.fetch_add(1, Relaxed);
        PEAK_LIVE.fetch_max(LIVE.fetch_add(bytes, Relaxed).saturating_add(bytes), Relaxed);
        let unit = rounded(bytes);
        PEAK_DRIVER.fetch_max(DRIVER.fetch_add(unit, Relaxed).saturating_add(unit), Relaxed);
    }
}

#[inline]
pub fn freed(bytes: u64) {
    if is_on() {
        FREED.fetch_add(1, Relaxed);
        LIVE.fetch_sub(bytes, Relaxed);
        DRIVER.fetch_sub(rounded(bytes), Relaxed);
    }
}

/// A device is reset, or its high marks are.
pub fn ended(served: &Served) {
    ENDED_MAPPED.fetch_max(mapped(served), Relaxed);
}

fn mapped(served: &Served) -> u64 {
    let [_, reserved] = &served.marks;
    reserved.load(Relaxed).max(served.pool.made_pool(served.dev).map_or(0, |p| p.stats().peak_mapped))
}

/// Adds the time until it is dropped.
pub struct Timed(Option<Instant>);

#[inline]
pub fn time() -> Timed {
    Timed(is_on().then(Instant::now))
}

impl Drop for Timed {
    #[inline]
    fn drop(&mut self) {
        if let Some(start) = self.0 {
            NANOSECONDS.fetch_add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }
}

/// Runs after the exit handlers of the process, when static objects are gone.
#[used]
#[link_section = ".fini_array"]
static AT_END: extern "C" fn() = end;

extern "C" fn end() {
    // A panic here would end a process that has ended well.
    let _ = std::panic::catch_unwind(|| {
        if process::forked() {
            return;
        }
        served::all().for_each(|s| s.pool.leave_observers());
        if is_on() {
            settings::say(&text());
        } else if std::env::var("GPUMEM_RUN").is_ok_and(|pid| pid == std::process::id().to_string())
            && settings::get().stats
        {
            settings::say(&format!(
                "process {}: allocated nothing that gpumem could serve; {} of {} look-ups are gpumem's",
                std::process::id(),
                REPLACED.load(Relaxed),
                LOOKED_UP.load(Relaxed)
            ));
        }
    });
}

fn text() -> String {
    let n = |a: &AtomicU64| a.load(Relaxed);
    let mapped = served::all().map(mapped).sum::<u64>().max(n(&ENDED_MAPPED));
    format!(
        "process {}: {} allocations and {} frees, {} requests left to the driver; peak live {}, peak mapped {} (the driver: {} \
         or more); {:.3} ms spent; {} of {} look-ups are gpumem's",
        std::process::id(),
        n(&MADE),
        n(&FREED),
        n(&LEFT),
        human(n(&PEAK_LIVE)),
        human(mapped),
        human(n(&PEAK_DRIVER)),
        n(&NANOSECONDS) as f64 / 1e6,
        n(&REPLACED),
        n(&LOOKED_UP),
    )
}

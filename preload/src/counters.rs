//! The counters of `GPUMEM_STATS`: calls, memory, time.

use crate::real::Real;
use crate::settings;
use gpumem::base::size::{human, MIB};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::Once;
use std::time::Instant;

static ON: AtomicBool = AtomicBool::new(false);
static EXITING: AtomicBool = AtomicBool::new(false);

static MADE: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);
/// Requests that were left to the driver.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// Look-ups of functions that gpumem replaces.
static LOOKED_UP: AtomicU64 = AtomicU64::new(0);
/// Those of them that got gpumem's function.
static REPLACED: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK_LIVE: AtomicU64 = AtomicU64::new(0);
/// Bytes that the driver would hold: see [`rounded`].
static DRIVER: AtomicU64 = AtomicU64::new(0);
static PEAK_DRIVER: AtomicU64 = AtomicU64::new(0);
/// The most bytes mapped on devices that have since been reset.
static ENDED_MAPPED: AtomicU64 = AtomicU64::new(0);

/// The bytes that the driver takes for a request: whole blocks of 2 MiB from 1 MiB on, else units
/// of 512 bytes. It holds more where those leave gaps.
fn rounded(bytes: u64) -> u64 {
    let unit = if bytes >= MIB { 2 * MIB } else { 512 };
    bytes.checked_next_multiple_of(unit).unwrap_or(bytes)
}

/// Whether counters that cost time are on.
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
        ON.store(settings::get().own.stats, Relaxed);
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

/// Counts a request that was left to the driver.
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
        gone(bytes);
    }
}

/// Notes that an allocation is gone, without a free of the program's if its device is reset.
pub fn gone(bytes: u64) {
    for (counter, bytes) in [(&LIVE, bytes), (&DRIVER, rounded(bytes))] {
        // A free during a reset is counted twice.
        let _ = counter.fetch_update(Relaxed, Relaxed, |live| Some(live.saturating_sub(bytes)));
    }
}

/// Notes the peak of a device that is reset, or whose high marks are: `peak_mapped` bytes.
pub fn ended(peak_mapped: u64) {
    ENDED_MAPPED.fetch_max(peak_mapped, Relaxed);
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

/// The counters, for people; `mapped` is the most that the devices in use had mapped, bytes.
pub fn text(mapped: u64) -> String {
    let n = |a: &AtomicU64| a.load(Relaxed);
    let mapped = mapped.max(n(&ENDED_MAPPED));
    format!(
        "process {}: {} allocations and {} frees, {} requests left to the driver; peak live {}, peak mapped {} (the driver: {} \
         or more); {:.3} ms spent; {}",
        std::process::id(),
        n(&MADE),
        n(&FREED),
        n(&LEFT),
        human(n(&PEAK_LIVE)),
        human(mapped),
        human(n(&PEAK_DRIVER)),
        n(&NANOSECONDS) as f64 / 1e6,
        look_ups(),
    )
}

/// How the program has come to gpumem's functions, for people.
pub fn look_ups() -> String {
    match LOOKED_UP.load(Relaxed) {
        0 if Real::is_found() => "gpumem's functions were linked, not looked up".to_string(),
        0 => "it neither called nor looked up a function that gpumem replaces".to_string(),
        n => {
            format!("of {n} look-ups of functions that gpumem replaces, {} gave gpumem's", REPLACED.load(Relaxed))
        }
    }
}

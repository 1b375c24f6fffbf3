#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]
//! Settings from environment variables.
//!
//! | variable | value | default |
//! |---|---|---|
//! | `GPUMEM_BACKEND` | `auto`, `cuda` or `host` | `auto` |
//! | `GPUMEM_VA_SIZE` | size, a multiple of 2 MiB up to 64 TiB | `8T` |
//! | `GPUMEM_PAGE_SIZE` | size of the smallest extent, a power of two up to 1 GiB; 0 for the device's granularity | `0` |
//! | `GPUMEM_PREALLOC` | size, or `N%` of the free memory | `0` |
//! | `GPUMEM_LIMIT` | size, or `N%` of the device; 0 for all of it | `0` |
//! | `GPUMEM_REUSE` | `settled` or `wait` | `wait` |
//! | `GPUMEM_TRIM_THRESHOLD` | size; 0 for never | `0` |
//! | `GPUMEM_TRIM_INTERVAL` | seconds, or a number with `ms`; 0 for no background trim | `0` |
//! | `GPUMEM_STREAM_CHECK` | `auto` or `driver` | `auto` |
//! | `GPUMEM_ARENA_DEBUG` | `off`, or of `check` (or `1`), `abort`, `poison`, `unmap` some with commas between | `off` |
//! | `GPUMEM_ARENA_QUARANTINE` | size: of memory with `poison`, of addresses with `unmap` | `256M`, `64G` |
//! | `GPUMEM_CAPTURE` | `off` or `auto` | `off` |
//! | `GPUMEM_TIERS` | `on` or `off` | `off` |
//! | `GPUMEM_PINNED_BLOCKS` | size of a block, blocks made at a time, how often at first | `1M,128,4` |
//! | `GPUMEM_PINNED_LIMIT` | size, or `N%` of the memory of a NUMA node; 0 for all of it | `50%` |
//! | `GPUMEM_DISK` | directories with `;` between, each with `=size` if it has a limit | none |
//! | `GPUMEM_DOWNGRADE` | two numbers from 0 to 1, parts of the limit: where moving out starts and stops | `0.85,0.65` |
//! | `GPUMEM_MOVER` | `on` or `off` | `on` |
//! | `GPUMEM_LOG` | 0, 1 or 2 | `1` |
//! | `GPUMEM_POOL` | `on` or `off` | `on` |
//! | `GPUMEM_HOST_DEVICES` | 1 to 64 | `1` |
//! | `GPUMEM_HOST_BYTES` | size, a multiple of 2 MiB | `64G` |
//! | `GPUMEM_HOST_SEED` | a number | `0` |
//!
//! A size is bytes, or a number with `K`, `M`, `G` or `T` (powers of 1024). A variable that is set must parse, an empty
//! one included; a set variable is checked even where another one overrides it.
//!
//! The variables of the VPMM pool are understood where their GPUMEM counterparts are not set:
//! - `VPMM_VA_SIZE` as `GPUMEM_VA_SIZE`.
//! - `VPMM_PAGE_SIZE`, below 1 GiB, as `GPUMEM_PAGE_SIZE`. From 1 GiB on, VPMM's users mean it to exceed any request,
//!   which in VPMM sends every request to `cudaMallocAsync`: so it is `GPUMEM_POOL=off`, unless `VPMM_PAGES` asks for
//!   pages, when it is the largest page size there is, 1 GiB.
//! - `VPMM_PAGES` times the page size (2 MiB where none is set) as `GPUMEM_PREALLOC`.

use super::config::{Backend, CaptureDetection, Config, DiskMount, Limit, PinnedBlocks, Prealloc, Reuse, StreamCheck};
use crate::arena::DebugMode;
use crate::base::size::{self, GIB, MIB, TIB};
use crate::base::{Error, Result, Status};
use crate::tier::Thresholds;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Every variable of gpumem's own.
pub const KNOWN: [&str; 23] = [
    "GPUMEM_BACKEND",
    "GPUMEM_VA_SIZE",
    "GPUMEM_PAGE_SIZE",
    "GPUMEM_PREALLOC",
    "GPUMEM_LIMIT",
    "GPUMEM_REUSE",
    "GPUMEM_TRIM_THRESHOLD",
    "GPUMEM_TRIM_INTERVAL",
    "GPUMEM_STREAM_CHECK",
    "GPUMEM_ARENA_DEBUG",
    "GPUMEM_ARENA_QUARANTINE",
    "GPUMEM_CAPTURE",
    "GPUMEM_TIERS",
    "GPUMEM_PINNED_BLOCKS",
    "GPUMEM_PINNED_LIMIT",
    "GPUMEM_DISK",
    "GPUMEM_DOWNGRADE",
    "GPUMEM_MOVER",
    "GPUMEM_LOG",
    "GPUMEM_POOL",
    "GPUMEM_HOST_DEVICES",
    "GPUMEM_HOST_BYTES",
    "GPUMEM_HOST_SEED",
];

/// Variables with this prefix belong to gpumem's tests.
const TEST_PREFIX: &str = "GPUMEM_TEST_";

/// Sizes of address ranges and devices are multiples of this: a whole number of pages on every CUDA device so far.
const UNIT: u64 = 2 * MIB;
/// The most addresses reserved at a time.
const LARGEST_VA: u64 = 64 * TIB;
/// The largest extent, hence the largest page size.
const LARGEST_PAGE: u64 = GIB;

impl Config {
    /// The settings of this process's environment. With a log level of 1 or more, names that begin with `GPUMEM_`
    /// and mean nothing are named on stderr, so that a misspelt one does not pass silently.
    pub fn from_env() -> Result<Config> {
        let config = Config::from_lookup(&|name| std::env::var_os(name))?;
        let unknown = unknown(std::env::vars_os().map(|(name, _)| name));
        if config.log >= 1 && !unknown.is_empty() {
            eprintln!("gpumem: ignored, not a setting: {} (settings are {})", unknown.join(", "), KNOWN.join(", "));
        }
        Ok(config)
    }

    /// The settings that `lookup` gives, by variable name. `Config` errors name the variable, its value and what is
    /// accepted.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Config> {
        let default = Config::default();
        let env = Environment { lookup };
        let mut config = Config {
            backend: env.word("GPUMEM_BACKEND", &BACKENDS)?.unwrap_or(default.backend),
            reuse: env.word("GPUMEM_REUSE", &REUSES)?.unwrap_or(default.reuse),
            trim_threshold: env.read("GPUMEM_TRIM_THRESHOLD", SIZE, any_size)?.unwrap_or(default.trim_threshold),
            trim_interval: env.read("GPUMEM_TRIM_INTERVAL", INTERVALS, interval)?.unwrap_or(default.trim_interval),
            stream_check: env.word("GPUMEM_STREAM_CHECK", &CHECKS)?.unwrap_or(default.stream_check),
            arena_debug: env.read("GPUMEM_ARENA_DEBUG", ARENA_DEBUGS, arena_debug)?.unwrap_or(default.arena_debug),
            arena_quarantine: env.read("GPUMEM_ARENA_QUARANTINE", SIZE, any_size)?.or(default.arena_quarantine),
            capture: env.word("GPUMEM_CAPTURE", &CAPTURES)?.unwrap_or(default.capture),
            tiers: env.word("GPUMEM_TIERS", &SWITCHES)?.unwrap_or(default.tiers),
            pinned_blocks: env
                .read("GPUMEM_PINNED_BLOCKS", PINNED_BLOCKS, pinned_blocks)?
                .unwrap_or(default.pinned_blocks),
            pinned_limit: env.read("GPUMEM_PINNED_LIMIT", PINNED_LIMITS, limit)?.unwrap_or(default.pinned_limit),
            disks: env.read("GPUMEM_DISK", DISKS, disks)?.unwrap_or(default.disks),
            thresholds: env.read("GPUMEM_DOWNGRADE", THRESHOLDS, thresholds)?.unwrap_or(default.thresholds),
            mover: env.word("GPUMEM_MOVER", &SWITCHES)?.unwrap_or(default.mover),
            log: env.read("GPUMEM_LOG", "0, 1 or 2", |t| number(t, 0, 2))?.unwrap_or(default.log),
            limit: env.read("GPUMEM_LIMIT", LIMITS, limit)?.unwrap_or(default.limit),
            host_devices: env
                .read("GPUMEM_HOST_DEVICES", "a number from 1 to 64", |t| number(t, 1, 64))?
                .unwrap_or(default.host_devices),
            host_bytes: env
                .read("GPUMEM_HOST_BYTES", "a size, a multiple of 2 MiB and not 0, such as 16G", host_size)?
                .unwrap_or(default.host_bytes),
            host_seed: env
                .read("GPUMEM_HOST_SEED", "a number below 2^64", |t| t.parse().ok())?
                .unwrap_or(default.host_seed),
            ..default
        };

        let vpmm_va = env.read("VPMM_VA_SIZE", VA_SIZES, va_size)?;
        config.va_size = env.read("GPUMEM_VA_SIZE", VA_SIZES, va_size)?.or(vpmm_va).unwrap_or(config.va_size);

        let page = env.read("GPUMEM_PAGE_SIZE", PAGE_SIZES, page_size)?;
        let vpmm_page = env.read("VPMM_PAGE_SIZE", VPMM_PAGE_SIZES, vpmm_page_size)?;
        let vpmm_pages: Option<u64> = env.read("VPMM_PAGES", "a number of pages", |t| t.parse().ok())?;
        config.page_size = page.or(vpmm_page.map(|p| p.min(LARGEST_PAGE))).unwrap_or(config.page_size);

        let prealloc = env.read("GPUMEM_PREALLOC", PREALLOCS, prealloc)?;
        config.prealloc = match (prealloc, vpmm_pages) {
            (Some(prealloc), _) => prealloc,
            (None, Some(pages)) => {
                let page = vpmm_page.or(page.filter(|p| *p > 0)).unwrap_or(2 * MIB);
                Prealloc::Bytes(pages.checked_mul(page).ok_or_else(|| {
                    let page = size::human(page);
                    bad("VPMM_PAGES", &pages.to_string(), &format!("fewer pages: so many of {page} exceed 2^64 bytes"))
                })?)
            }
            (None, None) => config.prealloc,
        };

        // VPMM's way to say "no pool".
        let beyond_any_request =
            page.is_none() && vpmm_page.is_some_and(|p| p >= LARGEST_PAGE) && vpmm_pages.unwrap_or(0) == 0;
        if beyond_any_request {
            config.page_size = Config::default().page_size;
        }
        config.pool = env.word("GPUMEM_POOL", &SWITCHES)?.unwrap_or(!beyond_any_request);
        Ok(config)
    }
}

/// The names in an environment that look like settings of gpumem and are not.
pub fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut unknown: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|n| n.starts_with("GPUMEM_") && !n.starts_with(TEST_PREFIX) && !KNOWN.contains(&n.as_str()))
        .collect();
    unknown.sort();
    unknown
}

// ---- what each kind of value accepts --------------------------------------------------------------------------------

const SIZE: &str = "a size: bytes, or a number with K, M, G or T, such as 512M";
const INTERVALS: &str = "seconds such as 10, milliseconds such as 500ms, or 0 for no background trim";
const ARENA_DEBUGS: &str =
    "off, or some of check (or 1), abort, poison and unmap with commas between, but not both poison \
                            and unmap";
const LIMITS: &str = "a size such as 16G, a share of the device from 1% to 100%, or 0 for all of it";
const PREALLOCS: &str = "a size such as 16G, or a share of the free memory from 0% to 100%";
const VA_SIZES: &str = "a size, a multiple of 2 MiB from 2M to 64T";
const PAGE_SIZES: &str = "0 for the device's granularity, or a size that is a power of two up to 1G \
                          (GPUMEM_POOL=off turns the pool off)";
const VPMM_PAGE_SIZES: &str = "a size that is a power of two, or any size from 1G on";

const PINNED_BLOCKS: &str =
    "the size of a block (a power of two from 4K to 1G), how many are made at a time and how often \
                             at first, such as 1M,128,4";
const PINNED_LIMITS: &str = "a size such as 16G, a share of a NUMA node's memory from 1% to 100%, or 0 for all of it";
/// What [`disks`] accepts.
pub const DISKS: &str =
    "directories that begin with /, with ; between, each with = and a size if it has a limit, such as \
                     /scratch=200G;/mnt/nvme";
const THRESHOLDS: &str = "two numbers from 0 to 1 of which the second is not the larger, such as 0.85,0.65";

const BACKENDS: [(&str, Backend); 3] = [("auto", Backend::Auto), ("cuda", Backend::Cuda), ("host", Backend::Host)];
const REUSES: [(&str, Reuse); 2] = [("settled", Reuse::Settled), ("wait", Reuse::Wait)];
const CHECKS: [(&str, StreamCheck); 2] = [("auto", StreamCheck::Auto), ("driver", StreamCheck::Driver)];
const CAPTURES: [(&str, CaptureDetection); 2] = [("off", CaptureDetection::Off), ("auto", CaptureDetection::Auto)];
const SWITCHES: [(&str, bool); 8] = [
    ("on", true),
    ("off", false),
    ("1", true),
    ("0", false),
    ("true", true),
    ("false", false),
    ("yes", true),
    ("no", false),
];

fn any_size(text: &str) -> Option<u64> {
    size::parse(text).ok()
}

fn interval(text: &str) -> Option<Duration> {
    let text = text.trim().to_ascii_lowercase();
    let number = |digits: &str| digits.trim_end().parse::<u64>().ok();
    match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(ms), _) => number(ms).map(Duration::from_millis),
        (None, Some(seconds)) => number(seconds).map(Duration::from_secs),
        (None, None) => number(&text).map(Duration::from_secs),
    }
}

fn arena_debug(text: &str) -> Option<DebugMode> {
    let mut mode = DebugMode::default();
    let text = text.trim().to_ascii_lowercase();
    if matches!(text.as_str(), "off" | "0") {
        return Some(mode);
    }
    for word in text.split(',') {
        match word.trim() {
            "1" | "check" => mode.check = true,
            "abort" => mode.abort = true,
            "poison" => mode.poison = true,
            "unmap" => mode.unmap = true,
            _ => return None,
        }
    }
    // All of them need the table that checks look into.
    mode.check = true;
    (!(mode.poison && mode.unmap)).then_some(mode)
}

fn va_size(text: &str) -> Option<u64> {
    any_size(text).filter(|bytes| (UNIT..=LARGEST_VA).contains(bytes) && bytes % UNIT == 0)
}

fn host_size(text: &str) -> Option<u64> {
    any_size(text).filter(|bytes| *bytes > 0 && bytes % UNIT == 0)
}

fn page_size(text: &str) -> Option<u64> {
    any_size(text).filter(|bytes| *bytes == 0 || (bytes.is_power_of_two() && *bytes <= LARGEST_PAGE))
}

fn vpmm_page_size(text: &str) -> Option<u64> {
    any_size(text).filter(|bytes| bytes.is_power_of_two() || *bytes >= LARGEST_PAGE)
}

fn pinned_blocks(text: &str) -> Option<PinnedBlocks> {
    let mut parts = text.split(',').map(str::trim);
    let block_bytes = any_size(parts.next()?)?;
    let (blocks, chunks) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let pinned = PinnedBlocks { block_bytes, blocks, chunks };
    parts.next().map_or_else(|| pinned.checked().ok(), |_| None)
}

/// Directories as `GPUMEM_DISK` names them.
pub fn disks(text: &str) -> Option<Vec<DiskMount>> {
    let mut mounts: Vec<DiskMount> = Vec::new();
    for entry in text.split(';').map(str::trim).filter(|e| !e.is_empty()) {
        let (path, limit) = match entry.rsplit_once('=') {
            Some((path, size)) => (path, Some(any_size(size).filter(|n| *n > 0)?)),
            None => (entry, None),
        };
        let path = PathBuf::from(path);
        if !path.is_absolute() || mounts.iter().any(|m| m.path == path) {
            return None;
        }
        mounts.push(DiskMount { path, limit });
    }
    (!mounts.is_empty()).then_some(mounts)
}

fn thresholds(text: &str) -> Option<Thresholds> {
    let (trigger, stop) = text.split_once(',')?;
    Thresholds::new(trigger.trim().parse().ok()?, stop.trim().parse().ok()?).ok()
}

/// `Some(None)` when the text is a percentage out of range.
fn percent(text: &str) -> Option<Option<u32>> {
    let digits = text.trim().strip_suffix('%')?.trim_end();
    Some(digits.parse().ok().filter(|p| *p <= 100))
}

fn limit(text: &str) -> Option<Limit> {
    match percent(text) {
        Some(percent) => percent.filter(|p| *p > 0).map(Limit::Percent),
        None => any_size(text).map(|bytes| if bytes == 0 { Limit::Device } else { Limit::Bytes(bytes) }),
    }
}

fn prealloc(text: &str) -> Option<Prealloc> {
    match percent(text) {
        Some(percent) => percent.map(Prealloc::Percent),
        None => any_size(text).map(Prealloc::Bytes),
    }
}

fn number(text: &str, least: u32, most: u32) -> Option<u32> {
    text.trim().parse().ok().filter(|n| (least..=most).contains(n))
}

// ---- reading ------------------------------------------------------------------------------------------------------

struct Environment<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Environment<'_> {
    /// The variable's value as `parse` understands it; `None` when it is not set.
    fn read<T>(&self, name: &str, accepted: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(raw) = (self.lookup)(name) else { return Ok(None) };
        let Some(text) = raw.to_str() else {
            return Err(bad(name, &raw.to_string_lossy(), &format!("{accepted} (the value is not UTF-8)")));
        };
        match parse(text) {
            Some(value) => Ok(Some(value)),
            None => Err(bad(name, text, accepted)),
        }
    }

    /// One of a few words, in either case.
    fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let accepted: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.read(name, &format!("one of {}", accepted.join(", ")), |text| {
            words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim())).map(|(_, value)| *value)
        })
    }
}

fn bad(name: &str, value: &str, accepted: &str) -> Error {
    Error::new(Status::Config, format!("{name}={value:?} is not understood; set {accepted}, or unset it"))
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;

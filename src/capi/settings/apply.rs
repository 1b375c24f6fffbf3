//! The fields of `gpumem_context_options`, beside the table of settings.
//!
//! What a field says is turned into the text that the setting's environment variable would have,
//! and set by that: so both are checked against the same ranges.

use super::context_options::*;
use crate::base::{Error, Result};
use crate::capi::call::arguments::name;
use crate::context::config::{Limit, PinnedBlocks, Prealloc, Slack};
use crate::context::settings;
use crate::context::Config;

/// What a field says: its name, and the text for the variable.
type Said = Option<(&'static str, String)>;

/// How one setting is said in the structure.
struct Fields {
    variable: &'static str,
    /// What the fields take, where that is said otherwise than for the variable.
    takes: &'static str,
    /// What the fields say; `None` when they are 0. `Invalid` when they contradict each other.
    said: fn(&gpumem_context_options, &Config) -> Result<Said>,
    /// Enters the value in force.
    put: fn(&Config, &mut gpumem_context_options),
}

/// Constants are counted from 1 in the order of these words.
const BACKENDS: [&str; 3] = ["auto", "cuda", "host"];
const REUSES: [&str; 2] = ["settled", "wait"];
const POOLS: [&str; 2] = ["on", "off"];
const CHECKS: [&str; 2] = ["auto", "driver"];
const CAPTURES: [&str; 2] = ["off", "auto"];
const SWITCHES: [&str; 2] = ["off", "on"];
const HOST_MODES: [&str; 3] = ["eager", "simulate", "abort"];

const _: () = {
    assert!(GPUMEM_BACKEND_AUTO == 1 && GPUMEM_BACKEND_CUDA == 2 && GPUMEM_BACKEND_HOST == 3);
    assert!(GPUMEM_REUSE_SETTLED == 1 && GPUMEM_REUSE_WAIT == 2);
    assert!(GPUMEM_SLACK_AUTO == -1 && GPUMEM_SLACK_TIGHT == -2);
    assert!(GPUMEM_POOL_ON == 1 && GPUMEM_POOL_OFF == 2);
    assert!(GPUMEM_STREAM_CHECK_AUTO == 1 && GPUMEM_STREAM_CHECK_DRIVER == 2);
    assert!(GPUMEM_CAPTURE_DETECTION_OFF == 1 && GPUMEM_CAPTURE_DETECTION_AUTO == 2);
    assert!(GPUMEM_TIERS_OFF == 1 && GPUMEM_TIERS_ON == 2 && GPUMEM_MOVER_OFF == 1 && GPUMEM_MOVER_ON == 2);
    assert!(GPUMEM_HOST_MODE_EAGER == 1 && GPUMEM_HOST_MODE_SIMULATE == 2 && GPUMEM_HOST_MODE_ABORT == 3);
    // The numbers of GPUMEM_LOG, except for 0, which means that nothing is said here.
    assert!(GPUMEM_LOG_NOTHING < 0 && GPUMEM_LOG_WARNINGS == 1 && GPUMEM_LOG_DECISIONS == 2);
};

/// A field that is one of some constants.
macro_rules! word {
    ($variable:literal, $field:ident, $constants:literal, $words:expr) => {
        Fields {
            variable: $variable,
            takes: concat!("one of ", $constants),
            said: |o, _| Ok((o.$field != 0).then(|| (stringify!($field), word(o.$field, &$words)))),
            put: |c, o| o.$field = constant($variable, c, &$words),
        }
    };
}

/// A field that is a number, 0 meaning that nothing is said.
macro_rules! number {
    ($variable:literal, $field:ident, $value:expr) => {
        Fields {
            variable: $variable,
            takes: "",
            said: |o, _| Ok((o.$field != 0).then(|| (stringify!($field), o.$field.to_string()))),
            put: |c, o| o.$field = $value(c),
        }
    };
}

/// An amount in bytes or in percent.
macro_rules! share {
    ($variable:literal, $bytes:ident, $percent:ident, $amount:expr) => {
        Fields {
            variable: $variable,
            takes: "bytes, or percent from 1 to 100",
            said: |o, _| share((stringify!($bytes), o.$bytes), (stringify!($percent), o.$percent)),
            put: |c, o| (o.$bytes, o.$percent) = $amount(c),
        }
    };
}

/// A field that is a string: it is the caller's, see [`apply`]; the text in force has to be kept
/// somewhere, see `gpumem_settings_get`.
const fn by_text(variable: &'static str) -> Fields {
    Fields { variable, takes: "", said: |_, _| Ok(None), put: |_, _| {} }
}

const FIELDS: &[Fields] = &[
    word!("GPUMEM_BACKEND", backend, "GPUMEM_BACKEND_*", BACKENDS),
    word!("GPUMEM_POOL", pool, "GPUMEM_POOL_*", POOLS),
    share!("GPUMEM_LIMIT", limit_bytes, limit_percent, |c: &Config| of_limit(c.limit)),
    share!("GPUMEM_PREALLOC", prealloc_bytes, prealloc_percent, |c: &Config| match c.prealloc {
        Prealloc::Bytes(bytes) => (bytes, 0),
        Prealloc::Percent(percent) => (0, percent),
    }),
    word!("GPUMEM_REUSE", reuse, "GPUMEM_REUSE_*", REUSES),
    Fields {
        variable: "GPUMEM_SLACK",
        takes: "one of GPUMEM_SLACK_*, or percent from 1 to 100",
        said: |o, _| {
            Ok((o.slack != 0).then(|| {
                let text = match o.slack {
                    GPUMEM_SLACK_AUTO => "auto".to_string(),
                    GPUMEM_SLACK_TIGHT => "tight".to_string(),
                    share => format!("{share}%"),
                };
                ("slack", text)
            }))
        },
        put: |c, o| {
            o.slack = match c.slack {
                Slack::Auto => GPUMEM_SLACK_AUTO,
                Slack::Tight => GPUMEM_SLACK_TIGHT,
                Slack::Percent(share) => share as i32,
            }
        },
    },
    number!("GPUMEM_TRIM_THRESHOLD", trim_threshold, |c: &Config| c.trim_threshold),
    Fields {
        variable: "GPUMEM_TRIM_INTERVAL",
        takes: "",
        said: |o, _| Ok((o.trim_interval_ms != 0).then(|| ("trim_interval_ms", format!("{}ms", o.trim_interval_ms)))),
        put: |c, o| o.trim_interval_ms = u64::try_from(c.trim_interval.as_millis()).unwrap_or(u64::MAX),
    },
    word!("GPUMEM_STREAM_CHECK", stream_check, "GPUMEM_STREAM_CHECK_*", CHECKS),
    Fields {
        variable: "GPUMEM_ARENA_DEBUG",
        takes: "GPUMEM_ARENA_DEBUG_*, or-ed together, but not both _POISON and _UNMAP, nor _OFF and another",
        said: |o, _| Ok((o.arena_debug != 0).then(|| ("arena_debug", arena_debug(o.arena_debug)))),
        put: |c, o| {
            let mode = c.arena_debug;
            let flag = |on, flag| if on { flag } else { 0 };
            o.arena_debug = flag(mode.is_on(), GPUMEM_ARENA_DEBUG_CHECK)
                | flag(!mode.is_on(), GPUMEM_ARENA_DEBUG_OFF)
                | flag(mode.abort, GPUMEM_ARENA_DEBUG_ABORT)
                | flag(mode.poison, GPUMEM_ARENA_DEBUG_POISON)
                | flag(mode.unmap, GPUMEM_ARENA_DEBUG_UNMAP);
        },
    },
    number!("GPUMEM_ARENA_QUARANTINE", arena_quarantine, Config::quarantine),
    word!("GPUMEM_CAPTURE", capture_detection, "GPUMEM_CAPTURE_DETECTION_*", CAPTURES),
    Fields { takes: "a power of two up to 1G", ..number!("GPUMEM_PAGE_SIZE", page_size, |c: &Config| c.page_size) },
    number!("GPUMEM_VA_SIZE", va_size, |c: &Config| c.va_size),
    word!("GPUMEM_TIERS", tiers, "GPUMEM_TIERS_*", SWITCHES),
    Fields {
        variable: "GPUMEM_PINNED_BLOCKS",
        takes: "",
        said: pinned_blocks,
        put: |c, o| {
            let PinnedBlocks { block_bytes, blocks, chunks } = c.pinned_blocks;
            o.pinned_block_bytes = block_bytes;
            o.pinned_blocks = blocks;
            o.pinned_chunks = if chunks == 0 { GPUMEM_PINNED_CHUNKS_NONE } else { chunks };
        },
    },
    share!("GPUMEM_PINNED_LIMIT", pinned_limit_bytes, pinned_limit_percent, |c: &Config| of_limit(c.pinned_limit)),
    by_text("GPUMEM_DISK"),
    Fields {
        variable: "GPUMEM_DOWNGRADE",
        takes: "",
        said: |o, _| {
            let said = o.downgrade_trigger != 0.0 || o.downgrade_stop != 0.0;
            let text = || format!("{},{}", o.downgrade_trigger, o.downgrade_stop);
            Ok(said.then(|| ("downgrade_trigger and downgrade_stop", text())))
        },
        put: |c, o| (o.downgrade_trigger, o.downgrade_stop) = c.thresholds.parts(),
    },
    word!("GPUMEM_MOVER", mover, "GPUMEM_MOVER_*", SWITCHES),
    Fields {
        variable: "GPUMEM_LOG",
        takes: "one of GPUMEM_LOG_*",
        said: |o, _| {
            let text = |log| if log == GPUMEM_LOG_NOTHING { "0".into() } else { i32::to_string(&log) };
            Ok((o.log != 0).then(|| ("log", text(o.log))))
        },
        put: |c, o| o.log = if c.log == 0 { GPUMEM_LOG_NOTHING } else { i32::try_from(c.log).unwrap_or(i32::MAX) },
    },
    by_text("GPUMEM_RECORD"),
    Fields {
        variable: "GPUMEM_RECORD_STACKS",
        takes: "a number from 1 to 256, or GPUMEM_RECORD_STACKS_NONE",
        said: |o, _| {
            let text = |n| if n == GPUMEM_RECORD_STACKS_NONE { "0".into() } else { u32::to_string(&n) };
            Ok((o.record_stacks != 0).then(|| ("record_stacks", text(o.record_stacks))))
        },
        put: |c, o| o.record_stacks = if c.record_stacks == 0 { GPUMEM_RECORD_STACKS_NONE } else { c.record_stacks },
    },
    Fields {
        variable: "GPUMEM_SNAPSHOT_ON",
        takes: "GPUMEM_SNAPSHOT_ON_*, or-ed together, but not _NOTHING and another",
        said: |o, _| Ok((o.snapshot_on != 0).then(|| ("snapshot_on", snapshot_on(o.snapshot_on)))),
        put: |c, o| {
            let flag = |on, flag| if on { flag } else { 0 };
            let on = c.snapshot_on;
            o.snapshot_on = flag(on.oom, GPUMEM_SNAPSHOT_ON_OOM)
                | flag(on.exit, GPUMEM_SNAPSHOT_ON_EXIT)
                | flag(!on.oom && !on.exit, GPUMEM_SNAPSHOT_ON_NOTHING);
        },
    },
    by_text("GPUMEM_SNAPSHOT"),
    Fields {
        variable: "GPUMEM_SNAPSHOT_EVENTS",
        takes: "a number from 1 to 65536, or GPUMEM_SNAPSHOT_EVENTS_NONE",
        said: |o, _| {
            let text = |n| if n == GPUMEM_SNAPSHOT_EVENTS_NONE { "0".into() } else { u32::to_string(&n) };
            Ok((o.snapshot_events != 0).then(|| ("snapshot_events", text(o.snapshot_events))))
        },
        put: |c, o| {
            o.snapshot_events = if c.snapshot_events == 0 { GPUMEM_SNAPSHOT_EVENTS_NONE } else { c.snapshot_events };
        },
    },
    word!("GPUMEM_STATS_PAGE", stats_page, "GPUMEM_STATS_PAGE_*", SWITCHES),
    word!("GPUMEM_NVTX", nvtx, "GPUMEM_NVTX_*", SWITCHES),
    number!("GPUMEM_HOST_DEVICES", host_devices, |c: &Config| c.host_devices),
    number!("GPUMEM_HOST_BYTES", host_bytes, |c: &Config| c.host_bytes),
    word!("GPUMEM_HOST_MODE", host_mode, "GPUMEM_HOST_MODE_*", HOST_MODES),
    number!("GPUMEM_HOST_SEED", host_seed, |c: &Config| c.host_seed),
];

/// Puts what the options say in the place of what the settings say.
///
/// # Safety
/// `o.disk`, `o.record` and `o.snapshot` are NULL or strings.
pub(in crate::capi) unsafe fn apply(o: &gpumem_context_options, config: &mut Config) -> Result<()> {
    if o.reserved != 0 {
        return Err(Error::invalid(format!("gpumem_context_options.reserved is {}; it must be 0", o.reserved)));
    }
    for fields in FIELDS {
        let said = (fields.said)(o, config)?;
        set(fields, said, "0", config)?;
    }
    let texts = [
        ("GPUMEM_DISK", o.disk, "gpumem_context_options.disk"),
        ("GPUMEM_RECORD", o.record, "gpumem_context_options.record"),
        ("GPUMEM_SNAPSHOT", o.snapshot, "gpumem_context_options.snapshot"),
    ];
    for (variable, text, parameter) in texts {
        // SAFETY: NULL or a string by the caller's promise.
        let text = unsafe { name(text, parameter) }?;
        let field = parameter.rsplit('.').next().unwrap_or(parameter);
        match FIELDS.iter().find(|fields| fields.variable == variable) {
            Some(fields) => set(fields, text.map(|text| (field, text.to_string())), "NULL", config)?,
            None => return Err(Error::internal(format!("{field} is no setting"))),
        }
    }
    Ok(())
}

/// Sets what was said. `unsaid` is the field's value where nothing is.
fn set(fields: &Fields, said: Said, unsaid: &str, config: &mut Config) -> Result<()> {
    let Some((field, text)) = said else { return Ok(()) };
    let Fields { variable, takes, .. } = *fields;
    let setting = settings::find(variable).ok_or_else(|| Error::internal(format!("{variable} is no setting")))?;
    setting.set(config, &text).ok_or_else(|| {
        let takes = if takes.is_empty() { setting.accepted } else { takes };
        let text = if text.is_empty() { "empty" } else { &text };
        Error::invalid(format!(
            "gpumem_context_options.{field} is {text}; set {takes}; or {unsaid}, which leaves it as {variable} has it"
        ))
    })
}

/// The settings in force, except for strings.
pub(in crate::capi) fn fill(config: &Config) -> gpumem_context_options {
    // SAFETY: numbers and a pointer; zero is a value of each.
    let mut o: gpumem_context_options = unsafe { std::mem::zeroed() };
    FIELDS.iter().for_each(|fields| (fields.put)(config, &mut o));
    o
}

/// The word for a constant, or its number if there is no such constant.
fn word(value: i32, words: &[&str]) -> String {
    let at = usize::try_from(value).ok().and_then(|n| n.checked_sub(1));
    at.and_then(|i| words.get(i)).map_or_else(|| value.to_string(), |word| (*word).to_string())
}

/// The constant for the value in force.
fn constant(variable: &str, config: &Config, words: &[&str]) -> i32 {
    let text = settings::find(variable).map(|s| s.text(config)).unwrap_or_default();
    words.iter().zip(1..).find(|(word, _)| **word == text).map_or(0, |(_, n)| n)
}

fn share((bytes_field, bytes): (&'static str, u64), (percent_field, percent): (&'static str, u32)) -> Result<Said> {
    match (bytes, percent) {
        (0, 0) => Ok(None),
        (bytes, 0) => Ok(Some((bytes_field, bytes.to_string()))),
        (0, percent) => Ok(Some((percent_field, format!("{percent}%")))),
        _ => Err(Error::invalid(format!(
            "gpumem_context_options has both {bytes_field} and {percent_field}; set one of them"
        ))),
    }
}

fn of_limit(limit: Limit) -> (u64, u32) {
    match limit {
        Limit::Device => (0, 0),
        Limit::Bytes(bytes) => (bytes, 0),
        Limit::Percent(percent) => (0, percent),
    }
}

fn arena_debug(flags: u32) -> String {
    let words = [
        (GPUMEM_ARENA_DEBUG_OFF, "off"),
        (GPUMEM_ARENA_DEBUG_CHECK, "check"),
        (GPUMEM_ARENA_DEBUG_ABORT, "abort"),
        (GPUMEM_ARENA_DEBUG_POISON, "poison"),
        (GPUMEM_ARENA_DEBUG_UNMAP, "unmap"),
    ];
    let mut said: Vec<String> = words.iter().filter(|w| flags & w.0 != 0).map(|w| w.1.to_string()).collect();
    let unknown = words.iter().fold(flags, |rest, w| rest & !w.0);
    said.extend((unknown != 0).then(|| format!("{unknown:#x}")));
    said.join(",")
}

fn snapshot_on(flags: u32) -> String {
    let words = [(GPUMEM_SNAPSHOT_ON_OOM, "oom"), (GPUMEM_SNAPSHOT_ON_EXIT, "exit")];
    let mut said: Vec<String> = words.iter().filter(|w| flags & w.0 != 0).map(|w| w.1.to_string()).collect();
    let unknown = words.iter().fold(flags, |rest, w| rest & !w.0);
    match unknown {
        GPUMEM_SNAPSHOT_ON_NOTHING if said.is_empty() => return "off".into(),
        0 => {}
        unknown => said.push(format!("{unknown:#x}")),
    }
    said.join(",")
}

/// Those of the three that are 0 stay as they are.
fn pinned_blocks(o: &gpumem_context_options, config: &Config) -> Result<Said> {
    let or = |said, now| if said == 0 { now } else { said };
    let now = config.pinned_blocks;
    if o.pinned_block_bytes == 0 && o.pinned_blocks == 0 && o.pinned_chunks == 0 {
        return Ok(None);
    }
    let said = PinnedBlocks {
        block_bytes: if o.pinned_block_bytes == 0 { now.block_bytes } else { o.pinned_block_bytes },
        blocks: or(o.pinned_blocks, now.blocks),
        chunks: if o.pinned_chunks == GPUMEM_PINNED_CHUNKS_NONE { 0 } else { or(o.pinned_chunks, now.chunks) },
    };
    // The range is the setting's; checked here as well, for the name of the field.
    let PinnedBlocks { block_bytes, blocks, chunks } = said.checked().map_err(|(field, value, accepted)| {
        Error::invalid(format!("gpumem_context_options.pinned_{field} is {value}; it is {accepted}"))
    })?;
    Ok(Some(("pinned_block_bytes", format!("{block_bytes},{blocks},{chunks}"))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::arena::DebugMode;
    use crate::base::size::{GIB, MIB, TIB};
    use crate::base::Status;
    use crate::context::config::{Backend, CaptureDetection, DiskMount, HostMode, Reuse, SnapshotOn, StreamCheck};
    use crate::context::settings::SETTINGS;
    use crate::tier::Thresholds;
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn zero() -> gpumem_context_options {
        // SAFETY: numbers and a pointer; zero is a value of each.
        unsafe { std::mem::zeroed() }
    }

    fn apply(o: &gpumem_context_options, config: &mut Config) -> Result<()> {
        // SAFETY: every test's string is NULL or one that is written out there.
        unsafe { super::apply(o, config) }
    }

    #[test]
    fn zero_changes_nothing_and_every_field_arrives() {
        let start = Config { log: 2, ..Config::default() };
        let mut config = start.clone();
        apply(&zero(), &mut config).unwrap();
        assert_eq!(config, start);

        let all = gpumem_context_options {
            size: 216,
            backend: GPUMEM_BACKEND_HOST,
            reuse: GPUMEM_REUSE_SETTLED,
            log: GPUMEM_LOG_NOTHING,
            pool: GPUMEM_POOL_OFF,
            prealloc_percent: 33,
            prealloc_bytes: 0,
            va_size: 4 * MIB,
            page_size: GIB,
            limit_bytes: 3,
            trim_threshold: 4,
            host_bytes: 6 * MIB,
            host_seed: 7,
            host_devices: 6,
            limit_percent: 0,
            trim_interval_ms: 8,
            stream_check: GPUMEM_STREAM_CHECK_DRIVER,
            arena_debug: GPUMEM_ARENA_DEBUG_ABORT | GPUMEM_ARENA_DEBUG_POISON,
            arena_quarantine: 9,
            capture_detection: GPUMEM_CAPTURE_DETECTION_AUTO,
            tiers: GPUMEM_TIERS_ON,
            mover: GPUMEM_MOVER_OFF,
            pinned_limit_percent: 0,
            pinned_limit_bytes: 10,
            pinned_block_bytes: 8192,
            pinned_blocks: 11,
            pinned_chunks: 12,
            disk: c"/a=1K;/b".as_ptr(),
            downgrade_trigger: 0.5,
            downgrade_stop: 0.25,
            host_mode: GPUMEM_HOST_MODE_ABORT,
            slack: 25,
            record: c"/tmp/a.gmrec".as_ptr(),
            snapshot: c"/tmp/s.json".as_ptr(),
            record_stacks: 13,
            snapshot_on: GPUMEM_SNAPSHOT_ON_OOM | GPUMEM_SNAPSHOT_ON_EXIT,
            snapshot_events: 14,
            stats_page: GPUMEM_STATS_PAGE_ON,
            nvtx: GPUMEM_NVTX_ON,
            reserved: 0,
        };
        apply(&all, &mut config).unwrap();
        let want = Config {
            slack: Slack::Percent(25),
            backend: Backend::Host,
            va_size: 4 * MIB,
            page_size: GIB,
            prealloc: Prealloc::Percent(33),
            limit: Limit::Bytes(3),
            reuse: Reuse::Settled,
            trim_threshold: 4,
            trim_interval: Duration::from_millis(8),
            stream_check: StreamCheck::Driver,
            arena_debug: DebugMode { check: true, abort: true, poison: true, unmap: false },
            arena_quarantine: Some(9),
            log: 0,
            pool: false,
            host_devices: 6,
            host_bytes: 6 * MIB,
            host_mode: Some(HostMode::Abort),
            host_seed: 7,
            capture: CaptureDetection::Auto,
            tiers: true,
            mover: false,
            pinned_limit: Limit::Bytes(10),
            pinned_blocks: PinnedBlocks { block_bytes: 8192, blocks: 11, chunks: 12 },
            disks: vec![
                DiskMount { path: "/a".into(), limit: Some(1024) },
                DiskMount { path: "/b".into(), limit: None },
            ],
            thresholds: Thresholds::new(0.5, 0.25).unwrap(),
            record: Some("/tmp/a.gmrec".into()),
            snapshot: Some("/tmp/s.json".into()),
            record_stacks: 13,
            snapshot_on: SnapshotOn { oom: true, exit: true },
            snapshot_events: 14,
            stats_page: true,
            nvtx: true,
        };
        assert_eq!(config, want);
        // Each by itself leaves the others as they are.
        apply(&zero(), &mut config).unwrap();
        assert_eq!(config, want);
        let back = gpumem_context_options {
            capture_detection: GPUMEM_CAPTURE_DETECTION_OFF,
            tiers: GPUMEM_TIERS_OFF,
            mover: GPUMEM_MOVER_ON,
            pinned_limit_percent: 7,
            pinned_chunks: GPUMEM_PINNED_CHUNKS_NONE,
            downgrade_trigger: 1.0,
            ..zero()
        };
        apply(&back, &mut config).unwrap();
        let want = Config {
            capture: CaptureDetection::Off,
            tiers: false,
            mover: true,
            pinned_limit: Limit::Percent(7),
            pinned_blocks: PinnedBlocks { chunks: 0, ..want.pinned_blocks },
            thresholds: Thresholds::new(1.0, 0.0).unwrap(),
            ..want
        };
        assert_eq!(config, want);
        apply(&gpumem_context_options { arena_debug: GPUMEM_ARENA_DEBUG_OFF, ..zero() }, &mut config).unwrap();
        assert_eq!(config.arena_debug, DebugMode::default());
    }

    #[test]
    fn values_out_of_range_name_their_field() {
        type Bad = (&'static str, fn(&mut gpumem_context_options));
        let bad: [Bad; 50] = [
            ("record_stacks", |o| o.record_stacks = 257),
            ("snapshot_on", |o| o.snapshot_on = 8),
            ("snapshot_on", |o| o.snapshot_on = GPUMEM_SNAPSHOT_ON_NOTHING | GPUMEM_SNAPSHOT_ON_OOM),
            ("snapshot_events", |o| o.snapshot_events = 65537),
            ("stats_page", |o| o.stats_page = 3),
            ("nvtx", |o| o.nvtx = 3),
            ("reserved", |o| o.reserved = 1),
            ("backend", |o| o.backend = 4),
            ("reuse", |o| o.reuse = -1),
            ("log", |o| o.log = 9),
            ("stream_check", |o| o.stream_check = 3),
            ("arena_debug", |o| o.arena_debug = 32),
            ("arena_debug", |o| o.arena_debug = GPUMEM_ARENA_DEBUG_OFF | GPUMEM_ARENA_DEBUG_CHECK),
            ("arena_debug", |o| o.arena_debug = GPUMEM_ARENA_DEBUG_POISON | GPUMEM_ARENA_DEBUG_UNMAP),
            ("pool", |o| o.pool = 3),
            ("prealloc_percent", |o| o.prealloc_percent = 101),
            ("prealloc_bytes", |o| (o.prealloc_percent, o.prealloc_bytes) = (1, 1)),
            ("limit_percent", |o| o.limit_percent = 101),
            ("limit_bytes", |o| (o.limit_percent, o.limit_bytes) = (1, 1)),
            ("log", |o| o.log = i32::MIN),
            ("log", |o| o.log = 3),
            ("host_bytes", |o| o.host_bytes = 5),
            ("host_devices", |o| o.host_devices = 65),
            ("host_mode", |o| o.host_mode = 4),
            ("host_mode", |o| o.host_mode = -1),
            ("slack", |o| o.slack = 101),
            ("slack", |o| o.slack = -3),
            ("va_size", |o| o.va_size = 12345),
            ("va_size", |o| o.va_size = u64::MAX),
            ("va_size", |o| o.va_size = 128 * TIB),
            ("page_size", |o| o.page_size = 3 * MIB),
            ("page_size", |o| o.page_size = 2 * GIB),
            ("capture_detection", |o| o.capture_detection = 3),
            ("tiers", |o| o.tiers = 3),
            ("mover", |o| o.mover = -1),
            ("pinned_limit_percent", |o| o.pinned_limit_percent = 101),
            ("pinned_limit_bytes", |o| (o.pinned_limit_percent, o.pinned_limit_bytes) = (1, 1)),
            ("pinned_block_bytes", |o| o.pinned_block_bytes = 4095),
            ("pinned_block_bytes", |o| o.pinned_block_bytes = 2048),
            ("pinned_block_bytes", |o| o.pinned_block_bytes = 2 * GIB),
            ("pinned_blocks", |o| o.pinned_blocks = (1 << 20) + 1),
            ("pinned_chunks", |o| o.pinned_chunks = u32::MAX - 1),
            ("disk", |o| o.disk = c"".as_ptr()),
            ("disk", |o| o.disk = c"scratch".as_ptr()),
            ("disk", |o| o.disk = c"/a=lots".as_ptr()),
            ("disk", |o| o.disk = c"/a;/a".as_ptr()),
            ("disk", |o| o.disk = c"/\xff".as_ptr()),
            ("downgrade_trigger", |o| o.downgrade_trigger = f64::NAN),
            ("downgrade_trigger", |o| (o.downgrade_trigger, o.downgrade_stop) = (0.5, 0.6)),
            ("downgrade_stop", |o| o.downgrade_stop = 0.1),
        ];
        for (field, set) in bad {
            let mut o = zero();
            set(&mut o);
            let e = apply(&o, &mut Config::default()).unwrap_err();
            assert_eq!(e.status, Status::Invalid);
            assert!(e.message.contains(field), "{field}: {}", e.message);
        }
    }

    /// What an error says is what the field takes, which is not always what the variable does.
    #[test]
    fn an_error_says_what_the_field_takes() {
        type Case = (fn(&mut gpumem_context_options), &'static str);
        let cases: [Case; 5] = [
            (
                |o| o.record_stacks = 300,
                "record_stacks is 300; set a number from 1 to 256, or GPUMEM_RECORD_STACKS_NONE; or 0, which leaves it as \
                 GPUMEM_RECORD_STACKS has it",
            ),
            (|o| o.limit_percent = 101, "limit_percent is 101%; set bytes, or percent from 1 to 100; or 0,"),
            (|o| o.page_size = 3, "page_size is 3; set a power of two up to 1G; or 0,"),
            (|o| o.log = 3, "log is 3; set one of GPUMEM_LOG_*; or 0,"),
            (|o| o.disk = c"".as_ptr(), "disk is empty; set directories that begin with /,"),
        ];
        for (set, says) in cases {
            let mut o = zero();
            set(&mut o);
            let e = apply(&o, &mut Config::default()).unwrap_err();
            assert!(e.message.contains(says), "{says}: {}", e.message);
        }
        let mut o = zero();
        o.disk = c"scratch".as_ptr();
        let e = apply(&o, &mut Config::default()).unwrap_err();
        assert!(e.message.ends_with("; or NULL, which leaves it as GPUMEM_DISK has it"), "{}", e.message);
    }

    /// The settings' table names every field, and there is a line here for every setting.
    #[test]
    fn the_table_and_the_structure_agree() {
        let source = include_str!("context_options.rs");
        let from = source.find("pub struct gpumem_context_options {").unwrap();
        let body = &source[from..from + source[from..].find("\n}").unwrap()];
        let fields: BTreeSet<&str> = body
            .lines()
            .filter_map(|l| l.trim().strip_prefix("pub ")?.split_once(':').map(|(name, _)| name))
            .filter(|name| !["size", "reserved"].contains(name))
            .collect();
        let named: Vec<&str> = SETTINGS.iter().flat_map(|s| s.fields).copied().collect();
        assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), fields);
        assert_eq!(named.len(), fields.len(), "a field that two settings name");
        let here: Vec<&str> = FIELDS.iter().map(|f| f.variable).collect();
        assert_eq!(here.iter().collect::<BTreeSet<_>>(), SETTINGS.iter().map(|s| &s.variable).collect());
        assert_eq!(here.len(), SETTINGS.len());
        // The words on starting name every variable.
        let words = &source[..source.find("\nuse ").unwrap()];
        for s in SETTINGS {
            assert!(words.contains(s.variable), "{} is not in the header's section on starting", s.variable);
        }
    }

    #[test]
    fn what_is_in_force_can_be_passed_on() {
        let config = Config {
            limit: Limit::Percent(9),
            prealloc: Prealloc::Bytes(1 << 21),
            arena_debug: DebugMode { check: true, abort: true, ..DebugMode::default() },
            pool: false,
            log: 0,
            mover: false,
            pinned_blocks: PinnedBlocks { chunks: 0, ..PinnedBlocks::default() },
            trim_interval: Duration::from_millis(1500),
            host_mode: Some(HostMode::Simulate),
            host_seed: 3,
            snapshot_on: SnapshotOn { oom: true, exit: false },
            snapshot_events: 0,
            record_stacks: 4,
            ..Config::default()
        };
        let mut again = Config::default();
        apply(&fill(&config), &mut again).unwrap();
        assert_eq!(again, Config { arena_quarantine: Some(config.quarantine()), ..config });
        // The numbers of the environment.
        for log in [1, 2] {
            let mut config = Config::default();
            apply(&gpumem_context_options { log, ..zero() }, &mut config).unwrap();
            assert_eq!(config, Config { log: log as u32, ..Config::default() });
        }
    }
}

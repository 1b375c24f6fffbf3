//! What options say in the place of what the environment says.

use super::context::*;
use super::plan_state::name;
use crate::arena::DebugMode;
use crate::base::size::{GIB, MIB, TIB};
use crate::base::{Error, Result};
use crate::context::config::{Backend, CaptureDetection, Limit, Prealloc, Reuse, StreamCheck};
use crate::context::environment::{disks, DISKS};
use crate::context::Config;
use crate::tier::Thresholds;
use std::time::Duration;

/// The ranges of the environment's settings.
const UNIT: u64 = 2 * MIB;
const LARGEST_VA: u64 = 64 * TIB;
const LARGEST_PAGE: u64 = GIB;

/// Puts what the options say in the place of what the settings say.
///
/// # Safety
/// `o.disk` is NULL or a string.
pub(super) unsafe fn apply(o: &gpumem_context_options, config: &mut Config) -> Result<()> {
    match o.backend {
        0 => {}
        GPUMEM_BACKEND_AUTO => config.backend = Backend::Auto,
        GPUMEM_BACKEND_CUDA => config.backend = Backend::Cuda,
        GPUMEM_BACKEND_HOST => config.backend = Backend::Host,
        other => return unknown("backend", other, "GPUMEM_BACKEND"),
    }
    match o.reuse {
        0 => {}
        GPUMEM_REUSE_SETTLED => config.reuse = Reuse::Settled,
        GPUMEM_REUSE_WAIT => config.reuse = Reuse::Wait,
        other => return unknown("reuse", other, "GPUMEM_REUSE"),
    }
    match o.stream_check {
        0 => {}
        GPUMEM_STREAM_CHECK_AUTO => config.stream_check = StreamCheck::Auto,
        GPUMEM_STREAM_CHECK_DRIVER => config.stream_check = StreamCheck::Driver,
        other => return unknown("stream_check", other, "GPUMEM_STREAM_CHECK"),
    }
    if o.arena_debug != 0 {
        config.arena_debug = arena_debug(o.arena_debug)?;
    }
    if o.arena_quarantine != 0 {
        config.arena_quarantine = Some(o.arena_quarantine);
    }
    match o.log {
        0 => {}
        GPUMEM_LOG_NOTHING => config.log = 0,
        GPUMEM_LOG_WARNINGS => config.log = 1,
        GPUMEM_LOG_DECISIONS => config.log = 2,
        other => return unknown("log", other, "GPUMEM_LOG"),
    }
    match o.pool {
        0 => {}
        GPUMEM_POOL_ON => config.pool = true,
        GPUMEM_POOL_OFF => config.pool = false,
        other => return unknown("pool", other, "GPUMEM_POOL"),
    }
    match o.capture_detection {
        0 => {}
        GPUMEM_CAPTURE_DETECTION_OFF => config.capture = CaptureDetection::Off,
        GPUMEM_CAPTURE_DETECTION_AUTO => config.capture = CaptureDetection::Auto,
        other => return unknown("capture_detection", other, "GPUMEM_CAPTURE_DETECTION"),
    }
    // SAFETY: passed on from the caller.
    unsafe { apply_tiers(o, config) }?;
    match share("prealloc", o.prealloc_bytes, o.prealloc_percent)? {
        None => {}
        Some(Share::Bytes(bytes)) => config.prealloc = Prealloc::Bytes(bytes),
        Some(Share::Percent(percent)) => config.prealloc = Prealloc::Percent(percent),
    }
    match share("limit", o.limit_bytes, o.limit_percent)? {
        None => {}
        Some(Share::Bytes(bytes)) => config.limit = Limit::Bytes(bytes),
        Some(Share::Percent(percent)) => config.limit = Limit::Percent(percent),
    }
    if o.va_size > LARGEST_VA || !o.va_size.is_multiple_of(UNIT) {
        return Err(Error::invalid(format!(
            "gpumem_context_options.va_size is {}; it is a multiple of 2 MiB up to 64 TiB",
            o.va_size
        )));
    }
    if o.page_size != 0 && (!o.page_size.is_power_of_two() || o.page_size > LARGEST_PAGE) {
        return Err(Error::invalid(format!(
            "gpumem_context_options.page_size is {}; it is a power of two up to 1 GiB",
            o.page_size
        )));
    }
    for (field, value) in [
        (&mut config.va_size, o.va_size),
        (&mut config.page_size, o.page_size),
        (&mut config.trim_threshold, o.trim_threshold),
        (&mut config.host_bytes, o.host_bytes),
        (&mut config.host_seed, o.host_seed),
    ] {
        if value != 0 {
            *field = value;
        }
    }
    if o.trim_interval_ms != 0 {
        config.trim_interval = Duration::from_millis(o.trim_interval_ms);
    }
    if o.host_devices != 0 {
        config.host_devices = o.host_devices;
    }
    Ok(())
}

/// # Safety
/// As for [`apply`].
unsafe fn apply_tiers(o: &gpumem_context_options, config: &mut Config) -> Result<()> {
    match o.tiers {
        0 => {}
        GPUMEM_TIERS_OFF => config.tiers = false,
        GPUMEM_TIERS_ON => config.tiers = true,
        other => return unknown("tiers", other, "GPUMEM_TIERS"),
    }
    match o.mover {
        0 => {}
        GPUMEM_MOVER_OFF => config.mover = false,
        GPUMEM_MOVER_ON => config.mover = true,
        other => return unknown("mover", other, "GPUMEM_MOVER"),
    }
    match share("pinned_limit", o.pinned_limit_bytes, o.pinned_limit_percent)? {
        None => {}
        Some(Share::Bytes(bytes)) => config.pinned_limit = Limit::Bytes(bytes),
        Some(Share::Percent(percent)) => config.pinned_limit = Limit::Percent(percent),
    }
    let mut pinned = config.pinned_blocks;
    if o.pinned_block_bytes != 0 {
        pinned.block_bytes = o.pinned_block_bytes;
    }
    if o.pinned_blocks != 0 {
        pinned.blocks = o.pinned_blocks;
    }
    match o.pinned_chunks {
        0 => {}
        GPUMEM_PINNED_CHUNKS_NONE => pinned.chunks = 0,
        chunks => pinned.chunks = chunks,
    }
    config.pinned_blocks = pinned.checked().map_err(|(field, value, accepted)| {
        Error::invalid(format!("gpumem_context_options.pinned_{field} is {value}; it is {accepted}"))
    })?;
    // SAFETY: NULL or a string by the caller's promise.
    if let Some(text) = unsafe { name(o.disk, "gpumem_context_options.disk") }? {
        config.disks = disks(text)
            .ok_or_else(|| Error::invalid(format!("gpumem_context_options.disk is {text:?}; pass {DISKS}, or NULL")))?;
    }
    if o.downgrade_trigger != 0.0 || o.downgrade_stop != 0.0 {
        config.thresholds = Thresholds::new(o.downgrade_trigger, o.downgrade_stop).map_err(|e| {
            Error::invalid(format!("gpumem_context_options.downgrade_trigger and downgrade_stop: {}", e.message))
        })?;
    }
    Ok(())
}

fn unknown(field: &str, value: i32, prefix: &str) -> Result<()> {
    Err(Error::invalid(format!("gpumem_context_options.{field} is {value}; use 0 or one of {prefix}_*")))
}

fn arena_debug(flags: u32) -> Result<DebugMode> {
    const ALL: u32 =
        GPUMEM_ARENA_DEBUG_CHECK | GPUMEM_ARENA_DEBUG_ABORT | GPUMEM_ARENA_DEBUG_POISON | GPUMEM_ARENA_DEBUG_UNMAP;
    let has = |flag| flags & flag != 0;
    if flags == GPUMEM_ARENA_DEBUG_OFF {
        return Ok(DebugMode::default());
    }
    if flags & !ALL != 0 || has(GPUMEM_ARENA_DEBUG_POISON) && has(GPUMEM_ARENA_DEBUG_UNMAP) {
        return Err(Error::invalid(format!(
            "gpumem_context_options.arena_debug is {flags:#x}; use GPUMEM_ARENA_DEBUG_OFF alone, or or-ed together some \
             other GPUMEM_ARENA_DEBUG_*, but not both _POISON and _UNMAP"
        )));
    }
    Ok(DebugMode {
        check: true,
        abort: has(GPUMEM_ARENA_DEBUG_ABORT),
        poison: has(GPUMEM_ARENA_DEBUG_POISON),
        unmap: has(GPUMEM_ARENA_DEBUG_UNMAP),
    })
}

/// An amount that can be given in either of two ways.
enum Share {
    Bytes(u64),
    Percent(u32),
}

fn share(field: &str, bytes: u64, percent: u32) -> Result<Option<Share>> {
    match (bytes, percent) {
        (0, 0) => Ok(None),
        (bytes, 0) => Ok(Some(Share::Bytes(bytes))),
        (0, percent @ 1..=100) => Ok(Some(Share::Percent(percent))),
        (0, percent) => {
            Err(Error::invalid(format!("gpumem_context_options.{field}_percent is {percent}; a share is 1 to 100")))
        }
        _ => Err(Error::invalid(format!(
            "gpumem_context_options has both {field}_bytes and {field}_percent; set one of them"
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::base::Status;
    use crate::context::config::{DiskMount, PinnedBlocks};

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
        let start = Config { log: 7, ..Config::default() };
        let mut config = start.clone();
        apply(&zero(), &mut config).unwrap();
        assert_eq!(config, start);

        let all = gpumem_context_options {
            size: 176,
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
            host_bytes: 5,
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
        };
        apply(&all, &mut config).unwrap();
        let want = Config {
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
            host_bytes: 5,
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
        let bad: [Bad; 36] = [
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
}

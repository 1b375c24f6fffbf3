//! Starting
//!
//! Nothing happens when the library loads. The first call that needs a device starts gpumem with the settings of the
//! environment: GPUMEM_BACKEND, GPUMEM_VA_SIZE, GPUMEM_PAGE_SIZE, GPUMEM_PREALLOC, GPUMEM_LIMIT, GPUMEM_REUSE,
//! GPUMEM_TRIM_THRESHOLD, GPUMEM_TRIM_INTERVAL, GPUMEM_STREAM_CHECK, GPUMEM_ARENA_DEBUG, GPUMEM_ARENA_QUARANTINE,
//! GPUMEM_CAPTURE, GPUMEM_LOG, GPUMEM_POOL, and for the host device GPUMEM_HOST_DEVICES, GPUMEM_HOST_BYTES and
//! GPUMEM_HOST_SEED. A variable that does not parse is GPUMEM_ERROR_CONFIG from that
//! call and from every later one until it is mended; so is a driver that fails to start GPUMEM_ERROR_DRIVER or
//! GPUMEM_ERROR_NO_DEVICE. There is nothing to shut down: at exit the memory goes with the process.

use super::error::gpumem_status;
use super::guard::{guard, guard_value};
use super::options::{self, Extensible};
use crate::arena::DebugMode;
use crate::base::size::{GIB, MIB, TIB};
use crate::base::{Error, Result};
use crate::context::config::{Backend, Limit, Prealloc, Reuse, StreamCheck};
use crate::context::{Config, Context};
use std::ffi::c_char;
use std::time::Duration;

/// CUDA when a driver and a device exist, else the host device, with one line on stderr.
pub const GPUMEM_BACKEND_AUTO: i32 = 1;
/// CUDA or an error.
pub const GPUMEM_BACKEND_CUDA: i32 = 2;
/// A device made of ordinary memory that enforces CUDA's rules, for machines without a GPU.
pub const GPUMEM_BACKEND_HOST: i32 = 3;

/// Memory freed on one stream is given to another when the device has passed the free.
pub const GPUMEM_REUSE_SETTLED: i32 = 1;
/// As a last resort also earlier, by making the other stream wait on the device.
pub const GPUMEM_REUSE_WAIT: i32 = 2;

/// Nothing on stderr.
pub const GPUMEM_LOG_NOTHING: i32 = 1;
/// Warnings on stderr.
pub const GPUMEM_LOG_WARNINGS: i32 = 2;
/// Warnings and slow-path decisions on stderr.
pub const GPUMEM_LOG_DECISIONS: i32 = 3;

/// Every request goes to the pool.
pub const GPUMEM_POOL_ON: i32 = 1;
/// Every request goes straight to the driver's own allocator, for comparison.
pub const GPUMEM_POOL_OFF: i32 = 2;

/// By looking where the driver keeps it, if that was found out at start, else by asking: the default.
pub const GPUMEM_STREAM_CHECK_AUTO: i32 = 1;
/// By asking the driver on every allocation, two calls.
pub const GPUMEM_STREAM_CHECK_DRIVER: i32 = 2;

/// Nothing is done to find uses of memory after the arena that it belonged to has ended: the default.
pub const GPUMEM_ARENA_DEBUG_OFF: u32 = 1;
/// What arenas free is remembered, for gpumem_check. The following imply it.
pub const GPUMEM_ARENA_DEBUG_CHECK: u32 = 2;
/// The process is aborted at the first such use found.
pub const GPUMEM_ARENA_DEBUG_ABORT: u32 = 4;
/// What arenas free is filled, kept for a while, and checked for writes. Not with GPUMEM_ARENA_DEBUG_UNMAP.
pub const GPUMEM_ARENA_DEBUG_POISON: u32 = 8;
/// What arenas free is unmapped, and its addresses are kept for a while, so that any use faults.
pub const GPUMEM_ARENA_DEBUG_UNMAP: u32 = 16;

/// Settings for gpumem_init. A field that is 0 leaves what the environment says, and where that is silent the default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_context_options {
    /// sizeof(gpumem_context_options).
    pub size: u32,
    /// GPUMEM_BACKEND_*.
    pub backend: i32,
    /// GPUMEM_REUSE_*: how memory freed on another stream is reused.
    pub reuse: i32,
    /// GPUMEM_LOG_*.
    pub log: i32,
    /// GPUMEM_POOL_*.
    pub pool: i32,
    /// Memory mapped when a pool starts, as a share of what is then free, 1 to 100. Not with prealloc_bytes.
    pub prealloc_percent: u32,
    /// Memory mapped when a pool starts, bytes. Not with prealloc_percent.
    pub prealloc_bytes: u64,
    /// Addresses reserved at a time per device, bytes, a multiple of 2 MiB up to 64 TiB.
    pub va_size: u64,
    /// Smallest physical allocation, bytes, a power of two up to 1 GiB; at least the device's granularity is used.
    pub page_size: u64,
    /// Most bytes a pool may map on one device. Not with limit_percent.
    pub limit_bytes: u64,
    /// After a free that leaves more unused mapped bytes than this, memory goes back to the device.
    pub trim_threshold: u64,
    /// Host device only: memory of each pretended device, bytes. Only pages that are touched cost anything.
    pub host_bytes: u64,
    /// Host device only: chooses the order in which its streams run; the same seed gives the same order.
    pub host_seed: u64,
    /// Host device only: how many devices to pretend.
    pub host_devices: u32,
    /// Most memory a pool may map on one device, as a share of the device's, 1 to 100. Not with limit_bytes.
    pub limit_percent: u32,
    /// Every so many milliseconds a thread of gpumem's gives free memory back that has been unused for as long, on every
    /// device in use, but for trim_threshold bytes of it. 0: no such thread. It records a marker on the device while it
    /// has something to give back, but not while a stream is being captured on which gpumem was called; a capture on
    /// streams that gpumem has not met would be lost to it.
    pub trim_interval_ms: u64,
    /// GPUMEM_STREAM_CHECK_*: how to find out which stream a handle is, and whether it is being captured.
    pub stream_check: i32,
    /// GPUMEM_ARENA_DEBUG_*, or-ed together: how to find uses of memory after the arena that it belonged to has ended.
    pub arena_debug: u32,
    /// How much of what arenas have freed is kept for that: bytes of memory with GPUMEM_ARENA_DEBUG_POISON, of addresses
    /// with GPUMEM_ARENA_DEBUG_UNMAP.
    pub arena_quarantine: u64,
}

// SAFETY: repr(C), a u32 first, integers only, and the assertion below shows that there is no padding.
unsafe impl Extensible for gpumem_context_options {
    const NAME: &'static str = "gpumem_context_options";
    const FIRST_BYTES: usize = 88;
}
const _: () = assert!(size_of::<gpumem_context_options>() == 6 * 4 + 7 * 8 + 2 * 4 + 8 + 2 * 4 + 8);

/// Starts gpumem now, with explicit settings.
///
/// opts may be NULL: the environment's settings. They are read and not kept.
/// Errors: GPUMEM_ERROR_INVALID for a field out of range, or when gpumem has started already (by any call that needed
/// a device); GPUMEM_ERROR_CONFIG, _DRIVER, _NO_DEVICE, _FORKED. After an error gpumem has not started, and this or
/// any other call may start it.
#[no_mangle]
pub unsafe extern "C" fn gpumem_init(opts: *const gpumem_context_options) -> gpumem_status {
    guard(|| {
        let mut config = Config::from_env()?;
        if !opts.is_null() {
            // SAFETY: the caller passes NULL or options whose size field is true.
            apply(&unsafe { options::read(opts) }?, &mut config)?;
        }
        Context::init_global(config).map(|_| ())
    })
}

/// Which kind of device is in use: "cuda" or "host"; "none" when gpumem cannot start, and gpumem_last_error says why.
///
/// Starts gpumem if need be. The string is static, never NULL.
#[no_mangle]
pub extern "C" fn gpumem_backend_name() -> *const c_char {
    guard_value(c"none", || match Context::global()?.driver().backend() {
        "cuda" => Ok(c"cuda"),
        "host" => Ok(c"host"),
        other => Err(Error::internal(format!("backend {other:?} has no name in the C ABI"))),
    })
    .as_ptr()
}

/// The ranges of the environment's settings.
const UNIT: u64 = 2 * MIB;
const LARGEST_VA: u64 = 64 * TIB;
const LARGEST_PAGE: u64 = GIB;

fn apply(o: &gpumem_context_options, config: &mut Config) -> Result<()> {
    let unknown = |field: &str, value: i32, prefix: &str| {
        Err(Error::invalid(format!("gpumem_context_options.{field} is {value}; use 0 or one of {prefix}_*")))
    };
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

    fn zero() -> gpumem_context_options {
        // SAFETY: integers; zero is a value of each.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn zero_changes_nothing_and_every_field_arrives() {
        let start = Config { log: 7, ..Config::default() };
        let mut config = start.clone();
        apply(&zero(), &mut config).unwrap();
        assert_eq!(config, start);

        let all = gpumem_context_options {
            size: 112,
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
            ..Config::default()
        };
        assert_eq!(config, want);
        apply(&gpumem_context_options { arena_debug: GPUMEM_ARENA_DEBUG_OFF, ..zero() }, &mut config).unwrap();
        assert_eq!(config.arena_debug, DebugMode::default());
    }

    #[test]
    fn values_out_of_range_name_their_field() {
        type Bad = (&'static str, fn(&mut gpumem_context_options));
        let bad: [Bad; 18] = [
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

//! Spaces
//!
//! A space is a place where memory can be: a device's memory, the pinned memory of a NUMA node of
//! the host, or the files under a mount. Its tier names the kind. Its id names one of that kind:
//! the number of a device or of a node; for a mount its position in GPUMEM_DISK, or the id that
//! gpumem_space_disk_add returned. Every byte of a space is counted:
//!
//!   used        live allocations
//!   promised    the sizes of live reservations (reserve.h)
//!   unreserved  live allocations that are not drawn from a reservation
//!   committed   promised + unreserved: at most the limit, unless a policy allowed more, the limit
//!               was lowered, or more was live when counting began
//!
//! Counting begins with the first call about spaces or reservations; with GPUMEM_TIERS=on it begins
//! with the first allocation. It needs the pool: with GPUMEM_POOL=off these calls return
//! GPUMEM_ERROR_UNSUPPORTED. The limit of a device's space applies to what is in use. It starts at
//! GPUMEM_LIMIT, which applies to what the pool maps, or at more if gpumem_device_limit_set has
//! raised that; from then on each has its own call.
//!
//! Every function here returns GPUMEM_ERROR_INVALID when there is no such space.

use crate::base::{Error, Result, Status};
use crate::capi::call::arguments::{guard_list, name, put};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{gpumem_stream, not_null, stream};
use crate::context::Context;
use crate::tier::{Manager, Space, SpaceId, SpaceUsage, Thresholds, Tier, Usage};
use std::ffi::c_char;
use std::path::Path;
use std::sync::Arc;

/// The memory of devices.
pub const GPUMEM_TIER_GPU: i32 = 1;
/// Pinned memory of the host.
pub const GPUMEM_TIER_HOST: i32 = 2;
/// Files.
pub const GPUMEM_TIER_DISK: i32 = 3;

/// Names a space: { GPUMEM_TIER_GPU, 0 } is the memory of device 0.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_space {
    /// GPUMEM_TIER_*; 0 where no space is allowed.
    pub tier: i32,
    /// The space's number within its tier.
    pub id: u32,
}

/// The counters of one space. Bytes unless a field says otherwise.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_space_stats {
    /// sizeof(gpumem_space_stats), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// Which space.
    pub space: gpumem_space,
    /// 1 when use has reached the trigger, so that data should move out; else 0.
    pub should_downgrade: u32,
    /// 1 when use is low enough that moving out should stop; else 0.
    pub should_stop: u32,
    /// 0.
    pub reserved: u32,
    /// The capacity.
    pub capacity: u64,
    /// The limit of what may be promised or used.
    pub limit: u64,
    /// Sum of the sizes of live reservations.
    pub promised: u64,
    /// Live allocations that draw from no reservation.
    pub unreserved: u64,
    /// Live allocations.
    pub used: u64,
    /// The most that used was since the last gpumem_space_stats_reset_peak.
    pub peak: u64,
    /// What can still be promised or used.
    pub available: u64,
    /// By how much promised + unreserved exceeds the limit.
    pub beyond: u64,
    /// The use at which data should start to move out: the trigger's share of the limit, in bytes.
    pub trigger: u64,
    /// The use at which moving out stops: the stop's share of the limit, in bytes.
    pub stop: u64,
    /// How much has to move out before moving stops; 0 when nothing has to.
    pub amount_to_downgrade: u64,
    /// Live reservations, a count.
    pub reservations: u64,
    /// Requests that wait for this space, alone or among other spaces, a count.
    pub waiters: u64,
}

// SAFETY: repr(C), a u32 first, integers only, in a structure of its own too; the sum of its fields
// shows no padding.
extensible!(gpumem_space_stats, 128, 6 * 4 + 13 * 8);

/// Lists every space.
///
/// out has room for cap entries and may be NULL when cap is 0; spaces beyond are left out. count
/// may be NULL; it receives how many there are. Spaces of one tier come in the order of their ids.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL and cap is not 0.
#[no_mangle]
pub unsafe extern "C" fn gpumem_space_list_get(out: *mut gpumem_space, cap: usize, count: *mut usize) -> gpumem_status {
    let list = || Ok(manager()?.spaces().iter().map(|space| c_space(space.id())).collect());
    // SAFETY: the caller passes room for `cap` entries, or NULL and 0; NULL or a place to write to.
    unsafe { guard_list(out, "out", cap, count, list) }
}

/// Adds a space of files.
///
/// path is a directory, UTF-8. It is looked up now, and written to when data first moves there.
/// limit is the most bytes that the files may take; 0 means as many as the file system has free
/// now. out receives the space, whose tier is GPUMEM_TIER_DISK. GPUMEM_DISK adds spaces in the same
/// way. A space cannot be removed.
/// Errors: GPUMEM_ERROR_INVALID when path or out is NULL, or the directory is a space already;
/// GPUMEM_ERROR_IO when path does not exist or is no directory.
#[no_mangle]
pub unsafe extern "C" fn gpumem_space_disk_add(
    path: *const c_char,
    limit: u64,
    out: *mut gpumem_space,
) -> gpumem_status {
    guard(|| {
        not_null(path, "path")?;
        not_null(out, "out")?;
        // SAFETY: not null, so a terminated string by the contract.
        let path = Path::new(unsafe { name(path, "path") }?.unwrap_or_default());
        let id = Context::global()?.tiers()?.disks().add_mount(path, (limit != 0).then_some(limit))?;
        // SAFETY: not null, so writable by the contract.
        unsafe { out.write(c_space(SpaceId::new(Tier::Disk, id))) };
        Ok(())
    })
}

/// The counters of a space.
///
/// out->size must be set (GPUMEM_INIT). The counters are of one moment unless other threads
/// allocate meanwhile.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible.
#[no_mangle]
pub unsafe extern "C" fn gpumem_space_stats_get(space: gpumem_space, out: *mut gpumem_space_stats) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let space = space_id(space)?;
        let usage = manager()?.usage(space)?;
        // SAFETY: as above, and writable by the contract.
        unsafe { options::write(out, &convert(space, &usage)) }
    })
}

/// Sets how much of a space may be promised or used.
///
/// bytes is at most the capacity; UINT64_MAX stands for all of it. What exceeds a lowered limit
/// stays, and is counted in beyond. Waiting requests that can never be met any more end with
/// GPUMEM_ERROR_OUT_OF_MEMORY; those that fit now are granted. The thresholds are shares of the
/// limit and move with it. Data moves out at the next allocation, hold, unhold or move in the
/// space, not before.
/// Errors: GPUMEM_ERROR_INVALID for more than the capacity.
#[no_mangle]
pub extern "C" fn gpumem_space_limit_set(space: gpumem_space, bytes: u64) -> gpumem_status {
    guard(|| manager()?.set_limit(space_id(space)?, (bytes != u64::MAX).then_some(bytes)))
}

/// Sets at which share of a space's limit data starts to move out, and at which share it stops.
///
/// Both are from 0 to 1, and stop is not above trigger. They start as GPUMEM_DOWNGRADE says: 0.85
/// and 0.65 by default. The limit is never above the capacity.
/// Errors: GPUMEM_ERROR_INVALID for other numbers.
#[no_mangle]
pub extern "C" fn gpumem_space_thresholds_set(space: gpumem_space, trigger: f64, stop: f64) -> gpumem_status {
    guard(|| manager()?.set_thresholds(space_id(space)?, Thresholds::new(trigger, stop)?))
}

/// Sets the peak of a space back to what is used now.
#[no_mangle]
pub extern "C" fn gpumem_space_stats_reset_peak(space: gpumem_space) -> gpumem_status {
    guard(|| {
        found(manager()?, space)?.usage().reset_peak();
        Ok(())
    })
}

/// Gets what the live allocations of a stream use in a space.
///
/// An allocation counts for the stream that it was made on, not the one it is freed on. used and
/// peak receive bytes, and may be NULL. peak is the most that used was since the stream was first
/// seen, or since gpumem_space_stream_stats_reset_peak. GPUMEM_STREAM_PER_THREAD counts as one
/// stream here, whichever thread uses it.
/// Errors: GPUMEM_ERROR_UNSUPPORTED for a space that does not count by stream.
#[no_mangle]
pub unsafe extern "C" fn gpumem_space_stream_stats_get(
    space: gpumem_space,
    s: gpumem_stream,
    used: *mut u64,
    peak: *mut u64,
) -> gpumem_status {
    guard(|| {
        let usage = stream_usage(space, s)?;
        for (to, value) in [(used, usage.now()), (peak, usage.peak())] {
            // SAFETY: the caller passes NULL or a place to write to.
            unsafe { put(to, value) };
        }
        Ok(())
    })
}

/// Sets the peak of a stream in a space back to what it uses now.
///
/// Errors: GPUMEM_ERROR_UNSUPPORTED for a space that does not count by stream.
#[no_mangle]
pub extern "C" fn gpumem_space_stream_stats_reset_peak(space: gpumem_space, s: gpumem_stream) -> gpumem_status {
    guard(|| {
        stream_usage(space, s)?.reset_peak();
        Ok(())
    })
}

/// Gets the reservation that the calling thread's allocations on a stream draw from in a space: the
/// stream's, else the thread's.
///
/// out receives its number (gpumem_reservation_info.number), 0 when there is none.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL.
#[no_mangle]
pub unsafe extern "C" fn gpumem_space_current_get(
    space: gpumem_space,
    s: gpumem_stream,
    out: *mut u64,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let manager = manager()?;
        let current = manager.current(&found(manager, space)?, stream(s).0 as u64)?;
        // SAFETY: not null, so writable by the contract.
        unsafe { out.write(current.unwrap_or(0)) };
        Ok(())
    })
}

/// Detaches a stream from its reservation of a space.
///
/// Errors: GPUMEM_ERROR_INVALID when it has none.
#[no_mangle]
pub extern "C" fn gpumem_space_detach_stream(space: gpumem_space, s: gpumem_stream) -> gpumem_status {
    guard(|| {
        let manager = manager()?;
        manager.detach_stream(&*found(manager, space)?, stream(s).0 as u64)
    })
}

/// Detaches the calling thread from its reservation of a space.
///
/// Errors: GPUMEM_ERROR_INVALID when it has none.
#[no_mangle]
pub extern "C" fn gpumem_space_detach_thread(space: gpumem_space) -> gpumem_status {
    guard(|| {
        let manager = manager()?;
        manager.detach_thread(&*found(manager, space)?)
    })
}

/// The spaces of the process.
pub(in crate::capi) fn manager() -> Result<&'static Arc<Manager>> {
    Ok(Context::global()?.tiers()?.manager())
}

/// The core's name for a tier.
pub(in crate::capi) fn tier(number: i32) -> Result<Tier> {
    match number {
        GPUMEM_TIER_GPU => Ok(Tier::Gpu),
        GPUMEM_TIER_HOST => Ok(Tier::Host),
        GPUMEM_TIER_DISK => Ok(Tier::Disk),
        other => Err(Error::invalid(format!("{other} is no tier; use one of GPUMEM_TIER_*"))),
    }
}

/// C's name for a tier.
fn tier_number(tier: Tier) -> i32 {
    match tier {
        Tier::Gpu => GPUMEM_TIER_GPU,
        Tier::Host => GPUMEM_TIER_HOST,
        Tier::Disk => GPUMEM_TIER_DISK,
    }
}

/// The core's name for a space, which need not be there.
pub(in crate::capi) fn space_id(space: gpumem_space) -> Result<SpaceId> {
    Ok(SpaceId::new(tier(space.tier)?, space.id))
}

/// C's name for a space.
pub(in crate::capi) fn c_space(space: SpaceId) -> gpumem_space {
    gpumem_space { tier: tier_number(space.tier), id: space.id }
}

fn found(manager: &Manager, space: gpumem_space) -> Result<Arc<Space>> {
    manager.space(space_id(space)?)
}

fn stream_usage(space: gpumem_space, s: gpumem_stream) -> Result<Arc<Usage>> {
    let manager = manager()?;
    let space = found(manager, space)?;
    manager
        .stream_usage(&space, stream(s).0 as u64)?
        .ok_or_else(|| Error::new(Status::Unsupported, format!("{} does not count by stream", space.id())))
}

fn convert(space: SpaceId, usage: &SpaceUsage) -> gpumem_space_stats {
    let (should_downgrade, amount_to_downgrade) = (usage.should_downgrade(), usage.amount_to_downgrade());
    // By name, so that a counter added there cannot be forgotten here.
    let SpaceUsage {
        capacity,
        limit,
        promised,
        unreserved,
        used,
        peak,
        available,
        beyond,
        trigger,
        stop,
        reservations,
        waiters,
    } = *usage;
    gpumem_space_stats {
        size: 0,
        space: c_space(space),
        should_downgrade: u32::from(should_downgrade),
        should_stop: u32::from(amount_to_downgrade == 0),
        reserved: 0,
        capacity,
        limit,
        promised,
        unreserved,
        used,
        peak,
        available,
        beyond,
        trigger,
        stop,
        amount_to_downgrade,
        reservations,
        waiters,
    }
}

//! Reservations
//!
//! A reservation is a promise of bytes in one space. Bytes promised to one go to no other
//! reservation, nor to allocations outside. A job with a reservation does not run out of memory
//! half-way because of its neighbours: it waits before it starts.
//!
//!   gpumem_reserve_options want;
//!   GPUMEM_INIT(&want);
//!   want.bytes = 4ull << 30;
//!   want.timeout_ms = 10000;
//!   gpumem_reservation r;
//!   if (gpumem_reserve(&want, &r) != GPUMEM_OK) ...
//!   gpumem_reservation_attach_thread(r);
//!   ...                                        (what this thread allocates in the space is drawn
//!                                              from it)
//!   gpumem_reservation_release(r, NULL);
//!
//! Drawing    An allocation on a stream draws from the reservation that is attached to the stream
//!            in the device's space, else from the one attached to the calling thread, else from
//!            what is available outside any reservation. When it is freed, on any thread and
//!            stream, its bytes go back to where they came from. When it is resized, in place or
//!            not, the new bytes come from there too, while the reservation lives; one that moves
//!            has its old and its new bytes there until the copy is submitted. The reservation's
//!            policy (space.h) says what happens to an allocation that does not fit. Allocations
//!            never wait.
//! Sizes      Sizes are exact: gpumem_reserve gives what was asked for or fails. If least_bytes
//!            says that less will do, gpumem_reservation_info_get has the size. No memory is set
//!            aside: an allocation can still fail because of other programs on the device, or of
//!            memory that the pool holds for other streams.
//! Waiting    Each space serves requests first come, first served. Every release, shrink, free or
//!            raised limit that makes room serves the waiting requests. A request that can never be
//!            met fails at once.
//! Room       Where gpumem_reserve and gpumem_reservation_grow find none, what gpumem may move by
//!            itself (evict.h) moves out of the space, as for an allocation: as much as is missing,
//!            or nothing if all of it would not be enough. That is done before they wait: what may
//!            move only later does not end the wait. A move that has begun is finished, even if the
//!            time is over or the request is cancelled meanwhile.
//! Release    Allocations drawn from a released reservation live on, outside any reservation. Its
//!            streams and threads are detached. Its handle is stale afterwards:
//!            GPUMEM_ERROR_INVALID.
//! Threads    A reservation may be used, and released, by any thread. A wait in
//!            gpumem_reservation_grow ends with an error when another thread releases it.

use super::policy::{
    gpumem_free_user, gpumem_out_of_memory_callback, gpumem_reserve_policy, limit_policy, out_of_memory_policy,
};
use super::reservations::{reservation, RESERVATIONS};
use super::space::{c_space, gpumem_space, manager, space_id, tier};
use super::token::{gpumem_token, token};
use crate::base::{Error, Result, StreamHandle};
use crate::capi::call::arguments::put;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{gpumem_reservation, gpumem_stream, not_null, stream, wait};
use crate::context::Context;
use crate::tier::{Amount, Request, Reservation, SpaceId, Strategy, Tier};
use std::ffi::c_void;

/// Strategy: in the named space. The default.
pub const GPUMEM_RESERVE_SPACE: i32 = 1;
/// Strategy: in any space of the named space's tier, the one with the most room.
pub const GPUMEM_RESERVE_TIER: i32 = 2;
/// Strategy: in any space of the first of tiers that has room, else of the next, and so on.
pub const GPUMEM_RESERVE_TIERS: i32 = 3;
/// Strategy: in a space that data of the named one can move down to, in the next lower tier with
/// room, spaces of the same NUMA node first; or in tiers[0], if that is given.
pub const GPUMEM_RESERVE_DOWNGRADE: i32 = 4;
/// Strategy: in a space that data of the named one can move up to, in the next higher tier with
/// room, spaces of the same NUMA node first; or in tiers[0], if that is given.
pub const GPUMEM_RESERVE_UPGRADE: i32 = 5;

/// What to reserve, for gpumem_reserve. A field that is 0 means its default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_reserve_options {
    /// sizeof(gpumem_reserve_options).
    pub size: u32,
    /// GPUMEM_RESERVE_*: where.
    pub strategy: i32,
    /// Size in bytes; must not be 0.
    pub bytes: u64,
    /// The least bytes that will do, unless 0. The reservation then gets as much as there is, up to
    /// bytes.
    pub least_bytes: u64,
    /// The named space. With GPUMEM_RESERVE_SPACE zeros mean the current device's; with
    /// GPUMEM_RESERVE_TIER the id must be 0.
    pub space: gpumem_space,
    /// GPUMEM_TIER_*, most preferred first; ends with a 0 unless full.
    pub tiers: [i32; 4],
    /// The longest wait for room in milliseconds; 0 means no wait, GPUMEM_WAIT_FOREVER no limit.
    pub timeout_ms: u64,
    /// Ends the wait when triggered; may be NULL.
    pub cancel: gpumem_token,
    /// What happens to an allocation that does not fit. NULL means that it fails.
    pub policy: *const gpumem_reserve_policy,
    /// What happens to an allocation that finds no memory. NULL means that the space's callback
    /// decides.
    pub out_of_memory: gpumem_out_of_memory_callback,
    /// Passed to out_of_memory.
    pub user: *mut c_void,
    /// Called when user is no longer used; may be NULL.
    pub free_user: gpumem_free_user,
}

// SAFETY: repr(C), a u32 first, integers, pointers and functions that may be null; the sum of its
// fields shows no padding. That a policy which is not null is one, and a function a function, is
// the caller's promise.
extensible!(gpumem_reserve_options, 96, 8 * 4 + 3 * 8 + 5 * size_of::<usize>());

/// Facts about a live reservation. Bytes unless a field says otherwise.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_reservation_info {
    /// sizeof(gpumem_reservation_info), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// Its space.
    pub space: gpumem_space,
    /// 0.
    pub reserved: u32,
    /// A number that is never reused in this process. Error texts name it; once the handle is
    /// stale, they name that instead.
    pub number: u64,
    /// Its size.
    pub promised: u64,
    /// How much of promised live allocations use.
    pub drawn: u64,
    /// What live allocations made with it use, including what a policy took from outside it.
    pub used: u64,
    /// The most that used was.
    pub peak: u64,
    /// When it was asked for: a position in the process's sequence of requests and grants.
    pub arrived: u64,
    /// When it was granted: a position in the same sequence as arrived.
    pub granted: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_reservation_info, 72, 4 * 4 + 7 * 8);

/// Promises bytes of a space, or waits until they can be.
///
/// opts is read and not kept, except for the callbacks in it. out receives the reservation, which
/// the caller owns until gpumem_reservation_release. Blocks if opts->timeout_ms is not 0; do not
/// wait for bytes that only the waiting thread would release. The time that it takes to make room
/// is no part of the timeout.
/// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, an option not allowed, or there is no such
/// space; GPUMEM_ERROR_OUT_OF_MEMORY when there is no room and timeout_ms is 0, or there can never
/// be enough; GPUMEM_ERROR_TIMED_OUT, GPUMEM_ERROR_CANCELLED, GPUMEM_ERROR_SHUTTING_DOWN after
/// gpumem_reservation_shutdown; GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, GPUMEM_ERROR_DRIVER.
/// Nothing is promised then.
#[no_mangle]
pub unsafe extern "C" fn gpumem_reserve(
    opts: *const gpumem_reserve_options,
    out: *mut gpumem_reservation,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        // SAFETY: the caller passes NULL or options whose size field is true.
        let o = unsafe { options::read(opts) }?;
        // SAFETY: the caller's options have NULL there or a policy whose size field is true.
        let (policy, overdraw_user) = unsafe { limit_policy(o.policy) }?;
        let (out_of_memory, shortage_user) = out_of_memory_policy(o.out_of_memory, o.user, o.free_user)?;
        let amount = match o.least_bytes {
            0 => Amount::Exact(o.bytes),
            least => Amount::UpTo { least, most: o.bytes },
        };
        let strategy = strategy(&o)?;
        let request =
            Request { amount, strategy, wait: wait(o.timeout_ms), cancel: token(o.cancel)?, policy, out_of_memory };
        let handle = RESERVATIONS.insert(manager()?.reserve(request)?)?;
        overdraw_user.keep();
        shortage_user.keep();
        // SAFETY: not null, so a writable handle by the contract.
        unsafe { out.write(handle as gpumem_reservation) };
        Ok(())
    })
}

/// Ends a reservation: its bytes are available to others.
///
/// Live allocations drawn from it stay. Their bytes count as use outside any reservation from now
/// on; drawn_or_null receives how many bytes that is. The handle is stale afterwards.
/// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or it has been released.
#[no_mangle]
pub unsafe extern "C" fn gpumem_reservation_release(r: gpumem_reservation, drawn_or_null: *mut u64) -> gpumem_status {
    guard(|| {
        Context::global()?;
        // The thread that takes it out releases it.
        let released = RESERVATIONS.remove(r as usize)?.release()?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(drawn_or_null, released.drawn) };
        Ok(())
    })
}

/// Makes a reservation larger, or waits until it can be.
///
/// timeout_ms as in gpumem_reserve_options; cancel may be NULL. It waits in the same queue as
/// gpumem_reserve. A request ahead of it may be waiting for the very bytes that this reservation
/// holds, so set a timeout unless you know that none is.
/// Errors: GPUMEM_ERROR_INVALID when bytes is 0 or there is no such reservation, also when it is
/// released meanwhile; those of a wait as for gpumem_reserve. After an error it is as large as
/// before.
#[no_mangle]
pub extern "C" fn gpumem_reservation_grow(
    r: gpumem_reservation,
    bytes: u64,
    timeout_ms: u64,
    cancel: gpumem_token,
) -> gpumem_status {
    guard(|| reservation(r)?.grow(bytes, wait(timeout_ms), token(cancel)?.as_ref()))
}

/// Makes a reservation smaller by bytes, none of which may be drawn.
///
/// Errors: GPUMEM_ERROR_INVALID when bytes is 0 or more than the undrawn part, or there is no such
/// reservation.
#[no_mangle]
pub extern "C" fn gpumem_reservation_shrink(r: gpumem_reservation, bytes: u64) -> gpumem_status {
    guard(|| reservation(r)?.shrink(bytes))
}

/// Shrinks a reservation to what is drawn of it.
///
/// out_or_null receives the number of bytes given up, possibly 0.
/// Errors: GPUMEM_ERROR_INVALID when there is no such reservation.
#[no_mangle]
pub unsafe extern "C" fn gpumem_reservation_shrink_to_fit(
    r: gpumem_reservation,
    out_or_null: *mut u64,
) -> gpumem_status {
    guard(|| {
        let bytes = reservation(r)?.shrink_to_fit()?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(out_or_null, bytes) };
        Ok(())
    })
}

/// Facts about a reservation.
///
/// out->size must be set (GPUMEM_INIT).
/// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, out is NULL or its size
/// impossible.
#[no_mangle]
pub unsafe extern "C" fn gpumem_reservation_info_get(
    r: gpumem_reservation,
    out: *mut gpumem_reservation_info,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let value = info(&*reservation(r)?);
        // SAFETY: as above, and writable by the contract.
        unsafe { options::write(out, &value) }
    })
}

/// Lets allocations on a stream in the reservation's space draw from it, on every thread.
///
/// A stream has at most one reservation of each space. gpumem_space_detach_stream, the release and
/// gpumem_stream_destroy detach it. Detach it before you destroy the stream by other means: CUDA
/// gives the handle to the next stream. GPUMEM_STREAM_PER_THREAD counts as one stream here,
/// whichever thread uses it.
/// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, the stream already has one of
/// this space, or the stream is of another device than the reservation;
/// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_reservation_attach_stream(r: gpumem_reservation, s: gpumem_stream) -> gpumem_status {
    guard(|| {
        let (r, s) = (reservation(r)?, stream(s));
        let device = Context::global()?.driver().stream_device(s)?;
        let default = s == StreamHandle::LEGACY || s == StreamHandle::PER_THREAD;
        let space = r.space();
        if space.tier == Tier::Gpu && space.id != device.0 && !default {
            return Err(Error::invalid(format!(
                "stream {s} is of device {device}, and reservation {} of {space}; its allocations never come there",
                r.id()
            )));
        }
        Context::global()?.attach_stream(&r, s)
    })
}

/// Lets the calling thread's allocations in the reservation's space draw from it, on streams that
/// have none of their own.
///
/// A thread has at most one reservation of each space. gpumem_reservation_detach_thread,
/// gpumem_space_detach_thread, the release and the end of the thread detach it.
/// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or the thread already has one of
/// this space, or is ending and in the last round of its pthread keys' destructors.
#[no_mangle]
pub extern "C" fn gpumem_reservation_attach_thread(r: gpumem_reservation) -> gpumem_status {
    guard(|| reservation(r)?.attach_thread())
}

/// Undoes gpumem_reservation_attach_thread on the same thread.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or it is not the one that the
/// thread has attached.
#[no_mangle]
pub extern "C" fn gpumem_reservation_detach_thread(r: gpumem_reservation) -> gpumem_status {
    guard(|| reservation(r)?.detach_thread())
}

fn strategy(o: &gpumem_reserve_options) -> Result<Strategy> {
    let refuse = |field: &str| {
        Err(Error::invalid(format!("gpumem_reserve_options.{field} is set, and has no meaning with this strategy")))
    };
    let space = o.space;
    let used = o.tiers.iter().position(|t| *t == 0).unwrap_or(o.tiers.len());
    let (tiers, rest) = o.tiers.split_at(used);
    if rest.iter().any(|t| *t != 0) {
        return Err(Error::invalid("gpumem_reserve_options.tiers has a 0 in the middle; it ends the list"));
    }
    let tiers = tiers.iter().map(|t| tier(*t)).collect::<Result<Vec<_>>>()?;
    let to = || match tiers.as_slice() {
        [] => Ok(None),
        [to] => Ok(Some(*to)),
        _ => Err(Error::invalid("gpumem_reserve_options.tiers has more than the one tier to move to")),
    };
    match o.strategy {
        0 | GPUMEM_RESERVE_SPACE if !tiers.is_empty() => refuse("tiers"),
        0 | GPUMEM_RESERVE_SPACE if space.tier == 0 && space.id != 0 => {
            Err(Error::invalid(format!("gpumem_reserve_options.space.id is {}, and its tier not set", space.id)))
        }
        0 | GPUMEM_RESERVE_SPACE if space.tier == 0 => {
            let device = Context::global()?.driver().current_device()?;
            Ok(Strategy::Space(SpaceId::new(Tier::Gpu, device.0)))
        }
        0 | GPUMEM_RESERVE_SPACE => Ok(Strategy::Space(space_id(space)?)),
        GPUMEM_RESERVE_TIER if space.id != 0 => refuse("space.id"),
        GPUMEM_RESERVE_TIER if !tiers.is_empty() => refuse("tiers"),
        GPUMEM_RESERVE_TIER => Ok(Strategy::Tier(tier(space.tier)?)),
        GPUMEM_RESERVE_TIERS if space != gpumem_space::default() => refuse("space"),
        GPUMEM_RESERVE_TIERS => Ok(Strategy::Tiers(tiers)),
        GPUMEM_RESERVE_DOWNGRADE => Ok(Strategy::DowngradeFrom { from: space_id(space)?, to: to()? }),
        GPUMEM_RESERVE_UPGRADE => Ok(Strategy::UpgradeFrom { from: space_id(space)?, to: to()? }),
        other => {
            Err(Error::invalid(format!("gpumem_reserve_options.strategy is {other}; use 0 or one of GPUMEM_RESERVE_*")))
        }
    }
}

fn info(r: &Reservation) -> gpumem_reservation_info {
    let (space, turn) = (r.space(), r.turn());
    gpumem_reservation_info {
        size: 0,
        space: c_space(space),
        reserved: 0,
        number: r.id(),
        promised: r.size(),
        drawn: r.drawn(),
        used: r.usage().now(),
        peak: r.usage().peak(),
        arrived: turn.arrived,
        granted: turn.granted,
    }
}

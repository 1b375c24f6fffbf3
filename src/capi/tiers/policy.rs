//! Policies
//!
//! An allocation overdraws when it does not fit the reservation that it draws from. A policy says
//! what happens then. A function of the program's can decide it, and also what happens when there
//! is no memory for an allocation.
//!
//! Callbacks  Run on the thread that allocates, on several threads at once, with no lock of
//!            gpumem's held. They may call every function of this header: free, shrink, grow and
//!            release reservations, for instance. An allocation that overdraws inside an overdraw
//!            callback calls it again; one that finds no memory inside an out-of-memory callback
//!            fails. A callback must not wait for a thread that waits for this one, and must
//!            return: no longjmp, no C++ exception (gpumem.hpp catches them).
//! user       Is passed to the callback, and stays the program's. free_user, unless NULL, is called
//!            with it once, after the last call of the callback: when the callback has been
//!            replaced, or its reservation released. It may run on any thread, with no lock of
//!            gpumem's held. It does not run when the function that took it has failed, nor at
//!            exit.

use super::reservations::reservation;
use super::space::{c_space, gpumem_space, manager, space_id};
use crate::base::{Error, Result};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{gpumem_reservation, gpumem_stream};
use crate::tier::{Decision, Factor, LimitPolicy, OutOfMemoryPolicy, Overdraw, Shortage};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

/// An allocation that overdraws fails: the default.
pub const GPUMEM_POLICY_FAIL: i32 = 1;
/// The allocation takes what is missing from outside the reservation, if the space's limit allows.
pub const GPUMEM_POLICY_IGNORE: i32 = 2;
/// The reservation grows to factor times its size, or by what the allocation needs if that is more.
/// Where the space has less, it grows by what there is. It does not wait.
pub const GPUMEM_POLICY_INCREASE: i32 = 3;
/// The callback decides.
pub const GPUMEM_POLICY_CALLBACK: i32 = 4;

/// With GPUMEM_POLICY_INCREASE: the reservation may grow above the space's limit by what the
/// allocation needs, up to the space's capacity.
pub const GPUMEM_POLICY_BEYOND_LIMIT: u32 = 1;

/// Returned by an overdraw callback: the allocation fails. Any number without a meaning does the
/// same.
pub const GPUMEM_OVERDRAW_FAIL: i64 = 0;
/// Returned by an overdraw callback: proceed as GPUMEM_POLICY_IGNORE does.
pub const GPUMEM_OVERDRAW_IGNORE: i64 = -1;
/// Returned by an overdraw callback: try again; something was freed.
pub const GPUMEM_OVERDRAW_RETRY: i64 = -2;

/// What an overdraw callback receives.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_overdraw {
    /// The bytes that the library filled. Fields beyond them do not exist.
    pub size: u32,
    /// How often the callback has been called for this try of the allocation, from 1. When an
    /// out-of-memory callback has the allocation tried again, the count restarts at 1.
    pub attempt: u32,
    /// The reservation's space.
    pub space: gpumem_space,
    /// The reservation's number.
    pub number: u64,
    /// The reservation's size, bytes.
    pub promised: u64,
    /// How much of that is drawn, bytes.
    pub drawn: u64,
    /// What the allocation needs, bytes.
    pub bytes: u64,
    /// Its stream.
    pub stream: gpumem_stream,
}

/// What an out-of-memory callback receives.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_shortage {
    /// The bytes that the library filled. Fields beyond them do not exist.
    pub size: u32,
    /// How often the allocation has failed, from 1.
    pub attempt: u32,
    /// The space that has no memory for it.
    pub space: gpumem_space,
    /// What the allocation needs, bytes.
    pub bytes: u64,
    /// Its stream.
    pub stream: gpumem_stream,
}

/// Decides about an allocation that overdraws. Returns GPUMEM_OVERDRAW_*, or a positive number of
/// bytes: the reservation then grows by that much, without waiting, and the allocation is tried
/// again. It fails if the space has less. The growth stays, even if there is no memory then.
#[allow(non_camel_case_types)]
pub type gpumem_overdraw_callback =
    Option<unsafe extern "C" fn(what: *const gpumem_overdraw, user: *mut c_void) -> i64>;

/// Makes room for an allocation that found no memory. Returns 0 to give up, anything else to try
/// again. It runs after every try that fails.
#[allow(non_camel_case_types)]
pub type gpumem_out_of_memory_callback =
    Option<unsafe extern "C" fn(what: *const gpumem_shortage, user: *mut c_void) -> i32>;

/// Called when user is no longer used.
#[allow(non_camel_case_types)]
pub type gpumem_free_user = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// What happens to an allocation that overdraws. A field that is 0 means its default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_reserve_policy {
    /// sizeof(gpumem_reserve_policy).
    pub size: u32,
    /// GPUMEM_POLICY_*.
    pub kind: i32,
    /// With GPUMEM_POLICY_INCREASE: the factor to grow by, from 1 to 1000; the default is 1.25.
    pub factor: f64,
    /// With GPUMEM_POLICY_INCREASE: the most that the reservation may grow to, bytes; 0 means no
    /// cap.
    pub cap: u64,
    /// GPUMEM_POLICY_BEYOND_LIMIT or 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// With GPUMEM_POLICY_CALLBACK: the function, else NULL.
    pub callback: gpumem_overdraw_callback,
    /// Passed to the callback.
    pub user: *mut c_void,
    /// Called when user is no longer used; may be NULL.
    pub free_user: gpumem_free_user,
}

// SAFETY: repr(C), a u32 first, numbers, pointers that are not followed and functions that may be
// null; the sum of its fields shows no padding. A function pointer that is not null is valid by the
// header's contract.
extensible!(gpumem_reserve_policy, 56, 4 * 4 + 2 * 8 + 3 * size_of::<usize>());

/// Sets what happens to an allocation that does not fit a reservation.
///
/// policy is read and not kept; NULL means GPUMEM_POLICY_FAIL. Allocations under way may still
/// follow the previous one.
/// Errors: GPUMEM_ERROR_INVALID when there is no such reservation or a field is not allowed.
#[no_mangle]
pub unsafe extern "C" fn gpumem_reservation_policy_set(
    r: gpumem_reservation,
    policy: *const gpumem_reserve_policy,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a policy whose size field is true.
        let (policy, user) = unsafe { limit_policy(policy) }?;
        reservation(r)?.set_policy(policy)?;
        user.keep();
        Ok(())
    })
}

/// Sets what happens to an allocation in a reservation that finds no memory.
///
/// callback may be NULL, which leaves the decision to the space's callback. user and free_user may
/// be NULL.
/// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or user is given and no
/// callback.
#[no_mangle]
pub unsafe extern "C" fn gpumem_reservation_out_of_memory_set(
    r: gpumem_reservation,
    callback: gpumem_out_of_memory_callback,
    user: *mut c_void,
    free_user: gpumem_free_user,
) -> gpumem_status {
    guard(|| {
        let (policy, user) = out_of_memory_policy(callback, user, free_user)?;
        reservation(r)?.set_out_of_memory_policy(policy)?;
        user.keep();
        Ok(())
    })
}

/// Sets what happens to an allocation in a space that finds no memory, unless its reservation has a
/// callback.
///
/// In a disk's space the allocation is a file that a move is to write: callback is called when the
/// space's limit forbids it, even where another disk has room, but not when the file system is
/// full. It is called on the thread that moves, which may be gpumem's own.
///
/// In a host space, callback is called for memory that the program asks for, and for data that is
/// to move there. It is never called for the buffers that a move to or from a file copies through:
/// ordinary memory takes their place. They are drawn from no reservation either.
///
/// callback may be NULL, the default: the allocation then fails. user and free_user may be NULL.
/// Errors: GPUMEM_ERROR_INVALID when there is no such space, or user is given and no callback;
/// GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off.
#[no_mangle]
pub unsafe extern "C" fn gpumem_space_out_of_memory_set(
    space: gpumem_space,
    callback: gpumem_out_of_memory_callback,
    user: *mut c_void,
    free_user: gpumem_free_user,
) -> gpumem_status {
    guard(|| {
        let space = space_id(space)?;
        let (policy, user) = out_of_memory_policy(callback, user, free_user)?;
        manager()?.set_out_of_memory_policy(space, policy.unwrap_or_default())?;
        user.keep();
        Ok(())
    })
}

/// What a callback is handed, until nobody can call it any more.
struct User {
    pointer: *mut c_void,
    free: gpumem_free_user,
    /// The call that brought it has succeeded: from then on it is to be told of its end.
    kept: AtomicBool,
}

// SAFETY: never followed here, and by the contract of the header a callback, and so what it is
// handed, may be used by every thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl Drop for User {
    fn drop(&mut self) {
        if let (Some(free), true) = (self.free, self.kept.load(SeqCst)) {
            // SAFETY: a function by the contract. The last that knew the callback is just gone, so
            // it is called once and after the last call of it.
            unsafe { free(self.pointer) };
        }
    }
}

/// What came with a policy, in the hands of the call that brought it.
#[must_use]
pub(in crate::capi) struct Brought(Option<Arc<User>>);

impl Brought {
    fn new(pointer: *mut c_void, free: gpumem_free_user) -> (Arc<User>, Brought) {
        let user = Arc::new(User { pointer, free, kept: AtomicBool::new(false) });
        (user.clone(), Brought(Some(user)))
    }

    /// The call has succeeded. Without this the pointer stays the caller's.
    pub(in crate::capi) fn keep(self) {
        if let Some(user) = self.0 {
            user.kept.store(true, SeqCst);
        }
    }
}

/// The core's policy for C's, which may be null.
///
/// # Safety
/// `policy` is null or a structure whose size field is true.
pub(in crate::capi) unsafe fn limit_policy(policy: *const gpumem_reserve_policy) -> Result<(LimitPolicy, Brought)> {
    if policy.is_null() {
        return Ok((LimitPolicy::Fail, Brought(None)));
    }
    // SAFETY: not null, so options by the contract.
    let p = unsafe { options::read(policy) }?;
    let kind = match p.kind {
        0 => GPUMEM_POLICY_FAIL,
        kind => kind,
    };
    let wrong = |field: &str, of: &str| {
        Err(Error::invalid(format!("gpumem_reserve_policy.{field} is set and kind is {kind}; it is for {of}")))
    };
    if kind != GPUMEM_POLICY_CALLBACK && (p.callback.is_some() || !p.user.is_null() || p.free_user.is_some()) {
        return wrong("callback, user or free_user", "GPUMEM_POLICY_CALLBACK");
    }
    if kind != GPUMEM_POLICY_INCREASE && (p.factor != 0.0 || p.cap != 0 || p.flags != 0) {
        return wrong("factor, cap or flags", "GPUMEM_POLICY_INCREASE");
    }
    if p.flags & !GPUMEM_POLICY_BEYOND_LIMIT != 0 || p.reserved != 0 {
        return Err(Error::invalid(format!(
            "gpumem_reserve_policy has unknown bits: flags {:#x}, reserved {:#x}",
            p.flags, p.reserved
        )));
    }
    let none = Brought(None);
    match (kind, p.callback) {
        (GPUMEM_POLICY_FAIL, _) => Ok((LimitPolicy::Fail, none)),
        (GPUMEM_POLICY_IGNORE, _) => Ok((LimitPolicy::Ignore, none)),
        (GPUMEM_POLICY_INCREASE, _) => {
            let factor = match p.factor == 0.0 {
                true => Factor::default(),
                false => Factor::new(p.factor)?,
            };
            let cap = (p.cap != 0).then_some(p.cap);
            let beyond_limit = p.flags & GPUMEM_POLICY_BEYOND_LIMIT != 0;
            Ok((LimitPolicy::Increase { factor, cap, beyond_limit }, none))
        }
        (GPUMEM_POLICY_CALLBACK, Some(callback)) => {
            let (user, brought) = Brought::new(p.user, p.free_user);
            Ok((LimitPolicy::Callback(Arc::new(move |what: &Overdraw| overdraw(callback, &user, what))), brought))
        }
        (GPUMEM_POLICY_CALLBACK, None) => {
            Err(Error::invalid("gpumem_reserve_policy.callback is NULL; GPUMEM_POLICY_CALLBACK needs one"))
        }
        (other, _) => {
            Err(Error::invalid(format!("gpumem_reserve_policy.kind is {other}; use 0 or one of GPUMEM_POLICY_*")))
        }
    }
}

/// The core's policy for C's callback; `None` where that is null.
pub(in crate::capi) fn out_of_memory_policy(
    callback: gpumem_out_of_memory_callback,
    user: *mut c_void,
    free_user: gpumem_free_user,
) -> Result<(Option<OutOfMemoryPolicy>, Brought)> {
    let Some(callback) = callback else {
        return match user.is_null() && free_user.is_none() {
            true => Ok((None, Brought(None))),
            false => Err(Error::invalid("user or free_user is set and the callback is NULL; there is no use for them")),
        };
    };
    let (user, brought) = Brought::new(user, free_user);
    let policy = OutOfMemoryPolicy::Callback(Arc::new(move |what: &Shortage| shortage(callback, &user, what)));
    Ok((Some(policy), brought))
}

fn overdraw(
    callback: unsafe extern "C" fn(*const gpumem_overdraw, *mut c_void) -> i64,
    user: &User,
    what: &Overdraw,
) -> Decision {
    let told = gpumem_overdraw {
        size: size_of::<gpumem_overdraw>() as u32,
        attempt: what.attempt,
        space: c_space(what.space),
        number: what.reservation,
        promised: what.size,
        drawn: what.drawn,
        bytes: what.bytes,
        stream: what.stream as usize as gpumem_stream,
    };
    // SAFETY: a function by the contract of the header, given what that says.
    match unsafe { callback(&told, user.pointer) } {
        GPUMEM_OVERDRAW_IGNORE => Decision::Ignore,
        GPUMEM_OVERDRAW_RETRY => Decision::Retry,
        more => match u64::try_from(more) {
            Ok(more @ 1..) => Decision::Grow(more),
            _ => Decision::Fail,
        },
    }
}

fn shortage(
    callback: unsafe extern "C" fn(*const gpumem_shortage, *mut c_void) -> i32,
    user: &User,
    what: &Shortage,
) -> bool {
    let told = gpumem_shortage {
        size: size_of::<gpumem_shortage>() as u32,
        attempt: what.attempt,
        space: c_space(what.space),
        bytes: what.bytes,
        stream: what.stream as usize as gpumem_stream,
    };
    // SAFETY: as above.
    unsafe { callback(&told, user.pointer) != 0 }
}

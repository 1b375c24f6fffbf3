//! Ending waits
//!
//! Pass a token to calls that wait for a reservation; gpumem_token_cancel then ends their waits.
//! Any number of calls may share one token.

use super::space::manager;
use crate::base::Result;
use crate::capi::call::arguments::guard_out;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::handles::Handles;
use crate::context::Context;
use crate::tier::Cancel;

/// The type that a gpumem_token points to: opaque, never defined.
#[allow(non_camel_case_types)]
pub struct gpumem_token_st(());

/// A handle to a token that ends waits. It is opaque: compare it only with NULL and other handles.
#[allow(non_camel_case_types)]
pub type gpumem_token = *mut gpumem_token_st;

/// Every token.
static CANCELS: Handles<Cancel> = Handles::new(b'T', "gpumem_token");

/// Makes a token that ends waits.
///
/// out receives it; the caller owns it until gpumem_token_destroy.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off.
#[no_mangle]
pub unsafe extern "C" fn gpumem_token_create(out: *mut gpumem_token) -> gpumem_status {
    // SAFETY: the caller passes NULL or a place to write to.
    unsafe { guard_out(out, || Ok(CANCELS.insert(manager()?.cancel_token())? as gpumem_token)) }
}

/// Ends every wait that uses this token, under way or later, with GPUMEM_ERROR_CANCELLED.
///
/// A request is either granted or cancelled. A later one is refused even if it would not have to
/// wait.
/// Errors: GPUMEM_ERROR_INVALID when there is no such token.
#[no_mangle]
pub extern "C" fn gpumem_token_cancel(cancel: gpumem_token) -> gpumem_status {
    guard(|| {
        Context::global()?;
        CANCELS.get(cancel as usize)?.cancel();
        Ok(())
    })
}

/// Destroys a token. Waits with it go on.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such token.
#[no_mangle]
pub extern "C" fn gpumem_token_destroy(cancel: gpumem_token) -> gpumem_status {
    guard(|| CANCELS.remove(cancel as usize).map(drop))
}

/// Ends every wait for a reservation with GPUMEM_ERROR_SHUTTING_DOWN, and refuses every request
/// from now on.
///
/// This cannot be undone. Allocations, frees and releases work as before. It is for programs that
/// have to join their threads.
/// Errors: GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off.
#[no_mangle]
pub extern "C" fn gpumem_reservation_shutdown() -> gpumem_status {
    guard(|| {
        manager()?.shut_down();
        Ok(())
    })
}

/// The token that a parameter names, if it names one.
pub(in crate::capi) fn token(cancel: gpumem_token) -> Result<Option<Cancel>> {
    match cancel.is_null() {
        true => Ok(None),
        false => CANCELS.get(cancel as usize).map(|c| Some((*c).clone())),
    }
}

//! `cuMemAlloc`, `cuMemAllocPitch` and `cuMemFree`: memory that any stream may use at once, and
//! that is freed after all work that uses it.

use crate::cuda::{Code, Ctx, Ptr, CAPTURING, INVALID_VALUE, SUCCESS};
use crate::pressure::again;
use crate::real::Real;
use crate::served::{self, Served};
use crate::{captures, counters, settings};
use gpumem::context::preload::Free;
use gpumem::driver::process::Uncancelled;
use gpumem::pool::AllocInfo;
use std::ffi::{c_int, c_uint};
use std::sync::PoisonError;

/// Rows of pitched memory begin at multiples of this, as the driver's do on every device that
/// gpumem can serve.
const PITCH: usize = 512;

/// Allocates; returns the memory or an error code, or `None` if the driver is to do it.
fn serve(real: &Real, bytes: usize) -> Option<Result<Ptr, Code>> {
    if bytes == 0 || bytes as u64 >= settings::get().own.native {
        return None;
    }
    let ctx = real.current();
    let (served, tag) = match served::of_primary(ctx) {
        Some(served) => (served, 0),
        None => {
            let (served, primary) = served::of_context(real, ctx)?;
            (served, if primary { 0 } else { ctx })
        }
    };
    let _time = counters::time();
    match served.take(bytes as u64, tag) {
        Ok(ptr) => {
            counters::made(served::aligned(bytes as u64));
            Some(Ok(ptr))
        }
        Err(e) => served::code(&e).map(Err),
    }
}

pub unsafe fn alloc(real: &Real, out: *mut Ptr, bytes: usize) -> Code {
    match (!out.is_null()).then(|| serve(real, bytes)).flatten() {
        Some(Ok(ptr)) => {
            // SAFETY: not null, so the program's place for an address.
            unsafe { out.write(ptr) };
            SUCCESS
        }
        Some(Err(code)) => code,
        None => {
            counters::left();
            again(|| real.cuMemAlloc_v2(out, bytes))
        }
    }
}

pub unsafe fn pitch(
    real: &Real,
    out: *mut Ptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    let row = width.checked_next_multiple_of(PITCH);
    let bytes = row.and_then(|row| row.checked_mul(height));
    let usual = !out.is_null() && !pitch.is_null() && matches!(element, 4 | 8 | 16);
    let (Some(row), Some(bytes), true) = (row, bytes, usual) else {
        return again(|| real.cuMemAllocPitch_v2(out, pitch, width, height, element));
    };
    match serve(real, bytes) {
        Some(Ok(ptr)) => {
            // SAFETY: neither is null, so the program's places for both.
            unsafe {
                out.write(ptr);
                pitch.write(row);
            }
            SUCCESS
        }
        Some(Err(code)) => code,
        None => {
            counters::left();
            again(|| real.cuMemAllocPitch_v2(out, pitch, width, height, element))
        }
    }
}

pub unsafe fn free(real: &Real, ptr: Ptr) -> Code {
    let Some(served) = served::owner(ptr).filter(|_| ptr != 0) else { return real.cuMemFree_v2(ptr) };
    let _time = counters::time();
    let info = match served.pool.info(ptr) {
        Ok(info) if !served.quarantine.has(ptr) => info,
        _ => return INVALID_VALUE,
    };
    // A recording shows it as free from here on, whatever the free waits for.
    served.pool.note_free(ptr, None);
    // Another free may have put it in the quarantine first.
    let Some(code) = free_settled(real, served, &info) else { return INVALID_VALUE };
    counters::freed(info.requested);
    code
}

/// Frees memory once all work that may use it is done; `None` when it has been freed already. A
/// context that has failed gives its code.
fn free_settled(real: &Real, served: &Served, info: &AllocInfo) -> Option<Code> {
    served.synchronous.lock().unwrap_or_else(PoisonError::into_inner).remove(&info.base);
    served.disown(info);
    let here = real.current();
    let elsewhere = info.tag != 0 || here != served.primary() && here != 0;
    let guests = served.ledger.guests();
    let keep = || served.quarantine.add(served, info.base, info.id, info.usable);
    let marker =
        settings::get().own.free == Free::Marker && served.quarantine.works() && !elsewhere && guests.is_empty();
    if marker || captures::any() {
        return keep().then_some(SUCCESS);
    }
    // The driver may wait in a cancellation point.
    let _uncancelled = Uncancelled::new();
    // The contexts whose work may use it: the memory's own, the current one, and those of devices
    // that were given access.
    let mut users = served.peers.lock().unwrap_or_else(PoisonError::into_inner).clone();
    users.extend(guests.into_iter().filter_map(|guest| real.primary(guest.0 as c_int)));
    users.extend([served.primary(), info.tag as Ctx, here]);
    match captures::wait_for(real, users) {
        SUCCESS => {
            served.put(info.base, info.id);
            Some(SUCCESS)
        }
        // One that began meanwhile.
        CAPTURING => keep().then_some(SUCCESS),
        failed => keep().then_some(failed),
    }
}

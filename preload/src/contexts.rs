//! Contexts that end, and devices that see each other's memory.

use crate::cuda::{Code, Ctx, MAP_FAILED, SUCCESS};
use crate::pressure::again;
use crate::real::{other, Real};
use crate::{captures, ipc, served};
use gpumem::base::DeviceId;
use gpumem::driver::process::Uncancelled;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI64, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// How often the program has retained each device's primary context, less its releases.
static RETAINED: [AtomicI64; 64] = [const { AtomicI64::new(0) }; 64];
/// Green contexts, each of which retains the primary context of its device.
static GREEN: Mutex<BTreeMap<usize, c_int>> = Mutex::new(BTreeMap::new());

fn retained(device: c_int) -> Option<&'static AtomicI64> {
    RETAINED.get(usize::try_from(device).ok()?)
}

/// Destroys a created context, and with it its memory.
pub unsafe fn destroy(real: &Real, ctx: Ctx) -> Code {
    let _uncancelled = Uncancelled::new();
    if served::of_primary(ctx).is_none() {
        ipc::context_ends(real, ctx);
    }
    let served: Vec<_> = served::all().filter(|s| s.has_created()).collect();
    if !served.is_empty() && ctx != 0 {
        // Others get its memory next.
        let _ = real.within(ctx, || other!(real, cuCtxSynchronize()));
    }
    let code = real.cuCtxDestroy_v2(ctx);
    if code == SUCCESS {
        served.iter().for_each(|s| s.end_context(ctx));
        for served in served::all() {
            served.peers.lock().unwrap_or_else(PoisonError::into_inner).remove(&ctx);
        }
        captures::context_ended(ctx);
    }
    code
}

fn count(device: c_int, code: Code) -> Code {
    if code == SUCCESS {
        if let Some(n) = retained(device) {
            n.fetch_add(1, Relaxed);
        }
    }
    code
}

pub unsafe fn retain(real: &Real, out: *mut Ctx, device: c_int) -> Code {
    count(device, real.cuDevicePrimaryCtxRetain(out, device))
}

pub unsafe fn create_green(real: &Real, out: *mut usize, desc: *mut c_void, device: c_int, flags: c_uint) -> Code {
    let _uncancelled = Uncancelled::new();
    let code = count(device, again(|| real.cuGreenCtxCreate(out, desc, device, flags)));
    if code == SUCCESS {
        // SAFETY: the driver has written it.
        let green = unsafe { out.read() };
        GREEN.lock().unwrap_or_else(PoisonError::into_inner).insert(green, device);
    }
    code
}

pub unsafe fn destroy_green(real: &Real, green: usize) -> Code {
    let _uncancelled = Uncancelled::new();
    let device = GREEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&green);
    let destroy = || real.cuGreenCtxDestroy(green);
    device.map_or_else(destroy, |device| releases(real, device, destroy))
}

/// Ends a primary context by `end`, unless `optional` and gpumem's pool has to stay for the memory
/// of created contexts: its streams are in the primary one. Captures there end with it; those in
/// other contexts of the device continue.
fn ends_primary(real: &Real, device: c_int, optional: bool, end: impl FnOnce() -> Code) -> Code {
    // A request meanwhile would start the device in a context that is ending.
    let _one = served::changing(device);
    let ctx = captures::any().then(|| real.primary(device)).flatten();
    let served = served::existing(device);
    if let Some(served) = served {
        ipc::context_ends(real, served.primary());
    }
    let stays = served.filter(|s| s.has_created() || ipc::any_besides(s.dev, s.primary()));
    match stays {
        Some(served) => served.end_primary(),
        None if served::end(device) => drop(real.cuDevicePrimaryCtxRelease_v2(device)),
        None => {}
    }
    let code = if optional && stays.is_some() { SUCCESS } else { end() };
    if let Some(ctx) = ctx.filter(|_| code == SUCCESS && stays.is_none()) {
        captures::context_ended(ctx);
    }
    code
}

/// Releases a primary context. The program's last release ends it, as gpumem does not keep it
/// alive, except for memory of created contexts. While the process exits, everything goes anyway
/// and other threads may still be at work.
fn releases(real: &Real, device: c_int, release: impl FnOnce() -> Code) -> Code {
    let last = retained(device).is_some_and(|n| n.load(Relaxed) > 0 && n.fetch_sub(1, Relaxed) == 1);
    match last && !crate::counters::is_exiting() {
        true => ends_primary(real, device, false, release),
        false => release(),
    }
}

pub unsafe fn release(real: &Real, device: c_int) -> Code {
    releases(real, device, || real.cuDevicePrimaryCtxRelease_v2(device))
}

/// The first variant of both, which the CUDA runtime asks for.
pub unsafe fn release_1(real: &Real, device: c_int) -> Code {
    releases(real, device, || real.cuDevicePrimaryCtxRelease(device))
}

/// Resets a primary context. That ends no hold of the program's.
pub unsafe fn reset(real: &Real, device: c_int) -> Code {
    ends_primary(real, device, true, || real.cuDevicePrimaryCtxReset_v2(device))
}

pub unsafe fn reset_1(real: &Real, device: c_int) -> Code {
    ends_primary(real, device, true, || real.cuDevicePrimaryCtxReset(device))
}

/// Lets the current context's device access the memory of the peer's device from now on.
pub unsafe fn enable_peer(real: &Real, peer: Ctx, flags: c_uint) -> Code {
    let code = real.cuCtxEnablePeerAccess(peer, flags);
    if code != SUCCESS {
        return code;
    }
    let ctx = real.current();
    let here = real.device_of(ctx);
    let Some((served, _)) = served::of_context(real, peer) else { return code };
    match here.and_then(|d| u32::try_from(d).ok()).map(DeviceId).filter(|guest| *guest != served.dev) {
        Some(guest) => {
            if real.primary(guest.0 as c_int) != Some(ctx) {
                served.peers.lock().unwrap_or_else(PoisonError::into_inner).insert(ctx);
            }
            served.ledger.let_in(guest).map_or(MAP_FAILED, |()| code)
        }
        None => code,
    }
}

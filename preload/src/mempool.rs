//! The default pool of a device, as far as programs ask about it.

use crate::counters;
use crate::cuda::{Access, Code, Location, MemPool, DEVICE, INVALID_VALUE, READ_WRITE, RELEASE_THRESHOLD, SUCCESS};
use crate::real::{other, Real};
use crate::served::{self, Served};
use gpumem::base::DeviceId;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::*;

/// `CU_MEMPOOL_ATTR_*`, besides [`RELEASE_THRESHOLD`].
const RESERVED: c_int = 5;
const RESERVED_HIGH: c_int = 6;
const USED: c_int = 7;
const USED_HIGH: c_int = 8;

fn default_of(pool: MemPool) -> Option<&'static Served> {
    served::all().find(|s| s.default_pool == pool && pool != 0)
}

pub unsafe fn trim(real: &Real, pool: MemPool, keep: usize) -> Code {
    if let Some(served) = default_of(pool) {
        served.quarantine.poll(served, true);
        let _ = served.pool.trim(keep as u64);
    }
    // The driver's own part: what it served itself.
    real.cuMemPoolTrimTo(pool, keep)
}

/// Used and reserved now, and the most of each since its mark was reset, bytes.
fn marks(served: &Served) -> [u64; 4] {
    let s = served.pool.stats(served.dev).unwrap_or_default();
    let [used, reserved] = &served.marks;
    // For the program what waits is free already.
    let live = s.live.saturating_sub(served.quarantine.bytes());
    [live, used.load(Relaxed).max(s.peak_live), s.mapped, reserved.load(Relaxed).max(s.peak_mapped)]
}

pub unsafe fn get(real: &Real, pool: MemPool, what: c_int, out: *mut c_void) -> Code {
    let Some(served) = default_of(pool).filter(|_| !out.is_null()) else {
        return real.cuMemPoolGetAttribute(pool, what, out);
    };
    served.quarantine.poll(served, true);
    let [used, used_high, reserved, reserved_high] = marks(served);
    let value = match what {
        RELEASE_THRESHOLD => served.threshold.load(Relaxed),
        RESERVED => reserved,
        RESERVED_HIGH => reserved_high,
        USED => used,
        USED_HIGH => used_high,
        _ => return real.cuMemPoolGetAttribute(pool, what, out),
    };
    // SAFETY: not null, and these attributes are 64-bit numbers.
    unsafe { out.cast::<u64>().write(value) };
    SUCCESS
}

pub unsafe fn set(real: &Real, pool: MemPool, what: c_int, value: *mut c_void) -> Code {
    let known = matches!(what, RELEASE_THRESHOLD | RESERVED_HIGH | USED_HIGH);
    let Some(served) = default_of(pool).filter(|_| known && !value.is_null()) else {
        return real.cuMemPoolSetAttribute(pool, what, value);
    };
    // SAFETY: not null, and these attributes are 64-bit numbers.
    let number = unsafe { value.cast::<u64>().read() };
    if what == RELEASE_THRESHOLD {
        served.threshold.store(number, Relaxed);
        let _ = served.pool.trim(number);
        return real.cuMemPoolSetAttribute(pool, what, value);
    }
    if number != 0 {
        return INVALID_VALUE;
    }
    counters::ended(served.peak_mapped());
    // The pool resets both of its marks; the other one is kept here.
    let [_, used_high, _, reserved_high] = marks(served);
    let [used, reserved] = &served.marks;
    let (reset, kept, kept_value) =
        if what == USED_HIGH { (used, reserved, reserved_high) } else { (reserved, used, used_high) };
    reset.store(0, Relaxed);
    kept.store(kept_value, Relaxed);
    let _ = served.pool.reset_peaks(served.dev);
    SUCCESS
}

pub unsafe fn access(real: &Real, pool: MemPool, map: *const Access, count: usize) -> Code {
    let code = real.cuMemPoolSetAccess(pool, map, count);
    let Some(served) = default_of(pool).filter(|_| code == SUCCESS && !map.is_null()) else { return code };
    // SAFETY: the driver has accepted that many descriptions.
    for one in unsafe { std::slice::from_raw_parts(map, count) } {
        if one.location == DEVICE && one.flags == READ_WRITE {
            let guest = DeviceId(u32::try_from(one.id).unwrap_or(u32::MAX));
            if guest != served.dev && served.ledger.let_in(guest).is_err() {
                return INVALID_VALUE;
            }
        }
    }
    code
}

/// Like [`choose`], with the device named by a location and a kind of memory.
pub unsafe fn choose_at(real: &Real, location: *mut Location, kind: c_int, pool: MemPool) -> Code {
    let code = real.cuMemSetMemPool(location, kind, pool);
    // CU_MEM_ALLOCATION_TYPE_PINNED: the device's ordinary memory.
    if code == SUCCESS && !location.is_null() && kind == 1 {
        // SAFETY: the driver has accepted it.
        let at = unsafe { location.read() };
        if let Some(served) = served::existing(at.id).filter(|_| at.kind == DEVICE) {
            served.pool_is_current.store(pool == served.default_pool, Relaxed);
        }
    }
    code
}

/// Sets the device's current pool. The driver serves a pool of the program's own, and allocations
/// made while it is current.
pub unsafe fn choose(real: &Real, device: c_int, pool: MemPool) -> Code {
    let code = real.cuDeviceSetMemPool(device, pool);
    if let Some(served) = served::existing(device).filter(|_| code == SUCCESS) {
        served.pool_is_current.store(pool == served.default_pool, Relaxed);
    }
    code
}

/// Destroys a pool. Where it was the current one, the default pool is from now on.
pub unsafe fn destroy(real: &Real, pool: MemPool) -> Code {
    let code = real.cuMemPoolDestroy(pool);
    for served in served::all().filter(|_| code == SUCCESS) {
        let mut current = 0;
        if other!(real, cuDeviceGetMemPool(&mut current, served.dev.0 as c_int)) == SUCCESS {
            served.pool_is_current.store(current == served.default_pool, Relaxed);
        }
    }
    code
}

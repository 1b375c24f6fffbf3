//! Attributes of pointers, and free memory. A program sees its allocation, not the handles behind
//! it.

use crate::cuda::{Code, Ctx, MemPool, Ptr, INVALID_VALUE, SUCCESS};
use crate::real::Real;
use crate::served::{self, Found};
use crate::{ipc, settings};
use gpumem::context::config::Limit;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::PoisonError;

/// `CU_POINTER_ATTRIBUTE_*`.
const CONTEXT: c_int = 1;
const SYNC_MEMOPS: c_int = 6;
const BUFFER_ID: c_int = 7;
const IS_IPC_CAPABLE: c_int = 10;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
const ALLOWED_HANDLE_TYPES: c_int = 14;
const MEMPOOL: c_int = 17;

/// Reports as free the driver's free bytes and those that gpumem would give back, within gpumem's
/// limit if there is one.
pub unsafe fn memory(real: &Real, free: *mut usize, total: *mut usize) -> Code {
    let code = real.cuMemGetInfo_v2(free, total);
    let served = served::of_context(real, real.current()).filter(|_| code == SUCCESS && !free.is_null());
    let Some((served, _)) = served else { return code };
    served.quarantine.poll(served, true);
    let limit = served.pool.config().limit;
    let stats = served.pool.stats(served.dev).unwrap_or_default();
    // For the program it is free already, and a request that needs it waits for it.
    let live = stats.live.saturating_sub(served.quarantine.bytes());
    // SAFETY: the driver has written what is not null.
    unsafe {
        let all = if total.is_null() { u64::MAX } else { *total as u64 };
        let mut left = (*free as u64).saturating_add(stats.mapped.saturating_sub(live)).min(all);
        if limit != Limit::Device && !total.is_null() {
            let most = limit.of(all).min(all);
            left = left.min(most.saturating_sub(live));
            *total = most as usize;
        }
        *free = left as usize;
    }
    code
}

/// Reports gpumem's limit, if there is one, as the size of a device.
pub unsafe fn total(real: &Real, out: *mut usize, device: c_int) -> Code {
    let code = real.cuDeviceTotalMem_v2(out, device);
    let limit = settings::config().filter(|config| config.pool).map_or(Limit::Device, |config| config.limit);
    if code == SUCCESS && limit != Limit::Device && !served::is_refused(device) {
        // SAFETY: the driver has written it.
        unsafe { *out = limit.of(*out as u64).min(*out as u64) as usize };
    }
    code
}

/// An address at which nothing ever is. The driver is asked about it where the program asks about
/// memory that is not allocated, as gpumem may still map memory there.
const NOWHERE: Ptr = 0x1000;

/// What is at `ptr`; where there is nothing of gpumem's, the address to ask the driver about.
fn find(ptr: Ptr) -> Result<Found, Ptr> {
    let Some(served) = served::owner(ptr) else { return ipc::find(ptr).ok_or(ptr) };
    let info = served.info_containing(ptr).ok_or(NOWHERE)?;
    Ok(Found {
        served,
        base: info.base,
        bytes: info.requested,
        id: info.id,
        context: if info.tag == 0 { served.primary() } else { info.tag as Ctx },
        pool: if info.stream == served.own { 0 } else { served.default_pool },
        shareable: true,
    })
}

/// The context that the memory at `ptr` was made in; `None` where it is not gpumem's.
pub fn context(ptr: Ptr) -> Option<Ctx> {
    find(ptr).ok().map(|found| found.context)
}

pub unsafe fn range(real: &Real, base: *mut Ptr, bytes: *mut usize, ptr: Ptr) -> Code {
    let found = match find(ptr) {
        Ok(found) => found,
        Err(ptr) => return real.cuMemGetAddressRange_v2(base, bytes, ptr),
    };
    // SAFETY: null, or the program's places for both.
    unsafe {
        if !base.is_null() {
            base.write(found.base);
        }
        if !bytes.is_null() {
            bytes.write(found.bytes as usize);
        }
    }
    SUCCESS
}

/// The driver refuses this for memory of `cuMemAlloc`. Programs take the address range that they
/// ask for to be the handle's, and other processes would map the wrong bytes.
pub unsafe fn retain(real: &Real, out: *mut u64, ptr: Ptr) -> Code {
    match served::owner(ptr).is_some() || find(ptr).is_ok() {
        true => INVALID_VALUE,
        false => real.cuMemRetainAllocationHandle(out, ptr),
    }
}

/// Writes an attribute that is gpumem's to tell; `false`: the driver knows it.
unsafe fn tell(found: &Found, what: c_int, out: *mut c_void) -> bool {
    // SAFETY: not null by the callers, and of the type that the attribute has by CUDA's
    // documentation.
    unsafe {
        match what {
            CONTEXT => out.cast::<usize>().write(found.context),
            SYNC_MEMOPS => {
                let all = found.served.synchronous.lock().unwrap_or_else(PoisonError::into_inner);
                out.cast::<c_uint>().write((all.get(&found.base) == Some(&found.id)).into());
            }
            BUFFER_ID => out.cast::<u64>().write(found.id),
            IS_IPC_CAPABLE => out.cast::<c_int>().write(found.shareable.into()),
            // None, as `retain` refuses.
            ALLOWED_HANDLE_TYPES => out.cast::<u64>().write(0),
            RANGE_START => out.cast::<u64>().write(found.base),
            RANGE_SIZE => out.cast::<usize>().write(found.bytes as usize),
            MEMPOOL => out.cast::<MemPool>().write(found.pool),
            _ => return false,
        }
    }
    true
}

pub unsafe fn attribute(real: &Real, out: *mut c_void, what: c_int, ptr: Ptr) -> Code {
    match find(ptr) {
        // SAFETY: not null.
        Ok(found) if !out.is_null() && unsafe { tell(&found, what, out) } => SUCCESS,
        Ok(_) => real.cuPointerGetAttribute(out, what, ptr),
        Err(ptr) => real.cuPointerGetAttribute(out, what, ptr),
    }
}

pub unsafe fn attributes(real: &Real, count: c_uint, what: *mut c_int, out: *mut *mut c_void, ptr: Ptr) -> Code {
    let found = find(ptr);
    let code = real.cuPointerGetAttributes(count, what, out, found.as_ref().map_or_else(|at| *at, |_| ptr));
    if let Some(found) = found.ok().filter(|_| code == SUCCESS) {
        for i in 0..count as usize {
            // SAFETY: the driver has accepted that many attributes and places.
            unsafe {
                let to = *out.add(i);
                if !to.is_null() {
                    tell(&found, *what.add(i), to);
                }
            }
        }
    }
    code
}

/// CUDA cannot make memory under a program's own handles synchronous. The setting is only stored,
/// so that a program that asks gets back what it set.
pub unsafe fn set_attribute(real: &Real, value: *const c_void, what: c_int, ptr: Ptr) -> Code {
    match find(ptr) {
        Ok(found) if what == SYNC_MEMOPS && !value.is_null() => {
            let mut all = found.served.synchronous.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: not null, and this attribute is an unsigned int.
            match unsafe { value.cast::<c_uint>().read() } {
                0 => all.remove(&found.base),
                _ => all.insert(found.base, found.id),
            };
            SUCCESS
        }
        Ok(_) => real.cuPointerSetAttribute(value, what, ptr),
        Err(ptr) => real.cuPointerSetAttribute(value, what, ptr),
    }
}

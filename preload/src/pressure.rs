//! Driver calls that may fail for lack of memory that gpumem holds free. They are tried again once
//! gpumem has given it back.

use crate::cuda::{Code, Ptr, OUT_OF_MEMORY};
use crate::real::Real;
use crate::served;
use std::ffi::{c_uint, c_void};

pub fn again(call: impl Fn() -> Code) -> Code {
    let code = call();
    if code != OUT_OF_MEMORY {
        return code;
    }
    let holders: Vec<_> = served::all().filter(|s| s.reclaimable() > 0).collect();
    if holders.is_empty() {
        return code;
    }
    holders.iter().for_each(|s| s.give_back());
    call()
}

pub unsafe fn create(real: &Real, out: *mut u64, bytes: usize, prop: *const c_void, flags: u64) -> Code {
    again(|| real.cuMemCreate(out, bytes, prop, flags))
}

pub unsafe fn managed(real: &Real, out: *mut Ptr, bytes: usize, flags: c_uint) -> Code {
    again(|| real.cuMemAllocManaged(out, bytes, flags))
}

pub unsafe fn array(real: &Real, out: *mut usize, desc: *const c_void) -> Code {
    again(|| real.cuArrayCreate_v2(out, desc))
}

pub unsafe fn array_3d(real: &Real, out: *mut usize, desc: *const c_void) -> Code {
    again(|| real.cuArray3DCreate_v2(out, desc))
}

pub unsafe fn mipmapped(real: &Real, out: *mut usize, desc: *const c_void, levels: c_uint) -> Code {
    again(|| real.cuMipmappedArrayCreate(out, desc, levels))
}

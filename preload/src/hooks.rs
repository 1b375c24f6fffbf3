//! The hooks, under the names of the functions that they replace, and how a program reaches them.
//!
//! `cuGetProcAddress` asks the driver first, and replaces its answer if that is a hooked function.

use crate::cuda::{Access, Code, Ctx, IpcHandle, Location, MemPool, NodeParams, Ptr, Stream, NOT_INITIALIZED, SUCCESS};
use crate::functions::functions;
use crate::real::{Hook, Real, Thread, HOOKS};
use crate::{alloc, captures, contexts, counters, facts, graphs, guard, ipc, mempool, ordered, pressure, settings};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};

/// A call of a hook, or of a function that has none of its own.
macro_rules! call {
    ($real:ident, $name:ident($($arg:ident),*), $hook:path) => { $hook($real, $($arg),*) };
    ($real:ident, $name:ident($($arg:ident),*)) => { pressure::again(|| $real.$name($($arg),*)) };
}

macro_rules! exports {
    (
        hooked { $( $base:literal, $since:literal .. $until:literal, $thread:ident: $name:ident($($arg:ident: $ty:ty),*) $(= $hook:path)?; )* }
        others { $( $other:ident($($oty:ty),*); )* }
    ) => {
        $(
            #[no_mangle]
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
                let Some(real) = Real::get() else { return NOT_INITIALIZED };
                // SAFETY: the program's arguments, which are the driver function's by contract.
                #[allow(unused_unsafe)]
                guard::run(|| unsafe { call!(real, $name($($arg),*) $(, $hook)?) }, || real.$name($($arg),*))
            }
        )*

        /// In the order of `HOOKS`.
        pub fn address(i: usize) -> usize {
            [ $( $name as *const () as usize, )* ].get(i).copied().unwrap_or(0)
        }
    };
}

// What stands in for each function, under its own name: programs that are linked to the driver find
// it first.
functions!(exports);

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `_PER_THREAD_DEFAULT_STREAM`; 0 is the first.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
/// The latest version whose functions are known to be what the table says.
const KNOWN: c_int = 13_999;

/// Whether a function is one of this library's.
pub fn is_hook(function: *mut c_void) -> bool {
    (0..HOOKS.len()).any(|i| address(i) == function as usize)
}

/// Whether a hooked function has this name.
pub fn is_name(name: &[u8]) -> bool {
    HOOKS.iter().any(|h| [h.base, h.export].iter().any(|n| n.as_bytes() == name))
}

/// The answer to the program for `name`, where the driver's is `found`: a hook if that is a hooked
/// function. With `asked`, a version and flags, even if the answer is not what the driver's library
/// exports.
pub fn substitute(found: *mut c_void, name: &CStr, asked: Option<(c_int, u64)>) -> *mut c_void {
    let Ok(text) = name.to_str() else { return found };
    if found.is_null() || !is_name(text.as_bytes()) || is_hook(found) {
        return found;
    }
    let Some(real) = Real::get() else { return found };
    counters::looked_up();
    let same = |h: &Hook| (h.real)(real) == found as usize;
    let by_identity = HOOKS.iter().position(same);
    let hook = by_identity.or_else(|| HOOKS.iter().position(|h| asked.is_some_and(|a| fits(h, text, a, real))));
    let Some(i) = hook else { return found };
    counters::replaced();
    if settings::get().log >= 2 {
        let export = HOOKS.get(i).map_or("", |h| h.export);
        let (version, flags) = asked.unwrap_or((0, 0));
        settings::say(&format!("{text} (version {version}, flags {flags}): {export} is gpumem's"));
    }
    address(i) as *mut c_void
}

/// Whether a look-up means this function, going by its name: the driver must export it, and version
/// and flags be known ones.
fn fits(h: &Hook, name: &str, (version, flags): (c_int, u64), real: &Real) -> bool {
    let thread = match flags {
        0 | LEGACY => Thread::Legacy,
        PER_THREAD => Thread::Own,
        _ => return false,
    };
    h.base == name
        && (h.real)(real) != 0
        && (h.since..h.until).contains(&version)
        && version <= KNOWN
        && (h.thread == Thread::Any || h.thread == thread)
}

fn replace(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) {
    if name.is_null() || out.is_null() {
        return;
    }
    // SAFETY: the driver has accepted both: a C string, and a place that it has written.
    unsafe { *out = substitute(*out, CStr::from_ptr(name), Some((version, flags))) };
}

pub unsafe fn v1(real: &Real, name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) -> Code {
    let code = real.cuGetProcAddress(name, out, version, flags);
    if code == SUCCESS {
        replace(name, out, version, flags);
    }
    code
}

pub unsafe fn v2(
    real: &Real,
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Code {
    let code = real.cuGetProcAddress_v2(name, out, version, flags, status);
    if code == SUCCESS {
        replace(name, out, version, flags);
    }
    code
}

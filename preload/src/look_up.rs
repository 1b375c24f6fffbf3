//! `dlsym` and `dlvsym` of this process. Only names of hooked functions are examined. All others
//! jump to the C library's own function with registers, stack and return address unchanged, since
//! it uses the caller's address for `RTLD_NEXT` and for the caller's local scope. `RTLD_NEXT`
//! itself is always left to it: its caller wants the next definition.

use crate::own_dlsym::{find_own, own_dlsym, Dlvsym, GPUMEM_PRELOAD_DLSYM, GPUMEM_PRELOAD_DLVSYM};
use crate::{guard, hooks};
use std::ffi::{c_char, c_void, CStr};
use std::sync::atomic::Ordering::Relaxed;

macro_rules! front {
    ($name:literal, $symbol:ident, $own:ident, $hook:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[no_mangle]
        unsafe extern "C" fn $symbol() {
            std::arch::naked_asm!(
                "endbr64",
                "cmp qword ptr [rip + {own}], 0",
                "jne 2f",
                // Arguments are kept; the stack is a multiple of 16 at the call.
                "push rdi",
                "push rsi",
                "push rdx",
                "call {find}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "2:",
                "cmp rdi, -1",
                "je 3f",
                "test rsi, rsi",
                "je 3f",
                // "cu"; an empty name may be the last byte of a page.
                "cmp byte ptr [rsi], 0x63",
                "jne 3f",
                "cmp byte ptr [rsi + 1], 0x75",
                "jne 3f",
                "push rdi",
                "push rsi",
                "push rdx",
                "mov rdi, rsi",
                "call {known}",
                "test al, al",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jne {hook}",
                "3:",
                "jmp qword ptr [rip + {own}]",
                own = sym $own,
                find = sym find_own,
                known = sym is_known,
                hook = sym $hook,
            )
        }
    };
}
front!("dlsym", dlsym, GPUMEM_PRELOAD_DLSYM, hook_dlsym);
front!("dlvsym", dlvsym, GPUMEM_PRELOAD_DLVSYM, hook_dlvsym);

/// Whether a name is a hooked function's.
unsafe extern "C" fn is_known(name: *const c_char) -> bool {
    // SAFETY: not null, so a C string.
    hooks::is_name(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// The answer to the program for the name of a hooked function, given the loader's.
unsafe fn answer(name: *const c_char, found: *mut c_void) -> *mut c_void {
    if found.is_null() || guard::is_inside() {
        return found;
    }
    // A search of all libraries, or of the program's, finds this library's functions even without a
    // driver, so ask the driver.
    let found = if hooks::is_hook(found) {
        // SAFETY: as the caller promises.
        unsafe { own_dlsym(libc::RTLD_NEXT, name) }
    } else {
        found
    };
    if found.is_null() {
        return found;
    }
    // SAFETY: not null, so a C string.
    hooks::substitute(found, unsafe { CStr::from_ptr(name) }, None)
}

unsafe extern "C" fn hook_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: as the caller promises.
    let found = unsafe { own_dlsym(handle, name) };
    // SAFETY: the same.
    unsafe { answer(name, found) }
}

unsafe extern "C" fn hook_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    // SAFETY: only reached through `dlvsym`, which has found it.
    let own: Dlvsym = unsafe { std::mem::transmute(GPUMEM_PRELOAD_DLVSYM.load(Relaxed)) };
    // SAFETY: as the caller promises.
    let found = unsafe { own(handle, name, version) };
    // SAFETY: the same.
    unsafe { answer(name, found) }
}

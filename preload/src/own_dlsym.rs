//! The C library's own `dlsym` and `dlvsym`.

use crate::elf;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The C library's own `dlsym`, 0 until [`find_own`] has run.
pub static GPUMEM_PRELOAD_DLSYM: AtomicUsize = AtomicUsize::new(0);
/// The C library's own `dlvsym`, 0 until [`find_own`] has run.
pub static GPUMEM_PRELOAD_DLVSYM: AtomicUsize = AtomicUsize::new(0);

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
pub type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Makes sure that both are known; ends the process where the C library has neither, as nothing
/// could go on.
pub extern "C" fn find_own() {
    for (name, to) in [(&b"dlvsym\0"[..], &GPUMEM_PRELOAD_DLVSYM), (&b"dlsym\0"[..], &GPUMEM_PRELOAD_DLSYM)] {
        match elf::libc_function(name) {
            0 => {
                const WHY: &[u8] = b"gpumem: the C library's dlsym was not found; start the program without gpumem\n";
                // SAFETY: writes a constant, and ends the process.
                unsafe {
                    libc::write(2, WHY.as_ptr().cast(), WHY.len());
                    libc::_exit(127);
                }
            }
            address => to.store(address, Relaxed),
        }
    }
}

/// The C library's `dlsym`, as called from here.
pub unsafe extern "C" fn own_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    if GPUMEM_PRELOAD_DLSYM.load(Relaxed) == 0 {
        find_own();
    }
    // SAFETY: found above, so the C library's dlsym.
    let own: Dlsym = unsafe { std::mem::transmute(GPUMEM_PRELOAD_DLSYM.load(Relaxed)) };
    // SAFETY: as the caller promises.
    unsafe { own(handle, name) }
}

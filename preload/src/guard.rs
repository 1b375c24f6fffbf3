//! The guard around every hook: nothing unwinds into the program, and nested calls go to the
//! driver.

use crate::cuda::Code;
use gpumem::driver::process;
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: Code = 999;

thread_local! {
    /// How many hooks this thread is in. Without lazy initialisation or a destructor, so it serves
    /// in exit handlers too.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is in a hook, or has begun to look for the driver.
pub fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Counts this thread as inside until dropped.
pub struct Inside(());

impl Inside {
    #[inline]
    pub fn enter() -> Inside {
        DEPTH.set(DEPTH.get() + 1);
        Inside(())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

/// Runs `hook`, or `driver` where hooks do not apply: inside another hook, or in a forked child,
/// which has no memory.
#[inline(always)]
pub fn run(hook: impl FnOnce() -> Code, driver: impl FnOnce() -> Code) -> Code {
    if is_inside() || process::forked() {
        return driver();
    }
    let _inside = Inside::enter();
    // Nothing of the program's is seen again after a panic, and gpumem's locks recover from poison.
    match catch_unwind(AssertUnwindSafe(hook)) {
        Ok(code) => code,
        Err(panic) => {
            // Dropping a payload may panic too.
            std::mem::forget(panic);
            UNKNOWN
        }
    }
}

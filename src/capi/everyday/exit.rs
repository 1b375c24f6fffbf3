//! What the library does when the process exits: it ends recordings, and removes the files that it
//! moved data to.
//!
//! In the library's own termination function, and not by `atexit`: those of the program and of
//! others, which may use what is in the files, all come before. A process that is killed, or ends
//! by `_exit`, does not come here; the next one that uses the directory removes its files.

use crate::context::Context;
use std::panic::{catch_unwind, AssertUnwindSafe};

// Nothing runs when the library loads, and without files nothing does at the end.
#[used]
#[link_section = ".fini_array"]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // Unwind safety: nothing is seen of it after this.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Some(context) = Context::started() {
            context.leave_observers();
            context.leave_disks();
        }
    }));
}

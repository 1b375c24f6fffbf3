//! Forks: CUDA does not survive them, so gpumem refuses to work in a child of a process that had started it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Once;

static FORKED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

extern "C" fn in_child() {
    FORKED.store(true, Relaxed);
}

/// From now on a forked child knows that it is one. Called once the process has something a child must not use.
pub fn watch_forks() {
    WATCH.call_once(|| {
        // SAFETY: the handler is a function of this library, which stays loaded (`-z nodelete`), and it only stores to
        // an atomic, which is async-signal-safe as a fork handler must be.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}

/// Whether this process was forked from one that watched.
#[inline]
pub fn forked() -> bool {
    FORKED.load(Relaxed)
}

//! The end of the process: gpumem's own threads leave the driver alone once it has begun.
//!
//! Exit handlers and destructors of libraries run on one thread while all others go on, and what
//! the driver has in memory is taken down under them. The program's own calls are the program's
//! business. A thread of gpumem's does its work in portions ([`work`]); when exit begins, the
//! portion at hand gets an error from its next driver call, the handler waits for its end, and no
//! other begins. The handler is entered when the first such thread starts: after the driver's,
//! hence called before them.

use super::process;
use crate::base::{Error, Result, Status};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long the process's end waits for a driver call that had begun before: one that waits for a
/// kernel may never return.
const PATIENCE: Duration = Duration::from_secs(1);

static EXITING: AtomicBool = AtomicBool::new(false);
/// Portions of work under way.
static WORKING: Mutex<u32> = Mutex::new(0);
static RESTED: Condvar = Condvar::new();
static WATCH: Once = Once::new();
/// The process that the handler was entered in; children inherit the handler, but not the threads.
static WATCHED: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether this thread is one of gpumem's own.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn begin() {
    EXITING.store(true, Ordering::SeqCst);
    if WATCHED.load(Ordering::Relaxed) != std::process::id() || is_own() {
        return;
    }
    let start = Instant::now();
    let mut working = WORKING.lock().unwrap_or_else(PoisonError::into_inner);
    while *working > 0 {
        let left = PATIENCE.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        working = RESTED.wait_timeout(working, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn is_own() -> bool {
    OWN.try_with(Cell::get).unwrap_or(false)
}

/// Starts a thread of gpumem's own that calls the driver: it takes no signals, and its driver calls
/// are refused at the process's end.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    WATCH.call_once(|| {
        WATCHED.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the handler is a function of this library, which stays loaded (`-z nodelete`),
        // and it does not unwind.
        unsafe {
            libc::atexit(begin);
        }
    });
    let run = move || {
        let _ = OWN.try_with(|own| own.set(true));
        run();
    };
    process::without_signals(|| Builder::new().name(name.to_string()).spawn(run))
}

/// A portion of work that calls the driver; exit waits for its end.
#[derive(Debug)]
pub struct Work(());

/// Begins a portion of work of one of gpumem's own threads. `None` when the process's end has
/// begun.
pub fn work() -> Option<Work> {
    let mut working = WORKING.lock().unwrap_or_else(PoisonError::into_inner);
    // Under the lock: who begins here is seen by the handler, or sees it.
    if has_begun() {
        return None;
    }
    *working += 1;
    Some(Work(()))
}

impl Drop for Work {
    fn drop(&mut self) {
        *WORKING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RESTED.notify_all();
    }
}

/// Whether the process's end has begun.
#[inline]
pub fn has_begun() -> bool {
    EXITING.load(Ordering::SeqCst)
}

/// Refuses a driver call of one of gpumem's own threads once the process's end has begun.
#[inline]
pub fn check() -> Result<()> {
    match EXITING.load(Ordering::Relaxed) {
        true => refuse(),
        false => Ok(()),
    }
}

#[cold]
fn refuse() -> Result<()> {
    match is_own() {
        true => Err(Error::new(
            Status::ShuttingDown,
            "the process is exiting; gpumem's own threads call no driver any more",
        )),
        false => Ok(()),
    }
}

//! The end of the process: gpumem's own threads leave the driver alone once it has begun.
//!
//! Exit handlers and library destructors run on one thread while all others continue, and destroy
//! the driver's data under them. The program answers for its own calls. A gpumem thread works in
//! portions ([`work`]). When exit begins, the current portion gets an error from its next driver
//! call, the exit handler waits for the portion to end, and no other begins. The handler is
//! registered when the first such thread starts: after the driver's handlers, hence called before
//! them.

use super::process;
use crate::base::{Error, Result, Status};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long exit waits for a driver call that began earlier: one that waits for a kernel may never
/// return.
const PATIENCE: Duration = Duration::from_secs(1);

static EXITING: AtomicBool = AtomicBool::new(false);
/// Portions of work under way.
static WORKING: Mutex<u32> = Mutex::new(0);
static RESTED: Condvar = Condvar::new();
static WATCH: Once = Once::new();
/// The process that registered the handler; children inherit the handler, but not the threads.
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
/// are refused once exit begins.
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

/// Begins a portion of work on one of gpumem's own threads. `None` once process exit has begun.
pub fn work() -> Option<Work> {
    let mut working = WORKING.lock().unwrap_or_else(PoisonError::into_inner);
    // Under the lock, either the handler sees this portion or this thread sees the exit.
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

/// Whether process exit has begun.
#[inline]
pub fn has_begun() -> bool {
    EXITING.load(Ordering::SeqCst)
}

/// Refuses a driver call of one of gpumem's own threads once process exit has begun.
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

//! The operating system's view of this process and thread: forks, signals, numbers, the time, its
//! stderr.
//!
//! CUDA does not survive a fork, so gpumem refuses to work in a child of a process that had started
//! it.

use std::ffi::c_int;
use std::fmt::Display;
use std::io::ErrorKind;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

static FORKED: AtomicBool = AtomicBool::new(false);
/// Whether the handler is registered, or being registered. Not a lock, which a child could find
/// taken.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// Whether something has been made that a child must not use, and how many threads are making it.
static MADE: AtomicBool = AtomicBool::new(false);
static MAKING: AtomicUsize = AtomicUsize::new(0);

extern "C" fn in_child() {
    if MADE.load(SeqCst) || MAKING.load(SeqCst) > 0 {
        FORKED.store(true, Relaxed);
    }
}

/// Makes forked children recognise themselves from now on. Called once the process has something
/// that a child must not use.
pub fn watch_forks() {
    MADE.store(true, SeqCst);
    register();
}

/// Lives while something is made that a child must not use, under a lock that the child may find
/// taken for ever.
pub struct Making(());

/// Makes forked children recognise themselves while the returned value lives. Call it before taking
/// the lock.
#[must_use]
pub fn making() -> Making {
    MAKING.fetch_add(1, SeqCst);
    register();
    Making(())
}

impl Drop for Making {
    fn drop(&mut self) {
        MAKING.fetch_sub(1, SeqCst);
    }
}

fn register() {
    if !WATCHED.swap(true, SeqCst) {
        // SAFETY: the handler is a function of this library, which stays loaded (`-z nodelete`),
        // and it only uses atomics, which is async-signal-safe as a fork handler must be.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    }
}

/// Runs `start` with every signal blocked on this thread, so that a thread it starts takes none:
/// the program's handlers stay with the program's threads.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are this function's own and are written before they are read; integers, so
    // zero is a value. The calls only read and set this thread's mask; when the first fails, the
    // second is not made.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        let started = start();
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        started
    }
}

/// Keeps the thread from being cancelled (`pthread_cancel`) until dropped. A cancellation unwinds
/// the stack by force, which Rust's frames do not survive, and locks would stay taken. A pending
/// cancellation takes effect at the thread's next cancellation point. A hit that nobody watches has
/// none, so it needs no guard.
pub struct Uncancelled(c_int);

extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The value in glibc and musl on every architecture.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

impl Uncancelled {
    /// Until it is dropped, on this thread.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Uncancelled {
        let mut before = PTHREAD_CANCEL_DISABLE;
        // SAFETY: writes one int; no cancellation point itself. It fails for no state that exists.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: as above; puts back what the thread had.
        unsafe { pthread_setcancelstate(self.0, &mut ours) };
    }
}

/// Runs a write so that neither a reader that has gone (SIGPIPE) nor the limit on the size of files
/// (SIGXFSZ) ends the process: both are errors of the write.
pub fn without_write_signals<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are this function's own and are written before they are read; integers, so
    // zero is a value. The calls read and set this thread's mask, and take signals that the write
    // has sent to this thread: both kinds were either not blocked, and so not pending, or are left
    // alone.
    unsafe {
        let (mut both, mut before, mut pending) = (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut both);
        libc::sigaddset(&mut both, libc::SIGPIPE);
        libc::sigaddset(&mut both, libc::SIGXFSZ);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &both, &mut before) != 0 {
            return write();
        }
        libc::sigpending(&mut pending);
        let done = write();
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            if libc::sigismember(&pending, signal) == 1 {
                libc::sigdelset(&mut both, signal);
            }
        }
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        while libc::sigtimedwait(&both, std::ptr::null_mut(), &now) > 0 {}
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        done
    }
}

/// Writes a line of gpumem's to stderr in one piece, so that other threads' lines do not interrupt
/// it. Without the lock of `std::io::stderr`: a child that is forked while another thread writes
/// would find it taken for ever. Does nothing if nobody reads stderr any more.
pub fn say(line: impl Display) {
    let text = format!("gpumem: {line}\n");
    without_write_signals(|| {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            // SAFETY: `left` is readable for its length.
            let written = unsafe { libc::write(libc::STDERR_FILENO, left.as_ptr().cast(), left.len()) };
            match usize::try_from(written) {
                Ok(n) if n > 0 => left = left.get(n..).unwrap_or_default(),
                Err(_) if std::io::Error::last_os_error().kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    });
}

/// The operating system's number of the calling thread.
pub fn thread_number() -> u32 {
    // SAFETY: no preconditions.
    let number = unsafe { libc::gettid() };
    number.unsigned_abs()
}

/// The longest file this process may make, bytes (`ulimit -f`). Exceeding it ends the process with
/// SIGXFSZ.
pub fn largest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Nanoseconds of the system's monotonic clock. `Instant` reads the same clock but takes 10 ns
/// more, for checks and for keeping seconds apart.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is this function's own. The clock exists on every Linux, so the call succeeds;
    // otherwise the time is 0.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

/// Whether this process was forked from one that watched.
#[inline]
pub fn forked() -> bool {
    FORKED.load(Relaxed)
}

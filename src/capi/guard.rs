//! What every entry point runs in: no panic gets out, every failure is remembered for the thread it happened on.

use super::error::gpumem_status;
use super::text;
use crate::base::{Error, Result, Status};
use crate::context::Context;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::io::Write;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Longest text kept, bytes; longer ones are cut at a character boundary.
const TEXT_BYTES: usize = 1000;

/// This thread's last failure. Plain bytes with a constant initial value, so that the thread-local needs neither
/// lazy initialisation nor a destructor: it can be used from other libraries' exit handlers.
struct LastError {
    status: Status,
    len: usize,
    text: [u8; TEXT_BYTES],
}

thread_local! {
    static LAST: RefCell<LastError> =
        const { RefCell::new(LastError { status: Status::Ok, len: 0, text: [0; TEXT_BYTES] }) };
}

/// Runs an entry point that returns a status.
pub(super) fn guard(entry: impl FnOnce() -> Result<()>) -> gpumem_status {
    match run(entry) {
        Ok(()) => Status::Ok as gpumem_status,
        Err(e) => e.status as gpumem_status,
    }
}

/// Runs `hit`, and if that says that it has not done the work, `entry`, as [`guard`] does.
#[inline(always)]
pub(super) fn guard_hit(hit: impl FnOnce() -> bool, entry: impl FnOnce() -> Result<()>) -> gpumem_status {
    match run_hit(|| hit().then_some(()), entry) {
        Ok(()) => Status::Ok as gpumem_status,
        Err(e) => e.status as gpumem_status,
    }
}

/// Runs `hit`, and if that has not done the work, `entry`, as [`run`] does.
#[inline(always)]
pub(super) fn run_hit<T>(hit: impl FnOnce() -> Option<T>, entry: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safety: as in `run`.
    match catch_unwind(AssertUnwindSafe(hit)) {
        Ok(Some(done)) => Ok(done),
        Ok(None) => run_apart(entry),
        Err(panic) => run_apart(|| Err(from_panic(panic))),
    }
}

/// As [`run`], in a frame of its own: what it needs of stack and registers is no hit's to pay for.
#[inline(never)]
fn run_apart<T>(entry: impl FnOnce() -> Result<T>) -> Result<T> {
    run(entry)
}

/// Runs an entry point that returns a value, and `failed` when it cannot.
pub(super) fn guard_value<T>(failed: T, entry: impl FnOnce() -> Result<T>) -> T {
    run(entry).unwrap_or(failed)
}

/// Keeps the thread from being cancelled (`pthread_cancel`) until dropped. A cancellation unwinds the stack by force, which
/// Rust's frames do not survive, and locks would stay taken. A pending one takes effect at the thread's next cancellation point.
/// A hit has none, so it does without.
pub(super) struct Uncancelled(c_int);

extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Of glibc and musl on every architecture.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

impl Uncancelled {
    pub(super) fn new() -> Uncancelled {
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

/// Runs an entry point: a panic becomes an `Internal` error, and any error becomes the thread's last one.
pub(super) fn run<T>(entry: impl FnOnce() -> Result<T>) -> Result<T> {
    let _uncancelled = Uncancelled::new();
    // Unwind safety: nothing of the caller's is seen again after a panic, and the core's locks recover from poison.
    let result = catch_unwind(AssertUnwindSafe(entry)).unwrap_or_else(|panic| Err(from_panic(panic)));
    if let Err(e) = &result {
        remember(e);
        if e.status == Status::Driver {
            hint(e);
        }
    }
    result
}

fn from_panic(panic: Box<dyn Any + Send>) -> Error {
    let said = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(s), _) => s,
        (_, Some(s)) => s.as_str(),
        _ => "no message",
    };
    let e = Error::internal(format!("gpumem stopped at a bug of its own ({said}); please report it"));
    // Dropping a foreign payload may panic in its turn, here outside of any catch. Leaking it cannot.
    std::mem::forget(panic);
    e
}

fn remember(e: &Error) {
    let cut = text::floor_char_boundary(&e.message, TEXT_BYTES);
    // Neither failure can happen (no destructor, no re-entry); both would only lose a text.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.status = e.status;
            last.len = cut;
            for (to, from) in last.text.iter_mut().zip(e.message.as_bytes().iter().take(cut)) {
                *to = *from;
            }
        }
    });
}

/// Says on stderr what is known about a failure of the device that its driver reports with no particulars.
#[cold]
fn hint(e: &Error) {
    // A panic in here would lose a hint.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Some(text) = Context::started().and_then(|ctx| ctx.fault_hint(e)) {
            let _ = std::io::stderr().write_all(format!("gpumem: {text}\n").as_bytes());
        }
    }));
}

/// The status of this thread's last failure, `Ok` when there was none.
pub(super) fn last_status() -> Status {
    LAST.try_with(|last| last.try_borrow().map_or(Status::Ok, |last| last.status)).unwrap_or(Status::Ok)
}

/// Copies the text of this thread's last failure out; see [`text::copy_out`].
///
/// # Safety
/// `buf` is null or `cap` writable bytes.
pub(super) unsafe fn last_text(buf: *mut c_char, cap: usize) -> usize {
    LAST.try_with(|last| match last.try_borrow() {
        // SAFETY: passed on from the caller.
        Ok(last) => unsafe { text::copy_out(last.text.get(..last.len).unwrap_or_default(), buf, cap) },
        Err(_) => 0,
    })
    .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn text() -> String {
        let mut buf = [0u8; 2048];
        // SAFETY: a buffer of that many bytes.
        let n = unsafe { last_text(buf.as_mut_ptr().cast(), buf.len()) };
        String::from_utf8(buf[..n].to_vec()).unwrap()
    }

    #[test]
    fn a_panic_becomes_a_status_and_a_text() {
        let status = guard(|| panic!("the {} broke", "thing"));
        assert_eq!(status, Status::Internal as i32);
        assert_eq!(last_status(), Status::Internal);
        assert!(text().contains("the thing broke"), "{}", text());
    }

    #[test]
    fn a_hit_spares_the_entry_and_a_panic_in_it_stays_inside() {
        assert_eq!(guard_hit(|| true, || Err(Error::invalid("not wanted"))), 0);
        assert_eq!(guard_hit(|| false, || Err(Error::invalid("wanted"))), Status::Invalid as i32);
        assert_eq!(guard_hit(|| panic!("the hit broke"), || Ok(())), Status::Internal as i32);
        assert!(text().contains("the hit broke"), "{}", text());
    }

    #[test]
    fn a_payload_that_panics_when_dropped_stays_inside() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        assert_eq!(guard(|| std::panic::panic_any(Bomb)), Status::Internal as i32);
    }

    #[test]
    fn errors_stay_on_their_thread_and_success_keeps_them() {
        assert_eq!(guard(|| Err(Error::invalid("mine"))), Status::Invalid as i32);
        let other = std::thread::spawn(|| (last_status(), text())).join().unwrap();
        assert_eq!(other, (Status::Ok, String::new()));
        assert_eq!(guard(|| Ok(())), 0);
        assert_eq!((last_status(), text()), (Status::Invalid, "mine".into()));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        guard(|| Err(Error::invalid("é".repeat(TEXT_BYTES))));
        assert_eq!(text(), "é".repeat(TEXT_BYTES / 2));
        guard(|| Err(Error::invalid("aé".repeat(TEXT_BYTES))));
        assert!(text().len() >= TEXT_BYTES - 2);
    }
}

//! The guard around every entry point: no panic escapes, and each thread's last failure is kept.

use super::error::gpumem_status;
use super::last_error::remember;
use crate::base::{later, Error, Result, Status};
use crate::context::Context;
use crate::driver::process::{self, Uncancelled};
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs an entry point that returns a status.
pub(in crate::capi) fn guard(entry: impl FnOnce() -> Result<()>) -> gpumem_status {
    match run(entry) {
        Ok(()) => Status::Ok as gpumem_status,
        Err(e) => e.status as gpumem_status,
    }
}

/// Runs `hit`, and if that has not done the work, `entry` as [`guard`] does.
#[inline(always)]
pub(in crate::capi) fn guard_hit(hit: impl FnOnce() -> bool, entry: impl FnOnce() -> Result<()>) -> gpumem_status {
    match run_hit(|| hit().then_some(()), entry) {
        Ok(()) => Status::Ok as gpumem_status,
        Err(e) => e.status as gpumem_status,
    }
}

/// Runs `hit`. If that has not done the work, runs `entry` as [`run`] does.
#[inline(always)]
pub(in crate::capi) fn run_hit<T>(hit: impl FnOnce() -> Option<T>, entry: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safety: as in `run`.
    match catch_unwind(AssertUnwindSafe(hit)) {
        Ok(Some(done)) => Ok(done),
        Ok(None) => run_apart(entry),
        Err(panic) => run_apart(|| Err(from_panic(panic))),
    }
}

/// [`run`] in a frame of its own, so that a hit does not pay for its stack and registers.
#[inline(never)]
fn run_apart<T>(entry: impl FnOnce() -> Result<T>) -> Result<T> {
    run(entry)
}

/// Runs an entry point that returns a value; returns `failed` if it fails.
pub(in crate::capi) fn guard_value<T>(failed: T, entry: impl FnOnce() -> Result<T>) -> T {
    run(entry).unwrap_or(failed)
}

/// Runs an entry point: a panic becomes an `Internal` error, and any error becomes the thread's
/// last one.
pub(in crate::capi) fn run<T>(entry: impl FnOnce() -> Result<T>) -> Result<T> {
    let _uncancelled = Uncancelled::new();
    // Unwind safety: nothing of the caller's is seen again after a panic, and the core's locks
    // recover from poison.
    let result = later::hold(|| catch_unwind(AssertUnwindSafe(entry)));
    let result = result.unwrap_or_else(|panic| Err(from_panic(panic)));
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
    let e = Error::internal(format!("gpumem hit a bug of its own ({said}); please report it"));
    // Dropping a foreign payload may panic too, outside of any catch. Leaking it cannot.
    std::mem::forget(panic);
    e
}

/// Says on stderr what is known about a failure of the device that its driver reports with no
/// particulars.
#[cold]
fn hint(e: &Error) {
    // A panic in here only loses a hint.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Some(text) = Context::started().and_then(|ctx| ctx.fault_hint(e)) {
            process::say(text);
        }
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::last_error::{last_status, text};
    use super::*;

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
    fn success_keeps_the_last_failure() {
        assert_eq!(guard(|| Err(Error::invalid("mine"))), Status::Invalid as i32);
        assert_eq!(guard(|| Ok(())), 0);
        assert_eq!((last_status(), text()), (Status::Invalid, "mine".into()));
    }
}

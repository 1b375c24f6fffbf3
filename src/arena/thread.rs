//! Which arenas a thread is attached to; the innermost is its current one.
//!
//! A thread that ends is detached from all. Destructors of pthread keys that run after that find no
//! current arena, and their allocations are ordinary.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::open::{Arena, Shared};
use crate::base::Result;
use crate::driver::thread_end;
use std::cell::RefCell;
use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::sync::Arc;

thread_local! {
    /// A thread's arenas of all registries, innermost last. (A process has one registry, and each
    /// test's context another.)
    static STACK: ManuallyDrop<RefCell<Vec<Arc<Arena>>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Detaches a thread that ends.
fn detach() {
    for arena in STACK.with(|s| s.take()) {
        arena.shared().thread_gone(&arena);
    }
}

/// Calls `f` with the thread's current arena of a registry. `f` must not come back here.
#[inline]
pub(super) fn with_current<R>(shared: &Shared, f: impl Fn(Option<&Arc<Arena>>) -> R) -> R {
    let found = STACK.with(|s| {
        let stack = s.try_borrow().ok()?;
        Some(f(stack.iter().rev().find(|a| a.is_of(shared))))
    });
    // A thread whose list is just being changed has no current arena.
    found.unwrap_or_else(|| f(None))
}

/// The thread's current arena of a registry.
pub(super) fn current(shared: &Shared) -> Option<Arc<Arena>> {
    with_current(shared, |a| a.cloned())
}

/// Makes an arena the thread's current one. Fails when nobody could detach the thread any more.
pub(super) fn push(arena: Arc<Arena>) -> Result<()> {
    thread_end::watch(detach)?;
    STACK.with(|s| s.borrow_mut().push(arena));
    Ok(())
}

/// Takes an arena off the thread's list. Returns whether it was on it.
pub(super) fn remove(arena: &Arena) -> bool {
    let removed = STACK.with(|s| {
        let mut stack = s.borrow_mut();
        let at = stack.iter().rposition(|a| std::ptr::eq(&**a, arena))?;
        Some(stack.remove(at))
    });
    removed.is_some()
}

/// Whether the thread is attached to an arena.
pub(super) fn has(arena: &Arena) -> bool {
    STACK.with(|s| s.borrow().iter().any(|a| std::ptr::eq(&**a, arena)))
}

/// Every arena that the thread is attached to.
pub(super) fn attached() -> HashSet<*const Arena> {
    STACK.with(|s| s.borrow().iter().map(Arc::as_ptr).collect())
}

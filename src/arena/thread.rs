//! Which arenas a thread is attached to; the innermost is its current one.
//!
//! A thread that ends detaches itself. While it runs its last destructors, its list may be gone
//! already: then it has no current arena, and its allocations are ordinary.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::open::{Arena, Shared};
use crate::driver::process;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

/// A thread's arenas of all registries, innermost last. (A process has one registry, and each
/// test's context another.)
struct Stack(RefCell<Vec<Arc<Arena>>>);

impl Drop for Stack {
    fn drop(&mut self) {
        // In a forked child the registry's lock may be held for ever, by a thread that is not
        // there.
        let forked = process::forked();
        for arena in self.0.get_mut().drain(..).filter(|_| !forked) {
            arena.shared().thread_gone(&arena);
        }
    }
}

thread_local! {
    static STACK: Stack = const { Stack(RefCell::new(Vec::new())) };
}

/// Calls `f` with the thread's current arena of a registry. `f` must not come back here.
#[inline]
pub(super) fn with_current<R>(shared: &Shared, f: impl Fn(Option<&Arc<Arena>>) -> R) -> R {
    let found = STACK.try_with(|s| {
        let stack = s.0.try_borrow().ok()?;
        Some(f(stack.iter().rev().find(|a| a.is_of(shared))))
    });
    // A thread whose list is gone, or is just being changed, has no current arena.
    found.ok().flatten().unwrap_or_else(|| f(None))
}

/// The thread's current arena of a registry.
pub(super) fn current(shared: &Shared) -> Option<Arc<Arena>> {
    with_current(shared, |a| a.cloned())
}

/// Makes an arena the thread's current one. `false` when the thread is ending.
pub(super) fn push(arena: Arc<Arena>) -> bool {
    STACK.try_with(|s| s.0.borrow_mut().push(arena)).is_ok()
}

/// Takes an arena off the thread's list. Returns whether it was on it.
pub(super) fn remove(arena: &Arena) -> bool {
    let removed = STACK.try_with(|s| {
        let mut stack = s.0.borrow_mut();
        let at = stack.iter().rposition(|a| std::ptr::eq(&**a, arena))?;
        Some(stack.remove(at))
    });
    matches!(removed, Ok(Some(_)))
}

/// Whether the thread is attached to an arena.
pub(super) fn has(arena: &Arena) -> bool {
    STACK.try_with(|s| s.0.borrow().iter().any(|a| std::ptr::eq(&**a, arena))).unwrap_or(false)
}

/// Every arena that the thread is attached to.
pub(super) fn attached() -> HashSet<*const Arena> {
    STACK.try_with(|s| s.0.borrow().iter().map(Arc::as_ptr).collect()).unwrap_or_default()
}

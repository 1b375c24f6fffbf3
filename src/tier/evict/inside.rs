//! Which threads are in a move: their callbacks must not wait for other moves.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::tier::promise::policy;
use std::cell::Cell;
use std::thread::LocalKey;

thread_local! {
    /// How many shifts this thread is in: more than one when a callback of the first moves
    /// something.
    static SHIFTS: Cell<u32> = const { Cell::new(0) };
    /// How many callbacks about the progress of a move it is in.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// Counts the thread among those inside until it is dropped, also by a panic.
pub(super) struct Inside(&'static LocalKey<Cell<u32>>);

impl Inside {
    fn enter(of: &'static LocalKey<Cell<u32>>) -> Inside {
        let _ = of.try_with(|n| n.set(n.get().saturating_add(1)));
        Inside(of)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.0.try_with(|n| n.set(n.get().saturating_sub(1)));
    }
}

/// Marks the thread while it holds claims that it moves.
pub(super) fn enter_a_shift() -> Inside {
    Inside::enter(&SHIFTS)
}

/// Calls a callback about the progress of a move.
pub(super) fn call_back<T>(callback: impl FnOnce() -> T) -> T {
    let _inside = Inside::enter(&CALLBACKS);
    callback()
}

/// Whether this thread is in a callback of a move: about its progress, or about memory that it did
/// not find. What leaves the device by this thread, or by one that waits for it, does not leave
/// before the callback has ended.
pub(super) fn in_a_callback() -> bool {
    CALLBACKS.try_with(|n| n.get() > 0).unwrap_or(false) || in_a_shift() && policy::in_a_callback()
}

/// Whether this thread is in a callback of a move, where it must not wait for other moves: they may
/// wait for this one.
pub(super) fn in_a_shift() -> bool {
    SHIFTS.try_with(|n| n.get() > 0).unwrap_or(false)
}

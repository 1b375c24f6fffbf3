//! Which threads are in a move: their callbacks must not wait for other moves.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::tier::promise::policy;
use std::cell::Cell;

thread_local! {
    /// How many shifts this thread is in: more than one when a callback of the first moves
    /// something.
    static SHIFTS: Cell<u32> = const { Cell::new(0) };
}

/// Counts a shift of this thread until it is dropped, also by a panic.
pub(super) struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = SHIFTS.try_with(|n| n.set(n.get().saturating_sub(1)));
    }
}

/// Marks the thread while it holds claims that it moves.
pub(super) fn enter_a_shift() -> Inside {
    let _ = SHIFTS.try_with(|n| n.set(n.get().saturating_add(1)));
    Inside
}

/// Whether this thread is in a callback of a move: about its progress, about a reservation that it
/// overdraws, or about memory that it did not find. What leaves the device by this thread, or by
/// one that waits for it, does not leave before the callback has ended.
pub(super) fn in_a_callback() -> bool {
    in_a_shift() && policy::in_a_callback()
}

/// Whether this thread is in a callback of a move, where it must not wait for other moves: they may
/// wait for this one.
pub(super) fn in_a_shift() -> bool {
    SHIFTS.try_with(|n| n.get() > 0).unwrap_or(false)
}

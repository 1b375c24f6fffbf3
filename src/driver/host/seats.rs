//! What a thread keeps of each host driver: its current device and its default streams.

#![deny(unsafe_code)]

use crate::base::DeviceId;
use std::cell::RefCell;

/// What one thread has to do with one host driver.
pub(super) struct Seat {
    driver: u64,
    pub(super) device: DeviceId,
    /// Its per-thread default streams: `(device, lane, id)`.
    pub(super) streams: Vec<(DeviceId, usize, u64)>,
}

thread_local! {
    static SEATS: RefCell<Vec<Seat>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` on this thread's seat at driver number `driver`.
pub(super) fn seat<T>(driver: u64, f: impl FnOnce(&mut Seat) -> T) -> T {
    SEATS.with_borrow_mut(|seats| {
        let at = seats.iter().position(|s| s.driver == driver).unwrap_or_else(|| {
            seats.push(Seat { driver, device: DeviceId(0), streams: Vec::new() });
            seats.len() - 1
        });
        f(&mut seats[at])
    })
}

/// Forgets this thread's seat at a driver that is going away.
pub(super) fn leave(driver: u64) {
    // The thread may be ending, its seats gone already.
    let _ = SEATS.try_with(|s| s.borrow_mut().retain(|s| s.driver != driver));
}

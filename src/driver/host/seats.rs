//! A thread's state for each host driver: its current device and its default streams.

#![deny(unsafe_code)]

use crate::base::DeviceId;
use crate::driver::process;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

/// One thread's state for one host driver.
pub(super) struct Seat {
    driver: u64,
    pub(super) device: DeviceId,
    /// Its per-thread default streams: `(device, lane, id)`.
    pub(super) streams: Vec<(DeviceId, usize, u64)>,
}

/// A thread's seats.
struct Seats(RefCell<Vec<Seat>>);

/// The main thread's seats outlive it: exit handlers run later.
impl Drop for Seats {
    fn drop(&mut self) {
        if process::thread_number() == std::process::id() {
            LATE.with(|late| late.replace(self.0.take()));
        }
    }
}

thread_local! {
    static SEATS: Seats = const { Seats(RefCell::new(Vec::new())) };
    /// The seats of a thread that calls after its own are gone: from an exit handler, or from a
    /// destructor that runs late. These are never dropped.
    static LATE: ManuallyDrop<RefCell<Vec<Seat>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Runs `f` on this thread's seat at driver number `driver`.
pub(super) fn seat<T>(driver: u64, f: impl FnOnce(&mut Seat) -> T) -> T {
    match SEATS.try_with(|_| ()) {
        Ok(()) => SEATS.with(|seats| among(&seats.0, driver, f)),
        Err(_) => LATE.with(|seats| among(seats, driver, f)),
    }
}

fn among<T>(seats: &RefCell<Vec<Seat>>, driver: u64, f: impl FnOnce(&mut Seat) -> T) -> T {
    let mut seats = seats.borrow_mut();
    let at = seats.iter().position(|s| s.driver == driver).unwrap_or_else(|| {
        seats.push(Seat { driver, device: DeviceId(0), streams: Vec::new() });
        seats.len() - 1
    });
    f(&mut seats[at])
}

/// Forgets this thread's seat at a driver that is going away.
pub(super) fn leave(driver: u64) {
    // The thread may be ending, its seats gone already.
    let _ = SEATS.try_with(|s| s.0.borrow_mut().retain(|s| s.driver != driver));
}

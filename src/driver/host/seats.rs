//! A thread's state for each host driver: its current device and its default streams.

#![deny(unsafe_code)]

use super::device::HostDriver;
use crate::base::DeviceId;
use crate::driver::process;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Weak;

/// One thread's state for one host driver.
pub(super) struct Seat {
    driver: Weak<HostDriver>,
    pub(super) device: DeviceId,
    /// Its per-thread default streams: `(device, lane, id)`.
    pub(super) streams: Vec<(DeviceId, usize, u64)>,
}

/// A thread's seats.
struct Seats(RefCell<Vec<Seat>>);

/// A thread's streams end with it. The main thread's outlive it: exit handlers run later.
impl Drop for Seats {
    fn drop(&mut self) {
        let seats = self.0.take();
        if process::thread_number() == std::process::id() {
            LATE.with(|late| late.replace(seats));
            return;
        }
        for seat in seats {
            if let Some(driver) = seat.driver.upgrade() {
                driver.end_per_thread(&seat.streams);
            }
        }
    }
}

thread_local! {
    static SEATS: Seats = const { Seats(RefCell::new(Vec::new())) };
    /// The seats of a thread that calls after its own are gone: from an exit handler, or from a
    /// destructor that runs late. These are never dropped.
    static LATE: ManuallyDrop<RefCell<Vec<Seat>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

impl HostDriver {
    /// Runs `f` on this thread's seat.
    pub(super) fn seat<T>(&self, f: impl FnOnce(&mut Seat) -> T) -> T {
        match SEATS.try_with(|_| ()) {
            Ok(()) => SEATS.with(|seats| self.among(&seats.0, f)),
            Err(_) => LATE.with(|seats| self.among(seats, f)),
        }
    }

    fn among<T>(&self, seats: &RefCell<Vec<Seat>>, f: impl FnOnce(&mut Seat) -> T) -> T {
        let mut seats = seats.borrow_mut();
        let at = seats.iter().position(|s| s.driver.ptr_eq(&self.me)).unwrap_or_else(|| {
            seats.push(Seat { driver: self.me.clone(), device: DeviceId(0), streams: Vec::new() });
            seats.len() - 1
        });
        f(&mut seats[at])
    }
}

/// Forgets this thread's seat at a driver that is going away.
impl Drop for HostDriver {
    fn drop(&mut self) {
        // The thread may be ending, its seats gone already.
        let _ = SEATS.try_with(|s| s.0.borrow_mut().retain(|s| !s.driver.ptr_eq(&self.me)));
    }
}

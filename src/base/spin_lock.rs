//! A lock for sections that are nearly always short and hardly ever contended.
//!
//! Every malloc and every free takes and releases a heap's once, so both must be cheap. Taking it
//! is one compare-and-swap, and releasing it is a plain store; a lock that can put its waiters to
//! sleep needs a second read-modify-write to know of them. The price is that waiters poll: they
//! spin for a moment, then let others run, then sleep for as long as a stitch in the section takes
//! (tens of microseconds).

#[cfg(loom)]
use crate::base::sync::{lock, Mutex as Inner};
#[cfg(not(loom))]
use spin::mutex::SpinMutex as Inner;
#[cfg(not(loom))]
use std::{hint::spin_loop, time::Duration};

/// Holds a [`SpinLock`] until dropped.
#[cfg(loom)]
pub use crate::base::sync::MutexGuard as SpinGuard;
/// Holds a [`SpinLock`] until dropped.
#[cfg(not(loom))]
pub use spin::mutex::SpinMutexGuard as SpinGuard;

/// Rounds of spinning before a waiter lets other threads run; each spins twice as long as the one
/// before.
#[cfg(not(loom))]
const SPINS: u32 = 6;

/// Rounds of letting others run before it sleeps.
#[cfg(not(loom))]
const YIELDS: u32 = 16;

/// How long a waiter sleeps at a time.
#[cfg(not(loom))]
const NAP: Duration = Duration::from_micros(50);

/// A value that one thread at a time may use.
pub struct SpinLock<T>(Inner<T>);

impl<T> SpinLock<T> {
    /// A lock that nobody holds.
    pub fn new(value: T) -> SpinLock<T> {
        SpinLock(Inner::new(value))
    }
}

#[cfg(not(loom))]
impl<T> SpinLock<T> {
    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        self.0.try_lock()
    }

    /// Takes the lock.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Waits until another thread has released the lock, and takes it.
    #[cold]
    fn wait(&self) -> SpinGuard<'_, T> {
        for round in 0u32.. {
            if round < SPINS {
                (0..1 << round).for_each(|_| spin_loop());
            } else if round < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
            // Looking first keeps the line shared among the waiters.
            if !self.0.is_locked() {
                if let Some(guard) = self.0.try_lock() {
                    return guard;
                }
            }
        }
        self.0.lock()
    }
}

/// To a model of loom it is a lock like any other.
#[cfg(loom)]
impl<T> SpinLock<T> {
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    /// Takes the lock.
    pub fn lock(&self) -> SpinGuard<'_, T> {
        lock(&self.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let lock = SpinLock::new((0u64, 0u64));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for i in 0..20_000 {
                        let mut both = lock.lock();
                        both.0 += 1;
                        if i % 1000 == 0 {
                            // Long enough for the others to fall asleep.
                            std::thread::sleep(Duration::from_micros(100));
                        }
                        both.1 += 1;
                        assert_eq!(both.0, both.1);
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (80_000, 80_000));
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    /// The lock is held far longer than spinning and yielding last: every waiter sleeps, and none
    /// sleeps through its turn.
    #[test]
    fn waiters_that_sleep_get_it_too() {
        let lock = SpinLock::new(0u32);
        let waiting = std::sync::atomic::AtomicU32::new(0);
        let held = lock.lock();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    waiting.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    *lock.lock() += 1;
                });
            }
            while waiting.load(std::sync::atomic::Ordering::Relaxed) < 4 {
                std::thread::yield_now();
            }
            std::thread::sleep(NAP * 400);
            assert!(lock.try_lock().is_none());
            drop(held);
        });
        assert_eq!(*lock.lock(), 4);
    }
}

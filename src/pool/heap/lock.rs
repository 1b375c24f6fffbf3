//! A heap's lock, for sections that are nearly always short and hardly ever contended.
//!
//! Every malloc and every free takes and releases it once, so both must be cheap. Taking it is one
//! compare-and-swap, and releasing it is a plain store; a lock that can put its waiters to sleep
//! needs a second read-modify-write to know of them. The price is that waiters poll: they spin for
//! a moment, then let others run, then sleep for as long as a stitch in the section takes (tens of
//! microseconds).

#[cfg(loom)]
pub(crate) use model::{Lock, Locked};
#[cfg(not(loom))]
pub(crate) use real::{Lock, Locked};

#[cfg(not(loom))]
mod real {
    use crate::pool::types::{Guard, Rank};
    use std::hint::spin_loop;
    use std::time::Duration;

    /// Rounds of spinning before a waiter lets other threads run; each spins twice as long as the
    /// one before.
    const SPINS: u32 = 6;

    /// Rounds of letting others run before it sleeps.
    const YIELDS: u32 = 16;

    /// How long a waiter sleeps at a time.
    pub(super) const NAP: Duration = Duration::from_micros(50);

    /// A value that one thread at a time may use.
    pub(crate) struct Lock<T>(spin::mutex::SpinMutex<T>);

    /// Holds the lock until dropped.
    pub(crate) type Locked<'a, T> = Guard<spin::mutex::SpinMutexGuard<'a, T>>;

    impl<T> Lock<T> {
        pub(crate) const fn new(value: T) -> Lock<T> {
            Lock(spin::mutex::SpinMutex::new(value))
        }

        /// Takes the lock if it is free.
        #[inline]
        pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
            let guard = self.0.try_lock()?;
            Some(Guard { guard, _held: Rank::Heap.taken() })
        }

        /// Takes the lock.
        #[inline]
        pub(crate) fn lock(&self) -> Locked<'_, T> {
            let held = Rank::Heap.wait();
            Guard { guard: self.0.try_lock().unwrap_or_else(|| self.wait()), _held: held }
        }

        /// Takes the lock, perhaps while holding other heaps' locks. Only for a thread that keeps
        /// all others out, and so waits for none that waits for it.
        pub(crate) fn lock_among_others(&self) -> Locked<'_, T> {
            let guard = self.0.try_lock().unwrap_or_else(|| self.wait());
            Guard { guard, _held: Rank::Heap.taken() }
        }

        /// Waits until another thread has released the lock, and takes it.
        #[cold]
        fn wait(&self) -> spin::mutex::SpinMutexGuard<'_, T> {
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
}

/// To a model of loom it is a lock like any other.
#[cfg(loom)]
mod model {
    pub(crate) struct Lock<T>(loom::sync::Mutex<T>);

    pub(crate) type Locked<'a, T> = loom::sync::MutexGuard<'a, T>;

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock(loom::sync::Mutex::new(value))
        }

        pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
            self.0.try_lock().ok()
        }

        pub(crate) fn lock(&self) -> Locked<'_, T> {
            crate::base::sync::lock(&self.0)
        }

        pub(crate) fn lock_among_others(&self) -> Locked<'_, T> {
            self.lock()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::real::*;
    use std::time::Duration;

    #[test]
    fn one_at_a_time() {
        let lock = Lock::new((0u64, 0u64));
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
        let lock = Lock::new(0u32);
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

//! The atomics and locks of state that threads share. They are the standard library's, or with
//! `--cfg loom` those of loom, which tries every order in which threads could run and every value
//! that a load could see (`scripts/loom.sh`).
//!
//! Statics keep the standard ones, because they outlive a model.

use std::sync::{LockResult, PoisonError};

/// A cell for a box that is set once: one word, null until then. It is half the size of the
/// standard cell, which matters in large tables, and reading it is one load.
#[cfg(not(loom))]
pub use once_cell::race::OnceBox;
#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize},
    sync::{Condvar, Mutex, MutexGuard, OnceLock},
    thread::yield_now,
};

#[cfg(loom)]
pub use {
    self::once::{OnceBox, OnceLock},
    loom::hint::spin_loop,
    loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize},
    loom::sync::{Condvar, Mutex, MutexGuard},
    loom::thread::yield_now,
};

/// A value on cache lines of its own, so that writing it does not slow down reads of its
/// neighbours.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Apart<T>(pub T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A lock that [`lock`] takes.
pub trait Lockable {
    /// Held while the lock is.
    type Guard<'a>
    where
        Self: 'a;
    /// Takes the lock, poisoned or not.
    fn take(&self) -> LockResult<Self::Guard<'_>>;
}

impl<T> Lockable for std::sync::Mutex<T> {
    type Guard<'a>
        = std::sync::MutexGuard<'a, T>
    where
        T: 'a;
    #[inline]
    fn take(&self) -> LockResult<Self::Guard<'_>> {
        self.lock()
    }
}

#[cfg(loom)]
impl<T> Lockable for loom::sync::Mutex<T> {
    type Guard<'a>
        = loom::sync::MutexGuard<'a, T>
    where
        T: 'a;
    fn take(&self) -> LockResult<Self::Guard<'_>> {
        self.lock()
    }
}

/// Takes a lock, even if another holder panicked (no code under a pool lock panics on any input).
#[inline]
pub fn lock<M: Lockable>(m: &M) -> M::Guard<'_> {
    m.take().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(loom)]
mod once {
    use super::{yield_now, AtomicUsize};
    use std::sync::atomic::{AtomicBool, Ordering::*};

    /// The cell set once that loom lacks. The value lies in a standard cell, which loom cannot see.
    /// `ready` decides whether a thread sees the value, and loom can see that: it is set with
    /// release and read with acquire, as the standard cell promises.
    #[derive(Debug, Default)]
    pub struct OnceLock<T> {
        claimed: AtomicBool,
        cell: std::sync::OnceLock<T>,
        ready: AtomicUsize,
    }

    /// A cell for a box that is set once.
    #[derive(Debug)]
    pub struct OnceBox<T>(OnceLock<Box<T>>);

    impl<T> OnceBox<T> {
        /// An empty cell.
        pub fn new() -> OnceBox<T> {
            OnceBox(OnceLock::new())
        }

        /// The value, once it is there.
        pub fn get(&self) -> Option<&T> {
            self.0.get().map(|b| &**b)
        }

        /// Sets the value, or gives it back if another was set first.
        pub fn set(&self, value: Box<T>) -> Result<(), Box<T>> {
            self.0.set(value)
        }

        /// The value, made by `make` if there is none.
        pub fn get_or_init(&self, make: impl FnOnce() -> Box<T>) -> &T {
            self.0.get_or_init(make)
        }
    }

    impl<T> OnceLock<T> {
        /// An empty cell.
        pub fn new() -> OnceLock<T> {
            OnceLock { claimed: AtomicBool::new(false), cell: std::sync::OnceLock::new(), ready: AtomicUsize::new(0) }
        }

        /// The value, once it is there.
        pub fn get(&self) -> Option<&T> {
            match self.ready.load(Acquire) {
                1 => self.cell.get(),
                _ => None,
            }
        }

        /// Sets the value. If another was set first, waits until that one can be read and gives
        /// `value` back.
        pub fn set(&self, value: T) -> Result<(), T> {
            if self.claimed.swap(true, SeqCst) {
                self.wait();
                return Err(value);
            }
            self.fill(value);
            Ok(())
        }

        /// The value, made by `make` if there is none.
        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            if let Some(value) = self.get() {
                return value;
            }
            match self.claimed.swap(true, SeqCst) {
                true => self.wait(),
                false => self.fill(make()),
            }
        }

        fn fill(&self, value: T) -> &T {
            let value = self.cell.get_or_init(|| value);
            self.ready.store(1, Release);
            value
        }

        fn wait(&self) -> &T {
            loop {
                match self.get() {
                    Some(value) => return value,
                    None => yield_now(),
                }
            }
        }
    }
}

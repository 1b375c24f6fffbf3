//! Why a finalizer and an arena's exit never both free an allocation: a model of a registry in
//! which they do, and of one in which they cannot.
//!
//! In the first, as in some registries, each allocation has a back-pointer to its arena's record of
//! it. The exit clears the back-pointer and then releases. A finalizer that finds it cleared takes
//! the allocation for an ordinary one, and releases it too: clearing means "the exit has this one"
//! and reads as "nobody has". In the second, the first to release takes the record, under the lock
//! that guards it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::base::sync::{lock, AtomicBool, AtomicU32, Mutex};
use loom::thread;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;

/// One allocation and one arena's record of it.
struct Allocation {
    /// The back-pointer: whether the allocation has a record in an arena.
    tracked: AtomicBool,
    /// The record: whether nobody has freed the allocation.
    live: Mutex<bool>,
    released: AtomicU32,
}

impl Allocation {
    fn new() -> Arc<Allocation> {
        Arc::new(Allocation { tracked: AtomicBool::new(true), live: Mutex::new(true), released: AtomicU32::new(0) })
    }

    fn release(&self) {
        assert_eq!(self.released.fetch_add(1, Relaxed), 0, "freed twice");
    }

    /// Takes the record; `false` if it has been taken already.
    fn take(&self) -> bool {
        std::mem::replace(&mut *lock(&self.live), false)
    }
}

/// An exit that clears the back-pointer to say that it has the allocation.
fn exit_by_back_pointer(a: &Allocation) {
    let taken = a.take();
    a.tracked.store(false, Release);
    if taken {
        a.release();
    }
}

/// A finalizer that first reads the back-pointer without the lock, to be quick with allocations in
/// no arena.
fn finalize_by_back_pointer(a: &Allocation) {
    match a.tracked.load(Acquire) {
        // It looks ordinary.
        false => a.release(),
        true if a.take() => a.release(),
        true => {}
    }
}

fn race(exit: fn(&Allocation), finalize: fn(&Allocation)) {
    loom::model(move || {
        let a = Allocation::new();
        let finalizer = thread::spawn({
            let a = a.clone();
            move || finalize(&a)
        });
        exit(&a);
        finalizer.join().unwrap();
        assert_eq!(a.released.load(Relaxed), 1, "freed once");
    });
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_back_pointer_read_without_the_lock_frees_twice() {
    race(exit_by_back_pointer, finalize_by_back_pointer);
}

/// Fails if `take` looks at the record and changes it under two holds of the lock.
#[test]
fn a_record_taken_under_its_lock_is_freed_once() {
    let take_and_release: fn(&Allocation) = |a| {
        if a.take() {
            a.release();
        }
    };
    race(take_and_release, take_and_release);
}

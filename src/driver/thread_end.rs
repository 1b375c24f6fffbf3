//! The end of a thread: what it leaves behind is cleaned up.
//!
//! Not by Rust's thread-local destructors. They run before the destructors of pthread keys, and one
//! that is registered by such a destructor never runs, so a thread that first calls gpumem there
//! would stay attached for ever. The destructors of keys run in rounds, and a key that is set in
//! one round has its turn in the same round or in the next.

use crate::base::{Error, Result};
use crate::driver::process;
use once_cell::sync::OnceCell;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::catch_unwind;

/// How many rounds there are: `PTHREAD_DESTRUCTOR_ITERATIONS` of glibc and musl.
const ROUNDS: usize = 4;

/// The system's key for the ends of threads. Made at the first use, and never deleted.
static KEY: OnceCell<libc::pthread_key_t> = OnceCell::new();

type Cleaners = Vec<fn()>;

thread_local! {
    /// What to call at the thread's end. Kept where no destructor of Rust's takes it away.
    static WATCHED: ManuallyDrop<RefCell<Cleaners>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Has `clean` called when the calling thread ends, to clean up what that leaves behind: something
/// that is kept where no destructor of Rust's takes it away, in a thread-local variable that is
/// `ManuallyDrop`. Call this before each time that there is something to clean up: `clean` is
/// called once for that, and may call gpumem yet, and leave something again, for the next round. It
/// fails for a thread in its last round, or if the system has no key left. A thread that calls this
/// for the first time in its last round cannot know, and may not be cleaned up after.
pub fn watch(clean: fn()) -> Result<()> {
    let key = *KEY.get_or_try_init(make)?;
    // SAFETY: the key was made and is never deleted.
    match unsafe { libc::pthread_getspecific(key) } as usize {
        0 => set(key, 1)?,
        round if round <= ROUNDS => {}
        _ => return Err(Error::invalid("this thread is ending and can have nothing attached any more")),
    }
    WATCHED.with(|watched| {
        let mut watched = watched.borrow_mut();
        // Functions that share an address do the same.
        if !watched.iter().any(|&w| std::ptr::fn_addr_eq(w, clean)) {
            watched.push(clean);
        }
    });
    Ok(())
}

fn make() -> Result<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: `key` is writable. The destructor is a function of this library, which stays loaded
    // (`-z nodelete`); it takes any value and does not unwind.
    done(unsafe { libc::pthread_key_create(&mut key, Some(end)) })?;
    Ok(key)
}

/// Sets the number of the round to come.
fn set(key: libc::pthread_key_t, round: usize) -> Result<()> {
    // SAFETY: the key was made and is never deleted; the value is a number that nobody follows.
    done(unsafe { libc::pthread_setspecific(key, round as *const c_void) })
}

fn done(code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => {
            let e = std::io::Error::from_raw_os_error(code);
            Err(Error::invalid(format!("the system gives no pthread key to hear of the end of this thread by: {e}")))
        }
    }
}

unsafe extern "C" fn end(round: *mut c_void) {
    // In a forked child, locks may be held for ever by threads that are not there.
    if process::forked() {
        return;
    }
    // For whatever the thread leaves from now on. The key was set already, so this cannot fail.
    if let Some(&key) = KEY.get() {
        let _ = set(key, round as usize + 1);
    }
    for clean in WATCHED.with(|watched| watched.take()) {
        if let Err(panic) = catch_unwind(clean) {
            // Dropping it could panic again.
            std::mem::forget(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    thread_local! {
        static LEFT: Cell<usize> = const { Cell::new(0) };
    }
    static CLEANED: AtomicUsize = AtomicUsize::new(0);
    static REFUSED: AtomicUsize = AtomicUsize::new(0);

    fn count() {
        CLEANED.fetch_add(LEFT.take(), SeqCst);
    }

    fn leave() {
        match watch(count) {
            Ok(()) => LEFT.set(LEFT.get() + 1),
            Err(_) => _ = REFUSED.fetch_add(1, SeqCst),
        }
    }

    static LATE: OnceCell<libc::pthread_key_t> = OnceCell::new();

    /// Leaves something in each of the rounds from 1 on; the value says how many are to come.
    unsafe extern "C" fn late(rounds: *mut c_void) {
        leave();
        if rounds as usize > 1 {
            set(*LATE.get().unwrap(), rounds as usize - 1).unwrap();
        }
    }

    /// What a thread leaves that calls `leave` in `rounds` rounds, and `first`, too, while it runs:
    /// cleaned up and refused.
    fn after_a_thread(first: bool, rounds: usize) -> (usize, usize) {
        CLEANED.store(0, SeqCst);
        REFUSED.store(0, SeqCst);
        let thread = std::thread::spawn(move || {
            if first {
                leave();
            }
            set(*LATE.get().unwrap(), rounds).unwrap();
        });
        thread.join().unwrap();
        (CLEANED.load(SeqCst), REFUSED.load(SeqCst))
    }

    #[test]
    fn what_is_left_in_the_destructor_of_a_key_is_cleaned_up() {
        // Made before the key that is made later, so that its turn in a round comes later.
        watch(count).unwrap();
        LATE.get_or_init(|| {
            let mut key = 0;
            // SAFETY: `key` is writable, and the destructor is a function of this program.
            assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(late)) }, 0);
            key
        });
        assert!(KEY.get() < LATE.get());
        assert_eq!(after_a_thread(true, 0), (1, 0));
        assert_eq!(after_a_thread(false, 1), (1, 0));
        assert_eq!(after_a_thread(false, 3), (3, 0));
        assert_eq!(after_a_thread(true, 3), (4, 0));
        assert_eq!(after_a_thread(true, 4), (4, 1));
    }
}

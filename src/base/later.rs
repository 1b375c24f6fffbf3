//! Work that a thread puts off until its call has released its locks: functions that the program
//! supplied. Such a function may call gpumem again, and would wait for ever for a lock that its own
//! thread holds.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

type Task = Box<dyn FnOnce()>;

thread_local! {
    /// How many [`hold`]s the thread is inside.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// What to run after the outermost one, in order. Empty outside, so it needs no destructor; one
    /// that a thread registers at its very end would never run, and take memory for ever.
    static TASKS: ManuallyDrop<RefCell<Vec<Task>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Runs `work`, then the tasks that [`after`] put off meanwhile. `work` returns holding no lock.
pub fn hold<T>(work: impl FnOnce() -> T) -> T {
    struct Hold;
    impl Drop for Hold {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }
    HELD.set(HELD.get() + 1);
    let hold = Hold;
    let done = work();
    drop(hold);
    if HELD.get() == 0 {
        TASKS.with(|tasks| tasks.take()).into_iter().for_each(|task| task());
    }
    done
}

/// Runs `task` when the thread leaves its outermost [`hold`], or at once outside any.
pub fn after(task: impl FnOnce() + 'static) {
    match HELD.get() {
        0 => task(),
        _ => TASKS.with(|tasks| tasks.borrow_mut().push(Box::new(task))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn tasks_run_after_the_outermost_hold_in_order() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let note = |n: i32| {
            let seen = seen.clone();
            move || seen.borrow_mut().push(n)
        };
        hold(|| {
            after(note(1));
            hold(|| after(note(2)));
            // Holds again while it runs.
            let (third, fourth) = (note(3), note(4));
            after(move || {
                hold(|| {
                    after(third);
                    after(fourth);
                })
            });
            assert!(seen.borrow().is_empty());
        });
        assert_eq!(*seen.borrow(), [1, 2, 3, 4]);
        after(note(5));
        assert_eq!(seen.borrow().last(), Some(&5));
    }
}

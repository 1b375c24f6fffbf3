//! What a thread does once its call has let go of its locks: calls of functions that the program
//! has given, which may call gpumem again and would wait for ever for a lock that the thread itself
//! holds.

use std::cell::{Cell, RefCell};

type Task = Box<dyn FnOnce()>;

thread_local! {
    /// In so many [`hold`]s.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// What is to be done after them, in order.
    static TASKS: RefCell<Vec<Task>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work`, which holds no lock any more when it ends, and then what it has left for later.
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
        TASKS.try_with(RefCell::take).unwrap_or_default().into_iter().for_each(|task| task());
    }
    done
}

/// Does it after the thread's [`hold`]s; at once where there is none. Not at all on a thread that
/// has no thread-local variables any more.
pub fn after(task: impl FnOnce() + 'static) {
    match HELD.get() {
        0 => task(),
        _ => _ = TASKS.try_with(|tasks| tasks.borrow_mut().push(Box::new(task))),
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

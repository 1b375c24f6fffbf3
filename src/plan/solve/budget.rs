//! How long a search may go on: steps, so that the result does not depend on the machine; and a
//! clock and a flag, for callers that cannot wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Steps between two looks at the clock and the flag: some tens of microseconds.
const LOOK_EVERY: u64 = 64;

/// Steps of the first greedy order before clock and flag count, a few milliseconds: up to so many
/// items are laid out in order even when there is no time at all.
pub(super) const FIRST_STEPS: u64 = 4_096;

/// What is left of the effort. One step is one node of the search or the placement of one buffer,
/// about 1 µs.
pub(super) struct Budget<'a> {
    left: u64,
    taken: u64,
    until_look: u64,
    deadline: Option<Instant>,
    cancel: Option<&'a AtomicBool>,
    interrupted: bool,
}

impl<'a> Budget<'a> {
    pub(super) fn new(steps: u64, deadline: Option<Instant>, cancel: Option<&'a AtomicBool>) -> Budget<'a> {
        // A flag that is set already, or a deadline that has passed, is seen before the first step.
        let mut budget = Budget { left: steps, taken: 0, until_look: 0, deadline, cancel, interrupted: false };
        budget.look();
        budget
    }

    /// Takes `steps`; whether there is something left to go on with.
    #[inline]
    pub(super) fn take(&mut self, steps: u64) -> bool {
        self.left = self.left.saturating_sub(steps);
        self.taken = self.taken.saturating_add(steps);
        self.until_look = self.until_look.saturating_sub(steps);
        if self.until_look == 0 {
            self.look();
        }
        self.left > 0
    }

    /// Whether the clock ends it, rather than a number of steps.
    pub(super) fn is_timed(&self) -> bool {
        self.deadline.is_some()
    }

    /// Looks at clock and flag: whether one of them has ended it.
    pub(super) fn is_late(&mut self) -> bool {
        self.look();
        self.interrupted
    }

    /// Whether nothing is left.
    pub(super) fn spent(&self) -> bool {
        self.left == 0
    }

    /// All the steps one could want, and the same clock and flag.
    pub(super) fn without_count(&self) -> Budget<'a> {
        Budget::new(u64::MAX, self.deadline, self.cancel)
    }

    /// So many steps that do not count here, and the same clock and flag.
    pub(super) fn apart(&self, steps: u64) -> Budget<'a> {
        Budget::new(steps, self.deadline, self.cancel)
    }

    /// The same clock and flag, first looked at by the step after so many: those are taken whatever
    /// they say.
    pub(super) fn after(&self, steps: u64) -> Budget<'a> {
        Budget { left: u64::MAX, taken: 0, until_look: steps.saturating_add(1), interrupted: false, ..*self }
    }

    /// Steps taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The same limits for another thread, with all the steps that are left: threads take theirs at
    /// the same time.
    pub(super) fn share(&self) -> Budget<'a> {
        Budget::new(self.left, self.deadline, self.cancel)
    }

    /// The same flag, with one in `share` of the steps and of the time that are left.
    pub(super) fn part(&self, share: u32) -> Budget<'a> {
        let now = Instant::now();
        let deadline = self.deadline.map(|d| now + d.saturating_duration_since(now) / share);
        Budget::new(self.left / u64::from(share), deadline, self.cancel)
    }

    /// Counts the steps that shares took, and whether one was interrupted.
    pub(super) fn join(&mut self, steps: u64, interrupted: bool) {
        self.take(steps);
        if interrupted {
            self.interrupted = true;
            self.left = 0;
        }
    }

    /// Counts what a [`Budget::part`] took. That its own time is over says nothing about the whole.
    pub(super) fn join_part(&mut self, part: &Budget<'_>) {
        self.take(part.taken);
        self.look();
    }

    /// Whether clock or flag ended it, so that another run of the same problem may go further.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted
    }

    fn look(&mut self) {
        self.until_look = LOOK_EVERY;
        let late = self.deadline.is_some_and(|d| Instant::now() >= d);
        #[cfg(test)]
        let late = late | tests::is_over();
        if late || self.cancel.is_some_and(|c| c.load(Ordering::Relaxed)) {
            self.interrupted = self.interrupted || self.left > 0;
            self.left = 0;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    thread_local! {
        /// How often this thread has looked, and at which look time is over.
        static LOOKS: Cell<(u64, u64)> = const { Cell::new((0, u64::MAX)) };
    }

    /// Counts a look: whether time is over.
    pub(super) fn is_over() -> bool {
        let (looks, last) = LOOKS.get();
        LOOKS.set((looks + 1, last));
        looks >= last
    }

    /// Lets time be over after so many looks of this thread, while `work` is done: how often it
    /// looked, and what came of it.
    pub(in super::super) fn over_after<T>(looks: u64, work: impl FnOnce() -> T) -> (u64, T) {
        LOOKS.set((0, looks));
        let done = work();
        (LOOKS.replace((0, u64::MAX)).0, done)
    }
}

//! How long a search may go on. Counting steps keeps the result independent of the machine; a clock
//! and a flag serve callers that cannot wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Steps between two looks at the clock and the flag: some tens of microseconds.
const LOOK_EVERY: u64 = 64;

/// Steps of the first greedy order before clock and flag count, a few milliseconds: this many items
/// are laid out in order even with no time at all.
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

    /// Takes `steps`; returns whether any are left.
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

    /// Whether a deadline ends the search, rather than a number of steps.
    pub(super) fn is_timed(&self) -> bool {
        self.deadline.is_some()
    }

    /// Looks at clock and flag; returns whether either has ended the search.
    pub(super) fn is_late(&mut self) -> bool {
        self.look();
        self.interrupted
    }

    /// Whether no steps are left.
    pub(super) fn spent(&self) -> bool {
        self.left == 0
    }

    /// A budget with unlimited steps and the same clock and flag.
    pub(super) fn without_count(&self) -> Budget<'a> {
        Budget::new(u64::MAX, self.deadline, self.cancel)
    }

    /// A budget of `steps` that do not count here, with the same clock and flag.
    pub(super) fn apart(&self, steps: u64) -> Budget<'a> {
        Budget::new(steps, self.deadline, self.cancel)
    }

    /// A budget with unlimited steps that ignores clock and flag for the first `steps` of them.
    pub(super) fn after(&self, steps: u64) -> Budget<'a> {
        Budget { left: u64::MAX, taken: 0, until_look: steps.saturating_add(1), interrupted: false, ..*self }
    }

    /// Steps taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// A budget for another thread, with the same limits and all the steps left: threads take steps
    /// at the same time.
    pub(super) fn share(&self) -> Budget<'a> {
        Budget::new(self.left, self.deadline, self.cancel)
    }

    /// A budget with the same flag and one `share`-th of the remaining steps and time.
    pub(super) fn part(&self, share: u32) -> Budget<'a> {
        let now = Instant::now();
        let deadline = self.deadline.map(|d| now + d.saturating_duration_since(now) / share);
        let part = Budget::new(self.left / u64::from(share), deadline, self.cancel);
        Budget { interrupted: part.interrupted || self.interrupted, ..part }
    }

    /// Takes the steps used by shares, and stops this budget if one was interrupted.
    pub(super) fn join(&mut self, steps: u64, interrupted: bool) {
        self.take(steps);
        if interrupted {
            self.interrupted = true;
            self.left = 0;
        }
    }

    /// Takes the steps used by a [`Budget::part`]. The end of the part's time does not end the
    /// whole.
    pub(super) fn join_part(&mut self, part: &Budget<'_>) {
        self.take(part.taken);
        self.look();
    }

    /// Whether clock or flag ended the search. Another run of the same problem may then go further.
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
        /// This thread's count of looks, and the look at which time is over.
        static LOOKS: Cell<(u64, u64)> = const { Cell::new((0, u64::MAX)) };
    }

    /// Counts a look; returns whether time is over.
    pub(super) fn is_over() -> bool {
        let (looks, last) = LOOKS.get();
        LOOKS.set((looks + 1, last));
        looks >= last
    }

    /// Runs `work` with time over after this many `looks` of this thread. Returns the number of
    /// looks taken and the result.
    pub(in super::super) fn over_after<T>(looks: u64, work: impl FnOnce() -> T) -> (u64, T) {
        LOOKS.set((0, looks));
        let done = work();
        (LOOKS.replace((0, u64::MAX)).0, done)
    }
}

//! When a heap is low: no more is live in it than stays while work comes and goes. Then it is as
//! good as empty, and may start afresh (`remap/fresh_start.rs`).
//!
//! How much stays is not known in advance. A heap learns it from how little is live between two
//! peaks. It waits for a few such lows, and for more if it ran empty after them: work that empties
//! its heap in the end repeats from there, not from the lows on its way.

/// A heap is nearly empty with no more live than one part in this many of its last high.
const NEARLY_EMPTY: u64 = 2;

/// Once a heap has been nearly empty more often than this, the least that was live at the last
/// times, more than this and at most twice as many, counts as staying.
const PATIENCE: u32 = 4;

/// An odd number whose bits look random, from the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// How much stays live in a heap, as far as it has learnt.
///
/// Invariants: `moves` is no more than `HeapState::moves`; `stays` is 0 unless `times > patience`;
/// `patience >= PATIENCE`.
pub(crate) struct Low {
    /// The least that was live before an allocation since extents last moved, bytes.
    least: u64,
    /// How much stays live, bytes: with no more than this the heap is low.
    stays: u64,
    /// `HeapState::moves` when the heap was last low.
    moves: u64,
    /// The most that was live at a move since the heap was last nearly empty, bytes.
    high: u64,
    /// What the heap had when it last started afresh, bytes.
    had: u64,
    /// How often it has been nearly empty since it was last empty.
    times: u32,
    patience: u32,
    /// The least that was live at the last of these times, up to [`PATIENCE`] of them, and at as
    /// many before those, bytes.
    lowest: [u64; 2],
    /// The course of the work since the heap was last low: a hash of what was live after each
    /// allocation, beyond `before`. The same for work that repeats, and hardly ever for other work.
    course: u64,
    /// What was live when the heap was last low, bytes.
    before: u64,
}

impl Default for Low {
    fn default() -> Low {
        Low {
            least: 0,
            stays: 0,
            moves: 0,
            high: 0,
            had: 0,
            times: 0,
            patience: PATIENCE,
            lowest: [0; 2],
            course: 0,
            before: 0,
        }
    }
}

impl Low {
    /// Notes that a block of `size` bytes is about to be handed out, with `live` bytes live before
    /// it.
    #[inline(always)]
    pub(crate) fn note_handed_out(&mut self, live: u64, size: u64) {
        self.least = self.least.min(live);
        if live <= self.stays {
            (self.course, self.before) = (0, live);
        }
        let beyond = (live + size).wrapping_sub(self.before);
        self.course = (self.course ^ beyond).wrapping_add(1).wrapping_mul(MIX);
    }

    /// Whether a heap with `live` bytes live is low, and has moved extents since it last was.
    #[inline(always)]
    pub(crate) fn is_reached(&self, live: u64, moves: u64) -> bool {
        live <= self.stays && moves != self.moves
    }

    /// Notes that extents have moved in a heap of `bytes`, of which `live` are live.
    pub(crate) fn note_move(&mut self, live: u64, bytes: u64) {
        let least = std::mem::replace(&mut self.least, live);
        // A peak says nothing if it was less than half of what the heap has, or had at its last
        // fresh start.
        if least <= self.high / NEARLY_EMPTY && self.high >= self.had.max(bytes) / 2 {
            if self.times.is_multiple_of(PATIENCE) {
                self.lowest = [u64::MAX, self.lowest[0]];
            }
            self.lowest[0] = self.lowest[0].min(least);
            self.times = self.times.saturating_add(1);
            if self.times > self.patience {
                self.stays = self.lowest[0].min(self.lowest[1]);
            }
            self.high = 0;
        }
        self.high = self.high.max(live);
    }

    /// The course that the work has taken since the heap was last low.
    pub(crate) fn course(&self) -> u64 {
        self.course
    }

    /// Notes that the heap was low after `moves` moves since it last started afresh.
    pub(crate) fn note_reached(&mut self, live: u64, moves: u64) {
        self.moves = moves;
        if live == 0 {
            if self.times > self.patience {
                self.patience = self.times.saturating_mul(2);
            }
            (self.times, self.stays) = (0, 0);
        }
    }

    /// Notes that the heap starts afresh with `bytes`.
    pub(crate) fn start_afresh(&mut self, bytes: u64) {
        self.had = bytes;
    }

    /// Checks the invariants written above.
    pub(crate) fn validate(&self, moves: u64) -> Result<(), String> {
        ensure!(self.moves <= moves, "{moves} moves, but {} when it was last low", self.moves);
        ensure!(self.patience >= PATIENCE, "patience {} when it is nearly empty", self.patience);
        ensure!(self.stays == 0 || self.times > self.patience, "{} bytes stay after {} times", self.stays, self.times);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAS: u64 = 1000;

    struct Heap {
        low: Low,
        moves: u64,
    }

    impl Heap {
        /// Moves extents while `high` is live, and again while a little more than `low` is. Returns
        /// whether the heap is low with `low` live.
        fn work(&mut self, high: u64, low: u64) -> bool {
            self.move_with(high);
            let reached = self.is_low(low);
            self.low.note_handed_out(low, 0);
            self.move_with(low + 100);
            reached
        }

        fn move_with(&mut self, live: u64) {
            self.moves += 1;
            self.low.note_handed_out(live, 0);
            self.low.note_move(live, HAS);
            assert_eq!(self.low.validate(self.moves), Ok(()));
        }

        fn is_low(&mut self, live: u64) -> bool {
            let reached = self.low.is_reached(live, self.moves);
            if reached {
                self.low.note_reached(live, self.moves);
                assert!(!self.low.is_reached(live, self.moves), "once until it moves again");
            }
            assert_eq!(self.low.validate(self.moves), Ok(()));
            reached
        }
    }

    fn heap() -> Heap {
        Heap { low: Low::default(), moves: 0 }
    }

    #[test]
    fn a_heap_that_runs_empty_is_low() {
        let mut heap = heap();
        heap.move_with(800);
        assert!(!heap.is_low(1));
        assert!(heap.is_low(0));
    }

    #[test]
    fn what_stays_time_and_again_counts_as_nothing() {
        let mut heap = heap();
        let reached: Vec<bool> = (0..8).map(|_| heap.work(800, 300)).collect();
        assert_eq!(reached, [false, false, false, false, false, true, true, true]);
        heap.move_with(800);
        assert!(!heap.is_low(301));
    }

    #[test]
    fn the_least_of_several_lows_stays() {
        let mut heap = heap();
        (0..4).for_each(|_| _ = heap.work(800, 300));
        let reached: Vec<bool> = (0..4).flat_map(|_| [heap.work(800, 300), heap.work(800, 200)]).collect();
        assert_eq!(reached, [false, true, false, true, false, true, false, true]);
        // It stays no lower than that of late.
        let reached: Vec<bool> = (0..9).map(|_| heap.work(800, 300)).collect();
        assert_eq!(reached.iter().position(|&r| r), Some(5), "{reached:?}");
    }

    #[test]
    fn the_same_work_takes_the_same_course_and_other_work_another() {
        let mut low = Low::default();
        // What was live before each allocation, and its size. The heap is low before the first.
        let mut course = |blocks: &[(u64, u64)]| {
            blocks.iter().for_each(|&(live, size)| low.note_handed_out(live, size));
            low.course()
        };
        let first = course(&[(0, 8), (8, 8), (4, 12)]);
        assert_eq!(course(&[(0, 8), (8, 8), (4, 12)]), first);
        let others: [&[(u64, u64)]; 6] = [
            &[(0, 8), (8, 8), (4, 14)],
            &[(0, 8), (8, 8), (5, 12)],
            &[(0, 8), (8, 8)],
            &[(0, 8), (8, 8), (4, 12), (4, 12)],
            &[(0, 8), (4, 10), (8, 8)],
            &[(0, 16)],
        ];
        let others = others.map(&mut course);
        for (i, other) in others.iter().enumerate() {
            assert!(*other != first && !others[..i].contains(other), "{i}");
        }
    }

    #[test]
    fn what_has_come_to_stay_does_not_count_in_a_course() {
        let mut heap = heap();
        let mut course = |stays: u64| {
            (0..20).for_each(|_| _ = heap.work(800, stays));
            heap.low.note_handed_out(stays, 50);
            heap.low.note_handed_out(stays + 50, 20);
            heap.low.course()
        };
        assert_eq!(course(300), course(250));
    }

    #[test]
    fn what_stays_is_half_of_what_was_at_most_and_that_half_of_what_the_heap_has() {
        for (high, low, counts) in [(800, 400, true), (800, 401, false), (500, 250, true), (499, 240, false)] {
            let mut heap = heap();
            let reached = (0..8).filter(|_| heap.work(high, low)).count();
            assert_eq!(reached > 0, counts, "{low} of {high}");
        }
    }

    #[test]
    fn a_heap_that_runs_empty_in_the_end_learns_to_wait_for_that() {
        let mut heap = heap();
        // Passes of 7 times each, at the end of which it is empty.
        let mut pass = || (0..7).filter(|_| heap.work(800, 300)).count() + 10 * usize::from(heap.is_low(0));
        assert_eq!([pass(), pass(), pass()], [12, 10, 10]);
    }
}

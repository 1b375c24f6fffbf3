//! Whether it pays for a heap to start afresh (`remap/fresh_start.rs`).
//!
//! It pays if the same requests come again: the runs of the time before answer them with no driver
//! call. If other requests come, everything they need is mapped again. So a heap for which it has
//! not paid waits longer each time.

/// A heap starts afresh when it runs low and has moved one extent for every this many it has: then
/// the moves it is likely to save next time are worth mapping everything again. It has not paid if
/// such a share was then mapped again, and more than was taken back with no driver call.
const SHARE: u64 = 8;

/// The most doubt there can be whether a fresh start pays. Each [`DOUBT_A_PASS`] of it lets one
/// occasion pass: none after the first two that have not paid, so that a workload may settle.
const MOST_DOUBT: u32 = (1 << 14) - 1;

const DOUBT_A_PASS: u32 = 16;

/// Whether starting afresh pays for a heap. Occasions are the times when it is low after having
/// moved a share of its extents.
///
/// Invariant: `to_pass * DOUBT_A_PASS <= doubt <= MOST_DOUBT`; `doubt` is 0, 1, 3, 7 and so on.
#[derive(Debug, Default)]
pub(crate) struct FreshStarts {
    /// Extents, its own, other heaps' or of the stock, that the driver has mapped for it at other
    /// addresses since it last started afresh.
    pub(crate) mapped_again: u64,
    /// Extents it has taken back since then at addresses where they were still mapped.
    pub(crate) taken_back: u64,
    /// `HeapState::moves` at the last occasion.
    pub(crate) moves: u64,
    /// Whether it is still unknown if the last fresh start has paid.
    pub(crate) open: bool,
    /// Grows each time a fresh start has not paid, and shrinks each time one has.
    pub(crate) doubt: u32,
    /// How many more occasions to let pass.
    pub(crate) to_pass: u32,
}

impl FreshStarts {
    /// Checks the invariant written above.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let fine =
            self.to_pass <= self.doubt / DOUBT_A_PASS && self.doubt <= MOST_DOUBT && (self.doubt + 1).is_power_of_two();
        ensure!(fine, "occasions to start afresh are miscounted: {self:?}");
        Ok(())
    }

    /// Decides whether a heap that is low starts afresh. `moves` are those since it last did.
    pub(crate) fn decide(&mut self, moves: u64, extents: u64) -> bool {
        let share = |n: u64| n > 0 && n.saturating_mul(SHARE) >= extents;
        if !share(moves.saturating_sub(self.moves)) {
            return false;
        }
        self.moves = moves;
        if std::mem::take(&mut self.open) {
            let paid = !share(self.mapped_again) || self.mapped_again <= self.taken_back;
            // One that has not paid outweighs two that have: little may have been asked for after
            // those.
            self.doubt = if paid { self.doubt / 2 } else { (4 * self.doubt + 3).min(MOST_DOUBT) };
            self.to_pass = if paid { 0 } else { self.doubt / DOUBT_A_PASS };
        }
        if self.to_pass > 0 {
            self.to_pass -= 1;
            return false;
        }
        *self = FreshStarts { doubt: self.doubt, open: true, ..FreshStarts::default() };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays occasions: how many extents of 80 were moved before each, and how many mapped again.
    /// Returns those at which the heap starts afresh.
    fn play(occasions: &[(u64, u64)]) -> Vec<usize> {
        let (mut fresh_starts, mut moves) = (FreshStarts::default(), 0);
        let mut starts = Vec::new();
        for (i, &(moved, mapped)) in occasions.iter().enumerate() {
            moves += moved;
            fresh_starts.mapped_again += mapped;
            if fresh_starts.decide(moves, 80) {
                moves = 0;
                starts.push(i);
            }
            assert_eq!(fresh_starts.validate(), Ok(()));
        }
        starts
    }

    #[test]
    fn what_repeats_starts_afresh_each_time() {
        assert_eq!(play(&[(10, 0); 5]), [0, 1, 2, 3, 4]);
        assert_eq!(play(&[(10, 9); 5]), [0, 1, 2, 3, 4], "less than a share was mapped again");
    }

    #[test]
    fn what_does_not_repeat_starts_afresh_less_and_less() {
        assert_eq!(play(&[(10, 10); 100]), [0, 1, 2, 6, 22, 86]);
    }

    #[test]
    fn what_repeats_at_last_starts_afresh_each_time_again() {
        let occasions = [[(10, 10); 8].as_slice(), &[(10, 0); 17]].concat();
        assert_eq!(play(&occasions), [0, 1, 2, 6, 22, 23, 24]);
    }

    #[test]
    fn what_pays_every_other_time_starts_afresh_less_and_less() {
        let (mut fresh_starts, mut starts) = (FreshStarts::default(), 0);
        for occasion in 1..=200 {
            if fresh_starts.decide(10 * occasion, 80) {
                starts += 1;
                fresh_starts.moves = 10 * occasion;
                fresh_starts.mapped_again += 10 * (starts % 2);
            }
        }
        assert!(starts <= 20, "{starts}");
    }

    #[test]
    fn an_occasion_is_a_share_of_moves_since_the_last_one() {
        assert_eq!(play(&[(9, 0), (1, 0), (9, 0), (0, 0), (1, 0), (9, 0), (1, 0)]), [1, 4, 6]);
    }

    #[test]
    fn what_is_taken_back_as_much_as_it_is_mapped_again_pays() {
        for (taken_back, pays) in [(10, true), (9, false)] {
            let mut fresh_starts = FreshStarts::default();
            assert!(fresh_starts.decide(10, 80));
            fresh_starts.mapped_again = 10;
            fresh_starts.taken_back = taken_back;
            assert!(fresh_starts.decide(10, 80));
            assert_eq!(fresh_starts.doubt == 0, pays);
        }
    }

    #[test]
    fn there_is_no_more_doubt_than_the_most() {
        let starts = play(&[(10, 10); 5000]);
        let last = starts[starts.len() - 1] - starts[starts.len() - 2];
        assert_eq!(last, (MOST_DOUBT / DOUBT_A_PASS) as usize + 1);
    }
}

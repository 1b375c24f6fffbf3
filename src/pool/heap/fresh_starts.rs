//! Whether it pays for a heap to start afresh (`remap/fresh_start.rs`).
//!
//! It pays if the same requests come again: the runs of the time before answer them with no driver
//! call. If other requests come, everything they need is mapped again. So a heap for which it has
//! not paid waits longer each time, but hardly while it sees that its work repeats.

use rustc_hash::FxHashSet;

/// A heap starts afresh when it runs low and has moved one extent for every this many it has: then
/// the moves it is likely to save next time are worth mapping everything again. It has not paid if
/// such a share was then mapped again, and more than was taken back with no driver call.
const SHARE: u64 = 8;

/// The most doubt there can be whether a fresh start pays. Each [`DOUBT_A_PASS`] of it lets one
/// occasion pass: none after the first two that have not paid, so that a workload may settle.
const MOST_DOUBT: u32 = (1 << 14) - 1;

const DOUBT_A_PASS: u32 = 16;

/// Most courses kept.
const MOST_SEEN: usize = 1 << 10;

/// Work that has taken the same course before may start afresh in spite of doubt, unless that has
/// not paid this much more often than it has: it may meet other memory each time, as when streams
/// take each other's.
const MOST_IN_VAIN: u32 = 16;

/// Whether starting afresh pays for a heap. Occasions are the times when it is low after having
/// moved a share of its extents.
///
/// Invariants: `to_pass * DOUBT_A_PASS <= doubt <= MOST_DOUBT`; `doubt` is 0, 1, 3, 7 and so on;
/// `in_vain <= MOST_IN_VAIN`.
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
    /// The courses that the work has taken between times when the heap was low
    /// ([`Low::course`](crate::pool::heap::low::Low::course)), up to [`MOST_SEEN`].
    seen: FxHashSet<u64>,
    /// Whether the course before the last fresh start had been seen before.
    known: bool,
    /// How much more often such a start has not paid than paid.
    in_vain: u32,
}

impl FreshStarts {
    /// Checks the invariants written above.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let FreshStarts { doubt, to_pass, in_vain, .. } = self;
        let fine = *to_pass <= doubt / DOUBT_A_PASS && *doubt <= MOST_DOUBT && (doubt + 1).is_power_of_two();
        ensure!(fine, "{to_pass} occasions to start afresh are to pass, at a doubt of {doubt}");
        ensure!(*in_vain <= MOST_IN_VAIN, "{in_vain} fresh starts in vain");
        Ok(())
    }

    /// Decides whether a heap that is low starts afresh. `moves` are those since it last did, and
    /// `course` is what the work has done since the heap was last low.
    pub(crate) fn decide(&mut self, moves: u64, extents: u64, course: u64) -> bool {
        if self.seen.len() == MOST_SEEN {
            self.seen.clear();
        }
        let known = !self.seen.insert(course);
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
            self.in_vain = match paid {
                _ if !self.known => self.in_vain,
                true => self.in_vain.saturating_sub(1),
                false => (self.in_vain + 1).min(MOST_IN_VAIN),
            };
        }
        if self.to_pass > 0 && !(known && self.in_vain < MOST_IN_VAIN) {
            self.to_pass -= 1;
            return false;
        }
        (self.mapped_again, self.taken_back, self.moves) = (0, 0, 0);
        (self.open, self.known) = (true, known);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays occasions of work that never repeats: how many extents of 80 were moved before each,
    /// and how many mapped again. Returns those at which the heap starts afresh.
    fn play(occasions: &[(u64, u64)]) -> Vec<usize> {
        let courses = (0..).zip(occasions);
        play_courses(&courses.map(|(course, &(moved, mapped))| (moved, mapped, course)).collect::<Vec<_>>())
    }

    /// Like [`play`], with the courses of the work.
    fn play_courses(occasions: &[(u64, u64, u64)]) -> Vec<usize> {
        let (mut fresh_starts, mut moves) = (FreshStarts::default(), 0);
        let mut starts = Vec::new();
        for (i, &(moved, mapped, course)) in occasions.iter().enumerate() {
            moves += moved;
            fresh_starts.mapped_again += mapped;
            if fresh_starts.decide(moves, 80, course) {
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
    fn a_course_seen_before_outweighs_doubt() {
        let new: Vec<_> = (0..5).map(|course| (10, 10, course)).collect();
        let again = |times: usize, mapped: u64| (0..times).map(move |i| (10, mapped, (i % 5) as u64));
        let starts = play_courses(&new.iter().copied().chain(again(20, 0)).collect::<Vec<_>>());
        assert_eq!(starts, [&[0, 1, 2][..], &(5..25).collect::<Vec<_>>()].concat());
        // It never pays: after 16 more starts, hardly any.
        let starts = play_courses(&new.iter().copied().chain(again(200, 10)).collect::<Vec<_>>());
        assert_eq!(starts[3..19], (5..21).collect::<Vec<_>>());
        assert!(starts.len() <= 20, "{starts:?}");
        // It pays every other time.
        let half =
            again(200, 10).enumerate().map(|(i, (moved, mapped, course))| (moved, mapped * (i as u64 % 2), course));
        let starts = play_courses(&new.iter().copied().chain(half).collect::<Vec<_>>());
        assert!(starts.len() >= 200, "{}", starts.len());
    }

    #[test]
    fn no_more_courses_than_the_most_are_kept() {
        let mut fresh_starts = FreshStarts::default();
        for course in 0..3 * MOST_SEEN as u64 {
            fresh_starts.decide(0, 80, course);
        }
        assert_eq!(fresh_starts.seen.len(), MOST_SEEN);
    }

    #[test]
    fn what_pays_every_other_time_starts_afresh_less_and_less() {
        let (mut fresh_starts, mut starts) = (FreshStarts::default(), 0);
        for occasion in 1..=200 {
            if fresh_starts.decide(10 * occasion, 80, occasion) {
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
            assert!(fresh_starts.decide(10, 80, 0));
            fresh_starts.mapped_again = 10;
            fresh_starts.taken_back = taken_back;
            assert!(fresh_starts.decide(10, 80, 1));
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

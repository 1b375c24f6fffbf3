//! What a heap did when requests found no room, so that work that repeats gets the same answers.

use crate::pool::memory::RunId;
use crate::pool::types::Want;
use rustc_hash::FxHashMap;

/// Most answers kept.
const MOST: usize = 1 << 14;

/// The bytes and the alignment of a request, and the run that answered the one before it; `None`
/// for the first since a fresh start.
type Asked = (u64, u64, Option<RunId>);

/// The run of aliases that was last mapped, or taken back, for each request, by what answered the
/// request before it. So phases of several kinds are all known, if each begins with a fresh start,
/// in whatever order they come. All answers are hints: a run is checked before it is taken back.
#[derive(Default)]
pub(crate) struct Memo {
    answers: FxHashMap<Asked, RunId>,
    /// What answered the last request.
    last: Option<RunId>,
    /// The sizes of the first requests since the heap last started afresh, up to
    /// [`NO_COINCIDENCE`], and of those of the time before, whatever answered them.
    first: [Vec<u64>; 2],
    /// How many of the former had an answer.
    known: usize,
}

/// This many first requests that are known are no coincidence.
const NO_COINCIDENCE: usize = 4;

impl Memo {
    /// The run that answered this request last time.
    pub(crate) fn next(&self, want: Want) -> Option<RunId> {
        self.answers.get(&(want.size, want.align, self.last)).copied()
    }

    /// Whether the work since the last fresh start began like the work before that, or like other
    /// work that got the same answers, as far as it has come.
    pub(crate) fn repeats(&self) -> bool {
        let [now, before] = &self.first;
        self.known == now.len() || (!before.is_empty() && before.starts_with(now))
    }

    /// Notes the answer that was given.
    pub(crate) fn note(&mut self, want: Want, run: RunId) {
        if self.answers.len() == MOST {
            self.answers.clear();
        }
        let known = self.answers.insert((want.size, want.align, self.last), run).is_some();
        self.last = Some(run);
        if self.first[0].len() < NO_COINCIDENCE {
            self.first[0].push(want.size);
            self.known += usize::from(known);
        }
    }

    /// Begins again, as the heap starts afresh.
    pub(crate) fn restart(&mut self) {
        (self.last, self.known) = (None, 0);
        self.first.swap(0, 1);
        self.first[0].clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StreamHandle;

    fn want(size: u64) -> Want {
        Want::new(size, 1, (StreamHandle::LEGACY, 0))
    }

    fn run(number: u32) -> RunId {
        RunId { number, born: u64::from(number) }
    }

    /// Plays phases, each a list of sizes and of the runs that answer them unless others are known.
    /// Returns which sizes were known, and whether the work was said to repeat.
    fn play<const N: usize>(memo: &mut Memo, phase: &[(u64, u32); N]) -> [(Option<RunId>, bool); N] {
        memo.restart();
        phase.map(|(size, number)| {
            let next = memo.next(want(size));
            memo.note(want(size), next.unwrap_or(run(number)));
            (next, memo.repeats())
        })
    }

    /// After which of these sizes a phase is said to repeat.
    fn repeats<const N: usize>(memo: &mut Memo, sizes: [u64; N]) -> [bool; N] {
        play(memo, &sizes.map(|size| (size, size as u32))).map(|(_, repeats)| repeats)
    }

    #[test]
    fn phases_that_take_turns_are_all_known() {
        let mut memo = Memo::default();
        let (one, other) = ([(5, 1), (6, 2), (7, 3)], [(6, 4), (6, 5), (5, 6)]);
        assert_eq!(play(&mut memo, &one), [(None, false); 3]);
        assert_eq!(play(&mut memo, &other), [(None, false); 3], "what followed something else tells nothing");
        for phase in [one, other, one] {
            assert_eq!(play(&mut memo, &phase), phase.map(|(_, number)| (Some(run(number)), true)));
        }
        // Another run in the middle: what followed the old one tells nothing any more.
        memo.restart();
        memo.note(want(5), run(7));
        assert_eq!(memo.next(want(6)), None);
        memo.note(want(6), run(2));
        assert_eq!(play(&mut memo, &one).map(|(next, _)| next), [7, 2, 3].map(|number| Some(run(number))));
    }

    #[test]
    fn work_repeats_if_its_first_requests_are_known() {
        let mut memo = Memo::default();
        assert_eq!(repeats(&mut memo, [5, 6, 7, 8, 9]), [false; 5], "nothing was before");
        assert_eq!(repeats(&mut memo, [5, 6, 7, 8, 1, 2]), [true; 6], "the first four are known");
        assert_eq!(repeats(&mut memo, [5, 6, 1, 8]), [true, true, false, false]);
        assert_eq!(repeats(&mut memo, [5, 6, 7, 8]), [true; 4], "like the time before the last");
        memo.restart();
        memo.note(want(5), run(9));
        memo.note(want(6), run(10));
        assert!(memo.repeats(), "like the time before, whatever answered it");
        assert_eq!(repeats(&mut memo, [6, 7]), [false; 2], "not as the first ones");
    }

    #[test]
    fn no_more_than_the_most_is_kept() {
        let mut memo = Memo::default();
        for number in 0..3 * MOST as u32 {
            memo.note(want(1), run(number));
        }
        assert_eq!(memo.answers.len(), MOST);
    }
}

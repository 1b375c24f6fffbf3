//! What a heap did when requests found no room, so that work that repeats gets the same answers.

use crate::pool::memory::RunId;
use crate::pool::types::Want;

/// Most steps kept.
const MAX_STEPS: usize = 1 << 16;

/// A request and the run of aliases that was mapped, or taken back, for it.
#[derive(Clone, Copy, Debug)]
struct Step {
    size: u64,
    align: u64,
    run: RunId,
}

/// The steps since the heap last started afresh, and behind them those of the time before, as long
/// as the requests are the same. All are hints: a run is checked before it is taken back.
///
/// Invariant: `at <= steps.len()`.
#[derive(Default)]
pub(crate) struct Memo {
    steps: Vec<Step>,
    at: usize,
    /// The sizes of the first requests since then, and of those of the time before, whatever
    /// answered them.
    first: [Vec<u64>; 2],
}

/// This many first requests that are the same as the time before are no coincidence.
const NO_COINCIDENCE: usize = 4;

impl Memo {
    /// The run that answered this request at this point last time.
    pub(crate) fn next(&self, want: Want) -> Option<RunId> {
        let step = self.steps.get(self.at)?;
        (step.size == want.size && step.align == want.align).then_some(step.run)
    }

    /// Whether the work since the last fresh start began like the work before it, as far as it has
    /// come.
    pub(crate) fn repeats(&self) -> bool {
        !self.first[1].is_empty() && self.first[1].starts_with(&self.first[0])
    }

    fn asked(&mut self, size: u64) {
        if self.first[0].len() < NO_COINCIDENCE {
            self.first[0].push(size);
        }
    }

    /// Notes that last time's answer was given again.
    pub(crate) fn followed(&mut self, want: Want) {
        self.at += 1;
        self.asked(want.size);
    }

    /// Notes that another answer was given. Last time's steps from here on tell nothing any more.
    pub(crate) fn note(&mut self, want: Want, run: RunId) {
        self.asked(want.size);
        self.steps.truncate(self.at);
        if self.steps.len() < MAX_STEPS {
            self.steps.push(Step { size: want.size, align: want.align, run });
            self.at += 1;
        }
    }

    /// Begins again with the first step, as the heap starts afresh.
    pub(crate) fn restart(&mut self) {
        self.at = 0;
        self.first.swap(0, 1);
        self.first[0].clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StreamHandle;

    #[test]
    fn work_repeats_if_it_begins_the_same_whatever_answers_it() {
        let mut memo = Memo::default();
        let run = RunId { number: 0, born: 0 };
        let mut play = |sizes: &[u64]| {
            memo.restart();
            let each = sizes.iter().map(|&size| {
                memo.note(Want::new(size, 1, (StreamHandle::LEGACY, 0)), run);
                memo.repeats()
            });
            each.collect::<Vec<_>>()
        };
        assert_eq!(play(&[5, 6, 7, 8, 9]), [false; 5], "nothing was before");
        assert_eq!(play(&[5, 6, 7, 8, 1, 2]), [true; 6], "the first four are the same");
        assert_eq!(play(&[5, 6, 1, 8]), [true, true, false, false]);
        assert_eq!(play(&[5, 6, 7, 8]), [true, true, false, false], "not like the time before");
    }
}

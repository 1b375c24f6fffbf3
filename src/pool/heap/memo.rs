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
    /// How many requests since then were the same as the time before, whatever answered them.
    same: usize,
}

/// This many requests that are the same as the time before are no coincidence.
const NO_COINCIDENCE: usize = 4;

impl Memo {
    /// The run that answered this request at this point last time.
    pub(crate) fn next(&self, want: Want) -> Option<RunId> {
        let step = self.steps.get(self.at)?;
        (step.size == want.size && step.align == want.align).then_some(step.run)
    }

    /// Whether the work since the last fresh start began like the work before it.
    pub(crate) fn repeats(&self) -> bool {
        self.same >= NO_COINCIDENCE
    }

    /// Notes that last time's answer was given again.
    pub(crate) fn followed(&mut self) {
        self.at += 1;
        self.same += 1;
    }

    /// Notes that another answer was given. Last time's steps from here on tell nothing any more.
    pub(crate) fn note(&mut self, want: Want, run: RunId) {
        self.same += usize::from(self.next(want).is_some());
        self.steps.truncate(self.at);
        if self.steps.len() < MAX_STEPS {
            self.steps.push(Step { size: want.size, align: want.align, run });
            self.at += 1;
        }
    }

    /// Begins again with the first step, as the heap starts afresh.
    pub(crate) fn restart(&mut self) {
        (self.at, self.same) = (0, 0);
    }
}

//! What a heap did when requests found no room: so that a workload that repeats itself can be given the same answers.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::aliases::RunId;
use super::alloc::Want;
use std::collections::HashMap;

/// Most steps kept.
const MAX_STEPS: usize = 1 << 16;
/// Most sizes that runs are kept by, and most runs of one size.
const MAX_SIZES: usize = 1 << 12;
const RUNS_PER_SIZE: usize = 4;

/// How many calls before a step something is done for it, in each of them: see [`super::prepare`].
const LEAD: u64 = 2;
/// For [`Memo::soon`]: nothing is expected.
const NEVER: u64 = u64::MAX;

/// A request and the run of aliases that was mapped, or taken back, for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) size: u64,
    pub(super) align: u64,
    pub(super) run: RunId,
    /// How many calls the heap had answered since it started afresh.
    after: u64,
}

/// The steps since the heap last started afresh, and behind them those of the time before as long as the requests
/// are the same. All of it is hints: whoever follows one checks the run.
///
/// Calls are the heap's allocations and frees. Invariant: `at <= steps.len()`.
#[repr(C)]
pub(super) struct Memo {
    /// From how many calls on something is to be done for the next step. Every hit asks that.
    pub(super) soon: u64,
    steps: Vec<Step>,
    at: usize,
    /// The heap's calls when it started afresh.
    start: u64,
    /// Runs by the size of the request they were made for, the latest last.
    by_size: HashMap<u64, Vec<RunId>>,
}

impl Default for Memo {
    fn default() -> Memo {
        Memo { steps: Vec::new(), at: 0, start: 0, soon: NEVER, by_size: HashMap::new() }
    }
}

impl Memo {
    /// The run that answered this request at this point the time before.
    pub(super) fn next(&self, want: Want) -> Option<RunId> {
        let step = self.steps.get(self.at)?;
        (step.size == want.size && step.align == want.align).then_some(step.run)
    }

    /// The next step, if it was within so many calls the time before, and how many calls come before it. Nothing more is to be done for
    /// one that did not come.
    pub(super) fn coming(&mut self, calls: u64) -> Option<(u64, Step)> {
        let step = self.steps.get(self.at).filter(|s| self.start + s.after >= calls).copied();
        self.soon = step.map_or(NEVER, |_| self.soon.max(calls + 1));
        step.map(|s| (self.start + s.after - calls, s))
    }

    /// The next step's run.
    pub(super) fn next_run(&self) -> Option<RunId> {
        self.steps.get(self.at).map(|s| s.run)
    }

    /// That answer was given again, after so many calls of the heap.
    pub(super) fn followed(&mut self, calls: u64) {
        if let Some(step) = self.steps.get_mut(self.at) {
            step.after = calls - self.start;
        }
        self.at += 1;
        self.look_ahead();
    }

    fn look_ahead(&mut self) {
        self.soon = self.steps.get(self.at).map_or(NEVER, |s| (self.start + s.after).saturating_sub(LEAD));
    }

    /// Another answer was given, after so many calls: what came after it the time before tells nothing any more.
    pub(super) fn note(&mut self, want: Want, run: RunId, calls: u64) {
        self.steps.truncate(self.at);
        self.soon = NEVER;
        if self.steps.len() < MAX_STEPS {
            self.steps.push(Step { size: want.size, align: want.align, run, after: calls - self.start });
            self.at += 1;
        }
        if self.by_size.len() >= MAX_SIZES && !self.by_size.contains_key(&want.size) {
            self.by_size.clear();
        }
        let runs = self.by_size.entry(want.size).or_default();
        runs.retain(|&r| r != run);
        if runs.len() == RUNS_PER_SIZE {
            runs.remove(0);
        }
        runs.push(run);
    }

    /// Runs that answered requests of this size before, the latest first.
    pub(super) fn similar(&self, want: Want) -> impl Iterator<Item = RunId> + '_ {
        self.by_size.get(&want.size).into_iter().flatten().rev().copied()
    }

    /// The heap starts afresh, after so many calls.
    pub(super) fn restart(&mut self, calls: u64) {
        (self.at, self.start) = (0, calls);
        self.look_ahead();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::StreamHandle;

    fn want(size: u64) -> Want {
        Want { size, align: 512, stream: StreamHandle::LEGACY }
    }

    /// After so many calls: what is coming, as the calls before it and its size.
    fn coming(memo: &mut Memo, calls: u64) -> Option<(u64, u64)> {
        (calls >= memo.soon).then(|| memo.coming(calls)).flatten().map(|(n, step)| (n, step.size))
    }

    #[test]
    fn a_step_is_expected_after_as_many_calls_as_the_time_before() {
        let mut memo = Memo::default();
        let run = RunId { number: 7, born: 1 };
        memo.note(want(1000), run, 10);
        memo.note(want(2000), run, 12);
        assert_eq!(coming(&mut memo, 13), None, "nothing is known of what comes now");
        memo.restart(100);
        let seen: Vec<_> = (100..=110).map(|calls| coming(&mut memo, calls)).collect();
        assert_eq!(seen[..8], [None; 8]);
        assert_eq!(seen[8..], [2, 1, 0].map(|n| Some((n, 1000))));
        assert_eq!(memo.next(want(1000)), Some(run));
        memo.followed(110);
        assert_eq!([110, 111, 112].map(|calls| coming(&mut memo, calls)), [2, 1, 0].map(|n| Some((n, 2000))));
        assert_eq!(coming(&mut memo, 113), None, "it did not come");
        assert_eq!(memo.soon, NEVER);
        memo.followed(120);
        memo.restart(200);
        memo.followed(209);
        assert_eq!([217, 218].map(|calls| coming(&mut memo, calls)), [None, Some((2, 2000))], "as it came last");
        memo.restart(300);
        assert_eq!([306, 307].map(|calls| coming(&mut memo, calls)), [None, Some((2, 1000))]);
    }
}

//! A graph turned into a problem.

use super::value::{Candidate, OpId, ValueId};
use crate::plan::layout::{Layout, Slot};
use crate::plan::problem::{BufferId, Problem, Step};

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In a buffer of the problem, at an offset.
    In {
        /// The buffer.
        buffer: BufferId,
        /// Bytes from the buffer's start.
        offset: u64,
    },
    /// Where another plan put it. For a shared weight with no bytes, or of a kind that this plan
    /// leaves out.
    At(Slot),
    /// Nowhere, because its kind is left out, or nothing writes or reads it.
    Nowhere,
}

impl Placement {
    /// The slot in `layout`, a layout of the buffer's problem.
    pub fn slot(self, layout: &Layout) -> Option<Slot> {
        match self {
            Placement::In { buffer, offset } => {
                let slot = layout.slot(buffer)?;
                Some(Slot { arena: slot.arena, offset: slot.offset.checked_add(offset)? })
            }
            Placement::At(slot) => Some(slot),
            Placement::Nowhere => None,
        }
    }
}

/// A parameter or constant that another plan may share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Weight {
    pub(super) name: Option<Box<str>>,
    pub(super) size: u64,
    pub(super) guard: u64,
    pub(super) place: Placement,
}

/// The result of [`Graph::lower`](super::Graph::lower).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// One buffer for each slot, including those of left-out kinds. Views, and values that took
    /// over another's bytes, have none of their own.
    pub problem: Problem,
    /// The placement of each value.
    pub placements: Vec<Placement>,
    /// The first step after everything; outputs and pinned values live up to it.
    pub end: Step,
    /// By value, the alignment that its own slot, if any, needs for it and its views.
    pub(super) alignments: Vec<u64>,
    /// The candidates taken in place, by operation.
    pub(super) taken: Vec<Candidate>,
    /// Indices into `taken`, by output.
    pub(super) taken_by_output: Vec<u32>,
    /// By buffer, the value whose slot it is.
    pub(super) owners: Vec<u32>,
    /// The step of each operation.
    pub(super) steps: Vec<u32>,
    /// The weights for [`Graph::share_from`](super::Graph::share_from).
    pub(super) weights: Vec<Weight>,
}

impl Lowered {
    /// The largest alignment of anything placed in `arena`. The arena's own address must be a
    /// multiple of it.
    pub fn alignment_in(&self, layout: &Layout, arena: u32) -> u64 {
        let placed = self.placements.iter().zip(&self.alignments);
        let inside = placed.filter(|(at, _)| at.slot(layout).is_some_and(|slot| slot.arena == arena));
        inside.map(|(_, &alignment)| alignment).max().unwrap_or(1)
    }

    /// Where `value` is in `layout`, a layout of [`Lowered::problem`]. `None` if it has no slot.
    pub fn slot(&self, layout: &Layout, value: ValueId) -> Option<Slot> {
        self.placements.get(value.index())?.slot(layout)
    }

    /// The value whose bytes `output` took over, if [`Graph::in_place`](super::Graph::in_place) was
    /// taken for it.
    pub fn took_over(&self, output: ValueId) -> Option<ValueId> {
        let candidate = |&i: &u32| self.taken.get(i as usize);
        let at = self.taken_by_output.partition_point(|i| candidate(i).is_some_and(|c| c.output < output));
        let found = self.taken_by_output.get(at).and_then(candidate)?;
        (found.output == output).then_some(found.input)
    }

    /// The pairs (input, output) of `op` that were taken in place.
    pub fn taken_in_place(&self, op: OpId) -> impl Iterator<Item = (ValueId, ValueId)> + '_ {
        let first = self.taken.partition_point(|c| c.op < op);
        self.taken.iter().skip(first).take_while(move |c| c.op == op).map(|c| (c.input, c.output))
    }

    /// The value whose slot `buffer` is: the root of its views, and the first of the values that
    /// share it in place. If several shared weights overlap, one of them.
    pub fn value_of(&self, buffer: BufferId) -> Option<ValueId> {
        self.owners.get(buffer.index()).map(|&v| ValueId(v))
    }

    /// The step at which `op` runs.
    pub fn step(&self, op: OpId) -> Option<Step> {
        self.steps.get(op.index()).map(|&step| Step::from(step))
    }
}

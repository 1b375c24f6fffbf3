//! A graph turned into a problem.

use super::value::{Candidate, OpId, ValueId};
use crate::plan::layout::{Layout, Slot};
use crate::plan::problem::{BufferId, Problem, Step};

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In a buffer of the problem, `offset` bytes behind its start.
    In {
        /// The buffer.
        buffer: BufferId,
        /// From its first byte, bytes.
        offset: u64,
    },
    /// Where another plan put it: a shared weight of a kind that this plan leaves out, or of no
    /// bytes.
    At(Slot),
    /// Nowhere: its kind is left out, or nothing writes or reads it.
    Nowhere,
}

impl Placement {
    /// Where that is in `layout`, a layout of the problem that the buffer is of.
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

/// What [`Graph::lower`](super::Graph::lower) makes of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// One buffer for each slot: views and values that took over another's bytes have none of their
    /// own. Buffers of a kind left out are in it too.
    pub problem: Problem,
    /// By value.
    pub placements: Vec<Placement>,
    /// The first step after everything; outputs and pinned values live up to it.
    pub end: Step,
    /// What the slot of each value that has one of its own asks for, views included.
    pub(super) alignments: Vec<u64>,
    /// What was taken in place, by operation.
    pub(super) taken: Vec<Candidate>,
    /// Indices into `taken`, by output.
    pub(super) taken_by_output: Vec<u32>,
    /// By buffer, the value whose slot it is.
    pub(super) owners: Vec<u32>,
    /// By operation, its step.
    pub(super) steps: Vec<u32>,
    /// For [`Graph::share_from`](super::Graph::share_from).
    pub(super) weights: Vec<Weight>,
}

impl Lowered {
    /// The largest alignment that anything in `arena` asks for, wherever it was placed: what the
    /// arena's own address must be a multiple of.
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

    /// The value that `buffer` is the slot of: the root of its views, and the first of those that
    /// took it over. Where several shared weights overlap, one of them.
    pub fn value_of(&self, buffer: BufferId) -> Option<ValueId> {
        self.owners.get(buffer.index()).map(|&v| ValueId(v))
    }

    /// When `op` runs.
    pub fn step(&self, op: OpId) -> Option<Step> {
        self.steps.get(op.index()).map(|&step| Step::from(step))
    }
}

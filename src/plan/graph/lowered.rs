//! A graph turned into a problem.

use super::value::{OpId, ValueId};
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
    /// Where another plan put it: a shared weight of a kind that this plan leaves out.
    At(Slot),
    /// Nowhere: its kind is left out, or nothing writes or reads it.
    Nowhere,
}

/// What [`Graph::lower`](super::Graph::lower) makes of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// One buffer for each slot: views and values that took over another's bytes have none of their own.
    pub problem: Problem,
    /// By value.
    pub placements: Vec<Placement>,
    /// The first step after everything; outputs and pinned values live up to it.
    pub end: Step,
}

impl Lowered {
    /// Where `value` is in `layout`, a layout of [`Lowered::problem`]. `None` if it has no slot.
    pub fn slot(&self, layout: &Layout, value: ValueId) -> Option<Slot> {
        match self.placements.get(value.index())? {
            Placement::In { buffer, offset } => {
                let slot = layout.slot(*buffer)?;
                Some(Slot { arena: slot.arena, offset: slot.offset.checked_add(*offset)? })
            }
            Placement::At(slot) => Some(*slot),
            Placement::Nowhere => None,
        }
    }

    /// The value whose bytes `output` took over, if a [`Graph::in_place`](super::Graph::in_place) with it was taken.
    pub fn took_over(&self, output: ValueId) -> Option<ValueId> {
        let _ = output;
        None
    }

    /// The pairs (input, output) of `op` that were taken in place.
    pub fn taken_in_place(&self, op: OpId) -> impl Iterator<Item = (ValueId, ValueId)> + '_ {
        let _ = op;
        std::iter::empty()
    }

    /// The value that `buffer` is the slot of: the root of its views, and the first of those that took it over.
    pub fn value_of(&self, buffer: BufferId) -> Option<ValueId> {
        let _ = buffer;
        None
    }

    /// When `op` runs.
    pub fn step(&self, op: OpId) -> Option<Step> {
        let _ = op;
        None
    }
}

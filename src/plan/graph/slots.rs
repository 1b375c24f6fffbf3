//! What becomes of values on the way to a problem.

use super::lowered::Placement;
use super::uses::Uses;
use super::views::Bytes;
use crate::base::Result;
use crate::plan::problem::{Buffer, BufferId, Interval, Problem, Step};

/// Families on their way to slots, each kept at its root.
pub(super) struct Slots {
    /// The root whose slot it is in, and at which offset: itself and 0 unless it took over
    /// another's bytes.
    pub(super) home: Vec<Bytes>,
    /// What is asked of the last family in a slot, at the slot's root: those before it are dead.
    pub(super) uses: Vec<Uses>,
    /// The live range of a slot, at its root. `None` if nothing writes or reads it.
    pub(super) ranges: Vec<Option<Interval>>,
    /// What a slot must be aligned to, at its root.
    pub(super) alignments: Vec<u64>,
    /// Whether an output took the slot over, at its root.
    pub(super) holds_output: Vec<bool>,
}

impl Slots {
    /// Puts the family of `output` into another slot.
    pub(super) fn merge(&mut self, output: u32, at: Bytes) {
        let (out, slot) = (output as usize, at.root as usize);
        self.home[out] = at;
        self.uses[slot] = self.uses[out];
        let added = self.ranges[out].map_or(0, |r| r.upper);
        if let Some(range) = &mut self.ranges[slot] {
            range.upper = range.upper.max(added);
        }
        self.alignments[slot] = self.alignments[slot].max(self.alignments[out]);
    }
}

/// A problem in the making.
pub(super) struct Draft {
    pub(super) problem: Problem,
    pub(super) end: Step,
    /// By root, where it is.
    pub(super) places: Vec<Placement>,
    /// By buffer, the value whose slot it is.
    pub(super) owners: Vec<u32>,
}

impl Draft {
    /// Adds the slot of `owner`.
    pub(super) fn add(&mut self, owner: u32, buffer: Buffer) -> Result<BufferId> {
        let id = self.problem.add(buffer)?;
        self.owners.push(owner);
        Ok(id)
    }
}

//! The intermediate state of lowering, from values to a problem.

use super::lowered::Placement;
use super::uses::Uses;
use super::views::Bytes;
use crate::base::Result;
use crate::plan::problem::{Buffer, BufferId, Interval, Problem, Step};

/// Families and slots, each at the index of its root.
pub(super) struct Slots {
    /// The root whose slot a family is in, and its offset there: itself and 0, unless it took over
    /// another's bytes.
    pub(super) home: Vec<Bytes>,
    /// Uses of the last family in a slot; families before it are dead.
    pub(super) uses: Vec<Uses>,
    /// The live range of a slot; `None` if nothing writes or reads it.
    pub(super) ranges: Vec<Option<Interval>>,
    /// The alignment of a slot.
    pub(super) alignments: Vec<u64>,
    /// Whether an output took the slot over.
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
    /// The placement of each root.
    pub(super) places: Vec<Placement>,
    /// The value whose slot each buffer is.
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

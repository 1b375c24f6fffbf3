//! Lowers a graph to a problem.

use super::builder::Graph;
use super::lowered::{Lowered, Placement, Weight};
use super::shared_slots::SharedSlots;
use super::slots::{Draft, Slots};
use super::views::Bytes;
use crate::base::Result;
use crate::plan::problem::{Kind, Place};

impl Graph {
    /// Makes the problem whose layouts are layouts of this graph. The graph stays as it is.
    ///
    /// Apart from sorting, takes time linear in the number of values and of inputs and outputs.
    /// Does not recurse.
    pub fn lower(&self) -> Result<Lowered> {
        let schedule = self.schedule();
        let end = self.end();
        let roots = self.views.flatten();
        let alignments = self.slot_alignments(&roots)?;
        let mut uses = self.uses(&schedule, &roots)?;
        self.keep_ancestors(&roots, &mut uses);
        let ranges = self.ranges(&roots, &uses, end)?;
        let shared = self.shared_slots(&roots, &alignments)?;
        let mut slots = Slots {
            home: (0..roots.len() as u32).map(|root| Bytes { root, offset: 0 }).collect(),
            uses,
            ranges,
            alignments,
            holds_output: vec![false; roots.len()],
        };
        let mut taken = self.take_in_place(&schedule, &roots, &mut slots);

        let places = vec![Placement::Nowhere; roots.len()];
        let mut draft = Draft { problem: self.problem.clone(), end, places, owners: Vec::new() };
        self.add_slots(&slots, &roots, &shared, &mut draft)?;
        shared.add(self, &slots.alignments, &mut draft)?;
        let Draft { problem, places, owners, .. } = draft;
        let placements: Vec<Placement> = roots
            .iter()
            .map(|from| {
                let home = slots.home[from.root as usize];
                places[home.root as usize].at(home.offset + from.offset)
            })
            .collect();
        let weights = self.weights(&shared, &roots, &placements, end);
        taken.sort_by_key(|c| c.op);
        let mut taken_by_output: Vec<u32> = (0..taken.len() as u32).collect();
        taken_by_output.sort_by_key(|&i| taken[i as usize].output);
        Ok(Lowered {
            problem,
            placements,
            end,
            taken,
            taken_by_output,
            owners,
            steps: schedule.steps,
            weights,
            alignments: slots.alignments,
        })
    }

    /// Adds a buffer for every slot that is not shared.
    fn add_slots(&self, slots: &Slots, roots: &[Bytes], shared: &SharedSlots, draft: &mut Draft) -> Result<()> {
        for (v, item) in self.values.iter().enumerate() {
            let Some(range) = slots.ranges[v] else { continue };
            if roots[v].root as usize != v || slots.home[v].root as usize != v || shared.of(v as u32).is_some() {
                continue;
            }
            let mut buffer = item.buffer.clone();
            (buffer.lower, buffer.upper) = (range.lower, range.upper);
            buffer.alignment = slots.alignments[v];
            // Drop a preferred place that breaks the alignment of a view: alignment is a
            // requirement.
            if matches!(buffer.place, Place::Preferred(offset) if !offset.is_multiple_of(buffer.alignment)) {
                buffer.place = Place::Anywhere;
            }
            if slots.holds_output[v] {
                buffer.kind = Kind::Output;
            }
            let left_out = draft.problem.left_out().contains(buffer.kind);
            let id = draft.add(v as u32, buffer).map_err(|e| e.context(self.value_text(v as u32)))?;
            if !left_out {
                draft.places[v] = Placement::In { buffer: id, offset: 0 };
            }
        }
        Ok(())
    }

    /// The weights that another plan may share: those that live throughout, and those that this
    /// plan shares itself.
    fn weights(&self, shared: &SharedSlots, roots: &[Bytes], placements: &[Placement], end: u64) -> Vec<Weight> {
        let mut weights = shared.unowned(self);
        for (v, item) in self.values.iter().enumerate() {
            let b = &item.buffer;
            let is_root = roots[v].root as usize == v;
            let root = &self.values[roots[v].root as usize];
            let throughout = !root.stated
                || (root.buffer.lower == 0 && root.buffer.upper >= end && root.buffer.gaps.is_empty())
                || shared.of(roots[v].root).is_some();
            if matches!(b.kind, Kind::Parameter | Kind::Constant)
                && throughout
                && (is_root || b.name.is_some())
                && placements[v] != Placement::Nowhere
            {
                // The guard of a shared weight is the largest of the plans that share it.
                let known = b.name.as_ref().and_then(|name| self.shares.named.get(name));
                let guard = b.guard.max(known.map_or(0, |known| known.guard));
                weights.push(Weight { name: b.name.clone(), size: b.size, guard, place: placements[v] });
            }
        }
        weights
    }
}

impl Placement {
    /// This placement, moved up by `offset` bytes.
    fn at(self, offset: u64) -> Placement {
        match self {
            Placement::In { buffer, offset: start } => Placement::In { buffer, offset: start + offset },
            Placement::At(mut slot) => {
                slot.offset += offset;
                Placement::At(slot)
            }
            Placement::Nowhere => Placement::Nowhere,
        }
    }
}

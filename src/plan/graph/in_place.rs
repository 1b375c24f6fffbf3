//! Values written over an input that dies there.

use super::builder::Graph;
use super::order::Schedule;
use super::slots::Slots;
use super::value::{Candidate, OpId, ValueId};
use super::views::Bytes;
use crate::base::{Error, Result};
use crate::plan::problem::{Kind, Place};
use std::collections::BTreeMap;

impl Graph {
    /// States that `op` may write `output` over `input`, starting at the input's first byte. This
    /// suits element-wise operations.
    ///
    /// Lowering does so where it can, earlier statements first; otherwise the output is an ordinary
    /// value. [`Lowered::took_over`](super::Lowered::took_over) tells which. It can when all of
    /// these hold:
    /// - the input, its root and all its views are temporary, and nothing reads, writes or keeps
    ///   any of them after `op`;
    /// - `op` uses no other value in the same slot, so neither a second view of the root nor the
    ///   root itself;
    /// - the output, placed at the input's offset, is aligned and ends inside the slot;
    /// - the output is a temporary or an output, not a view, and first written by `op`. It has at
    ///   least one byte, no range or place of its own, no left-out kind, and no arena that the slot
    ///   is not bound to;
    /// - reuse is on.
    ///
    /// Output and input then share a slot, as large as the input's root and live for both. Do not
    /// state it if the root is much larger than the output and the output lives long: that costs
    /// memory.
    pub fn in_place(&mut self, op: OpId, input: ValueId, output: ValueId) -> Result<()> {
        if op.index() >= self.op_count() {
            return Err(Error::invalid(format!(
                "operation {op} does not exist; there are {}, numbered from 0",
                self.op_count()
            )));
        }
        self.known(input)?;
        self.known(output)?;
        let (inputs, outputs) = (self.inputs.get(op.index()), self.outputs.get(op.index()));
        for (value, role, is_there) in [
            (input, "input", inputs.binary_search(&input.0).is_ok()),
            (output, "output", outputs.binary_search(&output.0).is_ok()),
        ] {
            if !is_there {
                return Err(Error::invalid(format!(
                    "{} is no {role} of {}; in place is from one of its inputs to one of its outputs",
                    self.value_text(value.0),
                    self.op_text(op.0)
                )));
            }
        }
        if input == output {
            return Err(Error::invalid(format!(
                "{} is both input and output of {}, which updates it in place without being told to",
                self.value_text(input.0),
                self.op_text(op.0)
            )));
        }
        self.in_place.push(Candidate { op, input, output });
        Ok(())
    }

    /// Merges slots where outputs can be written over inputs, in execution order, so that a chain
    /// gets one slot. Returns the candidates taken.
    pub(super) fn take_in_place(&self, schedule: &Schedule, roots: &[Bytes], slots: &mut Slots) -> Vec<Candidate> {
        if !self.problem.reuse() {
            return Vec::new();
        }
        let mut candidates = self.in_place.clone();
        candidates.sort_by_key(|c| schedule.steps[c.op.index()]);
        let mut taken = Vec::new();
        for group in candidates.chunk_by(|a, b| a.op == b.op) {
            let op = group[0].op;
            // The number of the operation's values in each slot. An update counts twice.
            let mut touched = BTreeMap::<u32, u32>::new();
            for &v in self.inputs.get(op.index()).iter().chain(self.outputs.get(op.index())) {
                *touched.entry(slots.home[roots[v as usize].root as usize].root).or_default() += 1;
            }
            for &candidate in group {
                let from = roots[candidate.input.index()];
                let home = slots.home[from.root as usize];
                let at = Bytes { root: home.root, offset: home.offset + from.offset };
                let alone = touched.get(&home.root) == Some(&1);
                if alone && self.can_take(schedule, roots, slots, candidate, at) {
                    slots.merge(candidate.output.0, at);
                    if self.values[candidate.output.index()].buffer.kind == Kind::Output {
                        slots.holds_output[at.root as usize] = true;
                    }
                    let moved = touched.remove(&candidate.output.0).unwrap_or_default();
                    *touched.entry(at.root).or_default() += moved;
                    taken.push(candidate);
                }
            }
        }
        taken
    }

    /// Whether the output of `candidate` can be at `at`, where its input is. No other value of the
    /// operation is in that slot.
    fn can_take(&self, schedule: &Schedule, roots: &[Bytes], slots: &Slots, candidate: Candidate, at: Bytes) -> bool {
        let step = schedule.step(candidate.op.0);
        let slot = at.root as usize;
        let out = candidate.output.index();
        let (input, root, output) =
            (&self.values[roots[candidate.input.index()].root as usize], &self.values[slot], &self.values[out]);
        let left_out = self.problem.left_out();
        let is_free = |kind| !left_out.contains(kind);
        let dies = slots.uses[slot].used == step + 1 && slots.uses[slot].held <= step && !slots.uses[slot].to_end;
        let input_allows = dies && !input.given() && !root.given() && is_free(root.buffer.kind);
        // A view has no range of its own, so it is refused as well.
        let output_allows = slots.home[out].root as usize == out
            && slots.ranges[out].is_some_and(|r| r.lower == step)
            && !output.given()
            && is_free(output.buffer.kind)
            && output.buffer.size > 0
            && output.buffer.place == Place::Anywhere
            && (output.buffer.arena.is_none() || output.buffer.arena == root.buffer.arena);
        let fits = at.offset + output.buffer.size <= root.buffer.size
            && at.offset + output.buffer.extent() <= root.buffer.extent();
        let raised = slots.alignments[slot].max(slots.alignments[out]);
        let aligned = at.offset.is_multiple_of(slots.alignments[out])
            && at.offset.is_multiple_of(self.problem.unit())
            && match root.buffer.place {
                Place::Anywhere => true,
                Place::Fixed(offset) | Place::Preferred(offset) => offset.is_multiple_of(raised),
            };
        input_allows && output_allows && fits && aligned
    }
}

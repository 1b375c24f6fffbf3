//! Ancestors: values that must live to the end because others were computed from them.

use super::builder::Graph;
use super::lists::Lists;
use super::uses::Uses;
use super::value::NONE;
use super::views::Bytes;
use crate::plan::problem::Kind;

impl Graph {
    /// Marks the ancestors to keep. A write to any part of a family counts for all of it.
    pub(super) fn keep_ancestors(&self, roots: &[Bytes], uses: &mut [Uses]) {
        let outputs = (0..self.values.len() as u32)
            .filter(|&v| self.keep_ancestors && self.values[v as usize].buffer.kind == Kind::Output);
        let starts: Vec<u32> = outputs.chain(self.pinned_ancestors.iter().map(|v| v.0)).collect();
        if starts.is_empty() {
            return;
        }
        let ops = 0..self.op_count();
        let writes = ops.flat_map(|op| self.outputs.get(op).iter().map(move |&v| (roots[v as usize].root, op as u32)));
        let writers = Lists::grouped(self.values.len(), writes);
        let mut pending = Vec::new();
        for v in starts {
            let root = roots[v as usize].root;
            uses[root as usize].to_end |= self.views.parent(v) != NONE;
            pending.push(root);
        }
        let mut family_done = vec![false; self.values.len()];
        let mut op_done = vec![false; self.op_count()];
        while let Some(root) = pending.pop() {
            if std::mem::replace(&mut family_done[root as usize], true) {
                continue;
            }
            for &op in writers.get(root as usize) {
                if std::mem::replace(&mut op_done[op as usize], true) {
                    continue;
                }
                for &input in self.inputs.get(op as usize) {
                    let ancestor = roots[input as usize].root;
                    uses[ancestor as usize].to_end = true;
                    pending.push(ancestor);
                }
            }
        }
    }
}

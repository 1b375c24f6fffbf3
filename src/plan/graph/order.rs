//! The execution order.

use super::builder::Graph;
use super::value::{OpId, NONE};
use crate::base::{Error, Result};
use crate::plan::problem::Step;

/// When each operation runs. `ops[steps[op]] == op`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    /// The operation that runs at each step.
    pub(super) ops: Vec<u32>,
    /// The step of each operation.
    pub(super) steps: Vec<u32>,
}

impl Schedule {
    /// The step at which `op` runs.
    pub(super) fn step(&self, op: u32) -> Step {
        Step::from(self.steps[op as usize])
    }

    /// Each (step, operation), in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Step, u32)> + '_ {
        self.ops.iter().enumerate().map(|(step, &op)| (step as Step, op))
    }
}

impl Graph {
    /// States the execution order: every operation added so far, each once. Operations added later
    /// run after them, in order of adding.
    pub fn set_order(&mut self, order: &[OpId]) -> Result<()> {
        let count = self.op_count();
        let mut positions = vec![NONE; count];
        for (position, op) in order.iter().enumerate() {
            let Some(first) = positions.get_mut(op.index()) else {
                return Err(Error::invalid(format!(
                    "execution order: operation {op} at position {position} does not exist; there are {count}, numbered \
                     from 0"
                )));
            };
            if *first != NONE {
                return Err(Error::invalid(format!(
                    "execution order: {} is in it twice, at positions {first} and {position}",
                    self.op_text(op.0)
                )));
            }
            *first = position as u32;
        }
        if let Some(missing) = positions.iter().position(|&p| p == NONE) {
            return Err(Error::invalid(format!(
                "execution order: {} is missing; the order has {} of {count} operations and needs each once",
                self.op_text(missing as u32),
                order.len()
            )));
        }
        self.order = order.to_vec();
        Ok(())
    }

    pub(super) fn schedule(&self) -> Schedule {
        let stated = self.order.iter().map(|op| op.0);
        let ops: Vec<u32> = stated.chain(self.order.len() as u32..self.op_count() as u32).collect();
        let mut steps = vec![0; ops.len()];
        for (step, &op) in ops.iter().enumerate() {
            steps[op as usize] = step as u32;
        }
        Schedule { ops, steps }
    }

    /// The first step after everything.
    pub(super) fn end(&self) -> Step {
        let ranges = self.values.iter().filter(|v| v.stated).map(|v| v.buffer.upper);
        let extended = self.extended.iter().map(|&(_, step)| step + 1);
        ranges.chain(extended).fold((self.op_count() as Step).max(1), Step::max)
    }
}

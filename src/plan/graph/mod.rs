//! Operations and values, from which a [`Problem`] is derived.

mod lowered;
mod value;

pub use lowered::{Lowered, Placement};
pub use value::{OpId, Preset, Value, ValueId};

use super::layout::Layout;
use super::problem::{Arena, Buffer, Kinds, Problem, Reserved, Step};
use crate::base::{Error, Result};

/// Values, the operations that make them, and what is asked of both.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    problem: Problem,
    values: Vec<Buffer>,
}

fn unfinished<T>() -> Result<T> {
    Err(Error::internal("not built yet"))
}

#[allow(unused_variables)]
impl Graph {
    /// No values, no operations, one arena without a capacity.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds a value whose live range is derived.
    pub fn add_value(&mut self, value: Value) -> Result<ValueId> {
        let _ = &self.values;
        let _ = value.into_buffer();
        unfinished()
    }

    /// Adds a value that lives exactly in the range that `buffer` states. Operations are not needed for it.
    pub fn add_buffer(&mut self, buffer: Buffer) -> Result<ValueId> {
        unfinished()
    }

    /// Adds an operation. It runs after those that were added before, unless [`Graph::set_order`] says otherwise.
    pub fn add_op(&mut self, name: Option<&str>, inputs: &[ValueId], outputs: &[ValueId]) -> Result<OpId> {
        unfinished()
    }

    /// States the execution order: every operation added so far, once. Those added later run after them.
    pub fn set_order(&mut self, order: &[OpId]) -> Result<()> {
        unfinished()
    }

    /// States that `child` is bytes `[offset, offset + its size)` of `parent`.
    pub fn view(&mut self, child: ValueId, parent: ValueId, offset: u64) -> Result<()> {
        unfinished()
    }

    /// States that `op` may write `output` over `input`.
    pub fn in_place(&mut self, op: OpId, input: ValueId, output: ValueId) -> Result<()> {
        unfinished()
    }

    /// Whether everything that outputs were computed from lives to the end.
    pub fn keep_ancestors_of_outputs(&mut self, keep: bool) {}

    /// Keeps `value` live through step `step`, as an operation that reads it then would.
    pub fn extend_to(&mut self, value: ValueId, step: Step) -> Result<()> {
        unfinished()
    }

    /// Keeps `value` live from its birth to the end.
    pub fn pin(&mut self, value: ValueId) -> Result<()> {
        unfinished()
    }

    /// Keeps everything that `value` was computed from live to the end, but not `value` itself.
    pub fn pin_ancestors(&mut self, value: ValueId) -> Result<()> {
        unfinished()
    }

    /// Kinds that get no slot: their memory is the caller's business.
    pub fn leave_out(&mut self, kinds: Kinds) {
        self.problem.leave_out(kinds);
    }

    /// Sets what belongs together: see [`Preset`].
    pub fn apply(&mut self, preset: Preset) {}

    /// States that another plan has the weight `name` at these bytes.
    pub fn share(&mut self, name: &str, arena: u32, offset: u64, size: u64) -> Result<()> {
        unfinished()
    }

    /// Shares every parameter and constant that `layout` has a slot for, and returns how many.
    pub fn share_from(&mut self, other: &Lowered, layout: &Layout) -> Result<usize> {
        unfinished()
    }

    /// [`Problem::set_capacity`].
    pub fn set_capacity(&mut self, capacity: Option<u64>) {
        self.problem.set_capacity(capacity);
    }

    /// [`Problem::add_arena`].
    pub fn add_arena(&mut self, arena: Arena) -> u32 {
        self.problem.add_arena(arena)
    }

    /// [`Problem::reserve`].
    pub fn reserve(&mut self, reserved: Reserved) -> Result<()> {
        self.problem.reserve(reserved)
    }

    /// [`Problem::set_reuse`]. Without reuse no operation is taken in place either.
    pub fn set_reuse(&mut self, reuse: bool) {
        self.problem.set_reuse(reuse);
    }

    /// [`Problem::set_unit`].
    pub fn set_unit(&mut self, unit: u64) -> Result<()> {
        self.problem.set_unit(unit)
    }

    /// How many values there are; their numbers are below.
    pub fn value_count(&self) -> usize {
        0
    }

    /// How many operations there are; their numbers are below.
    pub fn op_count(&self) -> usize {
        0
    }

    /// The problem whose layouts are layouts of this graph. The graph stays usable.
    pub fn lower(&self) -> Result<Lowered> {
        unfinished()
    }
}

//! A graph as stated: its operations and values, as added.

use super::lists::Lists;
use super::shares::Shares;
use super::value::{Candidate, OpId, Preset, Value, ValueId, NONE};
use super::views::Views;
use crate::base::{Error, Result};
use crate::plan::problem::{Arena, Buffer, Kind, Kinds, Problem, Reserved, Step, MAX_BUFFERS};

/// A value as it was added.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The buffer that it becomes. Lowering fills in a derived range.
    pub(super) buffer: Buffer,
    /// Whether the caller stated the range.
    pub(super) stated: bool,
    /// Whether it takes the graph's alignment, which applies to slots and not to views.
    pub(super) aligned_by_graph: bool,
}

impl Item {
    /// Whether its bytes have contents that no operation wrote.
    pub(super) fn given(&self) -> bool {
        self.stated || matches!(self.buffer.kind, Kind::Input | Kind::Parameter | Kind::Constant)
    }
}

/// Values, the operations that write and read them, and requests about both.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Arenas, reserved ranges and settings; no buffers.
    pub(super) problem: Problem,
    pub(super) values: Vec<Item>,
    /// By value, the operation that writes it without reading it, or `NONE`.
    pub(super) producers: Vec<u32>,
    pub(super) views: Views,
    pub(super) op_names: Vec<Option<Box<str>>>,
    /// The inputs of each operation, in order of number and each once.
    pub(super) inputs: Lists,
    /// The outputs of each operation, likewise in order and each once.
    pub(super) outputs: Lists,
    /// The stated order; operations that are not in it follow in order of adding.
    pub(super) order: Vec<OpId>,
    pub(super) in_place: Vec<Candidate>,
    /// Values, and the last step at which each must be intact.
    pub(super) extended: Vec<(ValueId, Step)>,
    pub(super) pinned: Vec<ValueId>,
    pub(super) pinned_ancestors: Vec<ValueId>,
    pub(super) keep_ancestors: bool,
    pub(super) shares: Shares,
    /// The alignment of values added without one; 0 means 1.
    pub(super) alignment: u64,
}

impl Graph {
    /// An empty graph, with one arena without a capacity.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds a value whose live range is derived.
    pub fn add_value(&mut self, value: Value) -> Result<ValueId> {
        self.add_item(value.into_buffer(), false)
    }

    /// Adds a value that is live exactly in the range that `buffer` states, whatever its kind. It
    /// needs no operations; one that uses it must run inside the range and outside its gaps. The
    /// caller fills it at first and after each gap, unless an operation does.
    pub fn add_buffer(&mut self, buffer: Buffer) -> Result<ValueId> {
        self.add_item(buffer, true)
    }

    /// Sets the alignment, a power of two, of values added later with an alignment of 0. Values
    /// that become views do not need it.
    pub fn set_alignment(&mut self, alignment: u64) {
        self.alignment = alignment;
    }

    fn add_item(&mut self, mut buffer: Buffer, stated: bool) -> Result<ValueId> {
        let aligned_by_graph = buffer.alignment == 0;
        if aligned_by_graph {
            buffer.alignment = self.alignment.max(1);
        }
        let id = self.values.len();
        if id >= MAX_BUFFERS {
            return Err(Error::invalid(format!("a graph holds at most {MAX_BUFFERS} values")));
        }
        let what = if stated { "buffer" } else { "value" };
        buffer.check(self.problem.arenas().len()).map_err(|e| match &buffer.name {
            Some(name) => e.context(format_args!("{what} {id} ({name})")),
            None => e.context(format_args!("{what} {id}")),
        })?;
        self.views.push();
        self.values.push(Item { buffer, stated, aligned_by_graph });
        self.producers.push(NONE);
        Ok(ValueId(id as u32))
    }

    /// Adds an operation that reads `inputs` and writes `outputs`. It runs after those that were
    /// added before, unless [`Graph::set_order`] says otherwise.
    ///
    /// A value may be named as input several times, and as output once. One that is both is
    /// *updated*: the operation reads it and leaves new contents in its bytes. Besides updates, one
    /// operation at most writes a value.
    pub fn add_op(&mut self, name: Option<&str>, inputs: &[ValueId], outputs: &[ValueId]) -> Result<OpId> {
        let id = self.op_names.len();
        if id >= MAX_BUFFERS {
            return Err(Error::invalid(format!("a graph holds at most {MAX_BUFFERS} operations")));
        }
        let own = || name.map_or(format!("operation {id}"), |name| format!("operation {id} ({name})"));
        for (values, role) in [(inputs, "input"), (outputs, "output")] {
            if let Some(unknown) = values.iter().find(|v| v.index() >= self.values.len()) {
                let count = self.values.len();
                return Err(Error::invalid(format!(
                    "{}: its {role} {unknown} is no value; there are {count}, numbered from 0",
                    own()
                )));
            }
        }
        let mut reads: Vec<u32> = inputs.iter().map(|v| v.0).collect();
        reads.sort_unstable();
        reads.dedup();
        let mut writes: Vec<u32> = outputs.iter().map(|v| v.0).collect();
        writes.sort_unstable();
        if let Some(twice) = writes.windows(2).find(|w| w[0] == w[1]) {
            return Err(Error::invalid(format!("{} has {} as an output twice", own(), self.value_text(twice[0]))));
        }
        let is_update = |v: u32| reads.binary_search(&v).is_ok();
        for &v in writes.iter().filter(|&&v| !is_update(v)) {
            let other = self.producers[v as usize];
            if other != NONE {
                return Err(Error::invalid(format!(
                    "{} and {} both produce {}; give each a value of its own, or make it an input too if it is updated",
                    self.op_text(other),
                    own(),
                    self.value_text(v)
                )));
            }
        }
        for &v in writes.iter().filter(|&&v| !is_update(v)) {
            self.producers[v as usize] = id as u32;
        }
        self.inputs.push(reads);
        self.outputs.push(writes);
        self.op_names.push(name.map(Into::into));
        Ok(OpId(id as u32))
    }

    /// Sets whether all ancestors of outputs live to the end, as [`Graph::pin_ancestors`] does for
    /// one value. Off at first.
    pub fn set_keep_ancestors(&mut self, keep: bool) {
        self.keep_ancestors = keep;
    }

    /// Keeps `value` intact through step `step` of the execution order, as if an operation at that
    /// step read it. It never shortens a range. A step after the last operation moves the end. It
    /// cannot extend a stated range: the step must be in it.
    pub fn extend_to(&mut self, value: ValueId, step: Step) -> Result<()> {
        self.known(value)?;
        // A value with a stated range stays the root of its family, so this can be checked now.
        let root = self.views.find(value.0).root;
        self.check_extension(value.0, root, step)?;
        if step == Step::MAX {
            return Err(Error::invalid(format!(
                "{} cannot be extended to step {step}: no step is after it",
                self.value_text(value.0)
            )));
        }
        self.extended.push((value, step));
        Ok(())
    }

    /// Keeps `value` live from its birth to the end.
    pub fn pin(&mut self, value: ValueId) -> Result<()> {
        self.known(value)?;
        self.pinned.push(value);
        Ok(())
    }

    /// Keeps everything that `value` was computed from live to the end, for readers that come
    /// later: the inputs of the operations that wrote it, what those were computed from, and so on.
    /// `value` itself is kept only if it is a view, because its parent is an ancestor.
    ///
    /// Only a value's last contents are kept: an operation that updates it may discard earlier
    /// ones.
    pub fn pin_ancestors(&mut self, value: ValueId) -> Result<()> {
        self.known(value)?;
        self.pinned_ancestors.push(value);
        Ok(())
    }

    /// Sets the kinds that get no slot, because the caller provides their memory. A view follows
    /// its root, and a shared weight keeps its slot.
    pub fn set_left_out(&mut self, kinds: Kinds) {
        self.problem.set_left_out(kinds);
    }

    /// Replaces settings that belong together: see [`Preset`].
    pub fn set_preset(&mut self, preset: Preset) {
        let (left_out, keep) = match preset {
            Preset::Inference => (Kinds::NONE.with(Kind::Parameter).with(Kind::Input).with(Kind::Constant), false),
            Preset::Backward => (Kinds::NONE, true),
        };
        self.set_left_out(left_out);
        self.set_keep_ancestors(keep);
    }

    /// [`Problem::set_capacity`].
    pub fn set_capacity(&mut self, capacity: Option<u64>) {
        self.problem.set_capacity(capacity);
    }

    /// [`Problem::set_arena_capacity`].
    pub fn set_arena_capacity(&mut self, arena: u32, capacity: Option<u64>) -> Result<()> {
        self.problem.set_arena_capacity(arena, capacity)
    }

    /// [`Problem::add_arena`].
    pub fn add_arena(&mut self, arena: Arena) -> u32 {
        self.problem.add_arena(arena)
    }

    /// [`Problem::reserve`].
    pub fn reserve(&mut self, reserved: Reserved) -> Result<()> {
        self.problem.reserve(reserved)
    }

    /// [`Problem::set_reuse`]. Without reuse nothing is written over an input either.
    pub fn set_reuse(&mut self, reuse: bool) {
        self.problem.set_reuse(reuse);
    }

    /// [`Problem::set_unit`]. It applies to slots; a view keeps its stated offset in its root's
    /// slot.
    pub fn set_unit(&mut self, unit: u64) -> Result<()> {
        self.problem.set_unit(unit)
    }

    /// The number of values; their indices are below it.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// The number of operations; their indices are below it.
    pub fn op_count(&self) -> usize {
        self.op_names.len()
    }

    /// The name that `value` was given.
    pub fn name(&self, value: ValueId) -> Option<&str> {
        self.values.get(value.index())?.buffer.name.as_deref()
    }

    /// Fails if there is no such value.
    pub(super) fn known(&self, value: ValueId) -> Result<()> {
        if value.index() >= self.values.len() {
            return Err(Error::invalid(format!(
                "value {value} does not exist; there are {}, numbered from 0",
                self.values.len()
            )));
        }
        Ok(())
    }

    pub(super) fn value_text(&self, value: u32) -> String {
        match self.name(ValueId(value)) {
            Some(name) => format!("value {value} ({name})"),
            None => format!("value {value}"),
        }
    }

    pub(super) fn op_text(&self, op: u32) -> String {
        match self.op_names.get(op as usize) {
            Some(Some(name)) => format!("operation {op} ({name})"),
            _ => format!("operation {op}"),
        }
    }
}

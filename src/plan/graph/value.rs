//! Values and operations of a graph, by index, and requests about them.

use crate::plan::problem::{Buffer, Kind, Place};
use std::fmt;

/// No value, no operation.
pub(super) const NONE: u32 = u32::MAX;

/// A value of a graph: its index, in the order of adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// An operation of a graph: its index, in the order of adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u32);

impl ValueId {
    /// As an index into what is kept per value.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl OpId {
    /// As an index into what is kept per operation.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An input that `op` may write `output` over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) op: OpId,
    pub(super) input: ValueId,
    pub(super) output: ValueId,
}

/// A tensor whose live range follows from the operations that write and read it.
///
/// For a known range, see [`Graph::add_buffer`](super::Graph::add_buffer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Bytes, without the guard.
    pub size: u64,
    /// Its offset is a multiple of this power of two; 0 for the graph's alignment.
    pub alignment: u64,
    /// Bytes after it that nothing else may use while it is live.
    pub guard: u64,
    /// Where it may go.
    pub place: Place,
    /// The arena it must be in; `None` for the first with room.
    pub arena: Option<u32>,
    /// What it is for.
    pub kind: Kind,
    /// A name for people, and for sharing with another plan.
    pub name: Option<Box<str>>,
}

impl Value {
    /// A temporary of `size` bytes that may go anywhere.
    pub fn new(size: u64) -> Value {
        Value { size, alignment: 1, guard: 0, place: Place::Anywhere, arena: None, kind: Kind::Temporary, name: None }
    }

    /// The buffer that it becomes, not yet live at any step.
    pub(super) fn into_buffer(self) -> Buffer {
        Buffer {
            alignment: self.alignment,
            guard: self.guard,
            place: self.place,
            arena: self.arena,
            kind: self.kind,
            name: self.name,
            ..Buffer::new(self.size, 0, 0)
        }
    }
}

/// Settings that belong together: see [`Graph::set_preset`](super::Graph::set_preset).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Preset {
    /// Plans only what the run itself needs: parameters, inputs and constants are left out, because
    /// they already have memory. Outputs live to the end, and their ancestors only as long as
    /// something reads them.
    Inference = 0,
    /// A backward pass comes later and reads what the outputs were computed from: no kind is left
    /// out, and all ancestors of outputs live to the end. This can take many times the memory of
    /// [`Preset::Inference`].
    Backward = 1,
}

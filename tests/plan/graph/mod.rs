//! The graph front end of the planner: what it derives, what it refuses, and random graphs that are
//! executed on the bytes that it gave them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod in_place;
mod keeping;
mod lifetimes;
mod machine;
mod packer;
mod program;
mod random;
mod refusals;
mod scale;
mod shared;
mod shared_random;
mod views;

use gpumem::plan::{Buffer, Graph, Interval, Kind, Lowered, OpId, Placement, Value, ValueId};
use test_support::Rng;

/// A graph with short words for what the tests say often. Values are named so that errors can be
/// checked for names.
#[derive(Default)]
struct Small(Graph);

impl Small {
    fn value(&mut self, name: &str, kind: Kind, size: u64) -> ValueId {
        self.0.add_value(Value { kind, name: Some(name.into()), ..Value::new(size) }).unwrap()
    }

    fn temporary(&mut self, name: &str, size: u64) -> ValueId {
        self.value(name, Kind::Temporary, size)
    }

    fn buffer(&mut self, name: &str, size: u64, lower: u64, upper: u64) -> ValueId {
        self.0.add_buffer(Buffer { name: Some(name.into()), ..Buffer::new(size, lower, upper) }).unwrap()
    }

    fn op(&mut self, name: &str, inputs: &[ValueId], outputs: &[ValueId]) -> OpId {
        self.0.add_op(Some(name), inputs, outputs).unwrap()
    }

    fn lower(&self) -> Lowered {
        self.0.lower().unwrap()
    }
}

/// The buffer that a value is in.
#[track_caller]
fn buffer_of(lowered: &Lowered, value: ValueId) -> &Buffer {
    match lowered.placements[value.index()] {
        Placement::In { buffer, .. } => &lowered.problem.buffers()[buffer.index()],
        other => panic!("value {value} is {other:?}"),
    }
}

/// The live range of the slot that a value is in.
#[track_caller]
fn range(lowered: &Lowered, value: ValueId) -> Interval {
    let b = buffer_of(lowered, value);
    Interval::new(b.lower, b.upper)
}

/// Checks that an error's text has every part.
#[track_caller]
fn says<T: std::fmt::Debug>(result: gpumem::base::Result<T>, parts: &[&str]) {
    let text = result.expect_err("no error").message;
    for part in parts {
        assert!(text.contains(part), "{text:?} does not have {part:?}");
    }
}

//! Layouts computed ahead of a run.

pub mod buffers;
pub mod graph;
pub mod memory;
pub mod report;
pub mod solve;
mod state;

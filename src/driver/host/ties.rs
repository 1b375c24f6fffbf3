//! Tokens that are tied to a graph.

#![deny(unsafe_code)]

use crate::driver::graph::Gone;
use std::sync::Arc;

/// The tokens of a graph. Given back when their last holder goes: the capture, the graph, or a
/// launch in flight.
pub(super) struct Ties {
    pub(super) tokens: Vec<u64>,
    pub(super) gone: Arc<Gone>,
}

impl Drop for Ties {
    fn drop(&mut self) {
        self.gone.add(&self.tokens);
    }
}

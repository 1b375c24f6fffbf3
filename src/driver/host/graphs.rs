//! The table of graphs.

#![deny(unsafe_code)]

use super::events::Mark;
use super::op::Work;
use super::ties::Ties;
use crate::base::{DeviceId, Error, Result};
use crate::driver::graph::Gone;
use crate::driver::GraphHandle;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A piece of captured work: a kernel, a copy or a fill.
pub(super) struct Node {
    pub(super) label: Cow<'static, str>,
    pub(super) work: Work,
    pub(super) reads: Vec<Range<u64>>,
    pub(super) writes: Vec<Range<u64>>,
}

/// One graph.
pub(super) struct Graph {
    pub(super) dev: DeviceId,
    pub(super) nodes: Arc<[Node]>,
    pub(super) ties: Arc<Ties>,
    /// Where the last launch ends; the next one waits for it.
    pub(super) last: Option<Mark>,
}

/// All graphs. One counter numbers captures, the graphs that they make and handles, so none is
/// mistaken for another.
#[derive(Default)]
pub(super) struct Graphs {
    pub(super) list: HashMap<u64, Graph>,
    pub(super) last: u64,
    pub(super) gone: Arc<Gone>,
}

impl Graphs {
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn ties(&self) -> Ties {
        Ties { tokens: Vec::new(), gone: self.gone.clone() }
    }

    pub(super) fn add(&mut self, dev: DeviceId, nodes: Vec<Node>, ties: Ties) -> GraphHandle {
        let handle = self.number();
        self.list.insert(handle, Graph { dev, nodes: nodes.into(), ties: Arc::new(ties), last: None });
        GraphHandle(handle)
    }

    pub(super) fn get(&mut self, g: GraphHandle) -> Result<&mut Graph> {
        self.list
            .get_mut(&g.0)
            .ok_or_else(|| Error::invalid(format!("graph {} was never made, or has been destroyed", g.0)))
    }

    pub(super) fn of(&mut self, dev: DeviceId, g: GraphHandle) -> Result<&mut Graph> {
        let graph = self.get(g)?;
        if graph.dev != dev {
            return Err(Error::invalid(format!("graph {} was captured on device {}, not {dev}", g.0, graph.dev)));
        }
        Ok(graph)
    }
}

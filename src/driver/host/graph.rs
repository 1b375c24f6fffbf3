//! Graphs: work that was captured, to be submitted again and again.
//!
//! A launch submits the nodes to the launching stream one by one, so each is checked then: for live
//! ranges when the graph is launched, for mappings and races when the node runs.

#![deny(unsafe_code)]

use super::device::HostDriver;
use super::events::Mark;
use super::graphs::Node;
use super::op::Submission;
use super::state::State;
use super::ties::Ties;
use crate::base::{DeviceId, Result, StreamHandle};
use crate::driver::{GraphHandle, GraphNodes};
use std::sync::Arc;

impl State {
    fn launch(&mut self, dev: DeviceId, g: GraphHandle, lane: usize) -> Result<()> {
        let graph = self.graphs.of(dev, g)?;
        let (nodes, ties, last) = (graph.nodes.clone(), graph.ties.clone(), graph.last.take());
        let launched = self.submit_nodes(lane, &nodes, &ties, last.as_ref());
        let mark = match launched {
            Ok(()) if !nodes.is_empty() => Some(self.lanes.get(lane)?.mark(lane)),
            Ok(()) | Err(_) => last,
        };
        self.graphs.of(dev, g)?.last = mark;
        launched
    }

    fn submit_nodes(&mut self, lane: usize, nodes: &[Node], ties: &Arc<Ties>, after: Option<&Mark>) -> Result<()> {
        // Whatever can refuse the first node is checked before any change; nothing refuses a later
        // one.
        self.legacy_order(lane, &mut Vec::new())?;
        let mut deps = Vec::new();
        if let Some(mark) = after {
            self.order_after(lane, mark)?;
            deps.extend(mark.points.iter().filter(|(l, seq)| *l != lane && !self.lanes.done(*l, *seq)).copied());
        }
        for n in nodes {
            let deps = std::mem::take(&mut deps);
            let (label, work) = (n.label.clone(), n.work.clone());
            let (reads, writes) = (n.reads.clone(), n.writes.clone());
            let sub = Submission { label, work, reads, writes, deps, ties: Some(ties.clone()) };
            self.submit(lane, sub)?;
        }
        Ok(())
    }
}

impl HostDriver {
    pub(super) fn launch_graph(&self, dev: DeviceId, g: GraphHandle, s: StreamHandle) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        st.graphs.of(dev, g)?;
        st.lanes.refuse_captured(lane, || {
            format!("stream {s} is being captured, and a graph cannot be launched into another")
        })?;
        st.launch(dev, g, lane)?;
        drop(self.settle(st));
        Ok(())
    }

    pub(super) fn destroy_graph(&self, dev: DeviceId, g: GraphHandle) -> Result<()> {
        let mut st = self.enter();
        st.graphs.of(dev, g)?;
        let graph = st.graphs.list.remove(&g.0);
        // Dropped outside the lock: a body may own anything.
        drop(st);
        drop(graph);
        Ok(())
    }

    pub(super) fn count_nodes(&self, g: GraphHandle) -> Result<GraphNodes> {
        // `native_alloc` refuses captured streams, so no node allocates.
        Ok(GraphNodes { total: self.look().graphs.get(g)?.nodes.len() as u64, memory: 0 })
    }
}

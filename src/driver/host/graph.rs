//! Graphs: work that was captured, to be submitted again and again.
//!
//! A launch submits every node to the launching stream as if it had been submitted there one by one, so each is checked
//! then: against what is live when the graph is launched, against what is mapped and who races when it runs.

#![deny(unsafe_code)]

use super::event::Mark;
use super::op::Work;
use super::state::{State, Submission};
use super::HostDriver;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::graph::Gone;
use crate::driver::{GraphHandle, GraphNodes};
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

/// The tokens of a graph. Given back when the last that holds them goes: the capture, the graph, or a launch in flight.
pub(super) struct Ties {
    pub(super) tokens: Vec<u64>,
    gone: Arc<Gone>,
}

impl Drop for Ties {
    fn drop(&mut self) {
        self.gone.add(&self.tokens);
    }
}

pub(super) struct Graph {
    dev: DeviceId,
    nodes: Arc<[Node]>,
    ties: Arc<Ties>,
    /// Where the last launch ends; the next one waits for it.
    last: Option<Mark>,
}

/// All graphs. One counter numbers captures, the graphs that they make and handles, so none is mistaken for another.
#[derive(Default)]
pub(super) struct Graphs {
    list: HashMap<u64, Graph>,
    last: u64,
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

    fn get(&mut self, g: GraphHandle) -> Result<&mut Graph> {
        self.list
            .get_mut(&g.0)
            .ok_or_else(|| Error::invalid(format!("graph {} was never made, or has been destroyed", g.0)))
    }

    fn of(&mut self, dev: DeviceId, g: GraphHandle) -> Result<&mut Graph> {
        let graph = self.get(g)?;
        if graph.dev != dev {
            return Err(Error::invalid(format!("graph {} was captured on device {}, not {dev}", g.0, graph.dev)));
        }
        Ok(graph)
    }
}

impl State {
    fn launch(&mut self, dev: DeviceId, g: GraphHandle, lane: usize) -> Result<()> {
        let graph = self.graphs.of(dev, g)?;
        let (nodes, ties, last) = (graph.nodes.clone(), graph.ties.clone(), graph.last.take());
        let launched = self.submit_nodes(lane, &nodes, &ties, last.as_ref());
        let mark = match launched {
            Ok(Some(seq)) => Some(Mark { points: vec![(lane, seq)], clock: self.lanes.get(lane)?.clock_now(lane) }),
            Ok(None) | Err(_) => last,
        };
        self.graphs.of(dev, g)?.last = mark;
        launched.map(drop)
    }

    /// Submits them; the number of the last in the lane, `None` when there are none.
    fn submit_nodes(
        &mut self,
        lane: usize,
        nodes: &[Node],
        ties: &Arc<Ties>,
        after: Option<&Mark>,
    ) -> Result<Option<u64>> {
        // What can refuse the first node is asked before anything changes; nothing refuses a later one.
        self.legacy_order(lane, &mut Vec::new())?;
        let mut deps = Vec::new();
        if let Some(mark) = after {
            self.order_after(lane, &mark.clock)?;
            deps.extend(mark.points.iter().filter(|(l, seq)| *l != lane && !self.lanes.done(*l, *seq)).copied());
        }
        let mut seq = None;
        for n in nodes {
            let deps = std::mem::take(&mut deps);
            let (label, work) = (n.label.clone(), n.work.clone());
            let (reads, writes) = (n.reads.clone(), n.writes.clone());
            let sub = Submission { label, work, reads, writes, deps, ties: Some(ties.clone()) };
            seq = Some(self.submit(lane, sub)?);
        }
        Ok(seq)
    }
}

impl HostDriver {
    pub(super) fn launch_graph(&self, dev: DeviceId, g: GraphHandle, s: StreamHandle) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        st.graphs.of(dev, g)?;
        if st.lanes.get(lane)?.capture.is_some() {
            return Err(Error::new(
                Status::Capturing,
                format!("stream {s} is being captured, and a graph cannot be launched into another"),
            ));
        }
        st.launch(dev, g, lane)?;
        drop(self.settle(st));
        Ok(())
    }

    pub(super) fn destroy_graph(&self, dev: DeviceId, g: GraphHandle) -> Result<()> {
        let mut st = self.enter();
        st.graphs.of(dev, g)?;
        let graph = st.graphs.list.remove(&g.0);
        // Outside of the lock: a body may own anything.
        drop(st);
        drop(graph);
        Ok(())
    }

    pub(super) fn count_nodes(&self, g: GraphHandle) -> Result<GraphNodes> {
        // `native_alloc` refuses captured streams, so no node allocates.
        Ok(GraphNodes { total: self.look().graphs.get(g)?.nodes.len() as u64, memory: 0 })
    }
}

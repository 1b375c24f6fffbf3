//! Reads and writes of each family, and the live ranges that follow.

use super::builder::{Graph, Item};
use super::order::Schedule;
use super::value::NONE;
use super::views::Bytes;
use crate::base::{Error, Result};
use crate::plan::problem::{Interval, Kind, Step};

/// The uses of a family, at the index of its root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uses {
    /// The first step at which an operation writes it; `Step::MAX` if none does.
    pub(super) first_write: Step,
    /// The first step after the last at which an operation reads or writes it; 0 if none does.
    pub(super) used: Step,
    /// The first step after the last that it is extended to; 0 if there is none.
    pub(super) held: Step,
    /// Whether it lives to the end.
    pub(super) to_end: bool,
}

impl Uses {
    const NEVER: Uses = Uses { first_write: Step::MAX, used: 0, held: 0, to_end: false };

    fn is_written(self) -> bool {
        self.first_write != Step::MAX
    }
}

/// For each value, the first in its chain of parents, itself included, that an operation produces.
/// Computed on demand.
struct Sources(Vec<u32>);

impl Sources {
    const UNKNOWN: u32 = NONE - 1;

    fn find(&mut self, graph: &Graph, value: u32) -> u32 {
        let mut at = value;
        let found = loop {
            let known = self.0[at as usize];
            if known != Sources::UNKNOWN {
                break known;
            }
            if graph.producers[at as usize] != NONE {
                break at;
            }
            match graph.views.parent(at) {
                NONE => break NONE,
                parent => at = parent,
            }
        };
        let last = at;
        at = value;
        while at != last {
            self.0[at as usize] = found;
            at = graph.views.parent(at);
        }
        self.0[last as usize] = found;
        found
    }
}

impl Graph {
    /// The uses of every family by operations and the caller. Checks that everything is written
    /// before it is read, that nothing is used outside its stated range, and that nothing writes a
    /// constant.
    pub(super) fn uses(&self, schedule: &Schedule, roots: &[Bytes]) -> Result<Vec<Uses>> {
        let mut uses = vec![Uses::NEVER; self.values.len()];
        for (step, op) in schedule.iter() {
            for &v in self.outputs.get(op as usize) {
                let root = roots[v as usize].root;
                self.check_stated(root, step, op, v, "writes")?;
                self.check_constant(roots, op, v)?;
                let family = &mut uses[root as usize];
                family.first_write = family.first_write.min(step);
                family.used = family.used.max(step + 1);
            }
        }
        let mut sources = Sources(vec![Sources::UNKNOWN; self.values.len()]);
        for (step, op) in schedule.iter() {
            for &v in self.inputs.get(op as usize) {
                let root = roots[v as usize].root;
                self.check_stated(root, step, op, v, "reads")?;
                let source = sources.find(self, v);
                self.check_written(schedule, uses[root as usize], (root, source), (step, op, v))?;
                let family = &mut uses[root as usize];
                family.used = family.used.max(step + 1);
            }
        }
        for (v, item) in self.values.iter().enumerate() {
            if item.buffer.kind == Kind::Output && !item.stated {
                uses[roots[v].root as usize].to_end = true;
            }
        }
        for v in &self.pinned {
            uses[roots[v.index()].root as usize].to_end = true;
        }
        for &(v, step) in &self.extended {
            let root = roots[v.index()].root;
            self.check_extension(v.0, root, step)?;
            let family = &mut uses[root as usize];
            family.held = family.held.max(step + 1);
        }
        Ok(uses)
    }

    /// Checks that the family of `root` may be live at `step`, which `v` is extended to.
    pub(super) fn check_extension(&self, v: u32, root: u32, step: Step) -> Result<()> {
        let item = &self.values[root as usize];
        if !item.stated || item.live_at(step) {
            return Ok(());
        }
        let of =
            if v == root { "it".to_string() } else { format!("{}, of which it is a view,", self.value_text(root)) };
        Err(Error::invalid(format!(
            "{} cannot be extended to step {step}, when {of} is not live: {}; state a range that includes the step",
            self.value_text(v),
            item.range_text()
        )))
    }

    fn check_stated(&self, root: u32, step: Step, op: u32, v: u32, does: &str) -> Result<()> {
        let item = &self.values[root as usize];
        if !item.stated || item.live_at(step) {
            return Ok(());
        }
        let of = if v == root { String::new() } else { format!(", a view of {}", self.value_text(root)) };
        Err(Error::invalid(format!(
            "{} {does} {}{of} at step {step}, when it is not live: {}; state a range that includes the step",
            self.op_text(op),
            self.value_text(v),
            item.range_text()
        )))
    }

    /// Fails if `op` writes a constant. An operation that reads a member of the family and writes a
    /// view is a reshape, and moves nothing.
    fn check_constant(&self, roots: &[Bytes], op: u32, v: u32) -> Result<()> {
        let root = roots[v as usize].root;
        if self.values[root as usize].buffer.kind != Kind::Constant {
            return Ok(());
        }
        let inputs = self.inputs.get(op as usize);
        let is_update = inputs.binary_search(&v).is_ok();
        if v != root && !is_update && inputs.iter().any(|&u| roots[u as usize].root == root) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} writes {}, which is constant; make it a parameter if it changes, or a temporary if this computes it",
            self.op_text(op),
            self.value_text(v)
        )))
    }

    /// Checks that `v`, of family `root`, has contents at `step`. `source` is the nearest value up
    /// its chain of parents that an operation produces.
    fn check_written(
        &self,
        schedule: &Schedule,
        family: Uses,
        (root, source): (u32, u32),
        (step, op, v): (Step, u32, u32),
    ) -> Result<()> {
        let (given, writer, written) = match source {
            NONE => {
                let writer = schedule.ops.get(family.first_write as usize).copied().unwrap_or(NONE);
                (self.values[root as usize].given(), writer, family.first_write)
            }
            _ => {
                let producer = self.producers[source as usize];
                (self.values[source as usize].given(), producer, schedule.step(producer))
            }
        };
        if given || written < step {
            return Ok(());
        }
        let (reader, value) = (self.op_text(op), self.value_text(v));
        Err(Error::invalid(if writer == NONE {
            format!(
                "{reader} reads {value} at step {step} and nothing produces it; make it an output of an earlier \
                 operation, give it kind input, parameter or constant, or add it as a buffer with its range"
            )
        } else {
            let what = if source == v {
                String::from("it")
            } else {
                format!("the bytes of {}", self.value_text(if source == NONE { root } else { source }))
            };
            format!(
                "{reader} reads {value} at step {step}, and {} writes {what} only at step {written}; change the \
                 execution order",
                self.op_text(writer)
            )
        }))
    }

    /// The live range of every family, at its root; `None` if nothing writes or reads it.
    pub(super) fn ranges(&self, roots: &[Bytes], uses: &[Uses], end: Step) -> Result<Vec<Option<Interval>>> {
        let mut ranges = vec![None; self.values.len()];
        for (v, item) in self.values.iter().enumerate() {
            let family = uses[v];
            if roots[v].root as usize != v {
                continue;
            }
            ranges[v] = if item.stated {
                if family.to_end && item.buffer.upper < end {
                    return Err(Error::invalid(format!(
                        "{} must live to the end, step {end}, since it, a view of it or what was computed from it is \
                         kept: {}; state one up to the end",
                        self.value_text(v as u32),
                        item.range_text()
                    )));
                }
                let until = if family.to_end { end } else { family.held };
                if item.buffer.gaps.iter().any(|gap| gap.lower < until) {
                    return Err(Error::invalid(format!(
                        "{} must keep what it holds up to step {until}, and has gaps before: {}; state a range without \
                         them",
                        self.value_text(v as u32),
                        item.range_text()
                    )));
                }
                Some(Interval::new(item.buffer.lower, item.buffer.upper))
            } else if item.given() {
                Some(Interval::new(0, end))
            } else if family.is_written() {
                let kept = if family.to_end { end } else { 0 };
                Some(Interval::new(family.first_write, family.used.max(family.held).max(kept)))
            } else if family.to_end || family.held > 0 {
                return Err(self.unwritten(roots, v as u32));
            } else {
                None
            };
        }
        Ok(ranges)
    }

    /// The error for a family that must be kept but that nothing writes.
    fn unwritten(&self, roots: &[Bytes], root: u32) -> Error {
        let is_member = |v: u32| roots[v as usize].root == root;
        let outputs = (0..self.values.len() as u32).filter(|&v| self.values[v as usize].buffer.kind == Kind::Output);
        let pinned = self.pinned.iter().chain(&self.pinned_ancestors).map(|v| v.0);
        let extended = self.extended.iter().map(|(v, _)| v.0);
        let asked = outputs.map(|v| (v, "is an output"));
        let asked = asked.chain(pinned.map(|v| (v, "is kept"))).chain(extended.map(|v| (v, "is extended")));
        let (v, why) = asked.into_iter().find(|&(v, _)| is_member(v)).unwrap_or((root, "is kept"));
        Error::invalid(format!(
            "{} {why} and nothing produces it; make it an output of an operation, or add it as a buffer with its range",
            self.value_text(v)
        ))
    }
}

impl Item {
    /// Whether the stated range includes `step`.
    fn live_at(&self, step: Step) -> bool {
        let b = &self.buffer;
        let gap = b.gaps.partition_point(|g| g.lower <= step).checked_sub(1).and_then(|i| b.gaps.get(i));
        b.lower <= step && step < b.upper && gap.is_none_or(|g| step >= g.upper)
    }

    fn range_text(&self) -> String {
        let range = Interval::new(self.buffer.lower, self.buffer.upper);
        match self.buffer.gaps.len() {
            0 => format!("its stated range is {range}"),
            gaps => format!("its stated range is {range} with {gaps} gaps"),
        }
    }
}

//! Executes a program on the bytes that a layout gave it, and knows beside them what each value
//! must hold.
//!
//! Every byte holds a stamp of its own write, so one write never looks like another. Each root has
//! memory of its own in the model, where nothing is shared; the arenas are where things can go
//! wrong. Every operation compares what it reads, every value that must last is compared when it
//! may last no longer.

use super::program::{Program, SharedWeight};
use gpumem::plan::{BufferId, Interval, Layout, Lowered, Placement, Slot, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The stamp of a byte that belongs to another plan.
fn foreign(arena: u32, offset: u64) -> u64 {
    1 << 63 | u64::from(arena) << 48 | offset
}

pub struct Machine<'a> {
    program: &'a Program,
    lowered: &'a Lowered,
    layout: &'a Layout,
    ids: &'a [ValueId],
    foreign: &'a [SharedWeight],
    arenas: Vec<BTreeMap<u64, u64>>,
    /// By root, what its bytes must hold; `None` where nothing was written.
    model: Vec<Vec<Option<u64>>>,
    /// By root, the stamps behind it.
    guards: Vec<Vec<u64>>,
    /// By value, what it was computed from.
    ancestors: Vec<BTreeSet<usize>>,
    written: Vec<bool>,
    serial: u64,
    step: u64,
    /// By buffer, the first and last step at which it had to hold something.
    touched: BTreeMap<BufferId, (u64, u64)>,
    pub reads: u64,
}

/// What went wrong, for a message that has the whole program in it.
type Checked = Result<(), String>;

impl<'a> Machine<'a> {
    pub fn new(
        program: &'a Program,
        lowered: &'a Lowered,
        layout: &'a Layout,
        ids: &'a [ValueId],
        foreign: &'a [SharedWeight],
    ) -> Machine<'a> {
        let count = program.values.len();
        Machine {
            program,
            lowered,
            layout,
            ids,
            foreign,
            arenas: vec![BTreeMap::new(); lowered.problem.arenas().len()],
            model: program.values.iter().map(|v| vec![None; v.size as usize]).collect(),
            guards: vec![Vec::new(); count],
            ancestors: vec![BTreeSet::new(); count],
            written: vec![false; count],
            serial: 0,
            step: 0,
            touched: BTreeMap::new(),
            reads: 0,
        }
    }

    /// Runs everything. Returns the ranges in which buffers were needed.
    pub fn run(&mut self) -> Result<BTreeMap<BufferId, Interval>, String> {
        self.start();
        for step in 0..self.lowered.end {
            self.step = step;
            self.fill_stated();
            if (step as usize) < self.program.ops.len() {
                self.execute(step as usize)?;
            }
            for &(v, until) in &self.program.extended {
                if until == step && self.is_born(v) {
                    self.check(v, "kept by an extension")?;
                }
            }
            self.check_stated()?;
        }
        self.finish()?;
        Ok(self.touched.iter().map(|(&b, &(first, last))| (b, Interval::new(first, last + 1))).collect())
    }

    fn slot(&self, v: usize) -> Option<Slot> {
        self.lowered.slot(self.layout, self.ids[v])
    }

    fn is_born(&self, v: usize) -> bool {
        let root = self.program.root(v).0;
        self.written[root] || self.program.given(root)
    }

    fn start(&mut self) {
        for weight in self.foreign {
            let memory = &mut self.arenas[weight.arena as usize];
            memory.extend((weight.offset..weight.offset + weight.size).map(|o| (o, foreign(weight.arena, o))));
        }
        for v in 0..self.program.values.len() {
            let val = &self.program.values[v];
            if val.view.is_some() || val.stated.is_some() || !self.program.given(v) {
                continue;
            }
            let shared = self.foreign.iter().find(|w| val.name.as_deref() == Some(&*w.name)).cloned();
            match shared {
                Some(w) => {
                    self.model[v] = (w.offset..w.offset + w.size).map(|o| Some(foreign(w.arena, o))).collect();
                    self.touch(v);
                    assert_eq!(self.slot(v), Some(Slot { arena: w.arena, offset: w.offset }), "shared value {v}");
                }
                None => self.write(v),
            }
        }
    }

    /// What the caller does with values whose range he stated: fills them when they begin to live,
    /// again after gaps.
    fn fill_stated(&mut self) {
        for v in 0..self.program.values.len() {
            if self.stated_live(v, self.step) && (self.step == 0 || !self.stated_live(v, self.step - 1)) {
                self.guards[v].clear();
                self.write(v);
            }
        }
    }

    /// They hold their contents as long as they live.
    fn check_stated(&mut self) -> Checked {
        for v in 0..self.program.values.len() {
            if self.stated_live(v, self.step) && !self.stated_live(v, self.step + 1) {
                self.check(v, "at the end of its stated range")?;
            }
        }
        Ok(())
    }

    fn stated_live(&self, v: usize, step: u64) -> bool {
        self.program.values[v].stated.is_some() && self.program.may_use(v, step)
    }

    fn execute(&mut self, o: usize) -> Checked {
        let op = &self.program.ops[o];
        for &v in &op.inputs {
            self.check(v, &format!("read by operation {o}"))?;
        }
        let mut from: BTreeSet<usize> = BTreeSet::new();
        for &v in &op.inputs {
            from.insert(v);
            from.extend(self.came_from(v));
        }
        for &v in &op.outputs {
            if op.moves_nothing {
                self.touch(v);
                self.written[v] = true;
            } else {
                self.write(v);
            }
            let mut from = from.clone();
            from.remove(&v);
            let root = self.program.root(v).0;
            if op.inputs.contains(&v) {
                self.ancestors[v].extend(from.clone());
            } else {
                self.ancestors[v] = from.clone();
            }
            if root != v {
                self.ancestors[root].extend(from.into_iter().filter(|&a| a != root));
            }
        }
        Ok(())
    }

    /// What `v` was computed from. A view that no operation wrote comes from its parent.
    fn came_from(&self, v: usize) -> BTreeSet<usize> {
        match self.program.values[v].view {
            Some((parent, _)) if !self.written[v] => {
                let mut from = self.came_from(parent);
                from.insert(parent);
                from
            }
            _ => self.ancestors[v].clone(),
        }
    }

    fn finish(&mut self) -> Checked {
        self.step = self.lowered.end - 1;
        let program = self.program;
        let all = 0..program.values.len();
        for v in all.clone().filter(|&v| program.values[v].stated.is_none()) {
            if program.values[v].kind == gpumem::plan::Kind::Output && self.is_born(v) {
                self.check(v, "an output, at the end")?;
            } else if program.given(v) {
                self.check(v, "lives throughout, at the end")?;
            }
        }
        for &v in &program.pinned {
            self.check(v, "pinned, at the end")?;
        }
        let outputs = all.filter(|&v| program.keep_ancestors && program.values[v].kind == gpumem::plan::Kind::Output);
        for v in outputs.chain(program.pinned_ancestors.iter().copied()) {
            for ancestor in self.came_from(v) {
                self.check(ancestor, &format!("an ancestor of {v} that is read later"))?;
            }
        }
        for weight in self.foreign {
            for offset in weight.offset..weight.offset + weight.size {
                if self.arenas[weight.arena as usize].get(&offset) != Some(&foreign(weight.arena, offset)) {
                    return Err(format!("byte {offset} of arena {} is another plan's and was written", weight.arena));
                }
            }
        }
        Ok(())
    }

    /// Notes that the slot of `v` is needed at this step.
    fn touch(&mut self, v: usize) {
        if let Placement::In { buffer, .. } = self.lowered.placements[self.ids[v].index()] {
            let (first, last) = self.touched.entry(buffer).or_insert((self.step, self.step));
            *first = (*first).min(self.step);
            *last = (*last).max(self.step);
        }
    }

    fn write(&mut self, v: usize) {
        self.touch(v);
        self.serial += 1;
        let (root, from) = self.program.root(v);
        let stamp = |i: u64| self.serial << 16 | i;
        let slot = self.slot(v);
        for i in 0..self.program.values[v].size {
            self.model[root][(from + i) as usize] = Some(stamp(i));
            if let Some(slot) = slot {
                self.arenas[slot.arena as usize].insert(slot.offset + i, stamp(i));
            }
        }
        let val = &self.program.values[root];
        if self.guards[root].is_empty() && val.size > 0 {
            self.guards[root] = (0..val.guard).map(|i| stamp(1 << 15 | i)).collect();
            if let Some(slot) = self.slot(root) {
                let stamps = self.guards[root].iter().enumerate();
                self.arenas[slot.arena as usize].extend(stamps.map(|(i, &s)| (slot.offset + val.size + i as u64, s)));
            }
        }
        self.written[root] = true;
        self.written[v] = true;
    }

    /// That `v` holds what was last written to it, and that nobody wrote into the guard of its
    /// slot.
    fn check(&mut self, v: usize, why: &str) -> Checked {
        self.touch(v);
        self.reads += 1;
        let (root, from) = self.program.root(v);
        let val = &self.program.values[v];
        let Some(slot) = self.slot(v) else {
            let is_out = self.program.left_out.contains(self.program.values[root].kind);
            return if is_out { Ok(()) } else { Err(format!("step {}: value {v} ({why}) has no slot", self.step)) };
        };
        if slot.offset % val.alignment != 0 {
            return Err(format!("value {v} is at {slot:?}, alignment {}", val.alignment));
        }
        let memory = &self.arenas[slot.arena as usize];
        for i in 0..val.size {
            let wanted = self.model[root][(from + i) as usize];
            let found = memory.get(&(slot.offset + i)).copied();
            if wanted.is_some() && wanted != found {
                return Err(format!(
                    "step {}: byte {i} of value {v} ({why}) at {slot:?} was overwritten: {wanted:x?}, found {found:x?}",
                    self.step
                ));
            }
        }
        let behind = self.slot(root).map_or(0, |s| s.offset) + self.program.values[root].size;
        for (i, &wanted) in self.guards[root].iter().enumerate() {
            if memory.get(&(behind + i as u64)) != Some(&wanted) {
                return Err(format!("step {}: guard byte {i} of value {root} was overwritten", self.step));
            }
        }
        Ok(())
    }
}

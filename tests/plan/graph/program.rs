//! Random programs: what a framework would hand to the planner, kept in the order of execution.

use super::Rng;
use gpumem::plan::{Arena, Buffer, Graph, Interval, Kind, Kinds, OpId, Place, Value, ValueId};

/// A value of a program.
#[derive(Clone, Debug)]
pub struct Val {
    pub size: u64,
    pub alignment: u64,
    pub guard: u64,
    pub kind: Kind,
    pub place: Place,
    pub arena: Option<u32>,
    pub name: Option<String>,
    /// Parent and offset in it.
    pub view: Option<(usize, u64)>,
    /// A range of its own.
    pub stated: Option<(Interval, Vec<Interval>)>,
}

/// An operation of a program.
#[derive(Clone, Debug, Default)]
pub struct Op {
    pub inputs: Vec<usize>,
    pub outputs: Vec<usize>,
    /// Input and output.
    pub in_place: Vec<(usize, usize)>,
    /// A reshape: its output is a view of its input and nothing is written.
    pub moves_nothing: bool,
}

/// A weight of another plan, and where it is there.
#[derive(Clone, Debug)]
pub struct SharedWeight {
    pub name: String,
    pub arena: u32,
    pub offset: u64,
    pub size: u64,
}

/// A graph, in order of execution.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub values: Vec<Val>,
    pub ops: Vec<Op>,
    /// The operations in the order in which they are added; `None` for the order of execution, not
    /// stated.
    pub storage: Option<Vec<usize>>,
    pub extended: Vec<(usize, u64)>,
    pub pinned: Vec<usize>,
    pub pinned_ancestors: Vec<usize>,
    pub keep_ancestors: bool,
    pub left_out: Kinds,
    pub no_reuse: bool,
}

impl Program {
    /// The value that has the slot, and the offset in it.
    pub fn root(&self, mut v: usize) -> (usize, u64) {
        let mut offset = 0;
        while let Some((parent, further)) = self.values[v].view {
            offset += further;
            v = parent;
        }
        (v, offset)
    }

    /// Whether its contents are there before any operation.
    pub fn given(&self, v: usize) -> bool {
        matches!(self.values[v].kind, Kind::Input | Kind::Parameter | Kind::Constant)
    }

    /// Whether the root of `v` is live at `step`, as far as its stated range tells.
    pub fn may_use(&self, v: usize, step: u64) -> bool {
        self.values[self.root(v).0].stated.as_ref().is_none_or(|(range, gaps)| {
            range.lower <= step && step < range.upper && !gaps.iter().any(|g| g.lower <= step && step < g.upper)
        })
    }

    /// States all of it. Views, and which operation may be in place, are stated in an order that
    /// depends on nothing but `rng`.
    pub fn build(&self, rng: &mut Rng) -> (Graph, Vec<ValueId>, Vec<OpId>) {
        let mut graph = Graph::new();
        graph.add_arena(Arena::default());
        let mut ids = Vec::new();
        for v in &self.values {
            let value = Value {
                alignment: v.alignment,
                guard: v.guard,
                kind: v.kind,
                place: v.place,
                arena: v.arena,
                name: v.name.as_deref().map(Into::into),
                ..Value::new(v.size)
            };
            ids.push(match &v.stated {
                None => graph.add_value(value).unwrap(),
                Some((range, gaps)) => graph
                    .add_buffer(Buffer {
                        alignment: value.alignment,
                        guard: value.guard,
                        kind: value.kind,
                        place: value.place,
                        arena: value.arena,
                        name: value.name,
                        gaps: gaps.clone(),
                        ..Buffer::new(v.size, range.lower, range.upper)
                    })
                    .unwrap(),
            });
        }
        let in_order: Vec<usize> = (0..self.ops.len()).collect();
        let mut ops = vec![OpId(u32::MAX); self.ops.len()];
        for &o in self.storage.as_ref().unwrap_or(&in_order) {
            let of = |values: &[usize]| values.iter().map(|&v| ids[v]).collect::<Vec<_>>();
            ops[o] = graph.add_op(None, &of(&self.ops[o].inputs), &of(&self.ops[o].outputs)).unwrap();
        }
        if self.storage.is_some() {
            graph.set_order(&ops).unwrap();
        }
        let mut views: Vec<usize> = (0..self.values.len()).filter(|&v| self.values[v].view.is_some()).collect();
        rng.shuffle(&mut views);
        for v in views {
            let (parent, offset) = self.values[v].view.unwrap();
            graph.view(ids[v], ids[parent], offset).unwrap();
        }
        let mut in_place: Vec<(usize, (usize, usize))> =
            self.ops.iter().enumerate().flat_map(|(o, op)| op.in_place.iter().map(move |&pair| (o, pair))).collect();
        rng.shuffle(&mut in_place);
        for (o, (input, output)) in in_place {
            graph.in_place(ops[o], ids[input], ids[output]).unwrap();
        }
        for &(v, step) in &self.extended {
            graph.extend_to(ids[v], step).unwrap();
        }
        for &v in &self.pinned {
            graph.pin(ids[v]).unwrap();
        }
        for &v in &self.pinned_ancestors {
            graph.pin_ancestors(ids[v]).unwrap();
        }
        graph.set_keep_ancestors(self.keep_ancestors);
        graph.set_left_out(self.left_out);
        graph.set_reuse(!self.no_reuse);
        (graph, ids, ops)
    }
}

/// What a random program is made with.
pub struct Maker<'r> {
    rng: &'r mut Rng,
    program: Program,
    /// Values that an operation may read.
    ready: Vec<usize>,
    /// Values that nothing may write: constants, and what another plan has.
    read_only: Vec<usize>,
    /// Roots that another plan has.
    shared: Vec<usize>,
    /// Roots that are written in parts, and then by one operation as a whole, before which only
    /// parts are read.
    partial: Vec<usize>,
    /// Parts of roots that are still to be written, each by an operation of its own.
    unwritten: Vec<usize>,
    ops: u64,
    /// Before the names of its weights, so that two programs have none in common but those that are
    /// shared.
    prefix: &'static str,
    /// The next fixed offset. No two programs have one in common.
    fixed: u64,
}

impl<'r> Maker<'r> {
    /// A program of `ops` operations that may use the weights of another plan. `prefix` is one
    /// letter.
    pub fn make(rng: &'r mut Rng, prefix: &'static str, ops: u64, shared: &[SharedWeight]) -> Program {
        let program = Program::default();
        let fixed = u64::from(prefix.as_bytes()[0]) << 12;
        let mut maker = Maker {
            rng,
            program,
            ready: vec![],
            read_only: vec![],
            shared: vec![],
            partial: vec![],
            unwritten: vec![],
            ops,
            prefix,
            fixed,
        };
        maker.settings();
        for weight in shared {
            maker.shared_weight(weight);
        }
        for _ in 0..maker.rng.below(5) {
            maker.given();
        }
        if !maker.program.keep_ancestors {
            for _ in 0..maker.rng.below(3) {
                maker.stated();
            }
        }
        for step in 0..ops {
            maker.op(step);
            if maker.rng.chance(30) {
                maker.pure_view();
            }
            // Forgotten values die; the views of them may go on.
            maker.ready.retain(|_| !maker.rng.chance(12));
        }
        maker.demands();
        if maker.rng.chance(85) {
            let mut storage: Vec<usize> = (0..maker.program.ops.len()).collect();
            maker.rng.shuffle(&mut storage);
            maker.program.storage = Some(storage);
        }
        maker.program
    }

    fn settings(&mut self) {
        self.program.keep_ancestors = self.rng.chance(15);
        self.program.no_reuse = self.rng.chance(4);
        for kind in [Kind::Input, Kind::Parameter, Kind::Constant] {
            if self.rng.chance(15) {
                self.program.left_out = self.program.left_out.with(kind);
            }
        }
    }

    /// A root with random properties.
    fn root(&mut self, kind: Kind, size: u64) -> usize {
        let alignment = self.rng.pick(&[1, 1, 1, 2, 4, 8]).unwrap();
        let place = match self.rng.below(100) {
            0..3 => {
                self.fixed += 64;
                Place::Fixed(self.fixed)
            }
            3..9 => Place::Preferred(self.rng.below(12) * alignment),
            _ => Place::Anywhere,
        };
        self.program.values.push(Val {
            size,
            alignment,
            guard: if self.rng.chance(15) { 1 + self.rng.below(4) } else { 0 },
            kind,
            place,
            arena: if self.rng.chance(8) { Some(self.rng.below(2) as u32) } else { None },
            name: None,
            view: None,
            stated: None,
        });
        self.program.values.len() - 1
    }

    fn size(&mut self) -> u64 {
        if self.rng.chance(5) {
            0
        } else {
            1 + self.rng.below(24)
        }
    }

    fn output_kind(&mut self) -> Kind {
        if self.rng.chance(8) {
            Kind::Output
        } else {
            Kind::Temporary
        }
    }

    fn given(&mut self) {
        let kind = self.rng.pick(&[Kind::Input, Kind::Parameter, Kind::Constant]).unwrap();
        let size = self.size();
        let v = self.root(kind, size);
        if self.rng.chance(80) {
            self.program.values[v].name = Some(format!("{}{v}", self.prefix));
        }
        if kind == Kind::Constant {
            self.read_only.push(v);
        }
        self.ready.push(v);
    }

    fn shared_weight(&mut self, weight: &SharedWeight) {
        if self.rng.chance(35) {
            return;
        }
        let kind = self.rng.pick(&[Kind::Parameter, Kind::Constant]).unwrap();
        let v = self.root(kind, weight.size);
        let val = &mut self.program.values[v];
        val.name = Some(weight.name.clone());
        val.alignment = if weight.offset == 0 { 8 } else { 1 << weight.offset.trailing_zeros().min(3) };
        val.guard = 0;
        val.place = Place::Anywhere;
        val.arena = None;
        self.read_only.push(v);
        self.shared.push(v);
        self.ready.push(v);
    }

    fn stated(&mut self) {
        let lower = self.rng.below(self.ops);
        let upper = lower + 1 + self.rng.below(self.ops + 2);
        let mut gaps = vec![];
        if upper - lower > 4 && self.rng.chance(40) {
            let from = lower + 1 + self.rng.below(2);
            gaps.push(Interval::new(from, from + 1 + self.rng.below(upper - from - 1)));
        }
        let size = self.size();
        let kind = self.rng.pick(&[Kind::Temporary, Kind::Temporary, Kind::Output, Kind::Input]).unwrap();
        let v = self.root(kind, size);
        self.program.values[v].stated = Some((Interval::new(lower, upper), gaps));
        self.ready.push(v);
    }

    /// A view of `parent`, of at least one byte if that has any.
    fn view_of(&mut self, parent: usize) -> usize {
        let p = self.program.values[parent].clone();
        let (root, base) = self.program.root(parent);
        let offset = self.rng.below(p.size + 1).min(p.size.saturating_sub(1));
        let size = if p.size == 0 { 0 } else { 1 + self.rng.below(p.size - offset) };
        let whole = self.rng.chance(30);
        let (offset, size) = if whole { (0, p.size) } else { (offset, size) };
        let at = base + offset;
        let room = if at == 0 { 8 } else { 1 << at.trailing_zeros().min(3) };
        // Another plan gave a shared root its place, so it can be aligned no better.
        let room = if self.shared.contains(&root) { room.min(self.program.values[root].alignment) } else { room };
        let derived = self.program.values[root].stated.is_none();
        let root_kind = self.program.values[root].kind;
        let kind = match self.rng.below(10) {
            0 if derived => Kind::Output,
            1 if derived => root_kind,
            _ => Kind::Temporary,
        };
        let named = matches!(kind, Kind::Parameter | Kind::Constant) && self.rng.chance(80);
        let v = self.program.values.len();
        self.program.values.push(Val {
            size,
            alignment: if self.rng.chance(30) { room } else { 1 },
            guard: 0,
            kind,
            place: Place::Anywhere,
            arena: None,
            name: named.then(|| format!("{}{v}", self.prefix)),
            view: Some((parent, offset)),
            stated: None,
        });
        v
    }

    fn pure_view(&mut self) {
        if let Some(parent) = self.rng.pick(&self.ready) {
            let v = self.view_of(parent);
            self.ready.push(v);
        }
    }

    fn op(&mut self, step: u64) {
        let readable: Vec<usize> = self.ready.iter().copied().filter(|&v| self.program.may_use(v, step)).collect();
        let recent = &readable[readable.len().saturating_sub(4)..];
        let mut op = Op::default();
        for _ in 0..self.rng.below(4) {
            let from = if self.rng.chance(70) { recent } else { &readable };
            op.inputs.extend(self.rng.pick(from));
        }
        let writable: Vec<usize> =
            readable.iter().copied().filter(|&v| !self.read_only.contains(&self.program.root(v).0)).collect();
        match self.rng.below(100) {
            0..12 if !readable.is_empty() => {
                let parent = self.rng.pick(&readable).unwrap();
                op = Op { inputs: vec![parent], moves_nothing: true, ..Op::default() };
                op.outputs.push(self.view_of(parent));
            }
            12..20 if !writable.is_empty() => {
                // Into a part of a value. Not read here, or it would look like a reshape.
                let parent = self.rng.pick(&writable).unwrap();
                let family = self.program.root(parent).0;
                op.inputs.retain(|&v| self.program.root(v).0 != family);
                op.outputs.push(self.view_of(parent));
            }
            20..28 => {
                // A root that is written part by part, by this operation and later ones.
                let size = 4 + self.rng.below(20);
                let root = self.root(Kind::Temporary, size);
                op.outputs.push(self.view_of(root));
                for _ in 0..self.rng.below(3) {
                    let part = self.view_of(root);
                    self.unwritten.push(part);
                }
                if self.rng.chance(50) {
                    self.ready.push(root);
                } else {
                    self.partial.push(root);
                }
            }
            28..36 if !self.unwritten.is_empty() => {
                let at = self.rng.below(self.unwritten.len() as u64) as usize;
                let part = self.unwritten.swap_remove(at);
                let family = self.program.root(part).0;
                op.inputs.retain(|&v| self.program.root(v).0 != family);
                op.outputs.push(part);
            }
            36..46 if !writable.is_empty() => {
                let updated = self.rng.pick(&writable).unwrap();
                op.inputs.push(updated);
                op.outputs.push(updated);
                if self.rng.chance(30) {
                    self.new_output(&mut op);
                }
            }
            46..52 if !self.partial.is_empty() => {
                // All of a root whose parts were written before: it is older than this operation.
                let at = self.rng.below(self.partial.len() as u64) as usize;
                let root = self.partial.swap_remove(at);
                op.inputs.retain(|&v| self.program.root(v).0 != root);
                op.in_place.extend(op.inputs.iter().map(|&v| (v, root)));
                op.outputs.push(root);
            }
            _ => {
                for _ in 0..1 + self.rng.below(2) {
                    self.new_output(&mut op);
                }
            }
        }
        self.ready.extend(op.outputs.iter().filter(|v| !self.ready.contains(v)).copied().collect::<Vec<_>>());
        self.program.ops.push(op);
    }

    /// A new root as an output, in place of some of the inputs if that can be.
    fn new_output(&mut self, op: &mut Op) {
        let like = self.rng.pick(&op.inputs).map(|v| self.program.values[v].size);
        let size = match like {
            Some(size) if self.rng.chance(60) => size,
            _ => self.size(),
        };
        let kind = self.output_kind();
        let output = self.root(kind, size);
        op.outputs.push(output);
        for input in op.inputs.clone() {
            if self.rng.chance(70) {
                op.in_place.push((input, output));
            }
        }
    }

    /// Pins and extensions, of values that something writes and whose range is derived.
    fn demands(&mut self) {
        let program = &self.program;
        let written = |v: usize| {
            let root = program.root(v).0;
            program.given(root) || program.ops.iter().flat_map(|o| &o.outputs).any(|&o| program.root(o).0 == root)
        };
        let derived = |v: usize| program.values[program.root(v).0].stated.is_none();
        let free: Vec<usize> = (0..program.values.len()).filter(|&v| written(v) && derived(v)).collect();
        let any_stated = program.values.iter().any(|v| v.stated.is_some());
        if self.rng.chance(25) {
            self.program.pinned.extend(self.rng.pick(&free));
        }
        if !any_stated && self.rng.chance(25) {
            self.program.pinned_ancestors.extend(self.rng.pick(&free));
        }
        for _ in 0..self.rng.below(3) {
            if let Some(v) = self.rng.pick(&free) {
                self.program.extended.push((v, self.rng.below(self.ops + 2)));
            }
        }
    }
}

//! Random graphs, lowered, laid out in several ways and executed on the bytes they got.
//!
//! Each of these changes to `src/plan/graph` makes `random_graphs_keep_what_they_need` fail:
//! - steps from the order of adding instead of the order of execution (`schedule`);
//! - reads of a view that do not count on its root (`uses`), or writes of one;
//! - taking an input over that a later operation reads, that is an output or pinned, or that is
//!   extended (`can_take`), or of which the operation reads another part (`take_in_place`);
//! - an extension, a pin or an ancestor left away; outputs that live only as long as they are read.

use super::machine::Machine;
use super::packer::{is_valid, pack};
use super::program::{Maker, Program};
use super::Rng;
use gpumem::plan::{solve, BufferId, Effort, Interval, Layout, Lowered, OpId, Placement, SolveOptions, ValueId};
use std::collections::BTreeMap;

/// How often something interesting was seen: a generator that makes none of it proves nothing.
#[derive(Default, Debug)]
pub struct Seen {
    pub taken: u64,
    pub chains: u64,
    pub refused: u64,
    pub taken_at_offset: u64,
    pub views: u64,
    pub reads: u64,
    pub reordered: u64,
    pub stated: u64,
    pub exact: u64,
}

impl Seen {
    pub fn note(&mut self, program: &Program, lowered: &Lowered, ids: &[ValueId], ops: &[OpId]) {
        let stated: u64 = program.ops.iter().map(|o| o.in_place.len() as u64).sum();
        let pairs: Vec<_> = ops.iter().flat_map(|&o| lowered.taken_in_place(o)).collect();
        for &(input, output) in &pairs {
            assert_eq!(lowered.took_over(output), Some(input));
            assert_eq!(lowered.placements[input.index()], lowered.placements[output.index()], "{program:#?}");
            let (root, offset) = program.root(input.index());
            self.chains += u64::from(lowered.took_over(ids[root]).is_some());
            self.taken_at_offset += u64::from(offset > 0);
        }
        self.taken += pairs.len() as u64;
        self.refused += stated - pairs.len() as u64;
        self.views += program.values.iter().filter(|v| v.view.is_some()).count() as u64;
        self.stated += program.values.iter().filter(|v| v.stated.is_some()).count() as u64;
        self.reordered += u64::from(program.storage.as_ref().is_some_and(|s| !s.is_sorted()));
    }
}

/// Every buffer lives exactly as long as something needs it, no byte has two buffers for one value,
/// and views and what was taken in place add none.
pub fn check_buffers(program: &Program, lowered: &Lowered, ids: &[ValueId], needed: &BTreeMap<BufferId, Interval>) {
    let exact = !program.keep_ancestors && program.pinned_ancestors.is_empty();
    let buffers = lowered.problem.buffers();
    for (&id, &needed) in needed {
        let found = Interval::new(buffers[id.index()].lower, buffers[id.index()].upper);
        let covers = found.lower <= needed.lower && needed.upper <= found.upper;
        assert!(
            if exact { found == needed } else { covers },
            "buffer {id} lives {found}, needed {needed}: {program:#?}"
        );
    }
    for (i, buffer) in buffers.iter().enumerate() {
        let id = BufferId(i as u32);
        let owner = lowered.value_of(id).unwrap();
        assert!(program.values[owner.index()].view.is_none());
        assert!(
            needed.contains_key(&id) || program.left_out.contains(buffer.kind),
            "buffer {id} is needed nowhere: {program:#?}"
        );
    }
    for (v, val) in program.values.iter().enumerate() {
        let (root, from) = program.root(v);
        if let (Placement::In { buffer, offset }, Placement::In { buffer: top, offset: start }) =
            (lowered.placements[ids[v].index()], lowered.placements[ids[root].index()])
        {
            assert_eq!((buffer, offset), (top, start + from), "value {v} in its root");
            assert!(offset + val.size <= buffers[buffer.index()].size);
        }
    }
}

fn run(seed: u64, ops: u64, seen: &mut Seen) {
    let mut rng = Rng::new(seed);
    let program = Maker::make(&mut rng, "a", ops, &[]);
    let (graph, ids, op_ids) = program.build(&mut rng);
    let lowered = graph.lower().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{program:#?}"));
    seen.note(&program, &lowered, &ids, &op_ids);
    for (o, id) in op_ids.iter().enumerate() {
        assert_eq!(lowered.step(*id), Some(o as u64));
    }
    let taken = ids.iter().filter(|&&v| lowered.took_over(v).is_some()).count();
    let slots = (0..ids.len()).filter(|&v| program.values[v].view.is_none() && is_used(&program, v)).count();
    assert_eq!(lowered.problem.buffers().len(), slots - taken, "seed {seed}: {program:#?}");
    assert!(!program.no_reuse || taken == 0);
    let mut layouts: Vec<Layout> = (0..3).map(|_| pack(&lowered.problem, &mut rng)).collect();
    // Most by greedy orders alone, which share bytes in more ways than the smallest layouts do.
    let effort = if seed.is_multiple_of(40) { Effort::Normal } else { Effort::Fast };
    let options = SolveOptions { effort, ..SolveOptions::default() };
    let solved = solve(&lowered.problem, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{program:#?}"));
    assert!(is_valid(&lowered.problem, &solved), "seed {seed}: {program:#?}");
    layouts.push(solved);
    for (i, layout) in layouts.iter().enumerate() {
        let mut machine = Machine::new(&program, &lowered, layout, &ids, &[]);
        let needed =
            machine.run().unwrap_or_else(|e| panic!("seed {seed}, layout {i}: {e}\n{program:#?}\n{lowered:#?}"));
        seen.reads += machine.reads;
        check_buffers(&program, &lowered, &ids, &needed);
    }
    seen.exact += u64::from(!program.keep_ancestors && program.pinned_ancestors.is_empty());
}

/// Whether anything writes, reads, gives or states the family of root `v`.
fn is_used(program: &Program, v: usize) -> bool {
    let is_member = |&u: &usize| program.root(u).0 == v;
    let mut touched = program.ops.iter().flat_map(|o| o.inputs.iter().chain(&o.outputs));
    program.given(v) || program.values[v].stated.is_some() || touched.any(is_member)
}

#[test]
fn random_graphs_keep_what_they_need() {
    let mut seen = Seen::default();
    for seed in 0..1000 {
        // Small programs first: the first failure is one that can be read.
        run(seed, 1 + seed % 200 / 10 * (1 + seed / 250), &mut seen);
    }
    println!("{seen:?}");
    for (what, count) in [
        ("taken in place", seen.taken),
        ("in a chain", seen.chains),
        ("taken in a view of the root", seen.taken_at_offset),
        ("not taken", seen.refused),
        ("views", seen.views),
        ("stated ranges", seen.stated),
        ("other orders", seen.reordered),
        ("exact ranges", seen.exact),
    ] {
        assert!(count > 125, "only {count} times: {what}");
    }
}

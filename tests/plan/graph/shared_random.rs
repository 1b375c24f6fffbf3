//! Three random plans that share weights, executed one after another on the same arenas.
//!
//! Letting activations overlap what is shared (no reserved ranges, or none for weights that the
//! plan has no value for), placing a shared value elsewhere, or forgetting what a plan shares
//! itself makes this fail.

use super::machine::Machine;
use super::packer::pack;
use super::program::{Maker, Program, SharedWeight};
use super::random::check_buffers;
use super::Rng;
use gpumem::plan::{Graph, Kind, Kinds, Layout, Lowered, ValueId};

struct Planned {
    lowered: Lowered,
    layout: Layout,
    ids: Vec<ValueId>,
    program: Program,
}

fn plan(program: Program, rng: &mut Rng, share: impl FnOnce(&mut Graph)) -> Planned {
    let (mut graph, ids, _) = program.build(rng);
    share(&mut graph);
    let lowered = graph.lower().unwrap_or_else(|e| panic!("{e}\n{program:#?}"));
    let layout = pack(&lowered.problem, rng);
    Planned { lowered, layout, ids, program }
}

impl Planned {
    /// The weights of this plan and the guards behind them; those without a name are named so that
    /// nothing matches.
    fn weights(&self) -> Vec<SharedWeight> {
        let mut found = Vec::new();
        for (v, val) in self.program.values.iter().enumerate() {
            let is_weight = matches!(val.kind, Kind::Parameter | Kind::Constant);
            let throughout = self.program.values[self.program.root(v).0].stated.is_none();
            let slot = self.lowered.slot(&self.layout, self.ids[v]).filter(|_| is_weight && throughout);
            if let Some(slot) = slot {
                let name = val.name.clone().unwrap_or(format!("nameless {v}"));
                let piece = |name, offset, size| SharedWeight { name, arena: slot.arena, offset, size };
                found.push(piece(name, slot.offset, val.size));
                if val.size > 0 {
                    found.push(piece(format!("guard {v}"), slot.offset + val.size, val.guard));
                }
            }
        }
        found
    }

    fn run(&self, foreign: &[SharedWeight], seed: u64) {
        let mut machine = Machine::new(&self.program, &self.lowered, &self.layout, &self.ids, foreign);
        let failed = |e| panic!("seed {seed}: {e}\n{:#?}\n{foreign:#?}\n{:#?}", self.program, self.lowered);
        let needed = machine.run().unwrap_or_else(failed);
        check_buffers(&self.program, &self.lowered, &self.ids, &needed);
    }
}

#[test]
fn plans_that_share_weights_leave_them_intact() {
    let (mut owned, mut foreign_only, mut left_out, mut overlapping) = (0, 0, 0, 0);
    for seed in 0..2500 {
        let mut rng = Rng::new(1 << 32 | seed);
        let ops = 1 + seed % 200 / 10;
        let mut program = Maker::make(&mut rng, "a", ops, &[]);
        program.left_out = Kinds::NONE;
        let first = plan(program, &mut rng, |_| {});
        let mut weights = first.weights();
        first.run(&[], seed);

        let named: Vec<SharedWeight> = weights.iter().filter(|w| w.name.starts_with('a')).cloned().collect();
        let program = Maker::make(&mut rng, "b", ops, &named);
        let one_by_one = rng.chance(50);
        let second = plan(program, &mut rng, |graph| {
            if one_by_one {
                for w in &weights {
                    graph.share(&w.name, w.arena, w.offset, w.size).unwrap();
                }
            } else {
                assert_eq!(graph.share_from(&first.lowered, &first.layout).unwrap(), named.len());
            }
        });
        second.run(&weights, seed);
        for w in &weights {
            let has = second.program.values.iter().find(|v| v.name.as_deref() == Some(&*w.name));
            owned += u64::from(has.is_some());
            foreign_only += u64::from(has.is_none());
            left_out += u64::from(has.is_some_and(|v| second.program.left_out.contains(v.kind)));
            let overlaps =
                |o: &&SharedWeight| o.arena == w.arena && o.offset < w.offset + w.size && w.offset < o.offset + o.size;
            overlapping += u64::from(weights.iter().filter(overlaps).count() > 1);
        }

        // Knows the second plan alone, and through it the first.
        let program = Maker::make(&mut rng, "c", ops, &[]);
        let third = plan(program, &mut rng, |graph| {
            graph.share_from(&second.lowered, &second.layout).unwrap();
        });
        weights.extend(second.weights().into_iter().filter(|w| !w.name.starts_with('a')));
        third.run(&weights, seed);
    }
    println!("{owned} {foreign_only} {left_out} {overlapping}");
    for (what, count) in [
        ("in both", owned),
        ("in the first plan only", foreign_only),
        ("of a kind left out", left_out),
        ("overlapping", overlapping),
    ] {
        assert!(count > 200, "only {count} times: {what}");
    }
}

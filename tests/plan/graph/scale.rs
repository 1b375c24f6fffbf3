//! Large graphs. Anything quadratic, or recursive, would not come to an end here; no time is
//! asserted.

use super::Small;
use gpumem::plan::{Graph, Interval, Kind, OpId, Value, ValueId};

const MANY: u32 = 1_000_000;

fn values(g: &mut Graph, count: u32, size: u64) -> Vec<ValueId> {
    (0..count).map(|_| g.add_value(Value::new(size)).unwrap()).collect()
}

#[test]
fn a_million_operations_in_a_chain() {
    let mut g = Graph::new();
    let v = values(&mut g, MANY, 64);
    let mut ops = vec![g.add_op(None, &[], &[v[0]]).unwrap()];
    for pair in v.windows(2) {
        let op = g.add_op(None, &[pair[0]], &[pair[1]]).unwrap();
        g.in_place(op, pair[0], pair[1]).unwrap();
        ops.push(op);
    }
    let l = g.lower().unwrap();
    assert_eq!(l.problem.buffers().len(), 1, "all in place");
    assert_eq!(l.problem.buffers()[0].upper, u64::from(MANY));

    g.pin_ancestors(v[MANY as usize - 1]).unwrap();
    let l = g.lower().unwrap();
    assert_eq!(l.problem.buffers().len(), MANY as usize, "all pinned");
    assert!(l.problem.buffers().iter().all(|b| b.upper == u64::from(MANY)));

    ops.reverse();
    g.set_order(&ops).unwrap();
    assert!(g.lower().is_err());
}

#[test]
fn a_million_views_in_a_chain_or_of_one_root() {
    for backwards in [false, true] {
        let mut g = Graph::new();
        let v = values(&mut g, MANY, 64);
        let mut pairs: Vec<usize> = (1..v.len()).collect();
        if backwards {
            pairs.reverse();
        }
        for i in pairs {
            g.view(v[i], v[i - 1], 0).unwrap();
        }
        assert!(g.view(v[0], v[MANY as usize - 1], 0).is_err(), "a cycle");
        g.add_op(None, &[], &[v[0]]).unwrap();
        for &u in v.iter().rev() {
            g.add_op(None, &[u], &[]).unwrap();
        }
        let l = g.lower().unwrap();
        assert_eq!((l.problem.buffers().len(), l.end), (1, u64::from(MANY) + 1));
    }
    let mut g = Graph::new();
    let v = values(&mut g, MANY, 0);
    let root = g.add_value(Value { kind: Kind::Parameter, ..Value::new(u64::from(MANY)) }).unwrap();
    for (i, &part) in v.iter().enumerate() {
        g.view(part, root, i as u64).unwrap();
    }
    g.add_op(None, &v, &[]).unwrap();
    assert_eq!(g.lower().unwrap().problem.buffers().len(), 1);
}

#[test]
fn every_one_of_many_values_is_resized() {
    let mut g = Graph::new();
    let roots = values(&mut g, MANY / 2, 64);
    let parts = values(&mut g, MANY / 2, 64);
    for (&root, &part) in roots.iter().zip(&parts) {
        g.view(part, root, 0).unwrap();
    }
    for (&root, &part) in roots.iter().zip(&parts) {
        assert!(g.resize(root, 63).is_err());
        g.resize(part, 32).unwrap();
        g.resize(root, 48).unwrap();
    }
    g.add_op(None, &[], &roots).unwrap();
    assert!(g.lower().unwrap().problem.buffers().iter().all(|b| b.size == 48));
}

#[test]
fn one_operation_may_have_very_many_values() {
    let mut g = Graph::new();
    let (from, to) = (values(&mut g, MANY / 4, 8), values(&mut g, MANY / 4, 8));
    g.add_op(None, &[], &from).unwrap();
    let op = g.add_op(None, &from, &to).unwrap();
    for (&input, &output) in from.iter().zip(&to) {
        g.in_place(op, input, output).unwrap();
    }
    let l = g.lower().unwrap();
    assert_eq!(l.taken_in_place(op).count(), from.len());
    assert_eq!(l.took_over(to[9]), Some(from[9]));
}

#[test]
fn lowering_is_repeatable_and_leaves_the_graph_as_it_is() {
    let mut g = Small::default();
    let [a, b] = ["a", "b"].map(|n| g.temporary(n, 8));
    g.op("make", &[], &[a]);
    g.op("map", &[a], &[b]);
    g.0.in_place(OpId(1), a, b).unwrap();
    let first = g.lower();
    assert_eq!(first, g.lower());
    assert_eq!(first.problem.buffers()[0].upper, 2);
    g.op("use", &[a], &[]);
    let l = g.lower();
    assert_eq!(super::range(&l, a), Interval::new(0, 3));
    assert_eq!(l.took_over(b), None);
}

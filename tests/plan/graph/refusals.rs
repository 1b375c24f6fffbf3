//! What graphs are refused, and what is said about them. Views, in place, pins and sharing have
//! their own.

use super::{says, Small};
use gpumem::plan::{Buffer, Interval, Kind, OpId, Place, Value, ValueId};

#[test]
fn values_are_checked_when_they_are_added() {
    let mut g = Small::default();
    let named = |value| Value { name: Some("v".into()), ..value };
    says(g.0.add_value(named(Value { alignment: 3, ..Value::new(8) })), &["value 0 (v)", "alignment 3"]);
    says(g.0.add_value(named(Value::new((1 << 62) + 1))), &["value 0 (v)", "2^62"]);
    says(g.0.add_value(Value { arena: Some(1), ..Value::new(8) }), &["value 0:", "arena 1 does not exist"]);
    says(g.0.add_value(Value { place: Place::Fixed(6), alignment: 4, ..Value::new(8) }), &["offset 6"]);
    says(g.0.add_buffer(Buffer::new(8, 3, 2)), &["buffer 0:", "less than lower, 3"]);
    let gap = Buffer { gaps: vec![Interval::new(0, 9)], ..Buffer::new(8, 0, 4) };
    says(g.0.add_buffer(gap), &["gap [0, 9)"]);
    assert_eq!(g.0.value_count(), 0);
    assert_eq!(g.temporary("good", 1), ValueId(0));
    assert_eq!(g.0.name(ValueId(0)), Some("good"));
    assert_eq!(g.0.name(ValueId(1)), None);
}

#[test]
fn operations_are_checked_when_they_are_added() {
    let mut g = Small::default();
    let [a, b] = ["a", "b"].map(|n| g.temporary(n, 8));
    says(g.0.add_op(Some("conv"), &[ValueId(7)], &[a]), &["operation 0 (conv)", "input 7 is no value", "there are 2"]);
    says(g.0.add_op(None, &[], &[ValueId(7)]), &["operation 0:", "output 7 is no value"]);
    says(g.0.add_op(Some("conv"), &[], &[a, b, a]), &["operation 0 (conv)", "value 0 (a) as an output twice"]);
    says(g.0.add_op(Some("conv"), &[a], &[a, a]), &["value 0 (a) as an output twice"]);
    assert_eq!(g.0.op_count(), 0);
    let first = g.op("first", &[], &[a]);
    assert_eq!(first, OpId(0));
    says(
        g.0.add_op(Some("second"), &[], &[b, a]),
        &["operation 0 (first) and operation 1 (second) both produce value 0 (a)"],
    );
    g.op("b is still free", &[a, a, a], &[b]);
    assert_eq!(g.lower().end, 2);
}

#[test]
fn an_order_must_have_each_operation_once() {
    let mut g = Small::default();
    let ops = ["x", "y", "z"].map(|n| g.op(n, &[], &[]));
    says(g.0.set_order(&[ops[0], ops[2]]), &["operation 1 (y) is missing", "2 of 3"]);
    says(g.0.set_order(&[ops[0], ops[2], ops[0]]), &["operation 0 (x) is in it twice, at positions 0 and 2"]);
    says(g.0.set_order(&[ops[0], ops[1], OpId(3)]), &["operation 3 at position 2 does not exist", "there are 3"]);
    g.0.set_order(&[ops[2], ops[1], ops[0]]).unwrap();
    says(g.0.set_order(&[]), &["operation 0 (x) is missing"]);
    assert_eq!(g.lower().step(ops[0]), Some(2), "the last good order holds");
    assert_eq!(g.lower().step(OpId(3)), None);
}

#[test]
fn what_is_read_must_have_been_written() {
    let mut g = Small::default();
    let [a, b] = ["a", "b"].map(|n| g.temporary(n, 8));
    g.op("reader", &[a], &[b]);
    let parts = ["operation 0 (reader)", "value 0 (a)", "nothing produces it", "kind input", "as a buffer"];
    says(g.0.lower(), &parts);
    let late = g.op("writer", &[], &[a]);
    let parts = ["operation 0 (reader) reads value 0 (a) at step 0", "operation 1 (writer) writes it only at step 1"];
    says(g.0.lower(), &parts);
    g.0.set_order(&[late, OpId(0)]).unwrap();
    g.lower();
    g.0.set_order(&[OpId(0), late]).unwrap();
    says(g.0.lower(), &parts);
}

#[test]
fn an_update_needs_contents() {
    let mut g = Small::default();
    let a = g.temporary("a", 8);
    g.op("update", &[a], &[a]);
    says(g.0.lower(), &["operation 0 (update) reads value 0 (a)", "operation 0 (update) writes", "step 0"]);
    let mut g = Small::default();
    let out = g.value("out", Kind::Output, 8);
    g.op("update", &[out], &[out]);
    g.op("make", &[], &[out]);
    says(g.0.lower(), &["operation 0 (update) reads value 0 (out)", "operation 1 (make)"]);
}

#[test]
fn views_are_read_after_the_bytes_are_there() {
    let mut g = Small::default();
    let [root, part, inner] = ["root", "part", "inner"].map(|n| g.temporary(n, 8));
    g.0.view(part, root, 0).unwrap();
    g.0.view(inner, part, 0).unwrap();
    g.op("reader", &[inner], &[]);
    says(g.0.lower(), &["operation 0 (reader) reads value 2 (inner)", "nothing produces it"]);
    g.op("writes root", &[], &[root]);
    says(g.0.lower(), &["value 2 (inner)", "operation 1 (writes root)", "the bytes of value 0 (root)", "step 1"]);
    g.0.set_order(&[OpId(1), OpId(0)]).unwrap();
    g.lower();
    // The view between has a writer of its own, which must be first.
    g.op("writes part", &[root], &[part]);
    says(g.0.lower(), &["value 2 (inner)", "operation 2 (writes part)", "the bytes of value 1 (part)", "step 2"]);
    g.0.set_order(&[OpId(1), OpId(2), OpId(0)]).unwrap();
    g.lower();

    // A root that is written in parts can be read once there is one.
    let mut g = Small::default();
    let [root, part] = ["root", "part"].map(|n| g.temporary(n, 8));
    g.0.view(part, root, 0).unwrap();
    g.op("reader", &[root], &[]);
    g.op("writes part", &[], &[part]);
    says(g.0.lower(), &["value 0 (root)", "operation 1 (writes part)", "the bytes of value 0 (root)"]);
    g.0.set_order(&[OpId(1), OpId(0)]).unwrap();
    g.lower();
}

#[test]
fn a_stated_range_must_hold_every_use() {
    let mut g = Small::default();
    let gap = Buffer { name: Some("own".into()), gaps: vec![Interval::new(2, 4)], ..Buffer::new(8, 1, 6) };
    let own = g.0.add_buffer(gap).unwrap();
    let ops = ["zero", "one", "two", "three", "four", "five", "six"].map(|n| g.op(n, &[], &[]));
    let uses = g.op("uses it", &[own], &[own]);
    let mut at = |step: usize| {
        let mut order = ops.to_vec();
        order.insert(step, uses);
        g.0.set_order(&order).unwrap();
        g.0.lower()
    };
    for step in [0, 2, 3, 6, 7] {
        says(at(step), &["operation 7 (uses it) writes value 0 (own)", &format!("step {step}"), "[1, 6) with 1 gap"]);
    }
    for step in [1, 4, 5] {
        at(step).unwrap();
    }
    let mut g = Small::default();
    let own = g.buffer("own", 8, 1, 2);
    g.op("reads it", &[own], &[]);
    says(g.0.lower(), &["operation 0 (reads it) reads value 0 (own)", "step 0", "[1, 2)"]);
}

#[test]
fn constants_are_not_written() {
    let constant = |inputs: &[usize], outputs: &[usize]| {
        let mut g = Small::default();
        let c = g.value("c", Kind::Constant, 8);
        let part = g.value("part", Kind::Constant, 4);
        let reshaped = g.temporary("reshaped", 8);
        g.0.view(part, c, 4).unwrap();
        g.0.view(reshaped, c, 0).unwrap();
        let ids = [c, part, reshaped];
        let of = |which: &[usize]| which.iter().map(|&i| ids[i]).collect::<Vec<_>>();
        g.op("op", &of(inputs), &of(outputs));
        g.0.lower()
    };
    says(constant(&[], &[0]), &["operation 0 (op) writes value 0 (c), which is constant", "parameter"]);
    says(constant(&[0], &[0]), &["value 0 (c), which is constant"]);
    says(constant(&[1], &[0]), &["value 0 (c), which is constant"]);
    says(constant(&[], &[2]), &["value 2 (reshaped), which is constant"]);
    says(constant(&[2, 0], &[2]), &["value 2 (reshaped), which is constant"]);
    constant(&[0], &[2]).unwrap();
    constant(&[0], &[1, 2]).unwrap();
    constant(&[1], &[2]).unwrap();
}

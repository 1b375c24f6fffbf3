//! Live ranges, on graphs small enough to check by eye.

use super::{buffer_of, range, Small};
use gpumem::plan::{Arena, Buffer, Graph, Interval, Kind, Kinds, Place, Placement, Preset, Reserved, Value};

const fn steps(lower: u64, upper: u64) -> Interval {
    Interval::new(lower, upper)
}

#[test]
fn a_temporary_lives_from_its_writer_to_its_last_reader() {
    let mut g = Small::default();
    let [a, b, c] = ["a", "b", "c"].map(|n| g.temporary(n, 8));
    g.op("make a", &[], &[a]);
    g.op("make b", &[a], &[b]);
    g.op("nothing", &[], &[]);
    g.op("make c", &[a, b], &[c]);
    g.op("last", &[b], &[]);
    let l = g.lower();
    assert_eq!((range(&l, a), range(&l, b), l.end), (steps(0, 4), steps(1, 5), 5));
    assert_eq!(range(&l, c), steps(3, 4), "written and never read: live while it is written");
}

#[test]
fn steps_are_those_of_the_execution_order() {
    let mut g = Small::default();
    let [a, b] = ["a", "b"].map(|n| g.temporary(n, 8));
    let last = g.op("reads both", &[a, b], &[]);
    let makes_b = g.op("makes b", &[a], &[b]);
    let makes_a = g.op("makes a", &[], &[a]);
    g.0.set_order(&[makes_a, makes_b, last]).unwrap();
    let l = g.lower();
    assert_eq!((range(&l, a), range(&l, b)), (steps(0, 3), steps(1, 3)));
    assert_eq!([makes_a, makes_b, last].map(|op| l.step(op).unwrap()), [0, 1, 2]);

    let added = g.op("reads a later", &[a], &[]);
    let l = g.lower();
    assert_eq!((range(&l, a), l.step(added)), (steps(0, 4), Some(3)), "what is added later runs later");
    g.0.set_order(&[makes_a, added, makes_b, last]).unwrap();
    assert_eq!(range(&g.lower(), b), steps(2, 4), "a new order replaces the old one");
}

#[test]
fn what_is_given_lives_throughout_and_outputs_to_the_end() {
    let mut g = Small::default();
    let given = [Kind::Input, Kind::Parameter, Kind::Constant].map(|k| g.value("given", k, 8));
    let unread = g.value("unread", Kind::Input, 8);
    let [a, b] = ["a", "b"].map(|n| g.temporary(n, 8));
    let out = g.value("out", Kind::Output, 8);
    g.op("first", &[], &[a]);
    g.op("second", &[a], &[out]);
    g.op("third", &given, &[b]);
    g.op("fourth", &[b], &[]);
    let l = g.lower();
    for v in given.into_iter().chain([unread]) {
        assert_eq!(range(&l, v), steps(0, 4));
    }
    assert_eq!(range(&l, out), steps(1, 4));
}

#[test]
fn the_end_is_after_everything() {
    let mut g = Small::default();
    let input = g.value("input", Kind::Input, 8);
    assert_eq!((range(&g.lower(), input), g.lower().end), (steps(0, 1), 1), "no operations");
    let plain = g.buffer("plain", 8, 3, 7);
    let l = g.lower();
    assert_eq!((range(&l, input), range(&l, plain), l.end), (steps(0, 7), steps(3, 7), 7));
    let out = g.value("out", Kind::Output, 8);
    g.op("make", &[input], &[out]);
    assert_eq!(range(&g.lower(), out), steps(0, 7), "an output lives past the last operation");
    g.0.extend_to(out, 9).unwrap();
    assert_eq!(g.lower().end, 10);
    assert_eq!(Graph::new().lower().unwrap().problem.buffers(), []);
}

#[test]
fn a_stated_range_is_used_as_it_is() {
    let mut g = Small::default();
    let mut b =
        Buffer { kind: Kind::Output, alignment: 64, guard: 3, place: Place::Preferred(128), ..Buffer::new(8, 1, 5) };
    b.gaps.push(steps(2, 4));
    let v = g.0.add_buffer(b.clone()).unwrap();
    g.op("zero", &[], &[]);
    g.op("one", &[], &[v]);
    g.op("two", &[], &[]);
    g.op("three", &[], &[]);
    g.op("four", &[v], &[]);
    g.op("five", &[], &[]);
    assert_eq!(*buffer_of(&g.lower(), v), b);
}

#[test]
fn an_input_may_be_read_before_an_operation_writes_it() {
    let mut g = Small::default();
    let state = g.value("state", Kind::Input, 8);
    let own = g.buffer("own", 8, 0, 3);
    g.op("read", &[state, own], &[]);
    g.op("write", &[], &[state, own]);
    assert_eq!(range(&g.lower(), state), steps(0, 2 + 1), "the stated range has three steps");
}

#[test]
fn an_update_reads_and_writes() {
    let mut g = Small::default();
    let weight = g.value("weight", Kind::Parameter, 8);
    let [a, b] = ["a", "b"].map(|n| g.temporary(n, 8));
    g.op("make", &[], &[a, b]);
    g.op("update", &[a, weight, a], &[a, weight]);
    g.op("again", &[a], &[a]);
    g.op("other", &[weight], &[weight]);
    let l = g.lower();
    assert_eq!((range(&l, a), range(&l, b), range(&l, weight)), (steps(0, 3), steps(0, 1), steps(0, 4)));
}

#[test]
fn what_nothing_touches_has_no_slot_and_what_has_no_bytes_follows_the_rules() {
    let mut g = Small::default();
    let unused = g.temporary("unused", 8);
    let view = g.temporary("view", 4);
    g.0.view(view, unused, 2).unwrap();
    let empty = g.temporary("empty", 0);
    g.op("make", &[], &[empty]);
    g.op("read", &[empty], &[]);
    let l = g.lower();
    assert_eq!(l.placements[unused.index()], Placement::Nowhere);
    assert_eq!(l.placements[view.index()], Placement::Nowhere);
    assert_eq!((range(&l, empty), l.problem.buffers().len()), (steps(0, 2), 1));
    assert!(!buffer_of(&l, empty).occupies());
    assert_eq!(l.value_of(gpumem::plan::BufferId(0)), Some(empty));
    assert_eq!(l.value_of(gpumem::plan::BufferId(1)), None);
}

#[test]
fn settings_reach_the_problem() {
    let mut g = Small::default();
    g.0.set_capacity(Some(1 << 20));
    let second = g.0.add_arena(Arena { name: Some("second".into()), capacity: Some(64) });
    let reserved = Reserved { arena: second, offset: 16, size: 8, during: steps(0, 3) };
    g.0.reserve(reserved.clone()).unwrap();
    g.0.set_reuse(false);
    g.0.set_unit(12).unwrap();
    g.0.set_left_out(Kinds::NONE.with(Kind::Input));
    let value = Value { alignment: 32, guard: 5, place: Place::Fixed(96), arena: Some(second), ..Value::new(40) };
    let v = g.0.add_value(value).unwrap();
    g.op("make", &[], &[v]);
    let p = g.lower().problem;
    assert_eq!(p.arenas()[0].capacity, Some(1 << 20));
    assert_eq!((p.arenas()[1].capacity, p.arenas()[1].name.as_deref()), (Some(64), Some("second")));
    assert_eq!(p.reserved(), [reserved]);
    assert_eq!((p.reuse(), p.unit(), p.left_out()), (false, 12, Kinds::NONE.with(Kind::Input)));
    let expected =
        Buffer { alignment: 32, guard: 5, place: Place::Fixed(96), arena: Some(second), ..Buffer::new(40, 0, 1) };
    assert_eq!(p.buffers(), [expected]);
}

#[test]
fn kinds_left_out_have_no_slot_and_presets_set_all_they_name() {
    let mut g = Small::default();
    let kinds = [Kind::Input, Kind::Parameter, Kind::Constant, Kind::Output, Kind::Temporary];
    let values = kinds.map(|k| g.value("v", k, 8));
    let part = g.temporary("part of the parameter", 4);
    g.0.view(part, values[1], 4).unwrap();
    g.op("make", &values[..3], &[values[4]]);
    g.op("use", &[values[4], part], &[values[3]]);
    g.op("last", &[], &[]);
    let placed = |g: &Small| {
        let l = g.lower();
        values.map(|v| l.placements[v.index()] != Placement::Nowhere)
    };
    assert_eq!(placed(&g), [true; 5]);
    g.0.set_keep_ancestors(true);
    g.0.set_preset(Preset::Inference);
    let l = g.lower();
    assert_eq!(placed(&g), [false, false, false, true, true]);
    assert_eq!(l.placements[part.index()], Placement::Nowhere, "a view shares the fate of its root");
    assert_eq!((range(&l, values[4]), range(&l, values[3])), (steps(0, 2), steps(1, 3)));
    g.0.set_preset(Preset::Backward);
    assert_eq!(placed(&g), [true; 5]);
    assert_eq!(range(&g.lower(), values[4]), steps(0, 3));
}

//! Writing an output over an input: when it is taken, and what comes of it.

use super::{buffer_of, range, says, Small};
use gpumem::plan::{Arena, Interval, Kind, Kinds, OpId, Place, Placement, Value, ValueId};

/// `input` is made at step 0 and read last by the operation at step 1, whose output is read at step
/// 2.
struct Pair {
    g: Small,
    input: ValueId,
    output: ValueId,
    op: OpId,
}

fn pair_of(input: Value, output: Value, more_inputs: &[Value]) -> Pair {
    let mut g = Small::default();
    g.0.add_arena(Arena::default());
    let [input, output] = [input, output].map(|v| g.0.add_value(v).unwrap());
    let more: Vec<_> = more_inputs.iter().map(|v| g.0.add_value(v.clone()).unwrap()).collect();
    let made: Vec<_> = more.iter().copied().chain([input]).collect();
    let read: Vec<_> = [input].into_iter().chain(more).collect();
    g.op("make", &[], &made);
    let op = g.op("map", &read, &[output]);
    g.op("use", &[output], &[]);
    g.0.in_place(op, input, output).unwrap();
    Pair { g, input, output, op }
}

fn pair() -> Pair {
    pair_of(Value::new(8), Value::new(8), &[])
}

impl Pair {
    #[track_caller]
    fn is_taken(&self, expected: bool) {
        let l = self.g.lower();
        assert_eq!(l.took_over(self.output), expected.then_some(self.input));
        let pairs: Vec<_> = l.taken_in_place(self.op).collect();
        assert_eq!(pairs, if expected { vec![(self.input, self.output)] } else { vec![] });
        let same = l.placements[self.input.index()] == l.placements[self.output.index()];
        assert_eq!(same, expected);
    }
}

#[test]
fn an_output_takes_an_input_that_dies() {
    let p = pair();
    p.is_taken(true);
    let l = p.g.lower();
    assert_eq!((l.problem.buffers().len(), range(&l, p.output)), (1, Interval::new(0, 3)));
    let p = pair_of(Value::new(8), Value { guard: 2, kind: Kind::Output, ..Value::new(6) }, &[]);
    p.is_taken(true);
    let b = buffer_of(&p.g.lower(), p.input).clone();
    assert_eq!((b.kind, b.size, b.guard, b.upper), (Kind::Output, 8, 0, 3), "smaller, and its guard is inside");
    pair_of(Value::new(8), Value::new(8), &[Value::new(8)]).is_taken(true);
}

/// Offsets count elements, so an output in the middle of a slot must be on the unit as any other.
#[test]
fn it_is_taken_only_on_the_unit() {
    for (unit, taken) in [(1, true), (4, true), (8, true), (12, false), (16, false)] {
        let mut g = Small::default();
        g.0.set_unit(unit).unwrap();
        let [root, part, output] = [("root", 32), ("part", 8), ("output", 8)].map(|(n, size)| g.temporary(n, size));
        g.0.view(part, root, 8).unwrap();
        g.op("make", &[], &[root]);
        let op = g.op("map", &[part], &[output]);
        g.op("use", &[output], &[]);
        g.0.in_place(op, part, output).unwrap();
        let l = g.lower();
        assert_eq!(l.took_over(output), taken.then_some(part), "unit {unit}");
        let layout = gpumem::plan::solve(&l.problem, &Default::default()).unwrap();
        assert!(l.slot(&layout, output).unwrap().offset.is_multiple_of(unit), "unit {unit}");
    }
}

#[test]
fn it_is_not_taken_where_sizes_or_properties_do_not_fit() {
    let v = || Value::new(8);
    let refused = |input, output| pair_of(input, output, &[]).is_taken(false);
    refused(v(), Value::new(9));
    refused(v(), Value { guard: 1, ..v() });
    pair_of(Value { guard: 1, ..v() }, Value { guard: 1, ..v() }, &[]).is_taken(true);
    refused(Value { guard: 1, ..v() }, Value::new(9));
    refused(v(), Value::new(0));
    refused(v(), Value { place: Place::Preferred(0), ..v() });
    refused(v(), Value { place: Place::Fixed(0), ..v() });
    refused(v(), Value { arena: Some(0), ..v() });
    refused(Value { arena: Some(0), ..v() }, Value { arena: Some(1), ..v() });
    pair_of(Value { arena: Some(1), ..v() }, v(), &[]).is_taken(true);
    pair_of(Value { arena: Some(1), ..v() }, Value { arena: Some(1), ..v() }, &[]).is_taken(true);
    for kind in [Kind::Input, Kind::Parameter] {
        refused(v(), Value { kind, ..v() });
        refused(Value { kind, ..v() }, v());
    }
    refused(Value { kind: Kind::Output, ..v() }, v());
}

#[test]
fn the_slot_is_aligned_for_both_or_it_is_not_taken() {
    let aligned = |alignment| Value { alignment, ..Value::new(8) };
    let p = pair_of(aligned(4), aligned(64), &[]);
    p.is_taken(true);
    assert_eq!(buffer_of(&p.g.lower(), p.input).alignment, 64);
    let at = |place| Value { place, ..Value::new(8) };
    pair_of(at(Place::Fixed(96)), aligned(32), &[]).is_taken(true);
    pair_of(at(Place::Fixed(96)), aligned(64), &[]).is_taken(false);
    pair_of(at(Place::Preferred(96)), aligned(64), &[]).is_taken(false);
}

#[test]
fn it_is_not_taken_where_the_input_lives_on() {
    let mut p = pair();
    p.g.op("reads it later", &[p.input], &[]);
    p.is_taken(false);

    let mut p = pair();
    p.g.op("updates it later", &[p.input], &[p.input]);
    p.is_taken(false);

    let mut p = pair();
    p.g.0.pin(p.input).unwrap();
    p.is_taken(false);

    let mut p = pair();
    p.g.0.pin_ancestors(p.output).unwrap();
    p.is_taken(false);

    let mut p = pair();
    p.g.0.extend_to(p.input, 0).unwrap();
    p.is_taken(true);
    p.g.0.extend_to(p.input, 1).unwrap();
    p.is_taken(false);

    let mut p = pair();
    p.g.0.set_reuse(false);
    p.is_taken(false);

    let mut p = pair();
    p.g.0.set_left_out(Kinds::NONE.with(Kind::Temporary));
    let l = p.g.lower();
    assert_eq!((l.took_over(p.output), l.placements[p.output.index()]), (None, Placement::Nowhere));
}

#[test]
fn an_input_at_the_last_step_still_lives_if_it_must() {
    // Its range ends with the step in any case; only the demand tells that it must survive the
    // operation.
    for demand in 0..3 {
        let mut g = Small::default();
        let kind = if demand == 0 { Kind::Output } else { Kind::Temporary };
        let input = g.value("input", kind, 8);
        let output = g.temporary("output", 8);
        g.op("make", &[], &[input]);
        let op = g.op("map", &[input], &[output]);
        g.0.in_place(op, input, output).unwrap();
        match demand {
            0 => {}
            1 => g.0.pin(input).unwrap(),
            _ => g.0.extend_to(input, 1).unwrap(),
        }
        assert_eq!(g.lower().took_over(output), None, "demand {demand}");
    }
}

#[test]
fn a_stated_range_is_nobody_elses() {
    let mut g = Small::default();
    let own = g.buffer("own", 8, 0, 2);
    let out = g.buffer("out", 8, 1, 2);
    let [a, b] = ["a", "b"].map(|n| g.temporary(n, 8));
    g.op("make", &[], &[a]);
    let op = g.op("map", &[own, a], &[out, b]);
    g.0.in_place(op, own, b).unwrap();
    g.0.in_place(op, a, out).unwrap();
    assert_eq!(g.lower().taken_in_place(op).count(), 0);
    g.0.in_place(op, a, b).unwrap();
    assert_eq!(g.lower().taken_in_place(op).collect::<Vec<_>>(), [(a, b)]);
}

#[test]
fn all_views_of_an_input_must_be_done_with() {
    let with_view = |reader_later: bool, second_input: bool| {
        let mut g = Small::default();
        let [root, out] = [("root", 16), ("out", 8)].map(|(n, size)| g.temporary(n, size));
        let [part, other] = ["part", "other"].map(|n| g.temporary(n, 8));
        g.0.view(part, root, 8).unwrap();
        g.0.view(other, root, 4).unwrap();
        g.op("make", &[], &[root]);
        let inputs = if second_input { vec![part, other] } else { vec![part, part] };
        let op = g.op("map", &inputs, &[out]);
        let later = if reader_later { vec![other, out] } else { vec![out] };
        g.op("use", &later, &[]);
        g.0.in_place(op, part, out).unwrap();
        let l = g.lower();
        let taken = l.took_over(out).is_some();
        assert!(!taken || l.placements[out.index()] == l.placements[part.index()], "over the part, not the root");
        taken
    };
    assert!(with_view(false, false));
    assert!(!with_view(true, false), "the root is read later through another view");
    assert!(!with_view(false, true), "the operation reads the same bytes elsewhere too");
}

#[test]
fn an_output_must_fit_behind_the_view_that_it_takes_over() {
    for (size, alignment, taken) in [(8, 1, true), (9, 1, false), (8, 4, true), (8, 8, false)] {
        let mut g = Small::default();
        let [root, part] = [("root", 20), ("part", 4)].map(|(n, size)| g.temporary(n, size));
        let out = g.0.add_value(Value { alignment, ..Value::new(size) }).unwrap();
        g.0.view(part, root, 12).unwrap();
        g.op("make", &[], &[root]);
        let op = g.op("map", &[part], &[out]);
        g.0.in_place(op, part, out).unwrap();
        assert_eq!(g.lower().took_over(out).is_some(), taken, "{size} bytes, alignment {alignment}");
    }
}

#[test]
fn an_output_that_is_elsewhere_or_older_is_not_taken() {
    let mut g = Small::default();
    let [a, root, old, part] = [("a", 8), ("root", 8), ("old", 8), ("part", 4)].map(|(n, size)| g.temporary(n, size));
    let view = g.temporary("view", 8);
    g.0.view(view, root, 0).unwrap();
    g.0.view(part, old, 0).unwrap();
    g.op("make", &[], &[a, part]);
    let op = g.op("map", &[a], &[view, old]);
    g.0.in_place(op, a, view).unwrap();
    g.0.in_place(op, a, old).unwrap();
    assert_eq!(
        g.lower().taken_in_place(op).count(),
        0,
        "a view is in its root; a part of the other was written before"
    );
}

#[test]
fn chains_are_one_slot() {
    let mut g = Small::default();
    let root = g.temporary("root", 64);
    let part = g.temporary("part", 32);
    g.0.view(part, root, 32).unwrap();
    g.op("make", &[], &[root]);
    let mut last = part;
    let mut outputs = vec![];
    for i in 0..5 {
        let next = g.temporary("next", 32 - i);
        let inner = g.temporary("inner", 16 - i);
        g.0.view(inner, next, 1).unwrap();
        let op = g.op("map", &[last], &[next]);
        g.0.in_place(op, last, next).unwrap();
        outputs.push(next);
        last = inner;
    }
    let l = g.lower();
    let at = outputs.iter().map(|v| l.placements[v.index()]);
    let buffer = gpumem::plan::BufferId(0);
    assert!(at.eq((32..37).map(|offset| Placement::In { buffer, offset })), "each one byte into the one before");
    assert_eq!((l.problem.buffers().len(), range(&l, root)), (1, Interval::new(0, 6)));
}

#[test]
fn one_input_serves_one_output_and_the_first_statement_wins() {
    let mut g = Small::default();
    let [a, b, x, y] = ["a", "b", "x", "y"].map(|n| g.temporary(n, 8));
    g.op("make", &[], &[a, b]);
    let op = g.op("map", &[a, b], &[x, y]);
    for (input, output) in [(a, y), (a, x), (b, y), (b, x)] {
        g.0.in_place(op, input, output).unwrap();
    }
    let l = g.lower();
    assert_eq!(l.taken_in_place(op).collect::<Vec<_>>(), [(a, y), (b, x)]);
    assert_eq!(
        (l.took_over(x), l.took_over(y), l.took_over(a), l.took_over(ValueId(77))),
        (Some(b), Some(a), None, None)
    );
}

#[test]
fn an_input_that_is_updated_too_is_not_taken() {
    let mut g = Small::default();
    let [a, out] = ["a", "out"].map(|n| g.temporary(n, 8));
    g.op("make", &[], &[a]);
    let op = g.op("map", &[a], &[a, out]);
    g.0.in_place(op, a, out).unwrap();
    assert_eq!(g.lower().took_over(out), None);
}

#[test]
fn what_is_no_input_or_output_is_refused() {
    let mut g = Small::default();
    let [a, b, c] = ["a", "b", "c"].map(|n| g.temporary(n, 8));
    let op = g.op("map", &[a, c], &[b, c]);
    says(g.0.in_place(OpId(9), a, b), &["operation 9", "there are 1"]);
    says(g.0.in_place(op, ValueId(9), b), &["value 9", "does not exist"]);
    says(g.0.in_place(op, a, ValueId(9)), &["value 9", "does not exist"]);
    says(g.0.in_place(op, b, b), &["value 1 (b)", "no input of operation 0 (map)"]);
    says(g.0.in_place(op, a, a), &["value 0 (a)", "no output of operation 0 (map)"]);
    says(g.0.in_place(op, c, c), &["value 2 (c)", "operation 0 (map)", "updates it in place"]);
}

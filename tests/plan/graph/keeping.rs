//! Pins, extensions and ancestors.

use super::{range, says, Small};
use gpumem::plan::{Buffer, Interval, Kind, ValueId};

/// A chain x → a → b → out with an unrelated value between, and two operations after it.
fn chain() -> (Small, [ValueId; 5]) {
    let mut g = Small::default();
    let x = g.value("x", Kind::Input, 8);
    let [a, b, other] = ["a", "b", "other"].map(|n| g.temporary(n, 8));
    let out = g.value("out", Kind::Output, 8);
    g.op("first", &[x], &[a]);
    g.op("second", &[a], &[b]);
    g.op("aside", &[x], &[other]);
    g.op("third", &[b, x], &[out]);
    g.op("nothing", &[], &[]);
    (g, [x, a, b, other, out])
}

fn uppers(g: &Small, values: &[ValueId]) -> Vec<u64> {
    let l = g.lower();
    values.iter().map(|&v| range(&l, v).upper).collect()
}

#[test]
fn a_pin_keeps_one_value() {
    let (mut g, values) = chain();
    assert_eq!(uppers(&g, &values), [5, 2, 4, 3, 5]);
    g.0.pin(values[1]).unwrap();
    assert_eq!(uppers(&g, &values), [5, 5, 4, 3, 5]);
}

#[test]
fn an_extension_is_a_reader_at_that_step() {
    let (mut g, values) = chain();
    g.0.extend_to(values[1], 2).unwrap();
    assert_eq!(uppers(&g, &values), [5, 3, 4, 3, 5]);
    g.0.extend_to(values[1], 1).unwrap();
    g.0.extend_to(values[2], 0).unwrap();
    assert_eq!(uppers(&g, &values), [5, 3, 4, 3, 5], "never shorter, and a step before the birth changes nothing");
    g.0.extend_to(values[1], 6).unwrap();
    assert_eq!(uppers(&g, &values), [7, 7, 4, 3, 7], "a step after the last operation moves the end");
}

#[test]
fn ancestors_are_kept_and_nothing_else() {
    let (mut g, values) = chain();
    g.0.pin_ancestors(values[2]).unwrap();
    assert_eq!(uppers(&g, &values), [5, 5, 4, 3, 5], "not the value itself");
    let (mut g, values) = chain();
    g.0.set_keep_ancestors(true);
    assert_eq!(uppers(&g, &values), [5, 5, 5, 3, 5]);
    g.0.set_keep_ancestors(false);
    assert_eq!(uppers(&g, &values), [5, 2, 4, 3, 5]);
}

#[test]
fn ancestors_are_found_through_views_and_in_place() {
    let mut g = Small::default();
    let [root, part, mapped, inner, late] = ["root", "part", "mapped", "inner", "late"].map(|n| g.temporary(n, 8));
    let out = g.value("out", Kind::Output, 8);
    g.0.view(part, root, 0).unwrap();
    g.0.view(inner, mapped, 0).unwrap();
    g.op("make", &[], &[root]);
    let op = g.op("map", &[part], &[mapped]);
    g.0.in_place(op, part, mapped).unwrap();
    let last = g.op("reduce", &[inner], &[out]);
    g.0.in_place(last, inner, out).unwrap();
    g.op("late", &[out], &[late]);
    g.op("nothing", &[], &[]);
    assert_eq!(uppers(&g, &[root, mapped, out]), [5, 5, 5], "one slot for all of them");
    assert_eq!(g.lower().problem.buffers().len(), 2);
    g.0.pin_ancestors(late).unwrap();
    let l = g.lower();
    assert_eq!((l.took_over(mapped), l.took_over(out), l.problem.buffers().len()), (None, None, 4));
    assert_eq!(uppers(&g, &[root, mapped, out, late]), [5, 5, 5, 4]);
}

#[test]
fn a_view_comes_from_its_parent() {
    let mut g = Small::default();
    let [before, root, part] = ["before", "root", "part"].map(|n| g.temporary(n, 8));
    g.0.view(part, root, 0).unwrap();
    g.op("make", &[], &[before]);
    g.op("next", &[before], &[root]);
    g.op("nothing", &[], &[]);
    g.0.pin_ancestors(part).unwrap();
    assert_eq!(uppers(&g, &[before, root]), [3, 3]);
}

#[test]
fn what_is_asked_of_unwritten_or_stated_values_is_an_error() {
    let unwritten = |ask: fn(&mut Small, ValueId)| {
        let mut g = Small::default();
        let v = g.temporary("v", 8);
        let view = g.temporary("part", 8);
        g.0.view(view, v, 0).unwrap();
        ask(&mut g, view);
        g.0.lower()
    };
    says(
        unwritten(|g, v| g.0.pin(v).unwrap()),
        &["value 1 (part) is kept", "nothing produces it", "add it as a buffer"],
    );
    says(unwritten(|g, v| g.0.extend_to(v, 3).unwrap()), &["value 1 (part) is extended", "nothing produces it"]);
    let mut g = Small::default();
    g.value("out", Kind::Output, 8);
    says(g.0.lower(), &["value 0 (out) is an output", "nothing produces it"]);

    let stated = |ask: fn(&mut Small, ValueId)| {
        let mut g = Small::default();
        let own = g.buffer("own", 8, 0, 2);
        let out = g.value("out", Kind::Output, 8);
        g.op("make", &[own], &[out]);
        g.op("nothing", &[], &[]);
        ask(&mut g, own);
        g.0.lower()?;
        g.op("one more", &[], &[]);
        g.0.lower()
    };
    stated(|_, _| {}).unwrap();
    says(stated(|g, v| g.0.pin(v).unwrap()), &["value 0 (own) must live to the end, step 3", "[0, 2)"]);
    says(stated(|g, _| g.0.set_keep_ancestors(true)), &["value 0 (own) must live to the end"]);
    stated(|g, v| g.0.extend_to(v, 1).unwrap()).unwrap();
}

#[test]
fn nothing_is_extended_beyond_its_stated_range() {
    let mut g = Small::default();
    let own = g.buffer("own", 8, 0, 2);
    let part = g.temporary("part", 4);
    g.op("make", &[], &[own]);
    g.0.view(part, own, 0).unwrap();
    let before = g.0.lower();
    // Said at once, and forgotten: what was asked before still holds.
    says(g.0.extend_to(own, 2), &["value 0 (own) cannot be extended to step 2", "[0, 2)", "state a range that"]);
    says(
        g.0.extend_to(part, 7),
        &["value 1 (part) cannot be extended to step 7", "value 0 (own), of which it is a view"],
    );
    assert_eq!(g.0.lower(), before);
    g.0.extend_to(part, 1).unwrap();
    g.0.lower().unwrap();
    // What becomes a view later is known only then.
    let later = g.temporary("later", 4);
    g.0.extend_to(later, 5).unwrap();
    g.0.view(later, own, 4).unwrap();
    says(g.0.lower(), &["value 2 (later) cannot be extended to step 5", "[0, 2)"]);
}

#[test]
fn unknown_values_and_impossible_steps_are_refused() {
    let (mut g, values) = chain();
    let before = g.lower();
    for result in [g.0.pin(ValueId(5)), g.0.pin_ancestors(ValueId(5)), g.0.extend_to(ValueId(5), 1)] {
        says(result, &["value 5 does not exist", "there are 5"]);
    }
    says(g.0.extend_to(values[1], u64::MAX), &["value 1 (a)", "step 18446744073709551615"]);
    assert_eq!(g.lower(), before);
}

#[test]
fn what_is_kept_has_no_gap_until_then() {
    let with_gap = || {
        let mut g = Small::default();
        let gaps = vec![Interval::new(5, 7)];
        let v = g.0.add_buffer(Buffer { gaps, ..Buffer::new(8, 0, 10) }).unwrap();
        (g, v)
    };
    let (mut g, v) = with_gap();
    g.0.extend_to(v, 4).unwrap();
    assert!(g.0.lower().is_ok(), "the gap comes later");
    g.0.extend_to(v, 8).unwrap();
    says(g.0.lower(), &["must keep what it holds up to step 9, and has gaps before"]);
    let (mut g, v) = with_gap();
    g.0.pin(v).unwrap();
    says(g.0.lower(), &["must keep what it holds up to step 10, and has gaps before"]);
}

//! Views: where they are, and how long their root lives.

use super::{buffer_of, range, says, Small};
use gpumem::plan::{Arena, Buffer, Interval, Kind, Place, Placement, Value, ValueId};

fn position(l: &gpumem::plan::Lowered, v: ValueId) -> (u32, u64) {
    match l.placements[v.index()] {
        Placement::In { buffer, offset } => (buffer.0, offset),
        other => panic!("{other:?}"),
    }
}

#[test]
fn offsets_add_up_whatever_the_order_of_stating() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let mut g = Small::default();
        let before = g.temporary("before", 1);
        let root = g.temporary("root", 100);
        let [a, b, c] = [("a", 50), ("b", 30), ("c", 20)].map(|(n, size)| g.temporary(n, size));
        let stated = [(a, root, 10), (b, a, 20), (c, b, 10)];
        for i in order {
            let (child, parent, offset) = stated[i];
            g.0.view(child, parent, offset).unwrap();
        }
        g.op("make", &[], &[root, before]);
        let l = g.lower();
        assert_eq!([root, a, b, c].map(|v| position(&l, v)), [(1, 0), (1, 10), (1, 30), (1, 40)], "{order:?}");
        assert_eq!(l.problem.buffers().iter().map(|b| b.size).collect::<Vec<_>>(), [1, 100], "views have no bytes");
    }
}

#[test]
fn uses_of_a_view_count_on_its_root() {
    let mut g = Small::default();
    let [root, a, b] = ["root", "a", "b"].map(|n| g.temporary(n, 8));
    g.op("nothing", &[], &[]);
    g.op("make", &[], &[root]);
    g.op("nothing", &[], &[]);
    let reshape = g.op("reshape", &[root], &[a]);
    g.op("read", &[b], &[]);
    g.0.view(a, root, 0).unwrap();
    g.0.view(b, a, 0).unwrap();
    let l = g.lower();
    for v in [root, a, b] {
        assert_eq!(range(&l, v), Interval::new(1, 5), "a reshape is no birth");
    }
    assert_eq!(l.taken_in_place(reshape).count(), 0);
}

#[test]
fn a_root_is_born_with_the_first_of_its_parts() {
    let mut g = Small::default();
    let root = g.temporary("root", 16);
    let [left, right] = ["left", "right"].map(|n| g.temporary(n, 8));
    g.0.view(left, root, 0).unwrap();
    g.0.view(right, root, 8).unwrap();
    g.op("nothing", &[], &[]);
    g.op("write right", &[], &[right]);
    g.op("write left", &[], &[left]);
    g.op("read all", &[root], &[]);
    g.op("read left", &[left], &[]);
    assert_eq!(range(&g.lower(), root), Interval::new(1, 5));
    g.0.extend_to(right, 6).unwrap();
    assert_eq!(range(&g.lower(), root), Interval::new(1, 7), "what is asked of a view is asked of its root");
}

#[test]
fn an_output_view_keeps_its_root() {
    let mut g = Small::default();
    let root = g.temporary("root", 16);
    let out = g.value("out", Kind::Output, 8);
    g.0.view(out, root, 8).unwrap();
    g.op("make", &[], &[root]);
    g.op("nothing", &[], &[]);
    let l = g.lower();
    assert_eq!((range(&l, out), position(&l, out)), (Interval::new(0, 2), (0, 8)));
}

#[test]
fn a_slot_is_aligned_for_all_its_views() {
    let mut g = Small::default();
    let root = g.0.add_value(Value { alignment: 4, place: Place::Preferred(4), ..Value::new(256) }).unwrap();
    let outer = g.temporary("outer", 100);
    let inner = g.0.add_value(Value { alignment: 64, ..Value::new(20) }).unwrap();
    // 60 bytes into the outer one, which would not do if that were not 4 bytes into the root.
    g.0.view(inner, outer, 60).unwrap();
    g.op("make", &[], &[root]);
    says(g.0.lower(), &["value 2", "60 bytes into it", "outer", "alignment 64"]);
    g.0.view(outer, root, 4).unwrap();
    let l = g.lower();
    assert_eq!((buffer_of(&l, root).alignment, position(&l, inner)), (64, (0, 64)));
    assert_eq!(buffer_of(&l, root).place, Place::Anywhere, "a wish that the alignment does not allow");
}

/// The graph's alignment is one of slots: a view that did not ask for one is aligned to nothing.
#[test]
fn a_view_does_not_inherit_the_alignment_of_the_graph() {
    let mut g = Small::default();
    g.0.set_alignment(64);
    let value = |size| Value { alignment: 0, ..Value::new(size) };
    let root = g.0.add_value(value(128)).unwrap();
    let whole = g.0.add_value(value(128)).unwrap();
    let part = g.0.add_value(value(40)).unwrap();
    let other = g.0.add_value(value(40)).unwrap();
    g.0.view(whole, root, 0).unwrap();
    g.0.view(part, whole, 33).unwrap();
    g.op("make", &[], &[root, other]);
    let l = g.lower();
    assert_eq!((buffer_of(&l, root).alignment, position(&l, part)), (64, (0, 33)));
    assert_eq!(buffer_of(&l, other).alignment, 64);
    // What asked for it needs it still.
    let strict = g.0.add_value(Value { alignment: 64, ..Value::new(8) }).unwrap();
    g.0.view(strict, root, 32).unwrap();
    says(g.0.lower(), &["value 4", "alignment 64"]);
}

#[test]
fn what_a_view_needs_of_its_root_is_checked_by_lowering() {
    let lower = |root: Value, child: Value, offset: u64| {
        let mut g = Small::default();
        g.0.add_arena(Arena::default());
        let root = g.0.add_value(Value { name: Some("root".into()), ..root }).unwrap();
        let child = g.0.add_value(Value { name: Some("child".into()), ..child }).unwrap();
        g.0.view(child, root, offset).unwrap();
        g.op("make", &[], &[]);
        g.0.lower()
    };
    let v = || Value::new(16);
    let both = ["child", "root"];
    let parts = |more: &[&'static str]| both.iter().chain(more).copied().collect::<Vec<_>>();
    let kind = |kind, size| Value { kind, ..Value::new(size) };
    says(lower(v(), kind(Kind::Parameter, 8), 0), &parts(&["Parameter", "Temporary"]));
    says(lower(v(), Value { arena: Some(1), ..Value::new(8) }, 0), &parts(&["arena"]));
    says(lower(v(), Value { alignment: 8, ..Value::new(8) }, 4), &parts(&["4 bytes", "alignment 8"]));
    let fixed = Value { place: Place::Fixed(24), ..v() };
    says(lower(fixed.clone(), Value { alignment: 16, ..Value::new(8) }, 0), &parts(&["offset 24", "alignment 16"]));
    lower(fixed, Value { alignment: 8, ..Value::new(8) }, 8).unwrap();
    lower(kind(Kind::Constant, 16), kind(Kind::Constant, 8), 0).unwrap();
    lower(Value { arena: Some(1), ..v() }, Value { arena: Some(1), ..Value::new(8) }, 0).unwrap();
}

#[test]
fn a_view_cannot_be_stated_where_it_makes_no_sense() {
    let mut g = Small::default();
    let [root, a, b] = ["root", "a", "b"].map(|n| g.temporary(n, 16));
    let unknown = ValueId(99);
    says(g.0.view(unknown, root, 0), &["value 99", "does not exist"]);
    says(g.0.view(a, unknown, 0), &["value 99", "does not exist"]);
    says(g.0.view(a, a, 0), &["value 1 (a)", "itself"]);
    g.0.view(a, root, 0).unwrap();
    says(g.0.view(a, b, 0), &["value 1 (a)", "value 2 (b)", "value 0 (root) already"]);
    g.0.view(b, a, 0).unwrap();
    says(g.0.view(root, b, 0), &["value 0 (root)", "value 2 (b)", "a view of it"]);
    says(g.0.view(root, a, 0), &["a view of it"]);

    let [long, small] = [("long", 17), ("small", 4)].map(|(n, size)| g.temporary(n, size));
    says(g.0.view(long, root, 0), &["long", "root", "17 bytes at offset 0", "16 bytes"]);
    says(g.0.view(small, b, 13), &["small", "4 bytes at offset 13", "16 bytes"]);
    says(g.0.view(small, b, u64::MAX), &["offset 18446744073709551615"]);
    let empty = g.temporary("empty", 0);
    g.0.view(empty, b, 16).unwrap();

    let own = g.buffer("own range", 4, 0, 3);
    says(g.0.view(own, root, 0), &["own range", "root", "range of its own"]);
    let fixed = g.0.add_value(Value { place: Place::Fixed(0), ..Value::new(4) }).unwrap();
    says(g.0.view(fixed, root, 0), &["place of its own", "root"]);
    let guarded = g.0.add_value(Value { guard: 7, ..Value::new(4) }).unwrap();
    says(g.0.view(guarded, root, 0), &["guard of its own, 7 bytes"]);
    // Nothing of that changed the graph.
    g.0.view(small, b, 12).unwrap();
    g.op("make", &[], &[root]);
    assert_eq!(position(&g.lower(), small), (0, 12));
}

#[test]
fn a_view_of_a_stated_buffer_is_held_to_its_range() {
    let mut g = Small::default();
    let own = g.buffer("own", 16, 1, 3);
    let part = g.temporary("part", 8);
    g.0.view(part, own, 8).unwrap();
    g.op("zero", &[], &[]);
    g.op("one", &[], &[part]);
    g.op("two", &[part], &[]);
    assert_eq!(*buffer_of(&g.lower(), part), Buffer { name: Some("own".into()), ..Buffer::new(16, 1, 3) });
    g.op("three", &[part], &[]);
    says(g.0.lower(), &["operation 3 (three)", "value 1 (part)", "value 0 (own)", "step 3", "[1, 3)"]);
}

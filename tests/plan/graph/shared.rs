//! Weights that another plan placed.

use super::packer::pack;
use super::{buffer_of, range, says, Rng, Small};
use gpumem::plan::{Arena, Buffer, Interval, Kind, Kinds, Place, Placement, Reserved, Slot, Value, ValueId};

fn weight(g: &mut Small, name: &str, size: u64) -> ValueId {
    g.value(name, Kind::Parameter, size)
}

#[test]
fn a_shared_weight_is_where_the_other_plan_has_it_and_reserved_throughout() {
    let mut g = Small::default();
    let w = weight(&mut g, "w", 32);
    let part = g.temporary("part", 8);
    g.0.view(part, w, 8).unwrap();
    let a = g.temporary("a", 8);
    g.op("make", &[], &[a]);
    g.op("use", &[part, a], &[]);
    g.op("nothing", &[], &[]);
    g.0.share("w", 0, 96, 32).unwrap();
    g.0.share("w", 0, 96, 32).unwrap();
    g.0.share("elsewhere", 0, 200, 50).unwrap();
    let l = g.lower();
    let expected = Buffer { kind: Kind::Parameter, place: Place::Fixed(96), arena: Some(0), ..Buffer::new(32, 0, 3) };
    assert_eq!(l.problem.buffers()[1], Buffer { name: Some("w".into()), ..expected });
    assert_eq!(l.value_of(gpumem::plan::BufferId(1)), Some(w));
    let during = Interval::new(0, 3);
    assert_eq!(l.problem.reserved(), [Reserved { arena: 0, offset: 200, size: 50, during }]);
    let layout = pack(&l.problem, &mut Rng::new(1));
    let at = |v| l.slot(&layout, v).map(|s| (s.arena, s.offset));
    assert_eq!((at(w), at(part)), (Some((0, 96)), Some((0, 104))));
    assert_eq!(l.slot(&layout, ValueId(9)), None);
    assert_eq!(range(&l, a), Interval::new(0, 2));
}

#[test]
fn a_shared_weight_of_a_kind_left_out_keeps_its_place_and_its_bytes() {
    let mut g = Small::default();
    let [w, other] = ["w", "other"].map(|n| weight(&mut g, n, 32));
    let empty = weight(&mut g, "empty", 0);
    g.0.set_left_out(Kinds::NONE.with(Kind::Parameter));
    g.0.share("w", 0, 96, 32).unwrap();
    g.0.share("empty", 0, 7, 0).unwrap();
    let l = g.lower();
    assert_eq!(l.placements[w.index()], Placement::At(Slot { arena: 0, offset: 96 }));
    assert_eq!(l.placements[empty.index()], Placement::At(Slot { arena: 0, offset: 7 }));
    assert_eq!(l.placements[other.index()], Placement::Nowhere);
    assert_eq!(l.problem.reserved().iter().map(|r| (r.offset, r.size)).collect::<Vec<_>>(), [(96, 32)]);
}

#[test]
fn the_arena_is_aligned_for_weights_of_a_kind_left_out_too() {
    let mut g = Small::default();
    let w = g.0.add_value(Value { name: Some("w".into()), kind: Kind::Parameter, alignment: 4096, ..Value::new(32) });
    g.0.add_value(Value { alignment: 64, ..Value::new(8) }).unwrap();
    g.0.set_left_out(Kinds::NONE.with(Kind::Parameter));
    g.0.share("w", 0, 8192, 32).unwrap();
    let l = g.lower();
    assert_eq!(l.placements[w.unwrap().index()], Placement::At(Slot { arena: 0, offset: 8192 }));
    let layout = pack(&l.problem, &mut Rng::new(1));
    assert_eq!((l.alignment_in(&layout, 0), l.alignment_in(&layout, 1)), (4096, 1));
}

#[test]
fn overlapping_weights_are_one_buffer() {
    let mut g = Small::default();
    let [tied, first, inner] = [("tied", 32), ("first", 32), ("inner", 8)].map(|(n, size)| weight(&mut g, n, size));
    g.0.share("tied", 0, 64, 32).unwrap();
    g.0.share("first", 0, 64, 32).unwrap();
    g.0.share("inner", 0, 80, 8).unwrap();
    g.0.share("all, and not here", 0, 60, 100).unwrap();
    g.0.share("next to it", 0, 160, 10).unwrap();
    let l = g.lower();
    assert_eq!(l.problem.buffers().len(), 1);
    let b = &l.problem.buffers()[0];
    assert_eq!((b.size, b.place, b.name.as_deref()), (100, Place::Fixed(60), Some("all, and not here")));
    let layout = pack(&l.problem, &mut Rng::new(1));
    assert_eq!([tied, first, inner].map(|v| l.slot(&layout, v).unwrap().offset), [64, 64, 80]);
    assert_eq!(l.problem.reserved().iter().map(|r| (r.offset, r.size)).collect::<Vec<_>>(), [(160, 10)]);
}

#[test]
fn a_view_may_be_shared_where_its_root_is() {
    let with = |root: Option<u64>, part: u64| {
        let mut g = Small::default();
        let r = weight(&mut g, "root", 32);
        let p = weight(&mut g, "part", 8);
        g.0.view(p, r, 16).unwrap();
        if let Some(at) = root {
            g.0.share("root", 0, at, 32).unwrap();
        }
        g.0.share("part", 0, part, 8).unwrap();
        g.0.lower()
    };
    assert_eq!(with(Some(64), 80).unwrap().problem.buffers().len(), 1);
    says(with(Some(64), 72), &["shared weight part", "16 bytes into value 0 (root)", "not so far before it"]);
    says(with(None, 80), &["shared weight part", "value 0 (root)", "not shared"]);
}

#[test]
fn weights_that_do_not_match_are_refused() {
    let with = |value: Value, offset: u64| {
        let mut g = Small::default();
        g.0.add_arena(Arena::default());
        g.0.add_value(Value { name: Some("w".into()), ..value }).unwrap();
        g.0.share("w", 0, offset, 32).unwrap();
        g.0.lower()
    };
    let w = |size| Value { kind: Kind::Parameter, ..Value::new(size) };
    with(w(32), 7).unwrap();
    says(with(w(31), 0), &["shared weight w", "value 0 (w) has 31 bytes here and 32 in the other plan"]);
    for kind in [Kind::Temporary, Kind::Input] {
        let parts = ["shared weight w", "value 0 (w)", &format!("kind {kind:?}"), "rename"];
        says(with(Value { kind, ..w(32) }, 0), &parts);
    }
    says(with(Value { alignment: 16, ..w(32) }, 8), &["value 0 (w)", "alignment of 16", "offset 8"]);
    says(with(Value { arena: Some(1), ..w(32) }, 0), &["value 0 (w)", "another arena than 0"]);
    says(with(Value { place: Place::Fixed(64), ..w(32) }, 0), &["value 0 (w)", "fixed elsewhere than at offset 0"]);
    with(Value { place: Place::Fixed(64), arena: Some(0), ..w(32) }, 64).unwrap();

    let mut g = Small::default();
    says(g.0.share("w", 1, 0, 32), &["shared weight w", "arena 1 does not exist"]);
    says(g.0.share("w", 0, 1 << 62, 32), &["shared weight w", "2^62"]);
    says(g.0.share("w", 0, 0, u64::MAX), &["shared weight w", "2^62"]);
    g.0.share("w", 0, 0, 32).unwrap();
    says(g.0.share("w", 0, 8, 32), &["shared weight w", "32 bytes at offset 0", "offset 8"]);
    let [_, _] = [weight(&mut g, "w", 32), weight(&mut g, "w", 32)];
    says(g.0.lower(), &["shared weight w", "value 1 (w)", "value 0 (w)", "both have the name"]);
}

#[test]
fn everything_that_lives_throughout_is_shared_from_another_plan() {
    let mut a = Small::default();
    a.0.add_arena(Arena::default());
    let w = weight(&mut a, "w", 32);
    let c = a.value("c", Kind::Constant, 16);
    let part = weight(&mut a, "part", 8);
    a.0.view(part, w, 16).unwrap();
    a.value("input", Kind::Input, 64);
    let nameless = a.0.add_value(Value { kind: Kind::Parameter, arena: Some(1), guard: 4, ..Value::new(5) }).unwrap();
    a.0.add_buffer(Buffer { kind: Kind::Parameter, name: Some("for a while".into()), ..Buffer::new(9, 0, 1) }).unwrap();
    a.0.add_buffer(Buffer { kind: Kind::Constant, name: Some("for ever".into()), ..Buffer::new(9, 0, 2) }).unwrap();
    a.op("one", &[], &[]);
    a.op("two", &[], &[]);
    let la = a.lower();
    let layout = pack(&la.problem, &mut Rng::new(3));
    let offset = |v| la.slot(&layout, v).unwrap().offset;

    let mut b = Small::default();
    says(b.0.share_from(&la, &layout), &["shared weight without a name", "arena 1 does not exist"]);
    assert_eq!(b.lower().problem.reserved(), [], "all or nothing");
    b.0.add_arena(Arena::default());
    assert_eq!(b.0.share_from(&la, &layout).unwrap(), 4);
    let [mine, my_c] = [weight(&mut b, "w", 32), weight(&mut b, "c", 16)];
    let for_a_while = weight(&mut b, "for a while", 1);
    b.op("one", &[], &[]);
    let lb = b.lower();
    let packed = pack(&lb.problem, &mut Rng::new(4));
    assert_eq!([mine, my_c].map(|v| lb.slot(&packed, v).unwrap().offset), [offset(w), offset(c)]);
    assert!(lb
        .problem
        .buffers()
        .iter()
        .any(|b| b.name.as_deref() == Some("for a while") && b.place == Place::Anywhere));
    assert!(lb.slot(&packed, for_a_while).is_some());
    let kept: u64 = lb.problem.reserved().iter().filter(|r| r.arena == 1).map(|r| r.size).sum();
    assert_eq!(kept, 9, "the nameless one and its guard");
    let _ = nameless;

    let mut c = Small::default();
    c.0.add_arena(Arena::default());
    assert_eq!(c.0.share_from(&lb, &packed).unwrap(), 5, "what a plan shares itself is passed on");
}

#[test]
fn a_guard_covers_no_other_shared_weight() {
    let guarded = |guard: u64, others: &[(u64, u64)]| {
        let mut g = Small::default();
        let w = Value { name: Some("w".into()), kind: Kind::Parameter, guard, ..Value::new(32) };
        g.0.add_value(w).unwrap();
        g.0.share("w", 0, 64, 32).unwrap();
        for (i, &(offset, size)) in others.iter().enumerate() {
            g.0.share(&format!("other {i}"), 0, offset, size).unwrap();
        }
        g.0.lower()
    };
    let parts = ["shared weight w", "guard is bytes [96, 105) of arena 0", "other 0 is at [104, 106)"];
    says(guarded(9, &[(104, 2)]), &parts);
    says(guarded(9, &[(0, 8), (97, 1), (300, 5)]), &["guard is bytes [96, 105)", "other 1 is at [97, 98)"]);
    says(guarded(1, &[(0, 97)]), &["guard is bytes [96, 97)", "other 0 is at [0, 97)"]);
    says(guarded(1, &[(64, 33)]), &["other 0 is at [64, 33)".replace("33", "97").as_str()]);
    guarded(8, &[(104, 2), (64, 32), (70, 8), (0, 64), (100, 0)]).unwrap();
    guarded(0, &[(96, 2), (60, 80)]).unwrap();
    // In another arena there is room.
    let mut g = Small::default();
    g.0.add_arena(Arena::default());
    let w = Value { name: Some("w".into()), kind: Kind::Parameter, guard: 9, ..Value::new(32) };
    g.0.add_value(w).unwrap();
    g.0.share("w", 1, 64, 32).unwrap();
    g.0.share("other", 0, 96, 32).unwrap();
    g.lower();
    // The guard of the other plan counts as one of this plan's.
    let mut a = Small::default();
    let w = Value { name: Some("w".into()), kind: Kind::Parameter, guard: 9, ..Value::new(32) };
    a.0.add_value(w).unwrap();
    let la = a.lower();
    let layout = pack(&la.problem, &mut Rng::new(1));
    let mut b = Small::default();
    b.0.share_from(&la, &layout).unwrap();
    let end = layout.slots[0].unwrap().offset + 32;
    b.0.share("inside", 0, end + 8, 1).unwrap();
    says(b.0.lower(), &["shared weight w", "guard", "inside"]);
    b.0.unshare("inside").unwrap();
    b.0.share("inside", 0, end + 9, 1).unwrap();
    let mut c = Small::default();
    let lb = b.lower();
    c.0.share_from(&lb, &pack(&lb.problem, &mut Rng::new(1))).unwrap();
    c.0.share("inside w's guard", 0, end, 1).unwrap();
    says(c.0.lower(), &["shared weight w", "guard", "inside w's guard"]);
}

#[test]
fn what_was_shared_can_be_taken_back_and_stated_again() {
    let mut a = Small::default();
    weight(&mut a, "w", 32);
    weight(&mut a, "v", 16);
    a.0.add_value(Value { kind: Kind::Parameter, guard: 4, ..Value::new(5) }).unwrap();
    let la = a.lower();
    let layout = pack(&la.problem, &mut Rng::new(3));
    let mut b = Small::default();
    let mine = weight(&mut b, "w", 32);
    let never = b.lower();
    assert_eq!(b.0.share_from(&la, &layout).unwrap(), 2);
    let once = b.lower();
    assert_eq!(b.0.share_from(&la, &layout).unwrap(), 2);
    assert_eq!(b.lower(), once, "the same again is nothing new");

    says(b.0.unshare("u"), &["weight u is not shared", "there are 2"]);
    b.0.unshare("w").unwrap();
    says(b.0.unshare("w"), &["weight w is not shared"]);
    assert_eq!(buffer_of(&b.lower(), mine).place, Place::Anywhere);
    b.0.share("w", 0, 640, 32).unwrap();
    assert_eq!(buffer_of(&b.lower(), mine).place, Place::Fixed(640));
    b.0.unshare_all();
    assert_eq!(b.lower(), never);
    assert_eq!(b.0.share_from(&la, &layout).unwrap(), 2);
    assert_eq!(b.lower(), once);
}

#[test]
fn a_layout_must_be_of_the_other_plan_and_have_slots() {
    let mut a = Small::default();
    weight(&mut a, "w", 32);
    let la = a.lower();
    let mut layout = pack(&la.problem, &mut Rng::new(3));
    let mut b = Small::default();
    layout.slots[0] = None;
    layout.status = gpumem::plan::LayoutStatus::Infeasible;
    says(b.0.share_from(&la, &layout), &["shared weight w", "no slot", "infeasible"]);
    layout.slots.clear();
    says(b.0.share_from(&la, &layout), &["slots for 0 buffers and the graph 1"]);
}

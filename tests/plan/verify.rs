//! The verifier: right layouts pass, each kind of fault is named, and it agrees with painting every
//! byte at every step.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::plan_support;

use gpumem::base::Status;
use gpumem::plan::{
    verify, verify_slots, Arena, Buffer, Interval, Kind, Kinds, Layout, LayoutStatus, Place, Problem, Reserved, Slot,
};
use plan_support::generate::Rng;
use plan_support::layouts::{any_layout, small};
use plan_support::{accounted, paint};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A problem of one arena.
fn problem(buffers: impl IntoIterator<Item = Buffer>) -> Problem {
    let mut problem = Problem::new();
    for buffer in buffers {
        problem.add(buffer).unwrap();
    }
    problem
}

/// Its layout with these offsets in the first arena.
fn at(problem: &Problem, offsets: &[u64]) -> Layout {
    accounted(problem, offsets.iter().map(|&offset| Some(Slot { arena: 0, offset })).collect())
}

fn reserved(offset: u64, size: u64, lower: u64, upper: u64) -> Reserved {
    Reserved { arena: 0, offset, size, during: Interval::new(lower, upper) }
}

#[track_caller]
fn right(problem: &Problem, layout: &Layout) {
    assert_eq!(verify(problem, layout), Ok(()), "{layout:?}");
    assert_eq!(paint::check(problem, layout), Ok(()), "{layout:?}");
}

/// The verifier's text must contain all of `words`, and the oracle must find it wrong too.
#[track_caller]
fn wrong(problem: &Problem, layout: &Layout, words: &[&str]) {
    let error = verify(problem, layout).expect_err("nothing is said to be wrong");
    assert_eq!(error.status, Status::Invalid);
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in {:?}", error.message);
    }
    assert!(paint::check(problem, layout).is_err(), "the oracle finds nothing wrong: {error}");
}

/// Two buffers of 100 and 50 bytes that meet at steps 2 and 3, and one after them.
fn three() -> Problem {
    problem([
        Buffer { name: Some("first".into()), ..Buffer::new(100, 0, 4) },
        Buffer::new(50, 2, 6),
        Buffer::new(150, 6, 8),
    ])
}

#[test]
fn right_layouts_pass() {
    right(&three(), &at(&three(), &[0, 100, 0]));
    right(&three(), &at(&three(), &[50, 0, 0]));
    right(&three(), &at(&three(), &[200, 0, 3]));
    right(&Problem::new(), &accounted(&Problem::new(), Vec::new()));
    // Half-open: what ends at a step and what begins at it share bytes.
    let p = problem([Buffer::new(8, 0, 3), Buffer::new(8, 3, 5)]);
    right(&p, &at(&p, &[0, 0]));
    // In its gap another may be there.
    let gap = Buffer { gaps: vec![Interval::new(2, 4)], ..Buffer::new(8, 0, 6) };
    let p = problem([gap, Buffer::new(8, 2, 4)]);
    right(&p, &at(&p, &[0, 0]));
    // A range is reserved for its steps only, and may overlap another.
    let mut p = problem([Buffer::new(8, 0, 3), Buffer::new(8, 3, 5)]);
    p.reserve(reserved(0, 8, 0, 3)).unwrap();
    p.reserve(reserved(4, 8, 2, 3)).unwrap();
    right(&p, &at(&p, &[12, 0]));
    right(&p, &at(&p, &[12, 4]));
}

#[test]
fn what_occupies_nothing_may_be_anywhere_aligned() {
    let never = Buffer { guard: 9, alignment: 4, ..Buffer::new(70, 5, 5) };
    let all_gap = Buffer { gaps: vec![Interval::new(0, 2), Interval::new(2, 4)], ..Buffer::new(9, 0, 4) };
    let empty = Buffer { guard: 9, ..Buffer::new(0, 0, 9) };
    let fixed = Buffer { place: Place::Fixed(40), ..Buffer::new(0, 0, 9) };
    let p = problem([Buffer::new(8, 0, 9), never, all_gap, empty, fixed]);
    let layout = at(&p, &[0, 4, 1000, 3, 40]);
    assert_eq!((layout.size, layout.total_unshared, layout.lower_bound), (8, 8, 8));
    right(&p, &layout);
    wrong(&p, &at(&p, &[0, 5, 0, 0, 40]), &["buffer 1", "offset 5", "alignment 4"]);
    wrong(&p, &at(&p, &[0, 4, 0, 0, 0]), &["buffer 4", "offset 0", "fixed at 40"]);
}

#[test]
fn slots_are_there_for_all_but_what_is_left_out() {
    let p = three();
    let good = at(&p, &[0, 100, 0]);
    wrong(&p, &Layout { slots: vec![good.slots[0], None, good.slots[2]], ..good.clone() }, &["buffer 1 has no slot"]);
    wrong(&p, &Layout { slots: good.slots[..2].to_vec(), ..good.clone() }, &["2 slots for 3 buffers"]);
    wrong(&p, &Layout { arenas: Vec::new(), ..good.clone() }, &["0 arenas; the problem has 1"]);
    for status in [LayoutStatus::Infeasible, LayoutStatus::OutOfTime] {
        wrong(&p, &Layout { status, ..good.clone() }, &["buffer 0 (first) has a slot", status.name()]);
    }

    let mut p = problem([Buffer::new(8, 0, 9), Buffer { kind: Kind::Constant, ..Buffer::new(64, 0, 9) }]);
    p.set_left_out(Kinds::NONE.with(Kind::Constant));
    let slot = Slot { arena: 0, offset: 0 };
    let good = accounted(&p, vec![Some(slot), None]);
    assert_eq!((good.size, good.total_unshared), (8, 8));
    right(&p, &good);
    wrong(&p, &Layout { slots: vec![Some(slot); 2], ..good }, &["buffer 1 has a slot", "left out"]);
}

#[test]
fn a_slot_is_where_its_buffer_must_be() {
    let mut p = Problem::new();
    p.add_arena(Arena::default());
    p.add(Buffer { arena: Some(1), ..Buffer::new(8, 0, 9) }).unwrap();
    let slots = |arena| vec![Some(Slot { arena, offset: 0 })];
    right(&p, &accounted(&p, slots(1)));
    wrong(&p, &accounted(&p, slots(0)), &["buffer 0", "arena 0", "bound to 1"]);
    wrong(&p, &Layout { slots: slots(2), ..accounted(&p, slots(1)) }, &["buffer 0", "arena 2", "there are 2"]);

    let p = problem([Buffer { alignment: 16, ..Buffer::new(8, 0, 9) }]);
    wrong(&p, &at(&p, &[24]), &["buffer 0", "offset 24", "alignment 16"]);
    let mut p = problem([Buffer { alignment: 4, ..Buffer::new(8, 0, 9) }]);
    p.set_unit(6).unwrap();
    right(&p, &at(&p, &[12]));
    wrong(&p, &at(&p, &[4]), &["offset 4", "unit 6"]);
    wrong(&p, &at(&p, &[6]), &["offset 6", "alignment 4"]);
    let p = problem([Buffer { place: Place::Fixed(32), ..Buffer::new(8, 0, 9) }]);
    right(&p, &at(&p, &[32]));
    wrong(&p, &at(&p, &[31]), &["offset 31", "fixed at 32"]);
    let p = problem([Buffer { place: Place::Preferred(32), ..Buffer::new(8, 0, 9) }]);
    right(&p, &at(&p, &[31]));

    let p = problem([Buffer::new(8, 0, 9)]);
    let mut layout = at(&p, &[0]);
    layout.slots[0] = Some(Slot { arena: 0, offset: u64::MAX - 3 });
    wrong(&p, &layout, &["buffer 0", "18446744073709551612 and 8 bytes pass 2^64"]);
}

#[test]
fn what_is_live_together_shares_no_byte() {
    let p = three();
    let both = ["buffer 0 (first) in bytes [0, 100) at steps [0, 4)", "buffer 1 in bytes [99, 149) at steps [2, 6)"];
    wrong(&p, &at(&p, &[0, 99, 0]), &[both[0], both[1], "live at step 2"]);
    wrong(&p, &at(&p, &[30, 0, 0]), &["buffer 0", "buffer 1"]);
    wrong(&p, &at(&p, &[0, 0, 0]), &["buffer 0", "buffer 1"]);
    // One inside the other, and either way round.
    wrong(&p, &at(&p, &[0, 25, 0]), &["buffer 0", "buffer 1"]);

    let p = problem([Buffer { guard: 5, ..Buffer::new(8, 0, 9) }, Buffer::new(8, 0, 9)]);
    right(&p, &at(&p, &[0, 13]));
    wrong(&p, &at(&p, &[0, 12]), &["bytes [0, 13)", "bytes [12, 20)"]);
    right(&p, &at(&p, &[8, 0]));

    // Past either end of a gap it is live again.
    let gap = |lower, upper| {
        problem([Buffer { gaps: vec![Interval::new(lower, upper)], ..Buffer::new(8, 0, 6) }, Buffer::new(8, 2, 4)])
    };
    wrong(&gap(3, 4), &at(&gap(3, 4), &[0, 7]), &["buffer 0", "but for its gaps", "buffer 1", "step 2"]);
    wrong(&gap(2, 3), &at(&gap(2, 3), &[0, 7]), &["buffer 0", "buffer 1", "step 3"]);

    // Other arenas have other bytes.
    let mut p = three();
    p.add_arena(Arena::default());
    let slot = |arena, offset| Some(Slot { arena, offset });
    right(&p, &accounted(&p, vec![slot(0, 0), slot(1, 0), slot(0, 0)]));
    wrong(&p, &accounted(&p, vec![slot(1, 0), slot(1, 0), slot(0, 0)]), &["of arena 1"]);
}

#[test]
fn reserved_ranges_are_kept_clear() {
    for (lower, upper) in [(0, 9), (2, 3), (0, 3), (3, 12)] {
        let mut p = problem([Buffer::new(8, 2, 5), Buffer::new(8, 12, 13)]);
        p.reserve(reserved(100, 4, 0, 20)).unwrap();
        p.reserve(reserved(10, 10, lower, upper)).unwrap();
        p.reserve(reserved(12, 2, 0, 20)).unwrap();
        right(&p, &at(&p, &[2, 2]));
        right(&p, &at(&p, &[20, 0]));
        let range = format!("reserved range 1, bytes [10, 20) during steps [{lower}, {upper})");
        wrong(&p, &at(&p, &[3, 14]), &["buffer 0 in bytes [3, 11)", &range]);
        wrong(&p, &at(&p, &[19, 14]), &["buffer 0 in bytes [19, 27)", &range]);
        wrong(&p, &at(&p, &[2, 13]), &["buffer 1", "reserved range 2"]);
    }
}

#[test]
fn a_range_that_reserves_nothing_is_not_there() {
    let mut p = problem([Buffer::new(8, 0, 9)]);
    p.reserve(reserved(4, 0, 0, 9)).unwrap();
    p.reserve(reserved(4, 2, 3, 3)).unwrap();
    p.reserve(reserved(40, 0, 0, 9)).unwrap();
    p.reserve(reserved(40, 2, 3, 3)).unwrap();
    let layout = at(&p, &[0]);
    assert_eq!((layout.size, layout.lower_bound), (8, 8));
    right(&p, &layout);
    wrong(&p, &Layout { lower_bound: 40, ..at(&p, &[34]) }, &["lower_bound is 40", "it is 8"]);
}

#[test]
fn without_reuse_nothing_shares_bytes() {
    let mut p = problem([Buffer::new(8, 0, 3), Buffer::new(4, 3, 5), Buffer::new(2, 7, 8)]);
    right(&p, &at(&p, &[0, 0, 6]));
    p.set_reuse(false);
    right(&p, &at(&p, &[2, 10, 0]));
    wrong(&p, &at(&p, &[0, 7, 11]), &["buffer 0 in bytes [0, 8)", "buffer 1 in bytes [7, 11)", "no reuse"]);
    wrong(&p, &at(&p, &[0, 8, 6]), &["buffer 0", "buffer 2 in bytes [6, 8)", "no reuse"]);
    // Side by side is then a bound that may be claimed.
    let good = at(&p, &[2, 10, 0]);
    right(&p, &Layout { lower_bound: 14, status: LayoutStatus::Optimal, ..good });
}

#[test]
fn sizes_are_where_the_last_byte_is() {
    let p = three();
    let good = at(&p, &[50, 0, 5]);
    assert_eq!(good.size, 155);
    let sized = |size: u64| {
        let mut layout = good.clone();
        (layout.size, layout.arenas[0].size) = (size, size);
        layout
    };
    wrong(&p, &sized(154), &["arena 0 has size 154", "buffer 2, ends at 155"]);
    wrong(&p, &sized(156), &["arena 0 has size 156", "ends at 155"]);
    wrong(&p, &Layout { size: 156, ..good.clone() }, &["size 156", "155"]);
    let mut p = three();
    p.reserve(reserved(190, 10, 100, 101)).unwrap();
    right(&p, &at(&p, &[50, 0, 5]));
    wrong(&p, &good, &["reserved range 0, ends at 200"]);

    let mut p = three();
    p.set_capacity(Some(155));
    right(&p, &good);
    p.set_capacity(Some(154));
    wrong(&p, &good, &["arena 0 has size 155", "capacity is 154"]);
}

#[test]
fn bounds_and_totals_are_the_true_ones() {
    let p = three();
    let good = at(&p, &[50, 0, 5]);
    assert_eq!((good.lower_bound, good.total_unshared), (150, 300));
    wrong(&p, &Layout { lower_bound: 149, ..good.clone() }, &["lower_bound is 149", "150 bytes are live at step 2"]);
    wrong(&p, &Layout { lower_bound: 151, ..good.clone() }, &["lower_bound is 151", "150 bytes at step 2"]);
    wrong(&p, &Layout { total_unshared: 301, ..good.clone() }, &["total_unshared is 301", "300"]);
    let mut arena = good.clone();
    arena.arenas[0].lower_bound = 151;
    wrong(&p, &arena, &["arena 0 has lower_bound 151", "150"]);

    // Ends of what cannot move are bounds too, and what two arenas need at different steps adds up.
    let p = problem([Buffer { place: Place::Fixed(32), ..Buffer::new(8, 0, 9) }]);
    let mut layout = at(&p, &[32]);
    right(&p, &layout);
    (layout.lower_bound, layout.arenas[0].lower_bound, layout.status) = (40, 40, LayoutStatus::Optimal);
    right(&p, &layout);
    wrong(&p, &Layout { lower_bound: 41, ..layout }, &["lower_bound is 41", "it is 40"]);
    let mut p = Problem::new();
    p.add_arena(Arena::default());
    p.add(Buffer { arena: Some(0), ..Buffer::new(8, 0, 3) }).unwrap();
    p.add(Buffer { arena: Some(1), ..Buffer::new(4, 3, 5) }).unwrap();
    let good = accounted(&p, vec![Some(Slot { arena: 0, offset: 0 }), Some(Slot { arena: 1, offset: 0 })]);
    assert_eq!((good.size, good.lower_bound), (12, 8));
    right(&p, &good);
    right(&p, &Layout { lower_bound: 12, status: LayoutStatus::Optimal, ..good.clone() });
    // With a range reserved beside the second, live at its step.
    p.reserve(Reserved { arena: 1, ..reserved(0, 3, 4, 5) }).unwrap();
    let good = accounted(&p, vec![Some(Slot { arena: 0, offset: 0 }), Some(Slot { arena: 1, offset: 3 })]);
    assert_eq!((good.size, good.lower_bound), (15, 8));
    right(&p, &Layout { lower_bound: 15, status: LayoutStatus::Optimal, ..good.clone() });
    wrong(&p, &Layout { lower_bound: 16, ..good }, &["it is 15"]);

    // Without reuse even what can choose its arena adds up.
    let mut p = three();
    p.add_arena(Arena::default());
    p.set_reuse(false);
    let slot = |arena| Some(Slot { arena, offset: 0 });
    let good = accounted(&p, vec![Some(Slot { arena: 0, offset: 150 }), slot(1), slot(0)]);
    assert_eq!((good.size, good.lower_bound), (300, 150));
    right(&p, &good);
    right(&p, &Layout { lower_bound: 300, status: LayoutStatus::Optimal, ..good.clone() });
    wrong(&p, &Layout { lower_bound: 301, ..good }, &["it is 300"]);
}

#[test]
fn overlapping_reserved_ranges_count_once_in_a_bound() {
    let mut p = problem([Buffer::new(8, 0, 9)]);
    p.reserve(reserved(0, 10, 0, 5)).unwrap();
    p.reserve(reserved(5, 10, 4, 9)).unwrap();
    let good = at(&p, &[15]);
    assert_eq!((good.lower_bound, good.size, good.status), (23, 23, LayoutStatus::Optimal));
    right(&p, &good);
    wrong(&p, &Layout { lower_bound: 22, ..good.clone() }, &["23 bytes are live at step 4"]);
    wrong(&p, &Layout { lower_bound: 28, ..good }, &["lower_bound is 28"]);
}

#[test]
fn the_status_fits_the_rest() {
    let p = three();
    let good = at(&p, &[50, 0, 0]);
    assert_eq!(good.status, LayoutStatus::Optimal);
    wrong(&p, &Layout { status: LayoutStatus::Feasible, ..good.clone() }, &["feasible", "150", "optimal"]);
    // Optimal above the bound is for the solver to know.
    right(&p, &Layout { status: LayoutStatus::Optimal, ..at(&p, &[50, 0, 5]) });

    let none = |p: &Problem, status, size| {
        let mut layout = accounted(p, vec![None; 3]);
        (layout.status, layout.size, layout.arenas[0].size) = (status, size, size);
        layout
    };
    for status in [LayoutStatus::Infeasible, LayoutStatus::OutOfTime] {
        wrong(&p, &none(&p, status, 200), &[status.name(), "always a layout"]);
        let mut p = three();
        p.set_capacity(Some(150));
        right(&p, &none(&p, status, 151));
        right(&p, &none(&p, status, 0));
        wrong(&p, &none(&p, status, 150), &[status.name(), "150 in all, fit"]);
        wrong(&p, &none(&p, status, 149), &["lower_bound 150 is above the size 149"]);
        wrong(&p, &Layout { lower_bound: 151, ..none(&p, status, 160) }, &["lower_bound is 151"]);
        wrong(&p, &Layout { total_unshared: 0, ..none(&p, status, 160) }, &["total_unshared is 0"]);
        wrong(&p, &Layout { size: 161, ..none(&p, status, 160) }, &["size 161"]);
    }
    let mut p = three();
    p.set_capacity(Some(149));
    right(&p, &none(&p, LayoutStatus::Infeasible, 160));
    wrong(&p, &none(&p, LayoutStatus::OutOfTime, 160), &["out_of_time", "150", "149", "infeasible"]);
    // Fixed offsets that contradict each other need no capacity to be infeasible.
    let fixed = || Buffer { place: Place::Fixed(0), ..Buffer::new(8, 0, 9) };
    let p = problem([fixed(), fixed(), Buffer::new(1, 0, 1)]);
    right(&p, &none(&p, LayoutStatus::Infeasible, 0));
}

/// Sums that do not fit 64 bits are compared as they are.
#[test]
fn the_largest_numbers_do_not_overflow() {
    let most = gpumem::plan::problem::MAX_BYTES;
    let p = problem((0..5).map(|_| Buffer { guard: most - 1, ..Buffer::new(1, 0, u64::MAX) }));
    let slots = (0..5).map(|_| Some(Slot { arena: 0, offset: 0 })).collect::<Vec<_>>();
    let mut layout = Layout { slots, ..accounted(&Problem::new(), Vec::new()) };
    layout.arenas[0].size = u64::MAX;
    layout.size = u64::MAX;
    let error = |layout: &Layout| verify(&p, layout).unwrap_err().message;
    assert!(error(&layout).contains("buffer 0") && error(&layout).contains("buffer 1"));
    for (i, slot) in layout.slots.iter_mut().enumerate() {
        *slot = Some(Slot { arena: 0, offset: (i as u64).min(3) * most });
    }
    assert!(error(&layout).contains("buffer 3: offset 13835058055282163712"), "{}", error(&layout));
    let mut p = p.clone();
    p.set_capacity(Some(1));
    layout.slots = vec![None; 5];
    layout.status = LayoutStatus::Infeasible;
    let message = verify(&p, &layout).unwrap_err().message;
    assert!(message.contains("the buffers have 23058430092136939520 bytes"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn it_agrees_with_painting_every_byte(seed in any::<u64>()) {
        let rng = &mut Rng::new(seed);
        let problem = small(rng);
        let layout = any_layout(&problem, rng);
        let (verified, painted) = (verify(&problem, &layout), paint::check(&problem, &layout));
        prop_assert_eq!(verified.is_ok(), painted.is_ok(), "{:?} but {:?}", verified, painted);

        // Of the slots alone: as if everything else were said rightly.
        let slots = accounted(&problem, layout.slots);
        let (verified, painted) = (verify_slots(&problem, &slots.slots), paint::check(&problem, &slots));
        let sizes = slots.arenas.iter().map(|a| a.size).collect::<Vec<_>>();
        prop_assert_eq!(&verified.as_ref().ok(), &painted.is_ok().then_some(&sizes), "{:?}, {:?}", verified, painted);
    }
}

/// The agreement above is worth something only if right and wrong layouts of all kinds come up.
#[test]
fn the_layouts_compared_are_right_and_wrong_in_every_way() {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..6000 {
        let rng = &mut Rng::new(seed);
        let problem = small(rng);
        let layout = any_layout(&problem, rng);
        let kind = paint::check(&problem, &layout).err().unwrap_or_else(|| layout.status.name().to_string());
        *seen.entry(kind).or_default() += 1;
    }
    for kind in [
        "optimal",
        "feasible",
        "infeasible",
        "out_of_time",
        "sum of sizes",
        "who has a slot",
        "bound arena",
        "alignment",
        "fixed offset",
        "shared byte",
        "reused byte",
        "size of an arena",
        "capacity",
        "lower bound of an arena",
        "total_unshared",
        "lower bound",
        "lower bound above the size",
        "not called optimal",
        "nothing stands in the way",
        "the size fits",
        "it is proved infeasible",
    ] {
        assert!(seen.get(kind).is_some_and(|n| *n >= 5), "{kind:?} came up too rarely: {seen:#?}");
    }
    assert!(!seen.contains_key("far off"), "{seen:#?}");
}

/// Many live at once, and ten thousand ranges to check against: what is quadratic does not come
/// through.
#[test]
fn large_layouts_take_no_quadratic_time() {
    let mut p = Problem::new();
    let mut offsets = Vec::new();
    for i in 0..200_000u64 {
        p.add(Buffer::new(64, i % 1000, i % 1000 + 1000)).unwrap();
        offsets.push(64 * i);
        if i < 10_000 {
            p.reserve(reserved(64 * i, 64, 5000 + i, 6000 + i)).unwrap();
        }
    }
    let slots = offsets.iter().map(|&offset| Some(Slot { arena: 0, offset })).collect::<Vec<_>>();
    let mut layout = Layout { slots, ..accounted(&Problem::new(), Vec::new()) };
    (layout.arenas[0].size, layout.size, layout.total_unshared) = (64 * 200_000, 64 * 200_000, 64 * 200_000);
    (layout.lower_bound, layout.status) = (64 * 200_000, LayoutStatus::Optimal);
    assert_eq!(verify(&p, &layout), Ok(()));
    layout.slots[123_456] = Some(Slot { arena: 0, offset: 64 * 654 - 1 });
    let message = verify(&p, &layout).unwrap_err().message;
    assert!(message.contains("buffer 123456") && message.contains("buffer 653"), "{message}");
}

//! The critical step, the report and CSV.

use super::{at, layout, named, problem};
use gpumem::plan::{
    critical, csv, peak_bytes, report, Arena, Buffer, BufferId, Interval, Kind, Kinds, Layout, LayoutStatus, Place,
    Problem, Reserved, Slot,
};
use proptest::prelude::*;

#[test]
fn the_critical_step_is_the_first_of_the_highest() {
    let p = problem([Buffer::new(3, 0, 2), Buffer::new(4, 1, 3), Buffer::new(7, 5, 9), Buffer::new(9, 4, 4)]);
    assert_eq!(critical(&p), (1, vec![BufferId(0), BufferId(1)]));
    assert_eq!(peak_bytes(&p), 7);
    assert_eq!(critical(&Problem::new()), (0, vec![]));
    assert_eq!(critical(&problem([Buffer::new(0, 0, 2), Buffer::new(5, 3, 3)])), (0, vec![]));
}

#[test]
fn reserved_ranges_count_while_they_are_reserved() {
    let mut p = problem([Buffer::new(60, 0, 5), Buffer::new(50, 5, 9)]);
    assert_eq!((critical(&p), peak_bytes(&p)), ((0, vec![BufferId(0)]), 60));
    p.reserve(Reserved { arena: 0, offset: 0, size: 20, during: Interval::new(6, u64::MAX) }).unwrap();
    p.reserve(Reserved { arena: 0, offset: 10, size: 20, during: Interval::new(6, 8) }).unwrap();
    assert_eq!((critical(&p), peak_bytes(&p)), ((6, vec![BufferId(1)]), 80));
    let solved = gpumem::plan::solve(&p, &Default::default()).unwrap();
    assert_eq!((solved.lower_bound, solved.size), (80, 80));
    assert!(report(&p, &solved).contains(" critical_step=6 critical_buffers=1 critical_bytes=80\n"));
    p.reserve(Reserved { arena: 0, offset: 500, size: 100, during: Interval::new(20, 21) }).unwrap();
    assert_eq!((critical(&p), peak_bytes(&p)), ((20, vec![]), 120));
}

#[test]
fn sums_beyond_64_bits_do_not_wrap() {
    let p = problem((0..9).map(|_| Buffer::new(1 << 62, 3, u64::MAX)));
    assert_eq!((critical(&p).0, critical(&p).1.len(), peak_bytes(&p)), (3, 9, u64::MAX));
}

prop_compose! {
    fn any_buffer()(
        (size, guard) in (0u64..20, prop_oneof![Just(0u64), 0u64..5]),
        mut ends in prop::collection::vec(0u64..24, 2..7),
        kind in 0usize..5,
    ) -> Buffer {
        ends.sort_unstable();
        let (lower, upper) = (ends[0], ends[ends.len() - 1]);
        let gaps = ends[1..ends.len() - 1].chunks_exact(2).map(|g| Interval::new(g[0], g[1]));
        let gaps = gaps.filter(|g| !g.is_empty()).collect();
        Buffer { guard, gaps, kind: Kind::ALL[kind], ..Buffer::new(size, lower, upper) }
    }
}

proptest! {
    /// Every step tried one by one.
    #[test]
    fn the_critical_step_is_what_trying_every_step_finds(
        buffers in prop::collection::vec(any_buffer(), 0..12), without in 0usize..6, reuse: bool,
        reserved in prop::collection::vec((0u32..2, 0u64..30, 0u64..20, 0u64..24, 0u64..24), 0..5),
    ) {
        let mut p = problem(buffers);
        p.add_arena(Arena::default());
        for &(arena, offset, size, lower, upper) in &reserved {
            let during = Interval::new(lower.min(upper), lower.max(upper));
            p.reserve(Reserved { arena, offset, size, during }).unwrap();
        }
        let left_out = Kind::ALL.get(without).map_or(Kinds::NONE, |&kind| Kinds::NONE.with(kind));
        p.set_left_out(left_out);
        p.set_reuse(reuse);
        let counted = |b: &Buffer| b.occupies() && !left_out.contains(b.kind);
        let first = p.buffers().iter().filter(|b| counted(b)).map(|b| b.lower).min().unwrap_or(0);
        let end = p.buffers().iter().filter(|b| counted(b)).map(|b| b.upper).max().unwrap_or(0);
        let live = |step: u64| -> Vec<BufferId> {
            let in_gap = |b: &Buffer| b.gaps.iter().any(|g| g.lower <= step && step < g.upper);
            let is = |b: &Buffer| if reuse { b.lower <= step && step < b.upper && !in_gap(b) } else { first <= step && step < end };
            let all = p.buffers().iter().enumerate();
            all.filter(|(_, b)| counted(b) && is(b)).map(|(i, _)| BufferId(i as u32)).collect()
        };
        // Byte by byte, since ranges may overlap.
        let kept = |step: u64| (0..2).flat_map(|arena| (0..60u64).map(move |byte| (arena, byte))).filter(|&(arena, byte)| {
            p.reserved().iter().any(|r| {
                let there = r.arena == arena && r.offset <= byte && byte < r.offset + r.size;
                there && r.during.lower <= step && step < r.during.upper
            })
        }).count() as u64;
        let bytes = |step: u64| live(step).iter().map(|id| p.buffers()[id.index()].extent()).sum::<u64>() + kept(step);
        let best = (0..24u64).rev().max_by_key(|&step| bytes(step)).unwrap();
        let expected = if bytes(best) == 0 { (0, vec![]) } else { (best, live(best)) };
        prop_assert_eq!(critical(&p), expected);
        prop_assert_eq!(peak_bytes(&p), bytes(best));
    }
}

// ---- text ---------------------------------------------------------------------------------------

#[test]
fn the_report_lists_what_is_where() {
    let p =
        problem([named("b1", 4, 0, 3), Buffer::new(4, 3, 9), named("two words\t\\\n", 4, 0, 9), named("-", 0, 5, 5)]);
    let text = report(&p, &layout(&p, at(&[4, 4, 0, 0])));
    let expected = "\
# arena_size=8 lower_bound=8 total_unshared=12 saved=4 status=optimal gap=0.000000
# buffers=4 placed=4 critical_step=0 critical_buffers=2 critical_bytes=8
# offset\tsize\tid\tname\tlive
0\t4\t2\ttwo words\\t\\\\\\n\t0-9
0\t0\t3\t\\-\t5-5
4\t4\t0\tb1\t0-3
4\t4\t1\t-\t3-9
";
    assert_eq!(text, expected);
}

#[test]
fn the_report_of_several_arenas_names_them() {
    let mut p = problem([Buffer { gaps: vec![Interval::new(2, 4)], ..Buffer::new(10, 0, 6) }]);
    p.set_capacity(Some(16));
    p.add_arena(Arena { name: Some("host".into()), capacity: None });
    p.add(Buffer { kind: Kind::Parameter, ..Buffer::new(5, 0, 9) }).unwrap();
    p.add(Buffer { arena: Some(1), ..Buffer::new(30, 5, 9) }).unwrap();
    p.set_left_out(Kinds::NONE.with(Kind::Parameter));
    let l = layout(&p, vec![Some(Slot { arena: 0, offset: 2 }), None, Some(Slot { arena: 1, offset: 0 })]);
    let expected = "\
# arena_size=42 lower_bound=40 total_unshared=45 saved=3 status=feasible gap=0.050000
# buffers=3 placed=2 critical_step=5 critical_buffers=2 critical_bytes=40
# arena=0 size=12 lower_bound=0 capacity=16 name=-
# arena=1 size=30 lower_bound=0 capacity=none name=host
# offset\tsize\tid\tname\tlive\tarena
2\t10\t0\t-\t0-2 4-6\t0
0\t30\t2\t-\t5-9\t1
";
    assert_eq!(report(&p, &l), expected);
    assert_eq!(csv(&p, &l), "id,lower,upper,size,gaps,offset,arena\n0,0,6,10,2-4,2,0\n1,0,9,5,,,-\n2,5,9,30,,0,1\n");
}

#[test]
fn without_a_layout_the_report_says_so() {
    let mut p = problem([Buffer::new(10, 0, 6)]);
    p.set_capacity(Some(5));
    let l = Layout { status: LayoutStatus::Infeasible, size: 10, ..layout(&p, vec![None]) };
    let text = report(&p, &l);
    assert!(text.starts_with("# arena_size=10 lower_bound=10") && text.contains("status=infeasible"), "{text}");
    assert!(text.contains("# no layout; arena_size is"), "{text}");
    // Read again, it is the same problem.
    let p = problem([Buffer { place: Place::Fixed(1000), ..Buffer::new(10, 0, 6) }]);
    assert_eq!(csv(&p, &Layout { slots: vec![None], ..l }), "id,lower,upper,size,offset\n0,0,6,10,1000\n");
    assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
}

#[test]
fn csv_has_the_columns_that_are_used() {
    let p = problem([named("b1", 4, 0, 3), named("b2", 4, 3, 9)]);
    assert_eq!(csv(&p, &layout(&p, at(&[0, 4]))), "id,lower,upper,size,offset\nb1,0,3,4,0\nb2,3,9,4,4\n");
    let gaps = vec![Interval::new(1, 2), Interval::new(4, 5)];
    let p = problem([
        Buffer { alignment: 4, gaps, ..named("a,\"b\"", 4, 0, 9) },
        Buffer { guard: 2, place: Place::Preferred(8), ..named(" a ", 4, 0, 9) },
        Buffer { place: Place::Fixed(16), ..named("line\nbreak", 4, 0, 9) },
        named("6\" pipe", 1, 0, 9),
    ]);
    let expected = "id,lower,upper,size,alignment,guard,hint,gaps,offset\n\
        \"a,\"\"b\"\"\",0,9,4,4,0,,1-2 4-5,0\n\
        \" a \",0,9,4,1,2,8,,8\n\
        \"line\nbreak\",0,9,4,1,0,,,16\n\
        \"6\"\" pipe\",0,9,1,1,0,,,20\n";
    assert_eq!(csv(&p, &layout(&p, at(&[0, 8, 16, 20]))), expected);
}

#[test]
fn names_that_identify_nothing_are_a_column_of_their_own() {
    let p = problem([named("x", 1, 0, 1), named("x", 1, 0, 1), Buffer::new(1, 0, 1)]);
    let text = csv(&p, &layout(&p, at(&[0, 1, 2])));
    assert_eq!(text, "id,lower,upper,size,name,offset\n0,0,1,1,x,0\n1,0,1,1,x,1\n2,0,1,1,,2\n");
}

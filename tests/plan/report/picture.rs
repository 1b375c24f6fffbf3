//! Pictures, read back.

use super::{at, layout, named, problem};
use gpumem::plan::{
    csv, report, svg, Arena, Buffer, Interval, Kind, Kinds, Layout, LayoutStatus, Problem, Reserved, Slot,
};
use roxmltree::{Document, Node};
use std::time::Duration;

/// First fit by falling size: not good, but right.
fn packed(problem: &Problem) -> Layout {
    let buffers = problem.buffers();
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(buffers[i].size));
    let mut slots = vec![None; buffers.len()];
    let mut placed: Vec<(u64, u64, Interval)> = Vec::new();
    for i in order {
        let b = &buffers[i];
        let during = Interval::new(b.lower, b.upper);
        let mut offset = 0;
        for &(from, to, other) in &placed {
            if other.overlaps(during) {
                if offset + b.extent() <= from {
                    break;
                }
                offset = offset.max(to);
            }
        }
        slots[i] = Some(Slot { arena: 0, offset });
        let place = placed.partition_point(|p| p.0 < offset);
        placed.insert(place, (offset, offset + b.extent(), during));
    }
    layout(problem, slots)
}

fn number(node: &Node, attribute: &str) -> f64 {
    node.attribute(attribute).unwrap_or_else(|| panic!("no {attribute} in {node:?}")).parse().unwrap()
}

fn class<'a>(doc: &'a Document, class: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    doc.descendants().filter(move |n| n.attribute("class") == Some(class))
}

/// From pixels to steps and bytes, by what the frame of an arena says.
struct Frame {
    arena: u32,
    x: f64,
    y: f64,
    w: f64,
    h: f64,
    lower: f64,
    upper: f64,
    bytes: f64,
}

impl Frame {
    fn all(doc: &Document) -> Vec<Frame> {
        let frame = |n: Node| Frame {
            arena: number(&n, "data-arena") as u32,
            x: number(&n, "x"),
            y: number(&n, "y"),
            w: number(&n, "width"),
            h: number(&n, "height"),
            lower: number(&n, "data-lower"),
            upper: number(&n, "data-upper"),
            bytes: number(&n, "data-bytes"),
        };
        class(doc, "arena").map(frame).collect()
    }

    fn step(&self, x: f64) -> f64 {
        self.lower + (x - self.x) / self.w * (self.upper - self.lower)
    }

    fn offset(&self, y: f64) -> f64 {
        (self.y + self.h - y) / self.h * self.bytes
    }
}

/// A rectangle in steps and bytes, rounded to a fifth: pixels are written to a hundredth.
fn measured(frame: &Frame, n: &Node) -> (Interval, u64, u64) {
    let round = |v: f64| {
        assert!((v - v.round()).abs() < 0.2, "{v} is no whole number: {n:?}");
        v.round() as u64
    };
    let (x, y) = (number(n, "x"), number(n, "y"));
    let (right, bottom) = (x + number(n, "width"), y + number(n, "height"));
    let from = round(frame.offset(bottom));
    (Interval::new(round(frame.step(x)), round(frame.step(right))), from, round(frame.offset(y)) - from)
}

/// Every rectangle with an id, and in which arena it is drawn.
fn rectangles(doc: &Document) -> Vec<(u32, u32, Interval, u64, u64)> {
    let frames = Frame::all(doc);
    let mut found: Vec<_> = doc
        .descendants()
        .filter(|n| n.has_attribute("data-id"))
        .map(|n| {
            let middle = number(&n, "y") + number(&n, "height") / 2.0;
            let frame = frames.iter().find(|f| f.y <= middle && middle <= f.y + f.h).expect("inside an arena");
            let (during, offset, size) = measured(frame, &n);
            (number(&n, "data-id") as u32, frame.arena, during, offset, size)
        })
        .collect();
    found.sort_by_key(|f| (f.0, f.2));
    found
}

#[test]
fn rectangles_are_the_layout() {
    let mut p = problem([
        named("a", 40, 10, 13),
        Buffer { gaps: vec![Interval::new(14, 16), Interval::new(18, 19)], ..named("gaps", 25, 12, 20) },
        Buffer { guard: 9, ..named("guarded", 30, 15, 18) },
        named("never", 10, 12, 12),
        Buffer::new(0, 12, 14),
        Buffer { kind: Kind::Constant, ..named("left out", 10, 12, 13) },
    ]);
    p.set_left_out(Kinds::NONE.with(Kind::Constant));
    p.add_arena(Arena::default());
    p.add(named("other", 300, 11, 15)).unwrap();
    let mut slots = at(&[0, 40, 70, 5, 5, 0, 100]);
    slots[5] = None;
    slots[6] = Some(Slot { arena: 1, offset: 100 });
    let text = svg(&p, &layout(&p, slots));
    let doc = Document::parse(&text).unwrap();
    let gaps = [(12, 14), (16, 18), (19, 20)].map(|(l, u)| (1, 0, Interval::new(l, u), 40, 25));
    let expected = [
        &[(0, 0, Interval::new(10, 13), 0, 40)][..],
        &gaps[..],
        &[(2, 0, Interval::new(15, 18), 70, 30), (6, 1, Interval::new(11, 15), 100, 300)],
    ];
    assert_eq!(rectangles(&doc), expected.concat());
    let guard = class(&doc, "guard").next().unwrap();
    assert_eq!(measured(&Frame::all(&doc)[0], &guard), (Interval::new(15, 18), 100, 9));
}

#[test]
fn lines_and_reserved_ranges_are_where_they_are() {
    let mut p = problem([named("a", 40, 0, 3), named("b", 50, 4, 9)]);
    p.set_capacity(Some(110));
    p.reserve(Reserved { arena: 0, offset: 60, size: 20, during: Interval::new(2, u64::MAX) }).unwrap();
    let mut l = layout(&p, at(&[0, 0]));
    (l.size, l.lower_bound, l.status) = (80, 50, LayoutStatus::Feasible);
    let text = svg(&p, &l);
    let doc = Document::parse(&text).unwrap();
    let frame = &Frame::all(&doc)[0];
    for (name, bytes) in [("size", 80), ("lower-bound", 50), ("capacity", 110)] {
        let line = class(&doc, name).next().unwrap();
        let d = line.attribute("d").unwrap();
        let y: f64 = d.split([' ', 'H']).nth(1).unwrap().parse().unwrap();
        assert!((frame.offset(y) - f64::from(bytes)).abs() < 0.2, "{name} in {d}");
    }
    let reserved = class(&doc, "reserved").next().unwrap();
    assert_eq!(measured(frame, &reserved), (Interval::new(2, 9), 60, 20), "cut where the last buffer dies");
    assert_eq!(reserved.attribute("fill"), Some("url(#gpumem-hatch)"));
    assert!(doc.descendants().any(|n| n.attribute("id") == Some("gpumem-hatch")));
}

#[test]
fn a_capacity_far_above_is_told_and_not_drawn() {
    let mut p = problem([named("a", 40, 0, 3)]);
    p.set_capacity(Some(80 << 30));
    let text = svg(&p, &layout(&p, at(&[0])));
    let doc = Document::parse(&text).unwrap();
    assert!(Frame::all(&doc)[0].bytes < 100.0);
    assert_eq!(class(&doc, "capacity").count(), 0);
    assert!(text.contains("capacity 80 GiB"));
}

#[test]
fn the_critical_step_is_marked() {
    let p = problem([named("a", 40, 100, 300), named("b", 50, 250, 900), named("c", 5, 200, 500)]);
    let text = svg(&p, &layout(&p, at(&[0, 40, 90])));
    let doc = Document::parse(&text).unwrap();
    let mark = doc.descendants().find(|n| n.attribute("id") == Some("gpumem-critical")).unwrap();
    assert_eq!((mark.attribute("data-step"), mark.attribute("data-buffers")), (Some("250"), Some("3")));
    let line = mark.children().rfind(|n| n.has_tag_name("path")).unwrap();
    let x: f64 = line.attribute("d").unwrap()[1..].split(' ').next().unwrap().parse().unwrap();
    let step = Frame::all(&doc)[0].step(x);
    assert!((250.0..251.0).contains(&step), "{step}");
    let says = mark.children().find(|n| n.has_tag_name("text")).unwrap();
    assert_eq!(says.text(), Some("critical step 250: 95 B live in 3 buffers"));
}

#[test]
fn hostile_names_stay_text() {
    let names = [
        "</title></rect><script>alert(1)</script>",
        "\" onload=\"alert(1)",
        "&amp; ]]> <![CDATA[ <!-- --> <?pi",
        "bell\u{7} nul\0 escape\u{1b}[31m del\u{7f} c1\u{9b}",
        "not characters \u{fffe}\u{ffff}",
        "tab\tline\nreturn\r",
        "turned \u{202e}gnp.exe \u{2066}x",
        "テンソル 🚀",
    ];
    let p = problem(names.iter().map(|name| named(name, 1 << 20, 0, 10)));
    let offsets: Vec<u64> = (0..names.len() as u64).map(|i| i << 20).collect();
    let text = svg(&p, &layout(&p, at(&offsets)));
    let doc = Document::parse(&text).unwrap();
    assert!(!doc.descendants().any(|n| n.has_tag_name("script") || n.has_attribute("onload")));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "control characters are gone");
    let titles: Vec<&str> = doc.descendants().filter(|n| n.has_tag_name("title")).filter_map(|n| n.text()).collect();
    for (name, shown) in [
        (0, names[0]),
        (1, names[1]),
        (2, names[2]),
        (3, "bell nul escape[31m del c1"),
        (4, "not characters "),
        (5, "tab line return "),
        (6, "turned gnp.exe x"),
        (7, names[7]),
    ] {
        let expected = format!("{shown}\nbuffer {name}, 1 MiB (1,048,576 bytes)\nsteps [0, 10)\noffset ");
        assert!(titles.iter().any(|t| t.starts_with(&expected)), "{expected:?} is not in {titles:#?}");
    }
}

#[test]
fn names_are_written_where_they_fit() {
    let long = "a/name/longer/than/its/rectangle";
    let p =
        problem([named("wide", 100, 0, 50), named(long, 100, 50, 60), named("low", 1, 0, 60), named("n", 100, 60, 61)]);
    let text = svg(&p, &layout(&p, at(&[0, 0, 100, 0])));
    let doc = Document::parse(&text).unwrap();
    let written: Vec<&str> = class(&doc, "labels")
        .flat_map(|g| g.children())
        .filter(|n| n.has_tag_name("text"))
        .filter_map(|n| n.text())
        .collect();
    assert!(written.contains(&"wide") && written.contains(&"100 B"), "{written:?}");
    assert!(written.iter().any(|t| t.starts_with("a/name") && (*t == long || t.contains('…'))), "{written:?}");
    assert!(!written.iter().any(|t| t.contains("low")), "{written:?}");
}

/// Corners of the rectangles of a path of `M x y h w v h h -w z`.
fn path_rectangles(d: &str) -> Vec<[f64; 4]> {
    let of = |part: &str| -> [f64; 4] {
        let numbers: Vec<f64> =
            part.split([' ', 'h', 'v', 'z']).filter(|s| !s.is_empty()).map(|s| s.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 5, "{part}");
        [numbers[0], numbers[1], numbers[0] + numbers[2], numbers[1] + numbers[3]]
    };
    d.split('M').skip(1).map(of).collect()
}

/// `count` buffers like those of a training step: many small and short, some long, few large.
fn many(count: u64) -> Problem {
    problem((0..count).map(|i| {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let size = if i % 400 == 0 { (1 << 26) + mixed % (1 << 26) } else { 1024 << (mixed % 14) };
        let life = 1 + if i % 7 == 0 { mixed % count } else { mixed % 60 };
        named(&format!("model.layers.{i}.attention.weight"), size, i, i + life)
    }))
}

#[test]
fn a_picture_of_20000_buffers_shows_them_all_and_stays_small() {
    let p = many(20_000);
    let l = packed(&p);
    let text = svg(&p, &l);
    assert!(text.len() < 2 << 20, "{} bytes", text.len());
    let doc = Document::parse(&text).unwrap();
    let frame = &Frame::all(&doc)[0];
    let mut drawn: Vec<[f64; 4]> = Vec::new();
    for n in doc.descendants() {
        if n.has_attribute("data-id") {
            let (x, y) = (number(&n, "x"), number(&n, "y"));
            drawn.push([x, y, x + number(&n, "width"), y + number(&n, "height")]);
        }
    }
    let alone = drawn.len();
    assert!((100..=3_000).contains(&alone), "{alone}");
    let paths = class(&doc, "buffers").chain(class(&doc, "density").flat_map(|g| g.children()));
    drawn.extend(paths.filter_map(|n| n.attribute("d")).flat_map(path_rectangles));
    // By row, so that a look-up need not pass over all.
    let mut rows: Vec<Vec<[f64; 4]>> = vec![Vec::new(); 1 + (frame.y + frame.h) as usize];
    for r in &drawn {
        let last = rows.len() - 1;
        rows[(r[1].max(0.0) as usize).min(last)..=(r[3] as usize).min(last)].iter_mut().for_each(|row| row.push(*r));
    }
    let mut checked = 0;
    for (b, slot) in p.buffers().iter().zip(&l.slots) {
        let middle = (b.lower + b.upper) as f64 / 2.0;
        let x = frame.x + (middle - frame.lower) / (frame.upper - frame.lower) * frame.w;
        let y = frame.y + frame.h - (slot.unwrap().offset as f64 + b.size as f64 / 2.0) / frame.bytes * frame.h;
        // What covers less than a hundredth of each of the four cells of 2 by 2 pixels where it
        // lies may be left out.
        let wide = ((b.upper - b.lower) as f64 / (frame.upper - frame.lower) * frame.w).min(2.0);
        if b.size as f64 / frame.bytes * frame.h * wide > 4.0 * 0.04 {
            let at = |r: &&[f64; 4]| r[0] - 0.02 <= x && x <= r[2] + 0.02 && r[1] - 0.02 <= y && y <= r[3] + 0.02;
            assert!(rows[y as usize].iter().any(|r| at(&r)), "{b:?} at {slot:?} ({x}, {y}) is not shown");
            checked += 1;
        }
    }
    assert!(checked > 5_000, "only {checked} would be seen");
}

#[test]
fn the_worst_picture_is_a_few_mebibytes() {
    // More pieces than are drawn alone or together, each of them visible, with names that grow when
    // they are escaped.
    let name = "\"&".repeat(200);
    let p = problem((0..40_000u64).map(|i| named(&name, 1 + i % 3, i % 250, i % 250 + 1)));
    let offsets: Vec<u64> = (0..40_000u64).map(|i| i / 250 * 3).collect();
    let text = svg(&p, &layout(&p, at(&offsets)));
    assert!(text.len() < 6 << 20, "{} bytes", text.len());
    let doc = Document::parse(&text).unwrap();
    assert_eq!(doc.descendants().filter(|n| n.has_attribute("data-id")).count(), 3_000);
    let together = class(&doc, "buffers").filter_map(|n| n.attribute("d")).map(|d| path_rectangles(d).len());
    assert_eq!(together.sum::<usize>(), 30_000);
    assert!(class(&doc, "density").next().is_some());
}

#[test]
fn there_is_a_picture_of_everything() {
    let parse = |p: &Problem, l: &Layout| {
        let text = svg(p, l);
        Document::parse(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(!text.contains("NaN") && !text.contains("inf\""), "{text}");
        text
    };
    let empty = Problem::new();
    assert!(parse(&empty, &layout(&empty, vec![])).contains("nothing to lay out"));
    let mut p = problem([Buffer::new(10, 0, 6)]);
    p.set_capacity(Some(5));
    let none = Layout { status: LayoutStatus::Infeasible, size: 10, ..layout(&p, vec![None]) };
    assert!(parse(&p, &none).contains("no layout fits the capacity"));
    let never = problem([Buffer::new(10, 7, 7), Buffer::new(0, 0, u64::MAX)]);
    parse(&never, &layout(&never, at(&[0, 0])));
    let huge = problem([Buffer::new(1 << 62, u64::MAX - 1, u64::MAX), Buffer::new(1 << 61, 0, u64::MAX)]);
    parse(&huge, &layout(&huge, at(&[1 << 61, 0])));
    let mut many_arenas = problem([Buffer::new(1, 0, 2)]);
    for _ in 0..100 {
        many_arenas.add_arena(Arena::default());
    }
    let text = parse(&many_arenas, &layout(&many_arenas, at(&[0])));
    assert!(text.contains("85 more arenas are not drawn"));
    let far = problem([Buffer::new(1, 0, 2)]);
    // A layout of something else has slots that there are no buffers or arenas for.
    parse(&far, &Layout { slots: vec![Some(Slot { arena: 9, offset: u64::MAX }); 5], ..layout(&far, at(&[0])) });
}

#[test]
fn the_same_layout_gives_the_same_text() {
    let p = many(2_000);
    let l = packed(&p);
    let other = Layout { elapsed: Duration::ZERO, ..l.clone() };
    assert!(svg(&p, &l) == svg(&p, &other) && report(&p, &l) == report(&p, &other) && csv(&p, &l) == csv(&p, &other));
}

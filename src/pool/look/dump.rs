//! What the pool looks like, for people: counters, then every piece in address order in the
//! notation of docs/spec/pool.md.

use crate::base::size::human;
use crate::base::StreamHandle;
use crate::pool::look::walk::{About, Is, Piece};
use crate::pool::state::Pool;
use crate::pool::types::AllocInfo;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What the signs mean, for people.
const LEGEND: &str =
    "[X] live, [:X] small objects, [-X] free, [~X] freed and still in use, [=X] dedicated, [!X] old addresses, \
                      [*X] hole; 3 x [X]: equal neighbours";

/// One piece of the address space: start, length, sign in the notation, the id of a live
/// allocation, and what else is known.
struct Line {
    addr: u64,
    size: u64,
    sign: &'static str,
    id: Option<u64>,
    note: String,
}

impl Line {
    /// Whether `next` lies right behind this one and differs in nothing that people look for.
    fn goes_on_with(&self, next: &Line) -> bool {
        let alike = self.sign == next.sign && self.id.is_some() == next.id.is_some() && self.note == next.note;
        alike && self.addr + self.size == next.addr && (self.is_void() || self.size == next.size)
    }

    /// Whether only its bytes matter, and not how many pieces they are in.
    fn is_void(&self) -> bool {
        matches!(self.sign, "-" | "~" | "*" | "!")
    }
}

/// What is known of a live allocation, except for its id.
pub(crate) fn asked(bytes: u64, stream: StreamHandle, tag: u64) -> String {
    format!("{bytes} asked for, stream {stream}{}", tagged(tag))
}

fn tagged(tag: u64) -> String {
    match tag {
        0 => String::new(),
        _ => format!(", tag {tag}"),
    }
}

impl Pool {
    fn pieces(&self) -> Vec<Line> {
        let mut pieces = Vec::new();
        self.walk(&mut |view| {
            let alive: BTreeMap<u64, &AllocInfo> = view.alive.iter().map(|a| (a.info.base, &a.info)).collect();
            pieces.extend(view.pieces.iter().map(|p| self.line(view.number, p, &alive)));
        });
        pieces.sort_unstable_by_key(|p| p.addr);
        pieces
    }

    /// `alive`: the live allocations of the same heap, by first address.
    fn line(&self, heap: Option<u32>, p: &Piece, alive: &BTreeMap<u64, &AllocInfo>) -> Line {
        let sign = match p.is {
            Is::Live => "",
            Is::Slab(..) => ":",
            Is::Free(_) => "-",
            Is::Waiting => "~",
            Is::Hole => "*",
            Is::Old | Is::Leaving => "!",
            Is::Dedicated | Is::Evicted => "=",
        };
        let mut id = None;
        let note = match (p.about, p.is) {
            (_, Is::Slab(size, used, capacity)) => {
                let objects = alive.range(p.address..p.address + p.bytes);
                let tags: BTreeSet<u64> = objects.map(|(_, info)| info.tag).collect();
                let tags: String = tags.into_iter().map(tagged).collect();
                format!("{used} of {capacity} objects of {size} in use{tags}")
            }
            (About::Block(info), _) => {
                id = Some(info.id);
                asked(info.requested, info.stream, info.tag)
            }
            (About::Used(tag), _) if heap.is_some() && self.order.settled(tag) => "settled".into(),
            (About::Used(tag), _) => format!("after lane {} epoch {}", tag.lane(), tag.epoch()),
            (About::Mapped(bytes), is) => {
                let mut note = format!("{} {}", human(bytes), if is == Is::Evicted { "evicted" } else { "mapped" });
                // A guarded allocation starts inside its mapping.
                if let Some((_, info)) = alive.range(p.address..p.address + p.bytes).next() {
                    id = Some(info.id);
                    let _ = write!(note, ", {}", asked(info.requested, info.stream, info.tag));
                }
                note
            }
            (About::Says(text), _) => text.into(),
            (About::Nothing, _) => String::new(),
        };
        let note = match heap.and_then(|n| self.heap(n)) {
            Some(heap) if self.is_shared(heap.number) => format!("the shared heap, {note}"),
            Some(heap) => format!("heap {}, {note}", heap.number),
            None => note,
        };
        Line { addr: p.address, size: p.bytes, sign, id, note }
    }

    /// The pool in the notation of docs/spec/pool.md, sizes in `unit` bytes, e.g. `[4][-6][1]`. The
    /// hole behind the last piece is left out; `[...]` stands for one of 64 units or more, such as
    /// the pool leaves between spans.
    pub fn layout(&self, unit: u64) -> String {
        let pieces = self.pieces();
        let last = pieces.iter().rposition(|p| p.sign != "*").map_or(0, |i| i + 1);
        let text = |p: &Line| match (p.sign, p.size % unit) {
            ("*", _) if p.size >= 64 * unit => "[...]".to_string(),
            (s, 0) => format!("[{s}{}]", p.size / unit),
            (s, _) => format!("[{s}{:.2}]", p.size as f64 / unit as f64),
        };
        pieces[..last].iter().map(text).collect()
    }

    /// Counters and every piece in address order, equal neighbours as one.
    pub fn dump(&self) -> String {
        let s = self.stats();
        let mut out = String::new();
        let [mapped, live, requested, free] = [s.mapped, s.live, s.requested, s.free].map(human);
        let [waiting, zombies, reserved, holes] = [s.waiting, s.zombies, s.reserved, s.holes].map(human);
        let [most, largest] = [s.largest_without_growth, s.largest_free].map(human);
        let (dev, name, extents, allocations) = (self.dev, &self.props.name, s.extents, s.allocations);
        let (growths, stitches, moved) = (s.growths, s.stitches, s.moved);
        let _ = writeln!(out, "device {dev} ({name}): {mapped} mapped in {extents} extents");
        let _ = writeln!(
            out,
            "  live {live} ({requested} asked for) in {allocations} allocations; free {free}, waiting {waiting}, zombies \
             {zombies}; reserved {reserved}, holes {holes}"
        );
        let _ = writeln!(
            out,
            "  largest request without growth {most}, without a driver call {largest}; {growths} growths, {stitches} \
             stitches, {moved} extents moved"
        );
        let _ = writeln!(out, "  {LEGEND}");
        let pieces = self.pieces();
        for run in pieces.chunk_by(Line::goes_on_with) {
            let (Some(p), Some(last)) = (run.first(), run.last()) else { continue };
            let (many, size) = match run.len() {
                n if n > 1 && !p.is_void() => (format!("{n} x "), p.size),
                _ => (String::new(), run.iter().map(|p| p.size).sum()),
            };
            let id = match (p.id, last.id) {
                (Some(a), Some(b)) if a == b => format!(", id {a}"),
                (Some(a), Some(b)) => format!(", ids {a} to {b}"),
                _ => String::new(),
            };
            let _ = writeln!(out, "  {:#014x} {many}[{}{}] {}{id}", p.addr, p.sign, human(size), p.note);
        }
        out
    }
}

//! What the pool looks like, for people: counters, then every piece in address order in the notation of
//! docs/spec/pool.md.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::size::human;
use crate::base::sync::lock;
use crate::base::StreamHandle;
use crate::pool::heap::region::{Region, State};
use crate::pool::state::pool::Pool;
use std::collections::BTreeSet;
use std::fmt::Write;

/// What the signs mean, for people.
const LEGEND: &str =
    "[X] live, [:X] small objects, [-X] free, [~X] freed and still in use, [=X] dedicated, [!X] old addresses, \
                      [*X] hole; 3 x [X]: equal neighbours";

/// One piece of the address space: start, length, sign in the notation, whose it is if it is live, and what else is known.
struct Line {
    addr: u64,
    size: u64,
    sign: &'static str,
    id: Option<u64>,
    note: String,
}

impl Line {
    /// Whether another lies behind this one and differs in nothing that people look for.
    fn goes_on_with(&self, next: &Line) -> bool {
        let alike = self.sign == next.sign && self.id.is_some() == next.id.is_some() && self.note == next.note;
        alike && self.addr + self.size == next.addr && (self.is_void() || self.size == next.size)
    }

    /// Whether only the bytes count, and not how many pieces they are in.
    fn is_void(&self) -> bool {
        matches!(self.sign, "-" | "~" | "*" | "!")
    }
}

fn sign(r: &Region) -> &'static str {
    match r.state {
        State::Live => "",
        State::Slab => ":",
        State::Ready | State::Quick => "-",
        State::Waiting => "~",
        State::Vacant | State::Edge => "?",
    }
}

/// What is known of a live allocation but its id.
pub(crate) fn asked(bytes: u64, stream: StreamHandle, tag: u64) -> String {
    format!(", {bytes} asked for, stream {stream}{}", tagged(tag))
}

fn tagged(tag: u64) -> String {
    if tag == 0 {
        String::new()
    } else {
        format!(", tag {tag}")
    }
}

impl Pool {
    fn pieces(&self) -> Vec<Line> {
        let mut pieces = Vec::new();
        for heap in self.all_heaps() {
            let st = heap.lock();
            for r in st.regions.spans().flat_map(|first| st.regions.walk(first)) {
                let g = st.regions.get(r);
                let mut note = format!("heap {}", heap.number);
                let mut id = None;
                match g.state {
                    State::Live => {
                        let b = st.regions.block(r);
                        id = Some(b.id);
                        note.push_str(&asked(b.requested, b.stream, b.tag));
                    }
                    State::Ready | State::Quick | State::Waiting if !self.order.settled(g.order) => {
                        let _ = write!(note, ", after lane {} epoch {}", g.order.lane(), g.order.epoch());
                    }
                    State::Ready | State::Quick | State::Waiting => note.push_str(", settled"),
                    State::Slab => {
                        if let Some((_, s)) = st.slabs.iter().find(|(_, s)| s.region == r) {
                            let size = crate::pool::heap::slab::class_size(s.class as usize);
                            let _ = write!(note, ", {} of {} objects of {size} in use", s.used, s.capacity);
                            let tags = (0..s.capacity).filter_map(|n| st.tags.get(&s.addr_of(n)));
                            let tags: BTreeSet<&u64> = tags.collect();
                            tags.into_iter().for_each(|tag| note.push_str(&tagged(*tag)));
                        }
                    }
                    State::Vacant | State::Edge => {}
                }
                pieces.push(Line { addr: g.addr, size: g.size, sign: sign(g), id, note });
            }
        }
        let core = lock(&*self.core);
        let mut add = |addr, size, sign, note: String| pieces.push(Line { addr, size, sign, id: None, note });
        core.holes.iter().for_each(|(a, l)| add(a, l, "*", String::new()));
        core.aliases
            .iter()
            .for_each(|(a, l, t)| add(a, l, "!", format!("after lane {} epoch {}", t.lane(), t.epoch())));
        core.zombies.iter().for_each(|z| add(z.addr, z.size, "!", "never used".into()));
        let grave = |held| if held { "dedicated, freed, addresses kept" } else { "dedicated, freed" };
        core.graves.values().for_each(|g| add(g.va, g.reserved, "!", grave(g.held).into()));
        pieces.extend(core.dedicated.values().map(|d| {
            let is = if d.handle.is_some() { "mapped" } else { "evicted" };
            let note = format!("{} {is}{}", human(d.mapped), asked(d.info.requested, d.info.stream, d.info.tag));
            Line { addr: d.va, size: d.reserved, sign: "=", id: Some(d.info.id), note }
        }));
        pieces.sort_unstable_by_key(|p| p.addr);
        pieces
    }

    /// The pool in the notation of docs/spec/pool.md, sizes in `unit` bytes, e.g. `[4][-6][1]`. The hole behind the
    /// last piece is left out; `[...]` stands for one of 64 units or more, such as the pool leaves between spans.
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
        let _ = writeln!(
            out,
            "device {} ({}): {} mapped in {} extents",
            self.dev,
            self.props.name,
            human(s.mapped),
            s.extents
        );
        let _ = writeln!(
            out,
            "  live {} ({} asked for) in {} allocations; free {}, waiting {}, zombies {}; reserved {}, holes {}",
            human(s.live),
            human(s.requested),
            s.allocations,
            human(s.free),
            human(s.waiting),
            human(s.zombies),
            human(s.reserved),
            human(s.holes),
        );
        let _ =
            writeln!(
            out,
            "  largest request without growth {}, without a driver call {}; {} growths, {} stitches, {} extents moved",
            human(s.largest_without_growth), human(s.largest_free), s.growths, s.stitches, s.moved,
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

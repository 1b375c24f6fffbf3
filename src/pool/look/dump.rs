//! What the pool looks like, for people: counters, then every piece in address order in the notation of
//! docs/spec/pool.md.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::size::human;
use crate::base::sync::lock;
use crate::pool::heap::region::{Region, State};
use crate::pool::state::pool::Pool;
use std::fmt::Write;

/// One piece of the address space: start, length, sign in the notation, and what else is known.
struct Line {
    addr: u64,
    size: u64,
    sign: &'static str,
    note: String,
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

impl Pool {
    fn pieces(&self) -> Vec<Line> {
        let mut pieces = Vec::new();
        for heap in self.all_heaps() {
            let st = heap.lock();
            for r in st.regions.spans().flat_map(|first| st.regions.walk(first)) {
                let g = st.regions.get(r);
                let mut note = format!("heap {}", heap.number);
                match g.state {
                    State::Live => {
                        let b = st.regions.block(r);
                        let _ = write!(note, ", id {:#x}, {} asked for, stream {}", b.id, b.requested, b.stream);
                        if b.tag != 0 {
                            let _ = write!(note, ", tag {}", b.tag);
                        }
                    }
                    State::Ready | State::Quick | State::Waiting if !self.order.settled(g.order) => {
                        let _ = write!(note, ", after lane {} epoch {}", g.order.lane(), g.order.epoch());
                    }
                    State::Ready | State::Quick | State::Waiting => note.push_str(", settled"),
                    State::Slab => {
                        if let Some((_, s)) = st.slabs.iter().find(|(_, s)| s.region == r) {
                            let size = crate::pool::heap::slab::class_size(s.class as usize);
                            let _ = write!(note, ", {} of {} objects of {size} in use", s.used, s.capacity);
                        }
                    }
                    State::Vacant | State::Edge => {}
                }
                pieces.push(Line { addr: g.addr, size: g.size, sign: sign(g), note });
            }
        }
        let core = lock(&*self.core);
        let mut add = |addr, size, sign, note: String| pieces.push(Line { addr, size, sign, note });
        core.holes.iter().for_each(|(a, l)| add(a, l, "*", String::new()));
        core.aliases
            .iter()
            .for_each(|(a, l, t)| add(a, l, "!", format!("after lane {} epoch {}", t.lane(), t.epoch())));
        core.zombies.iter().for_each(|z| add(z.addr, z.size, "!", "never used".into()));
        core.dedicated.values().for_each(|d| match d.handle {
            Some(_) => add(d.va, d.reserved, "=", format!("{} mapped", human(d.mapped))),
            None => add(d.va, d.reserved, "~", format!("{} evicted", human(d.mapped))),
        });
        let grave = |held| if held { "dedicated, freed, addresses kept" } else { "dedicated, freed" };
        core.graves.values().for_each(|g| add(g.va, g.reserved, "!", grave(g.held).into()));
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

    /// Counters and every piece in address order.
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
        for p in self.pieces() {
            let _ = writeln!(out, "  {:#014x} [{}{}] {}", p.addr, p.sign, human(p.size), p.note);
        }
        out
    }
}

//! Checks of a heap's invariants.

use crate::pool::heap::members::Place;
use crate::pool::heap::region::State;
use crate::pool::heap::state::HeapState;
use crate::pool::memory::{Entry, Index, SLOT};
use crate::pool::order::Tag;
use std::collections::HashSet;

impl HeapState {
    /// Checks the invariants written above [`HeapState`].
    pub(crate) fn validate(&self, index: &Index) -> Result<(), String> {
        self.regions.validate()?;
        self.extents.validate()?;
        self.slabs.validate()?;
        self.members.validate()?;
        self.learnt.fresh_starts.validate()?;
        self.low.validate(self.moves)?;
        ensure!(self.of_captures || self.private.is_none(), "heap {} is an arena's and not of captures", self.number);
        let (mut bytes, mut live, mut waiting, mut requested) = (0, 0, 0, 0);
        let mut extents = self.extents.iter();
        let mut listed: HashSet<u32> = self.waiting.regions().collect();
        ensure!(listed.len() == self.waiting.regions().count(), "a region is in the waiting list twice");
        for first in self.regions.spans() {
            let mut at = self.regions.get(first).addr;
            for r in self.regions.walk(first) {
                let g = self.regions.get(r);
                bytes += g.size;
                match g.state {
                    State::Live => {
                        live += g.size;
                        requested += self.regions.block(r).requested;
                        let entry = Entry::Block { heap: self.number, region: r };
                        ensure!(index.get(g.addr) == entry, "block {:#x} is not in the index", g.addr);
                        let around_its_end = index.find_back(g.end().saturating_sub(SLOT).max(g.addr));
                        ensure!(around_its_end == Some(entry), "the end of block {:#x} is not in the index", g.addr);
                    }
                    State::Waiting => {
                        waiting += g.size;
                        ensure!(listed.remove(&r), "waiting region {:#x} has no entry in the waiting list", g.addr);
                    }
                    State::Ready | State::Quick => {
                        let own = g.tag == Tag::SETTLED || g.tag.lane() == self.lane;
                        ensure!(own, "ready region {:#x} is of another stream's order", g.addr);
                        let barren = g.state == State::Quick || self.extents.tiled(g.addr, g.end()).is_none();
                        ensure!(barren || !g.barren.get(), "region {:#x} holds a whole extent", g.addr);
                    }
                    _ => {}
                }
                while at < g.end() {
                    match extents.next() {
                        Some((a, e)) if a == at => at += e.size,
                        other => return Err(format!("extents do not tile the span at {at:#x}: {other:?}")),
                    }
                }
                let within = !self.regions.is_edge(g.next) || at == g.end();
                ensure!(within, "the extent at the end of the span {:#x} reaches beyond it", g.end());
            }
        }
        for (i, s) in self.slabs.iter() {
            live += u64::from(s.used) * s.size;
            requested += s.live().map(|n| u64::from(s.object(n).requested)).sum::<u64>();
            let entry = Entry::Slab { heap: self.number, slab: i };
            ensure!(index.get(s.base) == entry, "slab {:#x} is not in the index", s.base);
            let slots = self.regions.get(s.region).size / SLOT * SLOT;
            let fits = u64::from(s.capacity) * s.size <= slots;
            ensure!(fits, "{} objects of {} in {slots} bytes of slab {:#x}", s.capacity, s.size, s.base);
        }
        let equal = [
            ("regions and extents", bytes, self.extents.bytes()),
            ("live_bytes", self.live_bytes, live),
            ("requested_bytes", self.requested_bytes, requested),
            ("waiting_bytes", self.waiting_bytes, waiting),
        ];
        for (what, recorded, found) in equal {
            ensure!(recorded == found, "{what}: {recorded} recorded, {found} found");
        }
        let (most, now) = (self.most_live, self.live_bytes);
        ensure!(most >= now, "most_live: {most} recorded, {now} live");
        ensure!(listed.is_empty(), "regions {listed:?} are in the waiting list and do not wait");
        for &addr in self.users.keys() {
            let entry = index.get(addr);
            let live = entry.heap() == Some(self.number) && self.find(entry, addr).is_some();
            ensure!(live, "{addr:#x} was recorded on streams and is not live");
        }
        let live: HashSet<Place> = self.live().collect();
        for (m, place) in self.members.iter() {
            let of_it = live.contains(&place) && self.at(place).member == m;
            ensure!(of_it, "record {m} of an allocation in a scope is of {place:?}, which is not its");
        }
        Ok(())
    }
}

//! Checks of a heap's invariants.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::pool::heap::members::Place;
use crate::pool::heap::region::State;
use crate::pool::heap::slab;
use crate::pool::heap::state::HeapState;
use crate::pool::memory::index::{Entry, Index};
use crate::pool::order::tag::Tag;

impl HeapState {
    /// Checks the invariants written above [`HeapState`].
    pub(crate) fn validate(&self, index: &Index) -> Result<(), String> {
        self.regions.validate()?;
        self.extents.validate()?;
        self.slabs.validate()?;
        self.members.validate()?;
        self.afresh.validate()?;
        if self.moves_when_empty > self.moves {
            return Err(format!("{} moves, but {} when it was last empty", self.moves, self.moves_when_empty));
        }
        self.validate_members()?;
        self.validate_users(index)?;
        let (mut bytes, mut live, mut waiting, mut requested) = (0, 0, 0, 0);
        let mut extents = self.extents.iter();
        let tickets = self.waiting.tickets();
        for first in self.regions.spans() {
            let mut at = self.regions.get(first).addr;
            for r in self.regions.walk(first) {
                let g = self.regions.get(r);
                bytes += g.size;
                match g.state {
                    State::Live => {
                        live += g.size;
                        requested += self.regions.block(r).requested;
                        if index.get(g.addr) != (Entry::Block { heap: self.number, region: r }) {
                            return Err(format!("block {:#x} is not in the index", g.addr));
                        }
                    }
                    State::Waiting => {
                        waiting += g.size;
                        if tickets.get(&g.ticket) != Some(&r) {
                            return Err(format!("waiting region {:#x} has no entry in the waiting list", g.addr));
                        }
                    }
                    State::Ready | State::Quick if g.order != Tag::SETTLED && g.order.lane() != self.lane => {
                        return Err(format!("ready region {:#x} is of another stream's order", g.addr));
                    }
                    _ => {}
                }
                while at < g.end() {
                    match extents.next() {
                        Some((a, e)) if a == at => at += e.size,
                        other => return Err(format!("extents do not tile the span at {at:#x}: {other:?}")),
                    }
                }
                if self.regions.is_edge(g.next) && at != g.end() {
                    return Err(format!("the extent at the end of the span {:#x} reaches beyond it", g.end()));
                }
            }
        }
        for (i, s) in self.slabs.iter() {
            live += u64::from(s.used) * slab::class_size(s.class as usize);
            requested +=
                (0..s.capacity).filter(|&n| s.is_live(n)).map(|n| u64::from(s.object(n).requested)).sum::<u64>();
            if index.get(s.base) != (Entry::Slab { heap: self.number, slab: i }) {
                return Err(format!("slab {:#x} is not in the index", s.base));
            }
        }
        let equal = [
            ("regions and extents", bytes, self.extents.bytes()),
            ("live_bytes", self.live_bytes, live),
            ("requested_bytes", self.requested_bytes, requested),
            ("waiting_bytes", self.waiting_bytes, waiting),
        ];
        match equal.iter().find(|(_, a, b)| a != b) {
            Some((what, a, b)) => Err(format!("{what}: {a} recorded, {b} found")),
            None => Ok(()),
        }
    }

    /// What was recorded on streams is live.
    fn validate_users(&self, index: &Index) -> Result<(), String> {
        let live = |addr: u64| match index.get(addr) {
            Entry::Block { heap, region } if heap == self.number => {
                self.regions.try_get(region).is_some_and(|r| r.addr == addr && r.state == State::Live)
            }
            Entry::Slab { heap, slab } if heap == self.number => {
                let s = self.slabs.try_get(slab).filter(|s| s.base <= addr);
                s.is_some_and(|s| s.object_at(addr).is_some_and(|n| s.is_live(n)))
            }
            _ => false,
        };
        match self.users.keys().find(|&&addr| !live(addr)) {
            Some(addr) => Err(format!("{addr:#x} was recorded on streams and is not live")),
            None => Ok(()),
        }
    }

    fn validate_members(&self) -> Result<(), String> {
        let live = |place| match place {
            Place::Block { region } => self.regions.try_get(region).is_some_and(|r| r.state == State::Live),
            Place::Object { slab, number } => self.slabs.try_get(slab).is_some_and(|s| s.is_live(number)),
        };
        match self.members.iter().find(|&(m, place)| !live(place) || self.member_at(place) != m) {
            Some((m, place)) => {
                Err(format!("record {m} of an allocation in a scope is of {place:?}, which is not its"))
            }
            None => Ok(()),
        }
    }
}

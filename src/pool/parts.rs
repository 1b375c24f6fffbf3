//! Parts: where the extents of a run of aliases are, as far as they are neighbours there, too.
//!
//! A run that repeats a step is made of the same parts each time. So they are kept, and what a flip has to see is only
//! whether they still hold.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::aliases::{Aliases, Place, RunId};
use super::bins::NONE;
use super::extent::Extent;
use std::cmp::Reverse;

/// For [`Part::from`]: its extents are in no run at present, but in stock.
const STOCK: u32 = u32::MAX;

/// Neighbours in a run whose extents are neighbours in another run, too, or all in stock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Its addresses in the other run, which never change: not looked up there, as that is elsewhere in memory. For the stock, 0 to its
    /// bytes.
    there: (u64, u64),
    /// When the other run was mapped,
    born: u64,
    /// its number or [`STOCK`],
    from: u32,
    /// and where the part starts there. For the stock, the number of its first extent if the others' follow, or [`NONE`].
    at: u32,
    /// Where it starts in the run that it is a part of.
    pub(super) first: u32,
    /// How many extents it has.
    pub(super) len: u32,
    /// The number of the free region that its extents were in when they were taken last: a hint.
    pub(super) region: u32,
}

impl Part {
    /// Where its extents are, from and to; `None` for the stock.
    #[inline]
    pub(super) fn whereabouts(&self) -> Option<(u64, u64)> {
        (self.from != STOCK).then_some(self.there)
    }

    /// The other run and the part's positions there, from and how many; `None` for the stock.
    #[inline]
    pub(super) fn source(&self) -> Option<(RunId, usize, usize)> {
        let run = RunId { number: self.from, born: self.born };
        (self.from != STOCK).then_some((run, self.at as usize, self.len as usize))
    }

    /// In stock: the number of the first extent, if those of the others follow, and how many there are.
    #[inline]
    pub(super) fn numbers(&self) -> Option<(u32, u32)> {
        (self.from == STOCK && self.at != NONE).then_some((self.at, self.len))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.there.1 - self.there.0
    }
}

impl Aliases {
    /// What a run is made of, if all of its aliases are dormant: from high to low addresses. It is given back with
    /// [`Self::take_back`] or [`Self::keep`]. Where it was looked up before, extents may have moved since: what is in a heap at a
    /// part's addresses is what the part says, but whether they are in a heap the caller has to see, and where they are not, or
    /// extents are not in stock, [`Self::hold`] tells.
    pub(super) fn parts(&mut self, run: RunId) -> Option<Vec<Part>> {
        if !self.is_dormant(run) {
            return None;
        }
        let parts = self.kept(run);
        match !parts.is_empty() && parts.iter().all(|p| self.is_there(p)) {
            true => Some(parts),
            false => Some(self.look_up(run)),
        }
    }

    /// Whether nothing but this part's extents can be in use at its addresses.
    #[inline]
    fn is_there(&self, p: &Part) -> bool {
        p.source().is_none_or(|(run, at, len)| self.is_whole(run) || self.is_present(run, at, len))
    }

    /// Whether these are still the parts of the run; `stocked` knows which extents are in stock.
    pub(super) fn hold(&self, run: RunId, parts: &[Part], stocked: impl Fn(Extent) -> bool) -> bool {
        parts.iter().all(|p| match p.source() {
            Some((from, at, len)) => self.is_present(from, at, len),
            None => self.extents(run, p).all(&stocked),
        })
    }

    /// What a run is made of at present.
    pub(super) fn look_up(&mut self, run: RunId) -> Vec<Part> {
        self.kept(run);
        self.parts_from(self.run(run).map(|(_, m)| {
            let place = self.present(m.extent);
            (m.extent, place.map(|p| (p, self.address_of(p), NONE)))
        }))
    }

    /// The parts, from high to low addresses, that extents come from that are to be a run, or were one: they, and
    /// their present places and addresses, and the free regions around them, where those are known.
    pub(super) fn parts_from(&self, extents: impl Iterator<Item = (Extent, Option<(Place, u64, u32)>)>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for (first, (Extent { size, id, .. }, place)) in (0..).zip(extents) {
            let ((from, at), addr, region) = place.unwrap_or(((STOCK, id), 0, NONE));
            let follows = |p: &&mut Part| p.from == from && (from == STOCK || p.at + p.len == at);
            match parts.last_mut().filter(follows) {
                Some(p) => {
                    if p.numbers().is_some_and(|(first, len)| first + len != id) {
                        p.at = NONE;
                    }
                    p.len += 1;
                    p.there.1 += size;
                }
                None => {
                    let born = place.map_or(0, |_| self.born(from));
                    parts.push(Part { there: (addr, addr + size), born, from, at, first, len: 1, region });
                }
            }
        }
        parts.sort_unstable_by_key(|p| Reverse(p.there.0));
        parts
    }

    /// Checks that a run's parts are what they were said to be, as far as the runs they name are still there.
    pub(super) fn validate_parts(&self, run: RunId, parts: &[Part]) -> Result<(), String> {
        let (start, _, len) = self.bounds(run);
        let mut in_order: Vec<&Part> = parts.iter().collect();
        in_order.sort_unstable_by_key(|p| p.first);
        let mut at = 0;
        for p in in_order {
            if p.first != at {
                return Err(format!("the parts of the run at {start:#x} do not follow each other"));
            }
            at += p.len;
            if p.numbers().is_some_and(|(first, _)| !self.extents(run, p).map(|e| e.id).eq(first..first + p.len)) {
                return Err(format!("a part of the run at {start:#x} is of other numbers"));
            }
            let Some((from, _, _)) = p.source().filter(|s| self.bounds(s.0).2 > 0) else { continue };
            let there = || self.run(from).skip(p.at as usize).take(p.len as usize);
            if !there().map(|(_, m)| m.extent).eq(self.extents(run, p)) {
                return Err(format!("a part of the run at {start:#x} is of other extents"));
            }
            let bounds = there().next().zip(there().last()).map(|(a, b)| (a.0, b.0 + b.1.extent.size));
            if bounds != Some(p.there) {
                return Err(format!("a part of the run at {start:#x} is elsewhere"));
            }
        }
        match parts.is_empty() || at as usize == len {
            true => Ok(()),
            false => Err(format!("the parts of the run at {start:#x} are not all of it")),
        }
    }
}

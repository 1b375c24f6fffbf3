//! Aliases: every address at which an extent is mapped.
//!
//! A moved extent stays mapped where it was. Such a *dormant* alias costs addresses, which are
//! plentiful, and no device memory; unmapping it would cost as much as a third of the move, and
//! mapping the extent there again the rest. So aliases are kept, in the *runs* they were mapped in.
//! A request that finds all extents of a run free takes the run back (`remap/flip.rs`) without a
//! driver call. Work that repeats finds a run made of the same parts each time (`parts.rs`). So
//! parts are kept too, and a flip only checks whether they still hold. Work that does not repeat
//! has aliases unmapped where runs are to go (`remap/old_addresses.rs`).

use crate::driver::PhysHandle;
use crate::pool::memory::extent::{AliasId, Extent, Mapped};
use crate::pool::memory::parts::{RunId, RunPart, STOCK};
use crate::pool::order::{Order, Tag};
use crate::pool::types::NONE;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What an alias is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AliasState {
    /// Its extent is here now, in a heap's span.
    Present,
    /// Its extent is elsewhere, or in stock.
    Dormant,
    /// Dormant, and about to be unmapped by the thread that claimed it.
    Claimed,
    /// Not mapped any more.
    Gone,
}

/// One extent at one address.
#[derive(Clone, Copy, Debug)]
struct Alias {
    addr: u64,
    extent: Extent,
}

/// Aliases mapped one after the other for one request. A flip looks at all runs that it takes
/// memory from, which are scattered. So what it reads and writes there is one cache line and the
/// states.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Run {
    /// What each alias is.
    states: Box<[AliasState]>,
    /// When it was mapped, in the table's own count, which begins with 1; 0 if vacant.
    born: u64,
    /// The last use of memory through its dormant aliases, or a later one through other aliases of
    /// their extents, in one lane; `tags` has other lanes. One tag for all aliases, as a run mostly
    /// leaves as a whole.
    tag: Tag,
    /// How many aliases are not gone. A run without any is vacant.
    left: u32,
    /// How many of them are dormant and unclaimed.
    dormant: u32,
    /// Where the run starts and ends.
    bounds: (u64, u64),
    /// When it was last mapped or taken back, in the table's own count.
    used: u64,
    /// Where the extents were when that was last looked up.
    parts: Vec<RunPart>,
    /// Those whose states are above. Never changes while the run has any.
    aliases: Box<[Alias]>,
    /// Like `tag`, for other lanes.
    tags: Vec<Tag>,
}

const _: () = assert!(std::mem::offset_of!(Run, parts) == 64 && size_of::<Run>() == 128);

impl Run {
    #[inline]
    fn is_whole(&self) -> bool {
        self.left as usize == self.states.len()
    }
}

/// A dormant alias that the holder of this unmaps. No other thread uses it meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmapping {
    place: AliasId,
    pub(crate) addr: u64,
    pub(crate) size: u64,
}

/// The aliases of one pool.
///
/// Invariants: an extent has at most one present alias, and none exactly if it is in stock;
/// `dormant` and `dormant_bytes` count aliases that are dormant or claimed; aliases that are not
/// gone do not overlap, and `by_addr` has exactly these; a run's aliases lie one after the other
/// between its `bounds`; its counts are those of its states.
#[derive(Default)]
pub(crate) struct Aliases {
    runs: Vec<Run>,
    vacant_runs: Vec<u32>,
    /// By extent: its aliases that are not gone.
    extents: Vec<Vec<AliasId>>,
    vacant_extents: Vec<u32>,
    by_addr: BTreeMap<u64, AliasId>,
    dormant: usize,
    dormant_bytes: u64,
    clock: u64,
    /// The run that [`Self::claim_oldest`] looks at next.
    hand: usize,
}

impl Aliases {
    /// Adds a new handle as an extent without an alias.
    pub(crate) fn add_extent(&mut self, handle: PhysHandle, size: u64) -> Extent {
        let id = self.vacant_extents.pop().unwrap_or_else(|| {
            self.extents.push(Vec::new());
            (self.extents.len() - 1) as u32
        });
        Extent { handle, size, id }
    }

    /// Forgets an extent that has no alias any more.
    pub(crate) fn remove_extent(&mut self, extent: Extent) {
        debug_assert!(self.extents[extent.id as usize].is_empty());
        self.vacant_extents.push(extent.id);
    }

    /// Notes a run of extents just mapped from `addr` on. None of them has a present alias.
    pub(crate) fn add_run(&mut self, addr: u64, extents: &[Extent]) -> RunId {
        let number = self.vacant_runs.pop().unwrap_or_else(|| {
            self.runs.push(Run::default());
            (self.runs.len() - 1) as u32
        });
        let (mut at, len) = (addr, extents.len());
        let mut aliases = Vec::with_capacity(len);
        for (&extent, i) in extents.iter().zip(0..) {
            debug_assert!(self.present(extent).is_none());
            aliases.push(Alias { addr: at, extent });
            self.extents[extent.id as usize].push((number, i));
            self.by_addr.insert(at, (number, i));
            at += extent.size;
        }
        self.clock += 1;
        let born = self.clock;
        self.runs[number as usize] = Run {
            states: vec![AliasState::Present; len].into(),
            born,
            left: len as u32,
            bounds: (addr, at),
            used: born,
            aliases: aliases.into(),
            ..Run::default()
        };
        RunId { number, born }
    }

    /// Makes a present alias dormant, last used at `tag`: its extent leaves.
    pub(crate) fn leave(&mut self, place: AliasId, tag: Tag) {
        let bytes = self.runs[place.0 as usize].aliases[place.1 as usize].extent.size;
        self.leave_all(place.0, (place.1 as usize, 1), bytes, tag);
    }

    /// Makes `len` present aliases from `first` on dormant. They have `bytes` in all.
    #[inline(always)]
    fn leave_all(&mut self, run: u32, (first, len): (usize, usize), bytes: u64, tag: Tag) {
        let r = &mut self.runs[run as usize];
        let states = &mut r.states[first..first + len];
        debug_assert!(states.iter().all(|&s| s == AliasState::Present));
        states.fill(AliasState::Dormant);
        r.dormant += len as u32;
        self.dormant += len;
        self.dormant_bytes += bytes;
        if tag == Tag::SETTLED || r.tag == Tag::SETTLED || r.tag.lane() == tag.lane() {
            r.tag = r.tag.later(tag);
            return;
        }
        match r.tags.iter_mut().find(|t| t.lane() == tag.lane()) {
            Some(t) => *t = t.later(tag),
            None => r.tags.push(tag),
        }
    }

    /// A run, if it is still there.
    #[inline]
    fn valid(&self, run: RunId) -> Option<&Run> {
        self.runs.get(run.number as usize).filter(|r| r.born == run.born)
    }

    /// Whether all of a run's aliases are dormant.
    pub(crate) fn is_dormant(&self, run: RunId) -> bool {
        self.valid(run).is_some_and(|r| r.dormant as usize == r.states.len())
    }

    /// Whether none of a run's aliases is gone.
    #[inline]
    pub(crate) fn is_whole(&self, run: RunId) -> bool {
        self.valid(run).is_some_and(Run::is_whole)
    }

    /// Whether `len` aliases of a run from position `first` on are present.
    pub(crate) fn is_present(&self, run: RunId, first: usize, len: usize) -> bool {
        self.valid(run).is_some_and(|r| r.states[first..first + len].iter().all(|&s| s == AliasState::Present))
    }

    /// When the run with this number was mapped.
    pub(crate) fn born(&self, number: u32) -> u64 {
        self.runs.get(number as usize).map_or(0, |r| r.born)
    }

    /// The extents of a part of this run.
    pub(crate) fn extents(&self, run: RunId, part: &RunPart) -> impl Iterator<Item = Extent> + '_ {
        let first = part.first as usize;
        let aliases = self.valid(run).and_then(|r| r.aliases.get(first..first + part.len as usize));
        aliases.into_iter().flatten().map(|a| a.extent)
    }

    /// Takes the parts that were kept for a run.
    pub(crate) fn take_parts(&mut self, run: RunId) -> Vec<RunPart> {
        std::mem::take(&mut self.runs[run.number as usize].parts)
    }

    /// Keeps the parts of a run that is not taken back.
    pub(crate) fn set_parts(&mut self, run: RunId, parts: Vec<RunPart>) {
        self.runs[run.number as usize].parts = parts;
    }

    /// Takes a run back: all its extents leave their present addresses, last used at `tag`, for
    /// those of the run.
    pub(crate) fn take_back(&mut self, run: RunId, parts: Vec<RunPart>, tag: Tag) {
        for p in &parts {
            if let Some((from, first, len)) = p.source() {
                self.leave_all(from.number, (first, len), p.bytes(), tag);
            }
        }
        self.clock += 1;
        let r = &mut self.runs[run.number as usize];
        r.states.fill(AliasState::Present);
        (r.dormant, r.tag, r.used, r.parts) = (0, Tag::SETTLED, self.clock, parts);
        r.tags.clear();
        self.dormant -= r.states.len();
        self.dormant_bytes -= r.bounds.1 - r.bounds.0;
    }

    /// Where a run starts and ends, and how many aliases it has.
    pub(crate) fn bounds(&self, run: RunId) -> (u64, u64, usize) {
        self.valid(run).map_or((0, 0, 0), |r| (r.bounds.0, r.bounds.1, r.states.len()))
    }

    /// The addresses, extents and places of a run, in order.
    pub(crate) fn run(&self, run: RunId) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        let aliases = self.valid(run).into_iter().flat_map(|r| &r.aliases).zip(0..);
        aliases.map(move |(a, i)| (a.addr, Mapped { extent: a.extent, place: (run.number, i) }))
    }

    /// The place where an extent is now.
    pub(crate) fn present(&self, extent: Extent) -> Option<AliasId> {
        let places = self.extents.get(extent.id as usize)?;
        // Most often the latest.
        places.iter().rev().copied().find(|&place| self.state(place) == AliasState::Present)
    }

    /// The address of a place.
    pub(crate) fn address_of(&self, (run, i): AliasId) -> u64 {
        self.runs[run as usize].aliases[i as usize].addr
    }

    /// The address where an extent is now.
    pub(crate) fn address(&self, extent: Extent) -> Option<u64> {
        self.present(extent).map(|place| self.address_of(place))
    }

    /// How many aliases are dormant.
    pub(crate) fn dormant(&self) -> usize {
        self.dormant
    }

    /// Bytes of addresses that dormant aliases take.
    pub(crate) fn dormant_bytes(&self) -> u64 {
        self.dormant_bytes
    }

    fn state(&self, (run, i): AliasId) -> AliasState {
        self.runs[run as usize].states[i as usize]
    }

    /// When memory was last used through a run's dormant aliases: a tag for each lane that has not
    /// settled.
    fn unsettled<'a>(&'a self, run: u32, order: &'a Order) -> impl Iterator<Item = Tag> + 'a {
        let r = &self.runs[run as usize];
        [r.tag].into_iter().chain(r.tags.iter().copied()).filter(|&t| !order.settled(t))
    }

    /// The runs that have aliases.
    fn runs(&self) -> impl Iterator<Item = (u32, &Run)> + '_ {
        (0..).zip(&self.runs).filter(|(_, r)| r.left > 0)
    }

    /// Every alias that is dormant or claimed: address, size, and the first tag of its run.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, Tag)> + '_ {
        let all = self.runs().flat_map(|(_, r)| r.aliases.iter().zip(&r.states).map(|(a, &state)| (a, state, r.tag)));
        let dormant = all.filter(|x| matches!(x.1, AliasState::Dormant | AliasState::Claimed));
        dormant.map(|(a, _, tag)| (a.addr, a.extent.size, tag))
    }

    /// The tags that must settle before all dormant aliases can be unmapped.
    pub(crate) fn waits<'a>(&'a self, order: &'a Order) -> impl Iterator<Item = Tag> + 'a {
        self.runs().filter(|(_, r)| r.dormant > 0).flat_map(|(number, _)| self.unsettled(number, order))
    }

    fn claim(&mut self, place: AliasId) -> Unmapping {
        let (run, i) = (&mut self.runs[place.0 as usize], place.1 as usize);
        run.states[i] = AliasState::Claimed;
        run.dormant -= 1;
        let alias = run.aliases[i];
        Unmapping { place, addr: alias.addr, size: alias.extent.size }
    }

    /// Claims all dormant aliases of an extent. `None` if the device may still use one, or another
    /// thread has claimed one.
    pub(crate) fn claim_of(&mut self, extent: Extent, order: &Order) -> Option<Vec<Unmapping>> {
        let mut places = Vec::new();
        for &place in self.extents.get(extent.id as usize)? {
            match self.state(place) {
                AliasState::Dormant if self.unsettled(place.0, order).next().is_none() => places.push(place),
                AliasState::Present | AliasState::Gone => {}
                AliasState::Dormant | AliasState::Claimed => return None,
            }
        }
        Some(places.into_iter().map(|p| self.claim(p)).collect())
    }

    /// The dormant alias that starts at `addr`, if the device has passed it: its place and size.
    fn passed_at(&self, addr: u64, order: &Order) -> Option<(AliasId, u64)> {
        let &place = self.by_addr.get(&addr)?;
        let passed = self.state(place) == AliasState::Dormant && self.unsettled(place.0, order).next().is_none();
        passed.then(|| (place, self.runs[place.0 as usize].aliases[place.1 as usize].extent.size))
    }

    /// The size of the dormant alias right behind `addr`, or right in front of it, if the device
    /// has passed it, else 0.
    pub(crate) fn passed_beside(&self, addr: u64, in_front: bool, order: &Order) -> u64 {
        let start = match in_front {
            true => self.by_addr.range(..addr).next_back().map_or(addr, |(&start, _)| start),
            false => addr,
        };
        let passed = self.passed_at(start, order).filter(|(_, size)| !in_front || start + size == addr);
        passed.map_or(0, |(_, size)| size)
    }

    /// Claims the dormant aliases that the device has passed and that have addresses in
    /// `[start, end)`.
    pub(crate) fn claim_within(&mut self, start: u64, end: u64, order: &Order) -> Vec<Unmapping> {
        let first = self.by_addr.range(..start).next_back().map_or(start, |(&addr, _)| addr);
        let passed = self.by_addr.range(first..end).filter_map(|(&addr, _)| Some((addr, self.passed_at(addr, order)?)));
        let places: Vec<AliasId> =
            passed.filter(|(addr, (_, size))| addr + size > start).map(|(_, (place, _))| place).collect();
        places.into_iter().map(|p| self.claim(p)).collect()
    }

    /// Claims up to `most` dormant aliases that the device has passed, of the next `reach` runs:
    /// those of runs that have lost an alias, then those of runs unused for longest. Also returns
    /// the tags that kept others from being claimed.
    pub(crate) fn claim_oldest(&mut self, most: usize, reach: usize, order: &Order) -> (Vec<Unmapping>, Vec<Tag>) {
        let (all, first) = (self.runs.len(), self.hand);
        let next = (0..all.min(reach)).map(|i| ((first + i) % all) as u32);
        let mut runs: Vec<u32> = next.filter(|&r| self.runs[r as usize].dormant > 0).collect();
        self.hand = (first + all.min(reach)) % all.max(1);
        runs.sort_unstable_by_key(|&r| {
            let run = &self.runs[r as usize];
            (run.is_whole(), run.used)
        });
        let (mut claims, mut waits) = (Vec::new(), Vec::new());
        for r in runs {
            let before = waits.len();
            waits.extend(self.unsettled(r, order));
            if waits.len() > before {
                continue;
            }
            for i in 0..self.runs[r as usize].states.len() as u32 {
                if claims.len() == most {
                    return (claims, waits);
                }
                if self.state((r, i)) == AliasState::Dormant {
                    claims.push(self.claim((r, i)));
                }
            }
        }
        (claims, waits)
    }

    /// Notes that a claimed alias was unmapped.
    pub(crate) fn gone(&mut self, claim: Unmapping) {
        self.dormant -= 1;
        self.dormant_bytes -= claim.size;
        self.leave_run(claim.place);
    }

    /// Notes that the present alias of an extent was unmapped.
    pub(crate) fn present_gone(&mut self, extent: Extent) {
        if let Some(place) = self.present(extent) {
            self.leave_run(place);
        }
    }

    fn leave_run(&mut self, place: AliasId) {
        let (run, i) = (&mut self.runs[place.0 as usize], place.1 as usize);
        run.states[i] = AliasState::Gone;
        let alias = run.aliases[i];
        self.extents[alias.extent.id as usize].retain(|&p| p != place);
        self.by_addr.remove(&alias.addr);
        run.left -= 1;
        if run.left == 0 {
            *run = Run::default();
            self.vacant_runs.push(place.0);
        }
    }

    /// Gives a claim up: the alias could not be unmapped.
    pub(crate) fn unclaim(&mut self, claim: Unmapping) {
        let run = &mut self.runs[claim.place.0 as usize];
        run.states[claim.place.1 as usize] = AliasState::Dormant;
        run.dormant += 1;
    }

    /// Checks the invariants written above; `Err` says which one fails where.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (mut dormant, mut bytes) = (0, 0);
        for (r, run) in self.runs() {
            let (mut at, mut sleeping, mut gone) = (run.bounds.0, 0, 0);
            ensure!(run.states.len() == run.aliases.len(), "the run at {at:#x} has too few states or too many");
            for (i, (a, &state)) in (0..).zip(run.aliases.iter().zip(&run.states)) {
                let listed = self.extents.get(a.extent.id as usize).is_some_and(|places| places.contains(&(r, i)));
                ensure!(a.addr == at, "alias {:#x} does not follow the one before it, which ends at {at:#x}", a.addr);
                let right = listed != (state == AliasState::Gone);
                ensure!(right, "alias {:#x} is {state:?}, which its extent does not know", a.addr);
                if matches!(state, AliasState::Dormant | AliasState::Claimed) {
                    dormant += 1;
                    bytes += a.extent.size;
                }
                sleeping += u32::from(state == AliasState::Dormant);
                gone += u32::from(state == AliasState::Gone);
                at += a.extent.size;
            }
            ensure!(at == run.bounds.1, "the run that ends at {at:#x} is said to be elsewhere");
            let right = (run.left, run.dormant) == (run.states.len() as u32 - gone, sleeping);
            ensure!(right, "the run that ends at {at:#x} does not have the aliases that it counts");
            self.validate_parts(RunId { number: r, born: run.born }, &run.parts)?;
        }
        let mut there = 0;
        for (&addr, &place) in &self.by_addr {
            let known = self.runs[place.0 as usize].left > 0 && self.state(place) != AliasState::Gone;
            ensure!(known && self.address_of(place) == addr, "an alias is said to be at {addr:#x}");
            there += 1;
        }
        let left: u64 = self.runs().map(|(_, r)| u64::from(r.left)).sum();
        ensure!(there == left, "{there} aliases have addresses, and {left} are not gone");
        let presents = |&place: &AliasId| self.state(place) == AliasState::Present;
        if let Some(e) = self.extents.iter().position(|places| places.iter().filter(|p| presents(p)).count() > 1) {
            return Err(format!("extent {e} is in two places"));
        }
        let counted = (self.dormant, self.dormant_bytes);
        ensure!((dormant, bytes) == counted, "{dormant} dormant aliases of {bytes} bytes, {counted:?} counted");
        Ok(())
    }

    /// The parts of a run, from high to low addresses, if all of its aliases are dormant. Give them
    /// back with [`Self::take_back`] or [`Self::set_parts`]. Extents may have moved since the parts
    /// were looked up. Extents of a heap at a part's addresses are that part's. If a heap has none
    /// there, or not all of a part is in stock, [`Self::look_up`] tells where they are now.
    pub(crate) fn parts(&mut self, run: RunId) -> Option<Vec<RunPart>> {
        if !self.is_dormant(run) {
            return None;
        }
        let parts = self.take_parts(run);
        match !parts.is_empty() && parts.iter().all(|p| self.is_there(p)) {
            true => Some(parts),
            false => Some(self.look_up(run)),
        }
    }

    /// Whether nothing but this part's extents can be in use at its addresses.
    #[inline]
    fn is_there(&self, p: &RunPart) -> bool {
        p.source().is_none_or(|(run, at, len)| self.is_whole(run) || self.is_present(run, at, len))
    }

    /// Looks up what a run is made of now.
    pub(crate) fn look_up(&mut self, run: RunId) -> Vec<RunPart> {
        self.take_parts(run);
        self.parts_from(self.run(run).map(|(_, m)| {
            let place = self.present(m.extent);
            (m.extent, place.map(|p| (p, self.address_of(p), NONE)))
        }))
    }

    /// The parts, from high to low addresses, of extents that are to be a run, or were one. Each
    /// extent comes with its present place and address, and the free region around it, if those are
    /// known.
    pub(crate) fn parts_from(
        &self,
        extents: impl Iterator<Item = (Extent, Option<(AliasId, u64, u32)>)>,
    ) -> Vec<RunPart> {
        let mut parts: Vec<RunPart> = Vec::new();
        for (first, (Extent { size, .. }, place)) in (0..).zip(extents) {
            let ((from, at), addr, region) = place.unwrap_or(((STOCK, 0), 0, NONE));
            let follows = |p: &&mut RunPart| p.from == from && (from == STOCK || p.at + p.len == at);
            match parts.last_mut().filter(follows) {
                Some(p) => {
                    p.len += 1;
                    p.there.1 += size;
                }
                None => {
                    let born = place.map_or(0, |_| self.born(from));
                    parts.push(RunPart { there: (addr, addr + size), born, from, at, first, len: 1, region });
                }
            }
        }
        parts.sort_unstable_by_key(|p| Reverse(p.there.0));
        parts
    }

    /// Checks a run's parts against the runs they name, as far as those still exist.
    pub(crate) fn validate_parts(&self, run: RunId, parts: &[RunPart]) -> Result<(), String> {
        let (start, _, len) = self.bounds(run);
        let mut in_order: Vec<&RunPart> = parts.iter().collect();
        in_order.sort_unstable_by_key(|p| p.first);
        let mut at = 0;
        for p in in_order {
            ensure!(p.first == at, "the parts of the run at {start:#x} do not follow each other");
            at += p.len;
            let Some((from, _, _)) = p.source().filter(|s| self.bounds(s.0).2 > 0) else { continue };
            let there = || self.run(from).skip(p.at as usize).take(p.len as usize);
            let same = there().map(|(_, m)| m.extent).eq(self.extents(run, p));
            ensure!(same, "a part of the run at {start:#x} is of other extents");
            let bounds = there().next().zip(there().last()).map(|(a, b)| (a.0, b.0 + b.1.extent.size));
            ensure!(bounds == Some(p.there), "a part of the run at {start:#x} is elsewhere");
        }
        ensure!(parts.is_empty() || at as usize == len, "the parts of the run at {start:#x} are not all of it");
        Ok(())
    }
}

#[cfg(test)]
#[path = "aliases_tests.rs"]
mod tests;

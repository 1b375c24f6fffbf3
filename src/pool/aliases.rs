//! Aliases: every address at which an extent is mapped.
//!
//! A moved extent stays mapped where it was. Such a *dormant* alias costs addresses, which are plentiful, and no device
//! memory; unmapping it would cost as much as a third of the move, and mapping the extent there again the rest. So
//! aliases are kept in the *runs* they were mapped in, and a request that finds all extents of a run free takes them
//! back to it ([`super::flip`]) without a driver call.
//!
//! This file keeps the table and touches neither the driver nor a heap; [`super::parts`] says of what a run can be put together.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::bits::Bits;
use super::extent::{Extent, Mapped};
use super::order::{Order, Tag};
use super::parts::Part;
use crate::driver::PhysHandle;

/// What an alias is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Where its extent is now: in a heap's span.
    Present,
    /// Its extent is elsewhere, or in stock.
    Dormant,
    /// Dormant, and about to be unmapped by whoever claimed it.
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

/// A run's number and a position in it.
pub(super) type Place = (u32, u32);

/// Names a run for as long as it has aliases; its number may then be another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunId {
    pub(super) number: u32,
    pub(super) born: u64,
}

/// What is asked of every run that a flip takes memory from: in a cache line, as those runs are scattered.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Head {
    /// The positions whose aliases are present.
    present: Bits,
    /// When it was mapped, in the table's own count.
    born: u64,
    /// When memory was last used through its dormant aliases or, which is no earlier, through others of their extents: as far as that is
    /// of one lane. One for all of them, as a run mostly leaves as it came.
    tag: Tag,
    /// How many aliases it has had,
    len: u32,
    /// how many of them are not gone (a run without any is vacant),
    left: u32,
    /// and how many are dormant, and claimed by nobody.
    dormant: u32,
}

/// Aliases mapped one after the other for one request. What a flip asks of the run that it takes back is in the first cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Run {
    /// Where they start and end.
    bounds: (u64, u64),
    /// Where the extents were when that was last looked up.
    parts: Vec<Part>,
    /// When it was last mapped or taken back, in the table's own count.
    used: u64,
    /// Never changed while the run has any.
    aliases: Vec<Alias>,
    /// The positions whose aliases are claimed, and gone.
    claimed: Bits,
    gone: Bits,
    /// As `tag` of its head, of other lanes.
    tags: Vec<Tag>,
}

/// A dormant alias that the holder of this unmaps; nobody else uses it meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    place: Place,
    pub(super) addr: u64,
    pub(super) size: u64,
}

/// The aliases of one pool.
///
/// Invariants: an extent has at most one present alias, and none exactly if it is in stock; `dormant` and
/// `dormant_bytes` count those that are dormant or claimed; aliases that are not gone do not overlap; a run's aliases
/// lie one after the other between its `bounds`; of one that is present, claimed or gone only one is true; a head's counts
/// are those of the run.
#[derive(Default)]
pub(super) struct Aliases {
    /// By run.
    heads: Vec<Head>,
    runs: Vec<Run>,
    vacant_runs: Vec<u32>,
    /// By extent: its aliases that are not gone.
    extents: Vec<Vec<Place>>,
    vacant_extents: Vec<u32>,
    dormant: usize,
    dormant_bytes: u64,
    clock: u64,
}

impl Aliases {
    /// Takes a new handle in; it has no alias yet.
    pub(super) fn add_extent(&mut self, handle: PhysHandle, size: u64) -> Extent {
        let id = self.vacant_extents.pop().unwrap_or_else(|| {
            self.extents.push(Vec::new());
            (self.extents.len() - 1) as u32
        });
        Extent { handle, size, id }
    }

    /// Forgets an extent that has no alias any more.
    pub(super) fn remove_extent(&mut self, extent: Extent) {
        debug_assert!(self.extents[extent.id as usize].is_empty());
        self.vacant_extents.push(extent.id);
    }

    /// Notes a run of extents just mapped from `addr` on. None of them has a present alias.
    pub(super) fn add_run(&mut self, addr: u64, extents: &[Extent]) -> RunId {
        let number = self.vacant_runs.pop().unwrap_or_else(|| {
            self.heads.push(Head::default());
            self.runs.push(Run::default());
            (self.runs.len() - 1) as u32
        });
        let (mut at, len) = (addr, extents.len());
        let mut aliases = std::mem::take(&mut self.runs[number as usize].aliases);
        for (&extent, i) in extents.iter().zip(0..) {
            debug_assert!(self.present(extent).is_none());
            aliases.push(Alias { addr: at, extent });
            self.extents[extent.id as usize].push((number, i));
            at += extent.size;
        }
        self.clock += 1;
        let born = self.clock;
        let mut head = Head { present: Bits::none(len), born, len: len as u32, left: len as u32, ..Head::default() };
        head.present.add(0, len);
        self.heads[number as usize] = head;
        let (claimed, gone) = (Bits::none(len), Bits::none(len));
        self.runs[number as usize] = Run { bounds: (addr, at), used: born, aliases, claimed, gone, ..Run::default() };
        RunId { number, born }
    }

    /// The extent leaves its present address, whose place is given, last used at `tag`.
    pub(super) fn leave(&mut self, place: Place, tag: Tag) {
        let bytes = self.runs[place.0 as usize].aliases[place.1 as usize].extent.size;
        self.leave_all(place.0, (place.1 as usize, 1), bytes, tag);
    }

    /// `bytes` is what the aliases have, of which the first and how many there are is given.
    #[inline(always)]
    fn leave_all(&mut self, run: u32, (first, len): (usize, usize), bytes: u64, tag: Tag) {
        let head = &mut self.heads[run as usize];
        debug_assert!(head.present.has_all(first, len));
        head.present.remove(first, len);
        head.dormant += len as u32;
        self.dormant += len;
        self.dormant_bytes += bytes;
        if tag == Tag::SETTLED || head.tag == Tag::SETTLED || head.tag.lane() == tag.lane() {
            head.tag = head.tag.later(tag);
            return;
        }
        let tags = &mut self.runs[run as usize].tags;
        match tags.iter_mut().find(|t| t.lane() == tag.lane()) {
            Some(t) => *t = t.later(tag),
            None => tags.push(tag),
        }
    }

    /// The head of a run, if that is still there.
    #[inline]
    fn head(&self, run: RunId) -> Option<&Head> {
        self.heads.get(run.number as usize).filter(|h| h.born == run.born && h.left > 0)
    }

    fn valid(&self, run: RunId) -> Option<&Run> {
        self.head(run).and_then(|_| self.runs.get(run.number as usize))
    }

    /// Whether all of a run's aliases are dormant.
    pub(super) fn is_dormant(&self, run: RunId) -> bool {
        self.head(run).is_some_and(|h| h.dormant == h.len)
    }

    /// Whether none of a run's aliases is gone.
    #[inline]
    pub(super) fn is_whole(&self, run: RunId) -> bool {
        self.head(run).is_some_and(|h| h.left == h.len)
    }

    /// Whether `len` aliases of a run from position `first` on are present.
    pub(super) fn is_present(&self, run: RunId, first: usize, len: usize) -> bool {
        self.head(run).is_some_and(|h| h.present.has_all(first, len))
    }

    /// When the run with this number was mapped.
    pub(super) fn born(&self, number: u32) -> u64 {
        self.heads.get(number as usize).map_or(0, |h| h.born)
    }

    /// The extents of a part of this run.
    pub(super) fn extents(&self, run: RunId, part: &Part) -> impl Iterator<Item = Extent> + '_ {
        let first = part.first as usize;
        let aliases = self.valid(run).and_then(|r| r.aliases.get(first..first + part.len as usize));
        aliases.into_iter().flatten().map(|a| a.extent)
    }

    /// The parts that were kept for a run, which has none then.
    pub(super) fn kept(&mut self, run: RunId) -> Vec<Part> {
        std::mem::take(&mut self.runs[run.number as usize].parts)
    }

    /// Keeps the parts of a run that is not taken back.
    pub(super) fn keep(&mut self, run: RunId, parts: Vec<Part>) {
        self.runs[run.number as usize].parts = parts;
    }

    /// All extents of a run leave their present addresses, last used at `tag`, and are in the run now.
    pub(super) fn take_back(&mut self, run: RunId, parts: Vec<Part>, tag: Tag) {
        for p in &parts {
            if let Some((from, first, len)) = p.source() {
                self.leave_all(from.number, (first, len), p.bytes(), tag);
            }
        }
        self.clock += 1;
        let head = &mut self.heads[run.number as usize];
        let len = head.len as usize;
        head.present.add(0, len);
        (head.dormant, head.tag) = (0, Tag::SETTLED);
        let r = &mut self.runs[run.number as usize];
        (r.used, r.parts) = (self.clock, parts);
        r.tags.clear();
        self.dormant -= len;
        self.dormant_bytes -= r.bounds.1 - r.bounds.0;
    }

    /// Where a run starts and ends, and how many aliases it has.
    pub(super) fn bounds(&self, run: RunId) -> (u64, u64, usize) {
        let (head, r) = (self.head(run), self.runs.get(run.number as usize));
        head.zip(r).map_or((0, 0, 0), |(h, r)| (r.bounds.0, r.bounds.1, h.len as usize))
    }

    /// The addresses, extents and places of a run, in order.
    pub(super) fn run(&self, run: RunId) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        let aliases = self.valid(run).into_iter().flat_map(|r| &r.aliases).zip(0..);
        aliases.map(move |(a, i)| (a.addr, Mapped { extent: a.extent, place: (run.number, i) }))
    }

    /// Where an extent is now.
    pub(super) fn present(&self, extent: Extent) -> Option<Place> {
        let places = self.extents.get(extent.id as usize)?;
        places.iter().copied().find(|&(run, i)| self.heads[run as usize].present.has(i as usize))
    }

    /// The address of a place.
    pub(super) fn address_of(&self, (run, i): Place) -> u64 {
        self.runs[run as usize].aliases[i as usize].addr
    }

    /// Where an extent is now.
    pub(super) fn address(&self, extent: Extent) -> Option<u64> {
        self.present(extent).map(|place| self.address_of(place))
    }

    /// How many aliases are dormant.
    pub(super) fn dormant(&self) -> usize {
        self.dormant
    }

    /// Bytes of addresses they take.
    pub(super) fn dormant_bytes(&self) -> u64 {
        self.dormant_bytes
    }

    fn state(&self, (run, i): Place) -> State {
        let (head, r, i) = (&self.heads[run as usize], &self.runs[run as usize], i as usize);
        match (head.present.has(i), r.claimed.has(i), r.gone.has(i)) {
            (true, ..) => State::Present,
            (_, true, _) => State::Claimed,
            (.., true) => State::Gone,
            _ => State::Dormant,
        }
    }

    /// When memory was last used through a run's dormant aliases, for each lane that is not settled.
    fn unsettled<'a>(&'a self, run: u32, order: &'a Order) -> impl Iterator<Item = Tag> + 'a {
        let tags = [self.heads[run as usize].tag].into_iter().chain(self.runs[run as usize].tags.iter().copied());
        tags.filter(|&t| !order.settled(t))
    }

    /// The runs that have aliases.
    fn runs(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.heads).filter(|(_, h)| h.left > 0).map(|(r, _)| r)
    }

    /// Every alias that is dormant or claimed: address, size, and the tag of its run's head.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, Tag)> + '_ {
        let all = self.runs().flat_map(|r| (0..).zip(&self.runs[r as usize].aliases).map(move |(i, a)| ((r, i), a)));
        let dormant = all.filter(|&(place, _)| matches!(self.state(place), State::Dormant | State::Claimed));
        dormant.map(|((r, _), a)| (a.addr, a.extent.size, self.heads[r as usize].tag))
    }

    /// What has to be settled for all dormant aliases to be unmapped.
    pub(super) fn waits<'a>(&'a self, order: &'a Order) -> impl Iterator<Item = Tag> + 'a {
        self.runs().filter(|&r| self.heads[r as usize].dormant > 0).flat_map(|r| self.unsettled(r, order))
    }

    fn claim(&mut self, place: Place) -> Claim {
        let run = &mut self.runs[place.0 as usize];
        run.claimed.add(place.1 as usize, 1);
        self.heads[place.0 as usize].dormant -= 1;
        let alias = run.aliases[place.1 as usize];
        Claim { place, addr: alias.addr, size: alias.extent.size }
    }

    /// Claims all dormant aliases of an extent, `None` when the device may still use one or somebody else has it.
    pub(super) fn claim_of(&mut self, extent: Extent, order: &Order) -> Option<Vec<Claim>> {
        let mut places = Vec::new();
        for &place in self.extents.get(extent.id as usize)? {
            match self.state(place) {
                State::Dormant if self.unsettled(place.0, order).next().is_none() => places.push(place),
                State::Present | State::Gone => {}
                State::Dormant | State::Claimed => return None,
            }
        }
        Some(places.into_iter().map(|p| self.claim(p)).collect())
    }

    /// Claims up to `most` dormant aliases that the device has passed: those of runs that have lost an alias, then
    /// those of the runs that were not used for longest. Also says what stood in the way of others.
    pub(super) fn claim_oldest(&mut self, most: usize, order: &Order) -> (Vec<Claim>, Vec<Tag>) {
        let mut runs: Vec<u32> = self.runs().filter(|&r| self.heads[r as usize].dormant > 0).collect();
        runs.sort_unstable_by_key(|&r| {
            let head = &self.heads[r as usize];
            (head.left == head.len, self.runs[r as usize].used)
        });
        let (mut claims, mut waits) = (Vec::new(), Vec::new());
        for r in runs {
            let before = waits.len();
            waits.extend(self.unsettled(r, order));
            if waits.len() > before {
                continue;
            }
            for i in 0..self.heads[r as usize].len {
                if claims.len() == most {
                    return (claims, waits);
                }
                if self.state((r, i)) == State::Dormant {
                    claims.push(self.claim((r, i)));
                }
            }
        }
        (claims, waits)
    }

    /// A claimed alias is unmapped.
    pub(super) fn gone(&mut self, claim: Claim) {
        self.dormant -= 1;
        self.dormant_bytes -= claim.size;
        self.leave_run(claim.place);
    }

    /// The present alias of an extent is unmapped.
    pub(super) fn present_gone(&mut self, extent: Extent) {
        if let Some(place) = self.present(extent) {
            self.leave_run(place);
        }
    }

    fn leave_run(&mut self, place: Place) {
        let (r, i) = (place.0 as usize, place.1 as usize);
        let (head, run) = (&mut self.heads[r], &mut self.runs[r]);
        head.present.remove(i, 1);
        run.claimed.remove(i, 1);
        run.gone.add(i, 1);
        self.extents[run.aliases[i].extent.id as usize].retain(|&p| p != place);
        head.left -= 1;
        if head.left == 0 {
            *head = Head::default();
            run.aliases.clear();
            run.parts.clear();
            run.tags.clear();
            self.vacant_runs.push(place.0);
        }
    }

    /// A claimed alias could not be unmapped.
    pub(super) fn unclaim(&mut self, claim: Claim) {
        self.runs[claim.place.0 as usize].claimed.remove(claim.place.1 as usize, 1);
        self.heads[claim.place.0 as usize].dormant += 1;
    }

    /// Checks the invariants written above; `Err` says which one fails where.
    pub(super) fn validate(&self) -> Result<(), String> {
        let (mut dormant, mut bytes) = (0, 0);
        for r in self.runs() {
            let (head, run) = (&self.heads[r as usize], &self.runs[r as usize]);
            let (mut at, mut counts) = (run.bounds.0, [0; 4]);
            for (a, i) in run.aliases.iter().zip(0..) {
                let state = self.state((r, i));
                counts[state as usize] += 1;
                let listed = self.extents.get(a.extent.id as usize).is_some_and(|places| places.contains(&(r, i)));
                if a.addr != at {
                    return Err(format!(
                        "alias {:#x} does not follow the one before it, which ends at {at:#x}",
                        a.addr
                    ));
                }
                if listed == (state == State::Gone) {
                    return Err(format!("alias {:#x} is {state:?}, which its extent does not know", a.addr));
                }
                if matches!(state, State::Dormant | State::Claimed) {
                    dormant += 1;
                    bytes += a.extent.size;
                }
                at += a.extent.size;
            }
            let [present, sleeping, claimed, gone] = counts;
            if at != run.bounds.1 {
                return Err(format!("the run that ends at {at:#x} is said to be elsewhere"));
            }
            if [present, claimed, gone] != [&head.present, &run.claimed, &run.gone].map(Bits::count) {
                return Err(format!("an alias of the run that ends at {at:#x} is two things at once"));
            }
            let len = run.aliases.len();
            if [len, len - gone, sleeping] != [head.len, head.left, head.dormant].map(|n| n as usize) {
                return Err(format!("the run that ends at {at:#x} has not the aliases it has counted"));
            }
            self.validate_parts(RunId { number: r, born: head.born }, &run.parts)?;
        }
        let presents = |&place: &Place| self.state(place) == State::Present;
        if let Some(e) = self.extents.iter().position(|places| places.iter().filter(|p| presents(p)).count() > 1) {
            return Err(format!("extent {e} is in two places"));
        }
        if (dormant, bytes) != (self.dormant, self.dormant_bytes) {
            return Err(format!(
                "{dormant} dormant aliases of {bytes} bytes, {} of {}",
                self.dormant, self.dormant_bytes
            ));
        }
        Ok(())
    }
}

/// What the comment on [`Head`] says.
const _: () = assert!(size_of::<Head>() == 64);

#[cfg(test)]
#[path = "aliases_tests.rs"]
mod tests;

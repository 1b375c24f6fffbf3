//! Aliases: every address at which an extent is mapped.
//!
//! A moved extent stays mapped where it was. Such a *dormant* alias costs addresses, which are plentiful, and no device
//! memory; unmapping it would cost as much as a third of the move, and mapping the extent there again the rest. So
//! aliases are kept in the *runs* they were mapped in, and a request that finds all extents of a run free takes them
//! back to it ([`super::flip`]) without a driver call.
//!
//! This file keeps the table and touches neither the driver nor a heap.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::extent::{Extent, Mapped};
use super::order::{Order, Tag};
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
    number: u32,
    born: u64,
}

/// Aliases mapped one after the other for one request.
#[derive(Debug, Default)]
struct Run {
    /// Never changed while the run has any.
    aliases: Vec<Alias>,
    /// Where they start and end: not looked up in the list, which is elsewhere in memory.
    bounds: (u64, u64),
    /// By position: what each is,
    states: Vec<State>,
    /// and unless it is present, when memory was last used through it or, which is no earlier, through another alias.
    tags: Vec<Tag>,
    /// How many are not gone; a run without any is vacant.
    left: usize,
    /// How many are dormant, and claimed by nobody.
    dormant: usize,
    /// Where the extents were when that was last looked up.
    parts: Vec<Part>,
    /// When it was last mapped or taken back, in the table's own count.
    used: u64,
    /// When it was mapped, in the same count.
    born: u64,
}

impl Part {
    /// Where its extents are, from and to; `None` for the stock.
    pub(super) fn whereabouts(&self) -> Option<(u64, u64)> {
        self.from.map(|_| self.there)
    }
}

impl Run {
    fn set(&mut self, first: usize, len: usize, state: State) {
        self.states[first..first + len].fill(state);
    }
}

/// Neighbours in a run whose extents are neighbours in another run, too, or all in stock. A run that repeats a step is
/// made of the same parts each time, so looking them up is rarer than checking that they still hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The other run and where the part starts there; `None`: the stock.
    from: Option<(RunId, u32)>,
    /// How many extents it has.
    pub(super) len: u32,
    /// Its addresses in the other run, which never change: not looked up there, as that is elsewhere in memory.
    there: (u64, u64),
    /// For [`Aliases::take_back`]: when the memory was last used.
    pub(super) tag: Tag,
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
/// lie one after the other between its `bounds`; a run's counts are those of its `states`; `whole` has when a run was
/// born exactly while none of its aliases is gone.
#[derive(Default)]
pub(super) struct Aliases {
    runs: Vec<Run>,
    /// By run; else 0. Asked for every part of a run, and close together in memory, which the runs are not.
    whole: Vec<u64>,
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
        let run = self.vacant_runs.pop().unwrap_or_else(|| {
            self.runs.push(Run::default());
            self.whole.push(0);
            (self.runs.len() - 1) as u32
        });
        let mut at = addr;
        let mut r = std::mem::take(&mut self.runs[run as usize]);
        for (i, &extent) in extents.iter().enumerate() {
            debug_assert!(self.present(extent).is_none());
            r.aliases.push(Alias { addr: at, extent });
            self.extents[extent.id as usize].push((run, i as u32));
            at += extent.size;
        }
        r.states.resize(extents.len(), State::Present);
        r.tags.resize(extents.len(), Tag::SETTLED);
        self.clock += 1;
        (r.bounds, r.left, r.used, r.born) = ((addr, at), extents.len(), self.clock, self.clock);
        self.runs[run as usize] = r;
        self.whole[run as usize] = self.clock;
        RunId { number: run, born: self.clock }
    }

    /// The extent leaves its present address, whose place is given, last used at `tag`.
    pub(super) fn leave(&mut self, place: Place, tag: Tag) {
        let bytes = self.runs[place.0 as usize].aliases[place.1 as usize].extent.size;
        self.leave_all(place, 1, bytes, tag);
    }

    /// `bytes` is what the `len` aliases have.
    fn leave_all(&mut self, (run, first): Place, len: usize, bytes: u64, tag: Tag) {
        let (run, first) = (&mut self.runs[run as usize], first as usize);
        debug_assert!(run.states[first..first + len].iter().all(|&s| s == State::Present));
        run.set(first, len, State::Dormant);
        run.tags[first..first + len].fill(tag);
        run.dormant += len;
        self.dormant += len;
        self.dormant_bytes += bytes;
    }

    fn valid(&self, run: RunId) -> Option<&Run> {
        self.runs.get(run.number as usize).filter(|r| r.born == run.born && r.left > 0)
    }

    /// What a run is made of, if all of its aliases are dormant. It is given back with [`Self::take_back`] or
    /// [`Self::keep`]. Where it was looked up before, extents may have moved since: what is in a heap at a part's addresses
    /// is what the part says, but whether they are in a heap the caller has to see, and where they are not, or extents are
    /// not in stock, [`Self::hold`] tells.
    pub(super) fn parts(&mut self, run: RunId) -> Option<Vec<Part>> {
        let r = self.valid(run).filter(|r| r.dormant == r.aliases.len())?;
        match !r.parts.is_empty() && r.parts.iter().all(|p| self.is_there(p)) {
            true => Some(std::mem::take(&mut self.runs[run.number as usize].parts)),
            false => Some(self.look_up(run)),
        }
    }

    /// Whether nothing but this part's extents can be in use at its addresses.
    fn is_there(&self, p: &Part) -> bool {
        p.from.is_none_or(|(from, _)| self.whole.get(from.number as usize) == Some(&from.born) || self.is_present(p))
    }

    fn is_present(&self, p: &Part) -> bool {
        let Some((from, at)) = p.from else { return false };
        let states = self.valid(from).map(|f| &f.states[at as usize..(at + p.len) as usize]);
        states.is_some_and(|s| s.iter().all(|&s| s == State::Present))
    }

    /// Whether these are still the parts of the run; `stocked` knows which extents are in stock.
    pub(super) fn hold(&self, run: RunId, parts: &[Part], stocked: impl Fn(Extent) -> bool) -> bool {
        let mut first = 0;
        parts.iter().all(|p| {
            let (at, len) = (first, p.len as usize);
            first += len;
            self.is_present(p) || (p.from.is_none() && self.extents(run, at, len).all(&stocked))
        })
    }

    /// What a run is made of at present.
    pub(super) fn look_up(&mut self, run: RunId) -> Vec<Part> {
        self.runs[run.number as usize].parts.clear();
        let places = self.runs[run.number as usize].aliases.iter().map(|a| {
            let there = |place: Place| (place, self.runs[place.0 as usize].aliases[place.1 as usize].addr);
            (a.extent.size, self.present(a.extent).map(there))
        });
        self.parts_from(places)
    }

    /// The parts that extents come from that are to be a run, or were one: their sizes, and their present places and
    /// addresses.
    pub(super) fn parts_from(&self, extents: impl Iterator<Item = (u64, Option<(Place, u64)>)>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for (size, from) in extents {
            let follows = |p: &&mut Part| match (p.from, from) {
                (Some((run, at)), Some(((this, here), _))) => run.number == this && at + p.len == here,
                (before, now) => before.is_none() && now.is_none(),
            };
            match parts.last_mut().filter(follows) {
                Some(p) => {
                    p.len += 1;
                    p.there.1 += size;
                }
                None => {
                    let start = from.map_or(0, |f| f.1);
                    let from =
                        from.map(|((number, at), _)| (RunId { number, born: self.runs[number as usize].born }, at));
                    parts.push(Part { from, len: 1, there: (start, start + size), tag: Tag::SETTLED });
                }
            }
        }
        parts
    }

    /// Extents of a run, `len` from position `first` on.
    pub(super) fn extents(&self, run: RunId, first: usize, len: usize) -> impl Iterator<Item = Extent> + '_ {
        let aliases = self.valid(run).and_then(|r| r.aliases.get(first..first + len));
        aliases.into_iter().flatten().map(|a| a.extent)
    }

    /// Keeps the parts of a run that is not taken back.
    pub(super) fn keep(&mut self, run: RunId, parts: Vec<Part>) {
        self.runs[run.number as usize].parts = parts;
    }

    /// All extents of a run leave their present addresses, each part last used at its tag, and are in the run now.
    pub(super) fn take_back(&mut self, run: RunId, parts: Vec<Part>) {
        for p in &parts {
            if let Some((from, first)) = p.from {
                self.leave_all((from.number, first), p.len as usize, p.there.1 - p.there.0, p.tag);
            }
        }
        self.clock += 1;
        let r = &mut self.runs[run.number as usize];
        r.used = self.clock;
        r.set(0, r.aliases.len(), State::Present);
        r.dormant = 0;
        r.parts = parts;
        self.dormant -= r.aliases.len();
        self.dormant_bytes -= r.bounds.1 - r.bounds.0;
    }

    /// Where a run starts and ends, and how many aliases it has.
    pub(super) fn bounds(&self, run: RunId) -> (u64, u64, usize) {
        let Some(r) = self.valid(run) else { return (0, 0, 0) };
        (r.bounds.0, r.bounds.1, r.aliases.len())
    }

    /// The addresses, extents and places of a run, in order.
    pub(super) fn run(&self, run: RunId) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        let aliases = self.valid(run).into_iter().flat_map(|r| &r.aliases).zip(0..);
        aliases.map(move |(a, i)| (a.addr, Mapped { extent: a.extent, place: (run.number, i) }))
    }

    /// Where an extent is now.
    fn present(&self, extent: Extent) -> Option<Place> {
        let places = self.extents.get(extent.id as usize)?;
        places.iter().copied().find(|&(run, i)| self.runs[run as usize].states[i as usize] == State::Present)
    }

    /// Its address.
    pub(super) fn address(&self, extent: Extent) -> Option<u64> {
        self.present(extent).map(|(run, i)| self.runs[run as usize].aliases[i as usize].addr)
    }

    /// How many aliases are dormant.
    pub(super) fn dormant(&self) -> usize {
        self.dormant
    }

    /// Bytes of addresses they take.
    pub(super) fn dormant_bytes(&self) -> u64 {
        self.dormant_bytes
    }

    /// Every dormant alias: address, size, tag.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, Tag)> + '_ {
        let all = self.runs.iter().flat_map(|r| r.aliases.iter().zip(&r.states).zip(&r.tags));
        let dormant = all.filter(|x| matches!(x.0 .1, State::Dormant | State::Claimed));
        dormant.map(|((a, _), &tag)| (a.addr, a.extent.size, tag))
    }

    fn claim(&mut self, place: Place) -> Claim {
        let run = &mut self.runs[place.0 as usize];
        run.states[place.1 as usize] = State::Claimed;
        run.dormant -= 1;
        let alias = run.aliases[place.1 as usize];
        Claim { place, addr: alias.addr, size: alias.extent.size }
    }

    /// Claims all dormant aliases of an extent, `None` when the device may still use one or somebody else has it.
    pub(super) fn claim_of(&mut self, extent: Extent, order: &Order) -> Option<Vec<Claim>> {
        let mut places = Vec::new();
        for &(run, i) in self.extents.get(extent.id as usize)? {
            let r = &self.runs[run as usize];
            match r.states[i as usize] {
                State::Dormant if order.settled(r.tags[i as usize]) => places.push((run, i)),
                State::Present | State::Gone => {}
                State::Dormant | State::Claimed => return None,
            }
        }
        Some(places.into_iter().map(|p| self.claim(p)).collect())
    }

    /// Claims up to `most` dormant aliases that the device has passed: those of runs that have lost an alias, then
    /// those of the runs that were not used for longest. Also says of which lanes the tags are that stood in the way.
    pub(super) fn claim_oldest(&mut self, most: usize, order: &Order) -> (Vec<Claim>, Vec<Tag>) {
        let mut runs: Vec<u32> = (0..self.runs.len() as u32).filter(|&r| self.runs[r as usize].left > 0).collect();
        runs.sort_unstable_by_key(|&r| {
            let run = &self.runs[r as usize];
            (run.left == run.aliases.len(), run.used)
        });
        let (mut claims, mut waits) = (Vec::new(), Vec::new());
        for r in runs {
            for i in 0..self.runs[r as usize].aliases.len() {
                if claims.len() == most {
                    return (claims, waits);
                }
                let tag = self.runs[r as usize].tags[i];
                match self.runs[r as usize].states[i] {
                    State::Dormant if order.settled(tag) => claims.push(self.claim((r, i as u32))),
                    State::Dormant if waits.len() < most => waits.push(tag),
                    _ => {}
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
        let (r, i) = (place.0, place.1 as usize);
        let run = &mut self.runs[r as usize];
        run.states[i] = State::Gone;
        self.whole[r as usize] = 0;
        self.extents[run.aliases[i].extent.id as usize].retain(|&p| p != place);
        run.left -= 1;
        if run.left == 0 {
            run.aliases.clear();
            run.states.clear();
            run.tags.clear();
            run.parts.clear();
            self.vacant_runs.push(r);
        }
    }

    /// A claimed alias could not be unmapped.
    pub(super) fn unclaim(&mut self, claim: Claim) {
        let run = &mut self.runs[claim.place.0 as usize];
        run.states[claim.place.1 as usize] = State::Dormant;
        run.dormant += 1;
    }

    /// Checks the invariants written above; `Err` says which one fails where.
    pub(super) fn validate(&self) -> Result<(), String> {
        let (mut dormant, mut bytes) = (0, 0);
        for (r, run) in self.runs.iter().enumerate() {
            let mut at = run.aliases.first().map_or(0, |a| a.addr);
            if run.states.len() != run.aliases.len() || run.tags.len() != run.aliases.len() {
                return Err(format!("the run at {at:#x} does not say of each alias what it is"));
            }
            for (i, (a, &state)) in run.aliases.iter().zip(&run.states).enumerate() {
                let place = (r as u32, i as u32);
                let listed = self.extents.get(a.extent.id as usize).is_some_and(|places| places.contains(&place));
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
            let whole = run.left > 0 && run.left == run.aliases.len();
            if self.whole.get(r) != Some(&if whole { run.born } else { 0 }) {
                return Err(format!("the run that ends at {at:#x} is wrongly said to be whole, or not to be"));
            }
            let count = |state| run.states.iter().filter(|&&s| s == state).count();
            if run.left > 0 && run.bounds != (run.aliases.first().map_or(0, |a| a.addr), at) {
                return Err(format!("the run that ends at {at:#x} is said to be elsewhere"));
            }
            if (run.aliases.len() - count(State::Gone), count(State::Dormant)) != (run.left, run.dormant) {
                return Err(format!("the run that ends at {at:#x} has not the aliases it has counted"));
            }
            self.validate_parts(run)?;
        }
        let presents =
            |&(run, i): &Place| self.runs[run as usize].states.get(i as usize).is_some_and(|&s| s == State::Present);
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

    /// Checks that a run's parts are what they were said to be, as far as the runs they name are still there.
    fn validate_parts(&self, run: &Run) -> Result<(), String> {
        let mut i = 0;
        for p in &run.parts {
            let Some(here) = run.aliases.get(i..i + p.len as usize) else { break };
            let there = p.from.and_then(|(from, at)| self.valid(from)?.aliases.get(at as usize..(at + p.len) as usize));
            if there.is_some_and(|there| there.iter().zip(here).any(|(a, b)| a.extent != b.extent)) {
                return Err(format!("a part of the run that ends at {:#x} is of other extents", run.bounds.1));
            }
            let at = there.and_then(|there| Some((there.first()?.addr, there.last().map(|a| a.addr + a.extent.size)?)));
            if at.is_some_and(|at| at != p.there) {
                return Err(format!("a part of the run that ends at {:#x} is elsewhere", run.bounds.1));
            }
            i += p.len as usize;
        }
        match run.parts.is_empty() || i == run.aliases.len() {
            true => Ok(()),
            false => Err(format!("the parts of the run that ends at {:#x} are not all of it", run.bounds.1)),
        }
    }
}

//! Aliases: every address at which an extent is mapped.
//!
//! A moved extent stays mapped where it was. Such a *dormant* alias costs addresses, which are plentiful, and no device
//! memory; unmapping it would cost as much as a third of the move, and mapping the extent there again the rest. So
//! aliases are kept in the *runs* they were mapped in, and a request that finds all extents of a run free takes them
//! back to it ([`super::flip`]) without a driver call.
//!
//! This file keeps the table and touches neither the driver nor a heap.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::extent::Extent;
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
    /// Unless present: when memory was last used through it or, which is no earlier, through any other alias.
    tag: Tag,
    state: State,
}

/// Names a run for as long as it has aliases; its number may then be another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunId {
    number: u32,
    born: u64,
}

/// Aliases mapped one after the other for one request.
#[derive(Debug, Default)]
struct Run {
    aliases: Vec<Alias>,
    /// How many are not gone; a run without any is vacant.
    left: usize,
    /// When it was last mapped or taken back, in the table's own count.
    used: u64,
    /// When it was mapped, in the same count.
    born: u64,
}

/// What is known about one extent. A place is a run and a position in it.
#[derive(Clone, Debug, Default)]
struct Known {
    present: Option<(u32, u32)>,
    /// Address of the present alias, kept here too: flips ask for it a lot.
    addr: u64,
    places: Vec<(u32, u32)>,
}

/// A dormant alias that the holder of this unmaps; nobody else uses it meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    place: (u32, u32),
    pub(super) addr: u64,
    pub(super) size: u64,
}

/// The aliases of one pool.
///
/// Invariants: an extent has at most one present alias, and none exactly if it is in stock; `dormant` and
/// `dormant_bytes` count those that are dormant or claimed; aliases that are not gone do not overlap; a run's aliases
/// lie one after the other.
#[derive(Default)]
pub(super) struct Aliases {
    runs: Vec<Run>,
    vacant_runs: Vec<u32>,
    extents: Vec<Known>,
    vacant_extents: Vec<u32>,
    dormant: usize,
    dormant_bytes: u64,
    clock: u64,
}

impl Aliases {
    /// Takes a new handle in; it has no alias yet.
    pub(super) fn add_extent(&mut self, handle: PhysHandle, size: u64) -> Extent {
        let id = self.vacant_extents.pop().unwrap_or_else(|| {
            self.extents.push(Known::default());
            (self.extents.len() - 1) as u32
        });
        Extent { handle, size, id }
    }

    /// Forgets an extent that has no alias any more.
    pub(super) fn remove_extent(&mut self, extent: Extent) {
        debug_assert!(self.extents[extent.id as usize].places.is_empty());
        self.vacant_extents.push(extent.id);
    }

    /// Notes a run of extents just mapped from `addr` on. None of them has a present alias.
    pub(super) fn add_run(&mut self, addr: u64, extents: &[Extent]) -> RunId {
        let run = self.vacant_runs.pop().unwrap_or_else(|| {
            self.runs.push(Run::default());
            (self.runs.len() - 1) as u32
        });
        let mut at = addr;
        let mut aliases = std::mem::take(&mut self.runs[run as usize].aliases);
        aliases.clear();
        for (i, &extent) in extents.iter().enumerate() {
            aliases.push(Alias { addr: at, extent, tag: Tag::SETTLED, state: State::Present });
            let known = &mut self.extents[extent.id as usize];
            debug_assert!(known.present.is_none());
            known.present = Some((run, i as u32));
            known.addr = at;
            known.places.push((run, i as u32));
            at += extent.size;
        }
        self.clock += 1;
        self.runs[run as usize] = Run { left: aliases.len(), aliases, used: self.clock, born: self.clock };
        RunId { number: run, born: self.clock }
    }

    /// The extent leaves its present address, last used at `tag`.
    pub(super) fn leave(&mut self, extent: Extent, tag: Tag) {
        let Some((run, i)) = self.extents[extent.id as usize].present.take() else { return };
        let alias = &mut self.runs[run as usize].aliases[i as usize];
        alias.state = State::Dormant;
        alias.tag = tag;
        self.dormant += 1;
        self.dormant_bytes += extent.size;
    }

    /// All extents of a run that [`Self::whole`] passed, each having left its present address, are there now.
    pub(super) fn take_back(&mut self, run: RunId) {
        let run = run.number;
        self.clock += 1;
        let r = &mut self.runs[run as usize];
        r.used = self.clock;
        for (i, alias) in r.aliases.iter_mut().enumerate() {
            alias.state = State::Present;
            let known = &mut self.extents[alias.extent.id as usize];
            known.present = Some((run, i as u32));
            known.addr = alias.addr;
            self.dormant_bytes -= alias.extent.size;
        }
        self.dormant -= r.aliases.len();
    }

    /// The run's address and its extents with their present addresses (`None`: in stock), if all of its aliases are
    /// dormant.
    pub(super) fn whole(&self, run: RunId) -> Option<(u64, impl Iterator<Item = (Extent, Option<u64>)> + '_)> {
        let r = self.runs.get(run.number as usize).filter(|r| r.born == run.born)?;
        let first = r.aliases.first()?;
        if r.left < r.aliases.len() || r.aliases.iter().any(|a| a.state != State::Dormant) {
            return None;
        }
        let extents = r.aliases.iter().map(|a| (a.extent, self.address(a.extent)));
        Some((first.addr, extents))
    }

    /// Where a run starts and ends.
    pub(super) fn bounds(&self, run: RunId) -> (u64, u64) {
        let aliases = self.runs.get(run.number as usize).map_or(&[][..], |r| &r.aliases);
        let end = aliases.last().map_or(0, |a| a.addr + a.extent.size);
        (aliases.first().map_or(end, |a| a.addr), end)
    }

    /// How many aliases a run has.
    pub(super) fn len_of(&self, run: RunId) -> usize {
        self.runs.get(run.number as usize).map_or(0, |r| r.aliases.len())
    }

    /// The addresses and extents of a run, in order.
    pub(super) fn run(&self, run: RunId) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.runs.get(run.number as usize).into_iter().flat_map(|r| &r.aliases).map(|a| (a.addr, a.extent))
    }

    /// Where an extent is now.
    pub(super) fn address(&self, extent: Extent) -> Option<u64> {
        self.extents.get(extent.id as usize).filter(|k| k.present.is_some()).map(|k| k.addr)
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
        let dormant = |a: &&Alias| matches!(a.state, State::Dormant | State::Claimed);
        self.runs.iter().flat_map(|r| &r.aliases).filter(dormant).map(|a| (a.addr, a.extent.size, a.tag))
    }

    fn claim(&mut self, place: (u32, u32)) -> Claim {
        let alias = &mut self.runs[place.0 as usize].aliases[place.1 as usize];
        alias.state = State::Claimed;
        Claim { place, addr: alias.addr, size: alias.extent.size }
    }

    /// Claims all dormant aliases of an extent, `None` when the device may still use one or somebody else has it.
    pub(super) fn claim_of(&mut self, extent: Extent, order: &Order) -> Option<Vec<Claim>> {
        let known = self.extents.get(extent.id as usize)?;
        let mut places = Vec::new();
        for &(run, i) in &known.places {
            let alias = &self.runs[run as usize].aliases[i as usize];
            match alias.state {
                State::Dormant if order.settled(alias.tag) => places.push((run, i)),
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
                let alias = &self.runs[r as usize].aliases[i];
                match alias.state {
                    State::Dormant if order.settled(alias.tag) => claims.push(self.claim((r, i as u32))),
                    State::Dormant if waits.len() < most => waits.push(alias.tag),
                    _ => {}
                }
            }
        }
        (claims, waits)
    }

    /// A claimed alias is unmapped.
    pub(super) fn gone(&mut self, claim: Claim) {
        let (r, i) = claim.place;
        let run = &mut self.runs[r as usize];
        let alias = &mut run.aliases[i as usize];
        alias.state = State::Gone;
        let places = &mut self.extents[alias.extent.id as usize].places;
        places.retain(|&p| p != claim.place);
        self.dormant -= 1;
        self.dormant_bytes -= claim.size;
        self.leave_run(r);
    }

    /// The present alias of an extent is unmapped.
    pub(super) fn present_gone(&mut self, extent: Extent) {
        let Some(known) = self.extents.get_mut(extent.id as usize) else { return };
        let Some((r, i)) = known.present.take() else { return };
        known.places.retain(|&p| p != (r, i));
        self.runs[r as usize].aliases[i as usize].state = State::Gone;
        self.leave_run(r);
    }

    fn leave_run(&mut self, r: u32) {
        let run = &mut self.runs[r as usize];
        run.left -= 1;
        if run.left == 0 {
            run.aliases.clear();
            self.vacant_runs.push(r);
        }
    }

    /// A claimed alias could not be unmapped.
    pub(super) fn unclaim(&mut self, claim: Claim) {
        self.runs[claim.place.0 as usize].aliases[claim.place.1 as usize].state = State::Dormant;
    }

    /// Checks the invariants written above; `Err` says which one fails where.
    pub(super) fn validate(&self) -> Result<(), String> {
        let (mut dormant, mut bytes) = (0, 0);
        for (r, run) in self.runs.iter().enumerate() {
            let mut at = run.aliases.first().map_or(0, |a| a.addr);
            let mut left = 0;
            for (i, a) in run.aliases.iter().enumerate() {
                let place = (r as u32, i as u32);
                let known = self.extents.get(a.extent.id as usize);
                let listed = known.is_some_and(|k| k.places.contains(&place));
                let present = known.is_some_and(|k| k.present == Some(place) && k.addr == a.addr);
                if a.addr != at {
                    return Err(format!(
                        "alias {:#x} does not follow the one before it, which ends at {at:#x}",
                        a.addr
                    ));
                }
                if present != (a.state == State::Present)
                    || (listed == (a.state == State::Gone) && a.state != State::Gone)
                {
                    return Err(format!("alias {:#x} is {:?}, which its extent does not know", a.addr, a.state));
                }
                if matches!(a.state, State::Dormant | State::Claimed) {
                    dormant += 1;
                    bytes += a.extent.size;
                }
                left += usize::from(a.state != State::Gone);
                at += a.extent.size;
            }
            if left != run.left {
                return Err(format!("a run has {left} aliases, {} recorded", run.left));
            }
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

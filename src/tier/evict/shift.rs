//! Items on their way: out of the device, back into it, or between the host and a disk.
//!
//! Copies between device and host are pipelined over all items of a shift. While those of one item
//! are in flight, the next is prepared (addresses mapped, pinned memory taken), and items whose
//! copies are over are finished.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::inside::enter_a_shift;
use super::item::{Claim, Item, Place};
use super::lanes::{Flow, Progress};
use super::pending::{Begun, Pending, Way, SUBMITTING};
use super::shared::{Shared, Unasked};
use crate::base::{size::human, DeviceId, Error, Result, Status};
use crate::driver::disk::Buffer;
use crate::driver::nvtx;
use crate::pool::{By, Pool, Waited};
use crate::tier::promise::policy::call_back;
use crate::tier::{DrawFrom, SpaceId, Strategy, Tier};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// The most items with copies in flight.
const MOST_PENDING: usize = 64;

/// Where to move. An eviction only ever leads away from the device, and a restore only ever nearer
/// to it: an item that is as far, or as near, as was asked for is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Into the device's memory.
    Device,
    /// Out of the device, to the nearest space of a lower tier that has room.
    Lower,
    /// Away from the device.
    Away(To),
    /// Nearer to the device.
    Nearer(To),
}

/// Which spaces to move to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Any of this tier.
    Tier(Tier),
    /// This one. Items in another space of the same tier go there, too: neither nearer nor farther
    /// away.
    Space(SpaceId),
}

impl Goal {
    /// Whether it leads nearer to the device. Items that are held are in the device, and so are
    /// there already.
    pub(super) fn is_nearer(&self) -> bool {
        matches!(self, Goal::Device | Goal::Nearer(_))
    }

    /// Whether bytes that are in a space need not move.
    fn is_reached(&self, at: SpaceId) -> bool {
        match self {
            Goal::Device => at.tier == Tier::Gpu,
            Goal::Lower => at.tier != Tier::Gpu,
            Goal::Away(To::Space(id)) | Goal::Nearer(To::Space(id)) if id.tier == at.tier => at == *id,
            Goal::Away(to) => at.tier >= to.tier(),
            Goal::Nearer(to) => at.tier <= to.tier(),
        }
    }
}

impl To {
    fn tier(&self) -> Tier {
        match self {
            To::Tier(tier) => *tier,
            To::Space(id) => id.tier,
        }
    }
}

/// What a shift did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Allocations that were moved.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Allocations that were there already.
    pub already: u64,
}

/// The outcome of trying a space.
pub(super) enum Step {
    /// The item is there, or on its way, or has ended.
    Taken,
    /// There is no room; the next space may have some.
    Full(Error, Claim),
}

impl Step {
    /// For an error in taking room in a space, or in writing there: the next space may do.
    pub(super) fn or(e: Error, claim: Claim) -> Result<Step> {
        match e.status {
            Status::OutOfMemory | Status::Io | Status::Driver => Ok(Step::Full(e, claim)),
            _ => Err(e),
        }
    }
}

/// One shift.
pub(super) struct Shift<'a> {
    pub(super) shared: &'a Shared,
    goal: &'a Goal,
    pub(super) by: By,
    /// Whether nobody named the items: then one that cannot be moved does not keep the others from
    /// it.
    pub(super) by_itself: bool,
    /// The copies of the items of one device, and that device.
    pub(super) flow: Option<(DeviceId, Flow<'a>)>,
    /// What the flow's stream waits for.
    waited: Waited,
    pending: VecDeque<Pending<'a>>,
    /// Buffers for copies to or from a file.
    pub(super) buffers: Vec<Buffer>,
    /// Takes the claims of items that are where they were to go, if anybody wants them. Otherwise
    /// those claims end at once.
    keep: Option<&'a mut Vec<Claim>>,
    pub(super) told: Told<'a>,
    moved: Moved,
    /// The items that were moved, by address.
    went: BTreeMap<u64, Arc<Item>>,
    /// The fewest bytes that none of the spaces had room for.
    refused: u64,
}

/// Tells how far a shift is.
pub(super) struct Told<'a> {
    progress: Option<Progress<'a>>,
    /// Bytes moved, except for those of the flow.
    pub(super) over: u64,
    total: u64,
}

impl Told<'_> {
    /// Tells that `more` bytes of the flow, or of a file, are over, too.
    pub(super) fn tell(&mut self, more: u64) -> Result<()> {
        let done = (self.over + more).min(self.total);
        match self.progress.as_mut().is_none_or(|p| call_back(|| p(done, self.total))) {
            true => Ok(()),
            false => Err(Error::new(
                Status::Cancelled,
                format!(
                    "the move was cancelled with {} of {} copied; allocations that had not arrived are where they were",
                    human(done),
                    human(self.total)
                ),
            )),
        }
    }
}

impl Shared {
    /// Moves what is claimed. The claims of items that are there then go to `keep`.
    pub(super) fn shift(
        &self,
        claims: Vec<Claim>,
        goal: &Goal,
        by: By,
        progress: Option<Progress>,
        keep: Option<&mut Vec<Claim>>,
    ) -> Result<Moved> {
        self.shift_some(claims, goal, by, (progress, keep), false).2
    }

    /// Like [`Shared::shift`], for items that move automatically: one that cannot be moved does not
    /// keep the others from it. Also returns the items that were moved, by address, and the fewest
    /// bytes that no space had room for.
    pub(super) fn shift_by_itself(
        &self,
        claims: Vec<Claim>,
        goal: &Goal,
        progress: Progress,
    ) -> (BTreeMap<u64, Arc<Item>>, u64, Result<Moved>) {
        self.shift_some(claims, goal, By::Noted, (Some(progress), None), true)
    }

    fn shift_some(
        &self,
        claims: Vec<Claim>,
        goal: &Goal,
        by: By,
        (progress, mut keep): (Option<Progress>, Option<&mut Vec<Claim>>),
        by_itself: bool,
    ) -> (BTreeMap<u64, Arc<Item>>, u64, Result<Moved>) {
        // A hold keeps the claims of what it brings back.
        let unasked = (by_itself || keep.is_some()).then(Instant::now);
        if let Goal::Away(To::Space(id)) | Goal::Nearer(To::Space(id)) = goal {
            // Even if nothing is to be moved.
            if let Err(e) = self.parts.manager.space(*id) {
                return (BTreeMap::new(), u64::MAX, Err(e));
            }
        }
        // What is there already is idle again at once.
        let (there, claims): (Vec<_>, Vec<_>) =
            claims.into_iter().partition(|c| goal.is_reached(c.place().space(c.item.device)));
        let moved = Moved { already: there.len() as u64, ..Moved::default() };
        match &mut keep {
            Some(keep) => keep.extend(there),
            None => drop(there),
        }
        let total = claims.iter().map(|c| c.item.bytes).sum();
        if !goal.is_nearer() {
            claims.iter().for_each(Claim::leaves);
        }
        let _inside = enter_a_shift();
        // A progress of its own lifetime.
        let told = Told { progress: progress.map(|p| p as Progress), over: 0, total };
        let (pending, buffers, waited) = (VecDeque::new(), Vec::new(), Waited::default());
        let (flow, went, refused) = (None, BTreeMap::new(), u64::MAX);
        let mut shift = Shift {
            shared: self,
            goal,
            by,
            by_itself,
            flow,
            waited,
            pending,
            buffers,
            keep,
            told,
            moved,
            went,
            refused,
        };
        let name = if goal.is_nearer() { c"restore" } else { c"evict" };
        let range = (total > 0).then(|| nvtx::range(name, total));
        let outcome = shift.run(claims);
        drop(range);
        let (moved, went, refused) = (shift.moved, std::mem::take(&mut shift.went), shift.refused);
        drop(shift);
        if let Some(start) = unasked {
            self.tell_of(&went, goal.is_nearer(), start);
        }
        let outcome = outcome.map(|()| moved).map_err(|e| match moved.items {
            0 => e,
            n => Error::new(e.status, format!("{} (allocations moved before: {n})", e.message)),
        });
        (went, refused, outcome)
    }

    /// Tells of items that have moved without being named.
    fn tell_of(&self, went: &BTreeMap<u64, Arc<Item>>, nearer: bool, start: Instant) {
        let took = start.elapsed() / (went.len() as u32).max(1);
        for item in went.values() {
            let Item { base, device, bytes, .. } = **item;
            (self.parts.unasked)(&Unasked { nearer, base, device, bytes, took });
        }
    }

    /// The spaces a goal allows, best first.
    pub(super) fn targets(&self, goal: &Goal, from: SpaceId) -> Result<Vec<SpaceId>> {
        let spaces = self.parts.manager.spaces();
        let strategy = match goal {
            Goal::Lower => Strategy::DowngradeFrom { from, to: None },
            Goal::Away(To::Tier(tier)) => Strategy::DowngradeFrom { from, to: Some(*tier) },
            Goal::Nearer(To::Tier(tier)) => Strategy::Tier(*tier),
            Goal::Away(To::Space(id)) | Goal::Nearer(To::Space(id)) => Strategy::Space(*id),
            Goal::Device => return Err(Error::internal("no lower space leads to the device")),
        };
        let ranks = strategy.candidates(&spaces)?;
        Ok(ranks.into_iter().flatten().filter_map(|i| spaces.get(i)).map(|s| s.id()).collect())
    }
}

/// Whether an error is about the whole move, and not about one item.
fn ends(status: Status) -> bool {
    matches!(status, Status::ShuttingDown | Status::Cancelled)
}

impl<'a> Shift<'a> {
    fn run(&mut self, claims: Vec<Claim>) -> Result<()> {
        let mut outcome = Ok(());
        let mut passed = Ok(());
        for claim in claims {
            if self.by_itself && claim.item.bytes >= self.refused {
                continue;
            }
            outcome = self.one(claim);
            match &outcome {
                Err(e) if self.by_itself && !ends(e.status) && !self.is_broken() => {
                    passed = passed.and(std::mem::replace(&mut outcome, Ok(())));
                }
                Err(_) => break,
                Ok(()) => {}
            }
        }
        self.finish_device(outcome).and(passed)
    }

    /// Where the room for moved items comes from. Automatic moves use nothing that was promised to
    /// the thread that makes them.
    pub(super) fn draws_from(&self) -> DrawFrom<'static> {
        match self.by_itself {
            true => DrawFrom::Outside,
            false => DrawFrom::Attached,
        }
    }

    fn one(&mut self, claim: Claim) -> Result<()> {
        let device = claim.item.device;
        if self.flow.as_ref().is_some_and(|f| f.0 != device) {
            self.finish_device(Ok(()))?;
        }
        if self.flow.is_none() {
            self.flow = Some((device, self.shared.lanes.borrow(device)?));
            self.waited = Waited::default();
        }
        match (claim.place(), self.goal) {
            (Place::Host(_), Goal::Device) => self.start_in(claim)?,
            (Place::Disk(_), Goal::Device) => self.device_from_file(claim)?,
            _ => self.elsewhere(claim)?,
        }
        self.finish(self.flow.as_ref().map_or(0, |f| f.1.completed()), MOST_PENDING)
    }

    /// Moves an item to the first space that has room.
    fn elsewhere(&mut self, mut claim: Claim) -> Result<()> {
        let mut refusals = Vec::new();
        for target in self.shared.targets(self.goal, claim.place().space(claim.item.device))? {
            let step = match (target.tier, claim.place()) {
                (Tier::Host, Place::Device) => self.start_out(claim, target.id)?,
                (Tier::Host, Place::Disk(_)) => self.host_from_file(claim, target.id)?,
                (Tier::Host, Place::Host(_)) => self.host_from_host(claim, target.id)?,
                (Tier::Disk, _) => self.file(claim, target)?,
                (Tier::Gpu, _) => return Err(Error::invalid(format!("{target} is no lower space to move to"))),
            };
            match step {
                Step::Taken => return Ok(()),
                Step::Full(e, back) => {
                    claim = back;
                    refusals.push(e);
                }
            }
        }
        let e = together(&refusals);
        if e.status == Status::OutOfMemory {
            self.refused = self.refused.min(claim.item.bytes);
        }
        Err(e)
    }

    /// Makes the flow wait for what uses an item.
    pub(super) fn wait_for_uses(&mut self, pool: &Pool, begun: &Begun) -> Result<()> {
        let (by, on) = (self.by, self.flow()?.stream());
        pool.wait_for_uses(begun.moving()?, by, on, &mut self.waited)
    }

    /// The flow of the items at hand.
    pub(super) fn flow(&mut self) -> Result<&mut Flow<'a>> {
        self.flow.as_mut().map(|f| &mut f.1).ok_or_else(|| Error::internal("a move without a lane"))
    }

    /// The flow, whom to tell of it, and the buffers for files.
    pub(super) fn copying(&mut self) -> Result<(&mut Flow<'a>, &mut Told<'a>, &mut Vec<Buffer>)> {
        match self.flow.as_mut() {
            Some((_, flow)) => Ok((flow, &mut self.told, &mut self.buffers)),
            None => Err(Error::internal("a move without a lane")),
        }
    }

    /// Starts copying from the device into pinned memory of a node.
    fn start_out(&mut self, claim: Claim, node: u32) -> Result<Step> {
        let item = claim.item.clone();
        let (host, bytes) = (&self.shared.parts.host, item.bytes.max(1));
        let memory = match host.allocate(node, bytes, self.draws_from()) {
            Ok(memory) => memory,
            Err(e) => return Step::or(e, claim),
        };
        // An item that has ended goes with its claim.
        let pool = self.shared.pool(item.device)?;
        let Some(begun) = Begun::new(pool, &item)? else { return Ok(Step::Taken) };
        self.wait_for_uses(pool, &begun)?;
        self.submit(begun, Way::Out(memory), claim)?;
        Ok(Step::Taken)
    }

    /// Maps memory and starts copying into it from pinned memory.
    fn start_in(&mut self, claim: Claim) -> Result<()> {
        match self.populate(&claim)? {
            Some(begun) => self.submit(begun, Way::In, claim),
            None => Ok(()),
        }
    }

    /// Submits the copies of a move between the device and pinned memory. The callback may panic,
    /// so everything that the copies touch is in the queue before the first is submitted.
    fn submit(&mut self, begun: Begun<'a>, way: Way, claim: Claim) -> Result<()> {
        self.pending.push_back(Pending { begun, way, claim, upto: SUBMITTING });
        let copied = match (&mut self.flow, self.pending.back()) {
            (Some((_, flow)), Some(p)) => copy(flow, &mut self.told, p),
            _ => Err(Error::internal("a move without a lane")),
        };
        match (copied, self.pending.back_mut()) {
            (Ok(upto), Some(p)) => p.upto = upto,
            (Err(e), _) => {
                if let Some(p) = self.pending.pop_back() {
                    self.give_up(p)?;
                }
                return Err(e);
            }
            (Ok(_), None) => {}
        }
        Ok(())
    }

    /// Draws and maps device memory for an item. `None` if it has ended.
    pub(super) fn populate(&mut self, claim: &Claim) -> Result<Option<Begun<'a>>> {
        let (item, shared) = (&claim.item, self.shared);
        let pool = shared.pool(item.device)?;
        let Some(mut begun) = Begun::new(pool, item)? else { return Ok(None) };
        let on = self.flow()?.stream();
        let moving = begun.moving()?;
        let (there, drawn) = shared.parts.manager.allocate_again(&item.source, item.mapped, |drawn, spared| {
            Ok((pool.populate(moving, on, spared)?, drawn))
        })?;
        if !there {
            begun.ended();
            return Ok(None);
        }
        begun.filled(drawn);
        Ok(Some(begun))
    }

    /// Notes that an item is where it was to go, unless it has ended on the way.
    pub(super) fn arrive(&mut self, mut claim: Claim, there: bool, place: Place) {
        if !there || claim.item.has_ended() {
            return;
        }
        let on_device = matches!(place, Place::Device);
        claim.set_place(place);
        if !on_device {
            claim.item.set_drawn(None);
        }
        self.moved.items += 1;
        self.moved.bytes += claim.item.bytes;
        self.went.insert(claim.item.base, claim.item.clone());
        if let Some(keep) = &mut self.keep {
            keep.push(claim);
        }
    }

    /// Whether the state of the flow's copies is unknown.
    pub(super) fn is_broken(&mut self) -> bool {
        self.flow.as_mut().is_some_and(|f| f.1.drain().is_err())
    }

    /// Finishes the items whose copies are over, and waits for others until at most `most` are
    /// left.
    fn finish(&mut self, mut completed: u64, most: usize) -> Result<()> {
        while let Some(upto) = self.pending.front().map(|p| p.upto) {
            if upto > completed {
                if self.pending.len() <= most {
                    return Ok(());
                }
                let (flow, told, _) = self.copying()?;
                flow.wait(upto, &mut |done| told.tell(done))?;
                completed = flow.completed();
            }
            if let Some(p) = self.pending.pop_front() {
                self.finish_one(p)?;
            }
        }
        Ok(())
    }

    fn finish_one(&mut self, p: Pending) -> Result<()> {
        let Pending { claim, begun, way, .. } = p;
        let (there, place) = match way {
            Way::Out(memory) => (begun.vacate()?, Place::Host(memory)),
            Way::In => (begun.end(), Place::Device),
        };
        self.arrive(claim, there, place);
        Ok(())
    }

    /// Finishes every item of the flow's device or, after an error, those that can be. Afterwards
    /// none of them is on its way.
    fn finish_device(&mut self, so_far: Result<()>) -> Result<()> {
        let mut outcome = so_far.and_then(|()| self.finish(0, 0));
        let (drained, submitted) = match self.flow.as_mut() {
            Some((_, flow)) => (flow.drain(), flow.submitted()),
            None => return outcome,
        };
        // All copies that were submitted are over, or none of them can be trusted. Items of a
        // cancelled move stay, copied or not.
        let good = drained.is_ok() && !matches!(&outcome, Err(e) if e.status == Status::Cancelled);
        for p in std::mem::take(&mut self.pending) {
            let finished = match good && p.upto <= submitted {
                true => self.finish_one(p),
                false => self.give_up(p),
            };
            outcome = outcome.and(finished);
        }
        let buffers = std::mem::take(&mut self.buffers);
        if let Some((_, mut flow)) = self.flow.take() {
            if drained.is_err() {
                flow.hold(buffers);
            }
            self.told.over += flow.submitted();
        }
        outcome.and(drained)
    }

    /// Leaves an item where it was.
    fn give_up(&mut self, p: Pending) -> Result<()> {
        let Pending { claim, begun, way, .. } = p;
        let broken = self.is_broken();
        let undone = begun.undo(broken);
        if let (Way::Out(memory), true, Some((_, flow))) = (way, broken, self.flow.as_mut()) {
            // The device may write there at any time.
            flow.hold(memory);
        }
        drop(claim);
        undone
    }
}

impl Drop for Shift<'_> {
    /// After a panic in a callback, everything that has not arrived stays where it was, once its
    /// copies are over.
    fn drop(&mut self) {
        let _ = self.finish_device(Err(Error::new(Status::Cancelled, "a callback of the move panicked")));
    }
}

/// Why no space has taken an item: what each has said. One that is broken gives the status, since
/// the others may be full for as long as it is.
fn together(refusals: &[Error]) -> Error {
    if refusals.is_empty() {
        return Error::internal("no space to move to");
    }
    let broken = refusals.iter().map(|e| e.status).rfind(|&status| status != Status::OutOfMemory);
    let texts: Vec<&str> = refusals.iter().map(|e| e.message.as_str()).collect();
    Error::new(broken.unwrap_or(Status::OutOfMemory), texts.join("; "))
}

/// Submits the copies of an item between the device and pinned memory. Returns what the flow will
/// have completed when they are over.
fn copy(flow: &mut Flow, told: &mut Told, p: &Pending) -> Result<u64> {
    let (base, bytes) = (p.claim.item.base, p.claim.item.bytes);
    let (memory, out) = match (&p.way, p.claim.place()) {
        (Way::Out(memory), _) => (memory, true),
        (Way::In, Place::Host(memory)) => (memory, false),
        (Way::In, _) => return Err(Error::internal("the bytes are not in the host's memory")),
    };
    let mut at = 0;
    for piece in memory.pieces() {
        let n = piece.bytes.min(bytes - at);
        let (dst, src) = if out { (piece.addr, base + at) } else { (base + at, piece.addr) };
        flow.copy(dst, src, n, &mut |done| told.tell(done))?;
        at += n;
    }
    match at == bytes {
        true => Ok(flow.submitted()),
        false => Err(Error::internal(format!("{at} of {bytes} bytes have a place in pinned memory"))),
    }
}

//! Items on their way: out of the device, back into it, or between the host and a disk.
//!
//! Copies between device and host are pipelined over all items of a shift: while those of one are in flight, the next is
//! prepared (addresses mapped, pinned memory taken), and those whose copies are over are finished.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::item::{Claim, Item, Place};
use super::lanes::{Flow, Progress};
use super::Shared;
use crate::base::{size::human, DeviceId, Error, Result, Status, StreamHandle};
use crate::pool::Moving;
use crate::tier::host::HostMemory;
use crate::tier::{SpaceId, Strategy, Tier};
use std::collections::VecDeque;

/// Items whose copies are in flight, at most.
const MOST_PENDING: usize = 64;

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Into the device's memory.
    Device,
    /// Out of the device, to the nearest space of a lower tier that has room. What is not there is there already.
    Lower,
    /// To a space of this tier.
    Tier(Tier),
    /// To this space: the host's or a disk's.
    Space(SpaceId),
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

/// An item whose copies have all been submitted.
struct Pending {
    claim: Claim,
    moving: Moving,
    way: Way,
    /// What the flow has completed when they are over.
    upto: u64,
}

enum Way {
    /// To here.
    Out(HostMemory),
    In,
}

/// What came of trying a space.
pub(super) enum Step {
    /// The item is there, or on its way, or has ended.
    Taken,
    /// There is no room; the next space may have some.
    Full(Error, Claim),
}

impl Step {
    /// For an error in taking room: of another kind it is one for good.
    pub(super) fn or(e: Error, claim: Claim) -> Result<Step> {
        match e.status {
            Status::OutOfMemory => Ok(Step::Full(e, claim)),
            _ => Err(e),
        }
    }
}

/// One shift.
pub(super) struct Shift<'a> {
    pub(super) shared: &'a Shared,
    goal: &'a Goal,
    pub(super) by: Option<StreamHandle>,
    /// The copies of the items of one device, and whose they are.
    pub(super) flow: Option<(DeviceId, Flow<'a>)>,
    pending: VecDeque<Pending>,
    done: Vec<Claim>,
    pub(super) told: Told<'a>,
    moved: Moved,
}

/// Whom to tell how far it is.
pub(super) struct Told<'a> {
    progress: Option<Progress<'a>>,
    /// Bytes that are over, but for those of the flow.
    pub(super) over: u64,
    total: u64,
}

impl Told<'_> {
    /// So many bytes of the flow, or of a file, are over, too.
    pub(super) fn tell(&mut self, more: u64) -> Result<()> {
        let done = (self.over + more).min(self.total);
        match self.progress.as_mut().is_none_or(|p| p(done, self.total)) {
            true => Ok(()),
            false => Err(Error::new(
                Status::Cancelled,
                format!(
                    "the move was cancelled at {} of {}; what is not moved is where it was",
                    human(done),
                    human(self.total)
                ),
            )),
        }
    }
}

impl Shared {
    /// Moves what is claimed. The claims that are left come back: what has ended is not among them.
    pub(super) fn shift(
        &self,
        claims: Vec<Claim>,
        goal: &Goal,
        by: Option<StreamHandle>,
        progress: Option<Progress>,
    ) -> Result<(Moved, Vec<Claim>)> {
        let there = |c: &Claim| is_there(c.place(), goal, c.item.device);
        let total = claims.iter().filter(|c| !there(c)).map(|c| c.item.bytes).sum();
        if *goal != Goal::Device {
            claims.iter().filter(|c| !there(c)).for_each(Claim::leaves);
        }
        // A progress of its own lifetime.
        let told = Told { progress: progress.map(|p| p as Progress), over: 0, total };
        let mut shift = Shift {
            shared: self,
            goal,
            by,
            flow: None,
            pending: VecDeque::new(),
            done: Vec::new(),
            told,
            moved: Moved::default(),
        };
        let moved = shift.run(claims);
        let Shift { done, moved: count, .. } = shift;
        match moved {
            Ok(()) => Ok((count, done)),
            Err(e) if count.items > 0 => {
                Err(Error::new(e.status, format!("{} ({} allocations had been moved before)", e.message, count.items)))
            }
            Err(e) => Err(e),
        }
    }

    /// The spaces that a goal allows, best first.
    pub(super) fn targets(&self, goal: &Goal, from: SpaceId) -> Result<Vec<SpaceId>> {
        let spaces = self.parts.manager.spaces();
        let strategy = match goal {
            Goal::Lower => Strategy::DowngradeFrom { from, to: None },
            Goal::Tier(tier) if *tier > from.tier => Strategy::DowngradeFrom { from, to: Some(*tier) },
            Goal::Tier(tier) => Strategy::Tier(*tier),
            Goal::Space(id) => Strategy::Space(*id),
            Goal::Device => return Err(Error::internal("no lower space leads to the device")),
        };
        let ranks = strategy.candidates(&spaces)?;
        Ok(ranks.into_iter().flatten().filter_map(|i| spaces.get(i)).map(|s| s.id()).collect())
    }
}

/// Whether bytes are where they are to go.
fn is_there(place: &Place, goal: &Goal, device: DeviceId) -> bool {
    let at = place.space(device);
    match goal {
        Goal::Device => at.tier == Tier::Gpu,
        Goal::Lower => at.tier != Tier::Gpu,
        Goal::Tier(tier) => at.tier == *tier,
        Goal::Space(id) => at == *id,
    }
}

impl<'a> Shift<'a> {
    fn run(&mut self, claims: Vec<Claim>) -> Result<()> {
        let mut outcome = Ok(());
        for claim in claims {
            outcome = self.one(claim);
            if outcome.is_err() {
                break;
            }
        }
        self.finish_device(outcome)
    }

    fn one(&mut self, claim: Claim) -> Result<()> {
        let device = claim.item.device;
        if is_there(claim.place(), self.goal, device) {
            self.moved.already += 1;
            self.done.push(claim);
            return Ok(());
        }
        if self.flow.as_ref().is_some_and(|f| f.0 != device) {
            self.finish_device(Ok(()))?;
        }
        if self.flow.is_none() {
            self.flow = Some((device, self.shared.lanes.borrow(device)?));
        }
        match (claim.place(), self.goal) {
            (Place::Host(_), Goal::Device) => self.start_in(claim)?,
            (Place::Disk(_), Goal::Device) => self.device_from_file(claim)?,
            _ => self.elsewhere(claim)?,
        }
        self.finish(self.flow.as_ref().map_or(0, |f| f.1.completed()), MOST_PENDING)
    }

    /// To the first space that has room.
    fn elsewhere(&mut self, mut claim: Claim) -> Result<()> {
        let mut full = None;
        for target in self.shared.targets(self.goal, claim.place().space(claim.item.device))? {
            let step = match (target.tier, claim.place()) {
                (Tier::Host, Place::Device) => self.start_out(claim, target.id)?,
                (Tier::Host, _) => self.host_from_file(claim, target.id)?,
                (Tier::Disk, _) => self.to_file(claim, target)?,
                (Tier::Gpu, _) => return Err(Error::invalid(format!("{target} is no lower space to move to"))),
            };
            match step {
                Step::Taken => return Ok(()),
                Step::Full(e, back) => {
                    claim = back;
                    full.get_or_insert(e);
                }
            }
        }
        Err(full.unwrap_or_else(|| Error::internal("no space to move to")))
    }

    /// The flow of the items at hand.
    pub(super) fn flow(&mut self) -> Result<&mut Flow<'a>> {
        self.flow.as_mut().map(|f| &mut f.1).ok_or_else(|| Error::internal("a move without a lane"))
    }

    /// The flow, and whom to tell of it.
    pub(super) fn flow_and_told(&mut self) -> Result<(&mut Flow<'a>, &mut Told<'a>)> {
        match self.flow.as_mut() {
            Some((_, flow)) => Ok((flow, &mut self.told)),
            None => Err(Error::internal("a move without a lane")),
        }
    }

    /// Starts copying from the device into pinned memory of a node.
    fn start_out(&mut self, claim: Claim, node: u32) -> Result<Step> {
        let item = claim.item.clone();
        let memory = match self.shared.parts.host.allocate(node, item.bytes.max(1), None) {
            Ok(memory) => memory,
            Err(e) => return Step::or(e, claim),
        };
        let pool = self.shared.pool(item.device)?;
        // What has ended goes with its claim.
        let Some(moving) = pool.begin_move(item.base, item.id)? else { return Ok(Step::Taken) };
        let (by, on) = (self.by, self.flow()?.stream());
        let copied = pool.wait_for_uses(&moving, by, on).and_then(|()| self.copy(item.base, item.bytes, &memory, true));
        match copied {
            Ok(upto) => {
                self.pending.push_back(Pending { claim, moving, way: Way::Out(memory), upto });
                Ok(Step::Taken)
            }
            Err(e) => {
                // Nothing is copied into the memory any more when it goes.
                let _ = self.flow()?.drain();
                pool.end_move(moving);
                Err(e)
            }
        }
    }

    /// Maps memory and starts copying into it from pinned memory.
    fn start_in(&mut self, mut claim: Claim) -> Result<()> {
        let item = claim.item.clone();
        let Some(moving) = self.populate(&claim)? else { return Ok(()) };
        let copied = match claim.place() {
            Place::Host(memory) => self.copy_in(&item, memory),
            _ => Err(Error::internal("the bytes are not in the host's memory")),
        };
        match copied {
            Ok(upto) => {
                self.pending.push_back(Pending { claim, moving, way: Way::In, upto });
                Ok(())
            }
            Err(e) => {
                let _ = self.flow()?.drain();
                self.depopulate(&mut claim, moving)?;
                Err(e)
            }
        }
    }

    fn copy_in(&mut self, item: &Item, memory: &HostMemory) -> Result<u64> {
        self.copy(item.base, item.bytes, memory, false)
    }

    /// Submits the copies between the device and pinned memory; what the flow has completed when they are over.
    fn copy(&mut self, base: u64, bytes: u64, memory: &HostMemory, out: bool) -> Result<u64> {
        let (flow, told) = self.flow_and_told()?;
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

    /// Draws and maps device memory for an item. `None` when it has ended.
    pub(super) fn populate(&mut self, claim: &Claim) -> Result<Option<Moving>> {
        let (item, shared) = (&claim.item, self.shared);
        let pool = shared.pool(item.device)?;
        let Some(moving) = pool.begin_move(item.base, item.id)? else { return Ok(None) };
        let on = self.flow()?.stream();
        let filled = shared
            .parts
            .manager
            .allocate_again(&item.source, item.mapped, |drawn| Ok((pool.populate(&moving, on)?, drawn)));
        match filled {
            Ok((true, drawn)) => {
                claim.set_drawn(Some(drawn));
                Ok(Some(moving))
            }
            Ok((false, _)) => Ok(None),
            Err(e) => {
                pool.end_move(moving);
                Err(e)
            }
        }
    }

    /// Undoes [`Shift::populate`]: the bytes did not come.
    pub(super) fn depopulate(&mut self, claim: &mut Claim, moving: Moving) -> Result<()> {
        let vacated = self.shared.pool(claim.item.device)?.vacate(moving);
        claim.set_drawn(None);
        vacated.map(drop)
    }

    /// One item more is where it was to go.
    pub(super) fn count(&mut self, claim: Claim) {
        self.moved.items += 1;
        self.moved.bytes += claim.item.bytes;
        self.done.push(claim);
    }

    /// Finishes the items whose copies are over, and of the others, waiting for them, all but `most`.
    fn finish(&mut self, mut completed: u64, most: usize) -> Result<()> {
        while let Some(upto) = self.pending.front().map(|p| p.upto) {
            if upto > completed {
                if self.pending.len() <= most {
                    return Ok(());
                }
                let (flow, told) = self.flow_and_told()?;
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
        let Pending { mut claim, moving, way, .. } = p;
        let pool = self.shared.pool(claim.item.device)?;
        match way {
            Way::Out(memory) => {
                if pool.vacate(moving)? {
                    claim.set_place(Place::Host(memory));
                    claim.set_drawn(None);
                }
            }
            Way::In => {
                pool.end_move(moving);
                claim.set_place(Place::Device);
            }
        }
        self.count(claim);
        Ok(())
    }

    /// Finishes every item of the flow's device, or after an error what of them can be: then nothing of them is on its way.
    fn finish_device(&mut self, so_far: Result<()>) -> Result<()> {
        let mut outcome = so_far.and_then(|()| self.finish(0, 0));
        let Some((_, mut flow)) = self.flow.take() else { return outcome };
        let drained = flow.drain();
        // All copies that were submitted are over, or none of them can be trusted. What is cancelled stays, copied or not.
        let good = drained.is_ok() && !matches!(&outcome, Err(e) if e.status == Status::Cancelled);
        for p in std::mem::take(&mut self.pending) {
            let finished = match good {
                true => self.finish_one(p),
                false => self.give_up(p),
            };
            outcome = outcome.and(finished);
        }
        self.told.over += flow.submitted();
        outcome.and(drained)
    }

    /// The item stays where it was.
    fn give_up(&mut self, p: Pending) -> Result<()> {
        let Pending { mut claim, moving, way, .. } = p;
        match way {
            Way::Out(_) => {
                self.shared.pool(claim.item.device)?.end_move(moving);
                Ok(())
            }
            Way::In => self.depopulate(&mut claim, moving),
        }
    }
}

//! Evictable allocations: making them, holding them, moving them by hand.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::bell::Bell;
use super::item::{ended, Claim, Item, Outcome, Ticket};
use super::lanes::{Lanes, Progress};
use super::mover::{Mover, MoverOptions};
use super::shared::{Parts, Shared};
use super::shift::{Goal, Moved};
use crate::base::sync::OnceLock;
use crate::base::{DeviceId, Error, Result, StreamHandle};
use crate::pool::{AllocFlags, AllocRequest, By, Pool};
use crate::tier::promise::{Reservation, SpaceId, Tier, Want};
use std::sync::Arc;

/// Evictable allocations, and what moves them. Every method may be called from any thread.
pub struct Evictor {
    shared: Arc<Shared>,
    /// `None` when no thread could be started.
    mover: OnceLock<Option<Mover>>,
    options: MoverOptions,
}

/// How often to let go of what is claimed before waiting for the next with it.
const RESTARTS: u32 = 16;

/// Claims all that live, by address, so that two threads that claim several never wait for each
/// other. One that has to wait lets the others go meanwhile and starts over: idle items may make
/// room for what it waits for. It keeps them when that has not helped for long, so it ends.
fn claim_all(items: &[Arc<Item>], any_holds: bool) -> Result<Vec<Claim>> {
    let mut restarts = 0;
    'all: loop {
        let mut claims = Vec::with_capacity(items.len());
        for item in items {
            match item.try_claim(any_holds, false) {
                Outcome::Claimed(claim) => claims.push(claim),
                Outcome::Busy(_) if restarts < RESTARTS && !claims.is_empty() => {
                    restarts += 1;
                    drop(claims);
                    item.wait()?;
                    continue 'all;
                }
                // Waits, or says why it cannot be claimed.
                Outcome::Busy(_) | Outcome::Gone | Outcome::Held(_) => claims.extend(item.claim(any_holds)?),
            }
        }
        return Ok(claims);
    }
}

/// Where an evictable allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The space that holds its bytes; `None` while it is claimed.
    pub space: Option<SpaceId>,
    /// How often it is held.
    pub holds: u32,
    /// Bytes asked for.
    pub bytes: u64,
    /// Device memory that it occupies while on the device, bytes.
    pub mapped: u64,
}

impl Evictor {
    /// Starts no thread before there is something to move.
    pub fn new(parts: Parts, options: MoverOptions) -> Evictor {
        let lanes = Lanes::new(parts.driver.clone());
        let host = &parts.host;
        let hosts = host.nodes().into_iter().filter_map(|n| host.space(n).ok().cloned()).collect();
        let shared = Arc::new(Shared { parts, hosts, register: Arc::default(), lanes, bell: Bell::default() });
        let weak = Arc::downgrade(&shared);
        let relief = move |want: &Want| weak.upgrade().map_or(Ok(false), |shared| shared.relieve(want));
        shared.parts.manager.set_relief(Box::new(relief));
        Evictor { shared, mover: OnceLock::new(), options }
    }

    /// Allocates evictable memory: whole pages of its own, drawn from the reservation, if given, or
    /// like any other. If there is none, allocations that may move automatically make room. It
    /// belongs to no arena.
    pub fn malloc(&self, pool: &Pool, req: &AllocRequest, reservation: Option<&Reservation>) -> Result<u64> {
        let shared = &self.shared;
        let ticket = Arc::new(Ticket::default());
        let mapped = pool.counted_bytes(req.size, AllocFlags::EVICTABLE);
        let space = shared.gpu(pool.device())?;
        let stream = req.stream.canonical().0 as u64;
        let (info, drawn) =
            shared.parts.manager.allocate_with(space, reservation, mapped, stream, |drawn, spared| {
                Ok((pool.malloc_evictable(&AllocRequest { spared, ..*req }, ticket.clone())?, drawn))
            })?;
        let item = Item::new(&info, mapped, drawn, Arc::downgrade(&shared.register));
        shared.register.add(&item, SpaceId::new(Tier::Gpu, pool.device().0));
        item.enter(&ticket);
        self.start_mover();
        self.nudge();
        Ok(info.base)
    }

    /// Keeps the allocation in device memory until it is unheld as often, restoring it if need be.
    /// Work submitted after this returns may use it.
    pub fn hold(&self, base: u64) -> Result<()> {
        let item = self.item(base)?;
        if item.hold_resident()? {
            return Ok(());
        }
        let claim = item.claim(true)?.ok_or_else(|| ended(base))?;
        let mut kept = Vec::new();
        self.shared.shift(vec![claim], &Goal::Device, By::Noted, None, Some(&mut kept))?;
        // An allocation that has ended is not kept.
        kept.first().ok_or_else(|| ended(base))?.hold();
        drop(kept);
        self.nudge();
        Ok(())
    }

    /// Ends one hold: all use of the allocation so far has been submitted to `stream`, or is
    /// ordered before it. From the first unhold on the allocation may move automatically whenever
    /// it is not held.
    pub fn unhold(&self, base: u64, stream: StreamHandle) -> Result<()> {
        let item = self.item(base)?;
        if item.look().0 == 0 {
            // For its error.
            return item.unhold();
        }
        self.shared.pool(item.device)?.note_use(base, item.id, stream)?;
        item.unhold()?;
        self.shared.register.touch(&item);
        self.nudge();
        Ok(())
    }

    /// Moves one allocation. All use of it has been submitted to `by`, or is ordered before it;
    /// without `by`, to the streams named when it was unheld, or else to the one it was allocated
    /// on. Fails with `UnknownPointer` if it is freed before it is there.
    pub fn shift(
        &self,
        base: u64,
        goal: &Goal,
        by: Option<(DeviceId, StreamHandle)>,
        progress: Option<Progress>,
    ) -> Result<Moved> {
        let item = self.item(base)?;
        match self.shift_all(vec![item], goal, by, progress)? {
            Moved { items: 0, already: 0, .. } => Err(ended(base)),
            moved => Ok(moved),
        }
    }

    /// Moves all allocations with a tag, as [`Evictor::shift`] does each. Moves nothing if one is
    /// held. If one cannot be moved, those before it have been, and the error says how many.
    pub fn shift_tag(
        &self,
        tag: u64,
        goal: &Goal,
        by: Option<(DeviceId, StreamHandle)>,
        progress: Option<Progress>,
    ) -> Result<Moved> {
        let mut items = self.shared.register.all();
        items.retain(|item| item.tag == tag);
        if items.is_empty() {
            return Err(Error::invalid(format!("no evictable allocation has the tag {tag}")));
        }
        self.shift_all(items, goal, by, progress)
    }

    fn shift_all(
        &self,
        items: Vec<Arc<Item>>,
        goal: &Goal,
        by: Option<(DeviceId, StreamHandle)>,
        progress: Option<Progress>,
    ) -> Result<Moved> {
        let claims = claim_all(&items, goal.is_nearer())?;
        let by = by.map_or(By::Allocation, |(dev, stream)| By::Stream(dev, stream));
        let moved = self.shared.shift(claims, goal, by, progress, None)?;
        self.nudge();
        Ok(moved)
    }

    /// Where an allocation is.
    pub fn location(&self, base: u64) -> Result<Location> {
        let item = self.item(base)?;
        let (holds, space) = item.look();
        Ok(Location { space, holds, bytes: item.bytes, mapped: item.mapped })
    }

    /// Moves allocations that may move automatically out of a space, oldest use first, until
    /// `bytes` more are free. Returns how many were freed: perhaps fewer, perhaps some more.
    pub fn make_room(&self, space: SpaceId, bytes: u64) -> Result<u64> {
        self.shared.make_room(space, bytes)
    }

    /// Wakes the mover if a space is too full.
    pub fn nudge(&self) {
        if self.mover.get().is_some_and(Option::is_some) && self.shared.too_full().next().is_some() {
            self.shared.bell.ring();
        }
    }

    fn start_mover(&self) {
        if self.options.enabled {
            // Without a thread nothing moves automatically except for lack of memory.
            self.mover.get_or_init(|| Mover::start(&self.shared, self.options).ok());
        }
    }

    fn item(&self, base: u64) -> Result<Arc<Item>> {
        self.shared.register.find(base).ok_or_else(|| self.shared.none(base))
    }

    /// Checks the equations of the parts, and that the pools agree: every registered item lives and
    /// is not being moved, items in the device have memory, and nothing else is evictable. Call it
    /// at a moment without allocations, frees, unholds and moves.
    pub fn validate(&self) -> Result<()> {
        let register = &self.shared.register;
        let fault = |item: &Item, said| item.fault(said).map(|fault| format!("{fault}; {item:?}"));
        register.validate(fault).map_err(Error::internal)?;
        let all = register.all();
        for item in &all {
            let wrong = |what: &str| Err(Error::internal(format!("{:#x} {what}; {item:?}", item.base)));
            let at = item.look();
            let residence = self.shared.pool(item.device)?.residence(item.base, item.id);
            // Nothing is known of an item that the mover moves just now.
            let Some(space) = at.1.filter(|_| item.look() == at) else { continue };
            match residence {
                None => return wrong("has ended, and is registered"),
                Some((_, true)) => return wrong("is being moved, and nobody has claimed it"),
                Some((false, _)) if space.tier == Tier::Gpu => {
                    return wrong("is in the device, and has no memory there")
                }
                Some(_) => {}
            }
        }
        for (pool, device) in self.shared.parts.pools.iter().zip(0..).map(|(p, n)| (p.get(), DeviceId(n))) {
            let (there, here) = (pool.map_or(0, Pool::evictables), all.iter().filter(|i| i.device == device).count());
            if there != here {
                let text = format!("device {device}: {there} evictable allocations live, {here} are registered");
                return Err(Error::internal(text));
            }
        }
        Ok(())
    }
}

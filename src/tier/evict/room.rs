//! Making room: what may be moved by itself goes, oldest use first.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::item::{Claim, Item, Outcome};
use super::shift::Goal;
use super::Shared;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::tier::{Drawn, Reservation, SpaceId, Tier};
use std::sync::Arc;

/// How many to look at at a time.
const BATCH: usize = 64;

/// What was found to move out of a space.
struct Found {
    claims: Vec<Claim>,
    bytes: u64,
    /// Somebody else is moving this one out just now.
    leaving: Option<Arc<Item>>,
}

impl Shared {
    /// Draws `bytes` of a device's space and allocates them with `allocate`. Where either finds no memory, others are moved
    /// out; and where that is not enough, the out-of-memory policy decides whether to try again.
    pub(super) fn with_room<T>(
        &self,
        device: DeviceId,
        bytes: u64,
        stream: StreamHandle,
        from: Option<&Arc<Reservation>>,
        mut allocate: impl FnMut() -> Result<T>,
    ) -> Result<(T, Drawn)> {
        let mut once = || -> Result<(T, Drawn)> {
            let drawn = self.draw(device, bytes, stream, from)?;
            Ok((allocate()?, drawn))
        };
        let id = SpaceId::new(Tier::Gpu, device.0);
        let mut moving = || loop {
            match once() {
                Err(e) if e.status == Status::OutOfMemory => match self.make_room(id, self.missing(device, bytes)?) {
                    Ok(0) => return Err(e),
                    Ok(_) => {}
                    Err(why) => {
                        let text = format!("{}; nothing could be moved out: {}", e.message, why.message);
                        return Err(Error::new(e.status, text));
                    }
                },
                done => return done,
            }
        };
        let policy = self.parts.manager.policy_of(self.gpu(device)?, from.map(|r| &**r), stream.canonical().0 as u64);
        policy.allocate(id, bytes, stream.canonical().0 as u64, &mut moving)
    }

    /// How many of `bytes` bytes a device lacks, at least 1: of those that may be promised, or of memory itself, all of
    /// which that was free in its pool has been given back by now.
    fn missing(&self, device: DeviceId, bytes: u64) -> Result<u64> {
        let promised = self.gpu(device)?.available();
        let there = self.pool(device)?.unmapped()?.min(promised);
        Ok(bytes.saturating_sub(there).max(1))
    }

    /// See [`super::Evictor::make_room`].
    pub(super) fn make_room(&self, space: SpaceId, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let found = self.find(space, bytes);
        if found.claims.is_empty() {
            // Others are at it: wait for them instead.
            return match found.leaving {
                Some(item) => item.wait().map(|()| 1),
                None => Ok(0),
            };
        }
        let goal = if space.tier == Tier::Gpu { Goal::Lower } else { Goal::Tier(Tier::Disk) };
        let free = found.bytes;
        self.shift(found.claims, &goal, None, None).map(|_| free)
    }

    /// Claims as many as make up `bytes`.
    fn find(&self, space: SpaceId, bytes: u64) -> Found {
        let mut found = Found { claims: Vec::new(), bytes: 0, leaving: None };
        let mut after = (0, 0);
        loop {
            let batch = self.register.oldest(space, after, BATCH);
            let Some(last) = batch.last() else { return found };
            after = (last.0, last.1.base);
            for (_, item) in batch {
                match item.try_claim(false) {
                    Outcome::Claimed(claim) if claim.place().space(item.device) == space => {
                        found.bytes += if space.tier == Tier::Gpu { item.mapped } else { item.bytes };
                        found.claims.push(claim);
                        if found.bytes >= bytes {
                            return found;
                        }
                    }
                    Outcome::Busy(true) => found.leaving = Some(item),
                    Outcome::Claimed(_) | Outcome::Busy(false) | Outcome::Gone | Outcome::Pinned(_) => {}
                }
            }
        }
    }
}

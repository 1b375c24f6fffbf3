//! Making room: what may be moved by itself goes, oldest use first.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::item::{Claim, Item, Outcome};
use super::shift::Goal;
use super::Shared;
use crate::base::{DeviceId, Result};
use crate::tier::{SpaceId, Tier};
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
    /// For an allocation of `bytes` in a space, or a restore, for which there is no memory.
    pub(super) fn relieve(&self, space: SpaceId, bytes: u64) -> Result<u64> {
        match space.tier {
            Tier::Gpu => self.make_room(space, self.missing(DeviceId(space.id), bytes)?),
            // What is in pinned memory has nowhere to go but to a disk, and the mover sees to that.
            Tier::Host | Tier::Disk => Ok(0),
        }
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

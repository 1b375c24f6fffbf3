//! Making room: what may be moved by itself goes, oldest use first.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::item::{Claim, Item, Outcome};
use super::shift::Goal;
use super::Shared;
use crate::base::{DeviceId, Result};
use crate::tier::manager::Want;
use crate::tier::{SpaceId, Tier};
use std::sync::Arc;

/// How many to look at at a time.
const BATCH: usize = 64;

/// What was found to move out of a space.
struct Found {
    claims: Vec<Claim>,
    bytes: u64,
    /// Somebody else is moving these out just now: one of them, and their bytes.
    leaving: Option<Arc<Item>>,
    leaving_bytes: u64,
}

impl Shared {
    /// For an allocation or a restore for which there is no memory: whether it is worth while to try again.
    pub(super) fn relieve(&self, want: &Want) -> Result<bool> {
        // What is in pinned memory has nowhere to go but to a disk, and the mover sees to that.
        if want.space.tier != Tier::Gpu {
            return Ok(false);
        }
        let missing = match want.reservation {
            Some((_, missing)) => missing,
            None => self.missing(DeviceId(want.space.id), want.bytes)?,
        };
        let found = self.find(want.space, missing, want.reservation.map(|r| r.0));
        if found.bytes.saturating_add(found.leaving_bytes) < missing {
            // All of it would not be enough: it stays.
            return Ok(false);
        }
        if found.bytes < missing {
            drop(found.claims);
            if let Some(item) = found.leaving {
                item.wait_to_leave();
            }
            return Ok(true);
        }
        self.shift_by_itself(found.claims, &Goal::Lower).map(|moved| moved.items > 0)
    }

    /// How many of `bytes` bytes a device lacks, at least 1: of those that may be promised, or of memory itself, all of
    /// which that was free in its pool has been given back by now. More than there can be when the limits forbid so much.
    fn missing(&self, device: DeviceId, bytes: u64) -> Result<u64> {
        let (space, pool) = (self.gpu(device)?, self.pool(device)?);
        if bytes > space.limit().min(pool.limit()) {
            return Ok(u64::MAX);
        }
        let there = pool.unmapped()?.min(space.available());
        Ok(bytes.saturating_sub(there).max(1))
    }

    /// Moves out of a space what may be moved by itself, until `bytes` are free that were not, or as much as there is.
    /// Returns how many.
    pub(super) fn make_room(&self, space: SpaceId, bytes: u64) -> Result<u64> {
        let goal = match space.tier {
            Tier::Gpu => Goal::Lower,
            Tier::Host => Goal::Tier(Tier::Disk),
            // There is no lower tier.
            Tier::Disk => return Ok(0),
        };
        if bytes == 0 {
            return Ok(0);
        }
        let found = self.find(space, bytes, None);
        if found.claims.is_empty() {
            return Ok(0);
        }
        let before = self.used(space);
        self.shift_by_itself(found.claims, &goal)?;
        // Others allocate meanwhile: then it is less than was moved.
        Ok(before.saturating_sub(self.used(space)).clamp(1, found.bytes.max(1)))
    }

    fn used(&self, space: SpaceId) -> u64 {
        self.parts.manager.space(space).map_or(0, |s| s.usage().now())
    }

    /// Claims as many as make up `bytes`; with a number of a reservation only of those that are drawn from it.
    fn find(&self, space: SpaceId, bytes: u64, of: Option<u64>) -> Found {
        let mut found = Found { claims: Vec::new(), bytes: 0, leaving: None, leaving_bytes: 0 };
        let mut after = (0, 0);
        loop {
            let batch = self.register.oldest(space, after, BATCH);
            let Some(&(used, ref last)) = batch.last() else { return found };
            after = (used, last.base);
            for (_, item) in batch {
                if of.is_some() && item.source.reservation() != of {
                    continue;
                }
                let size = if space.tier == Tier::Gpu { item.mapped } else { item.bytes };
                match item.try_claim(false, true) {
                    Outcome::Claimed(claim) if claim.place().space(item.device) == space => {
                        found.bytes += size;
                        found.claims.push(claim);
                        if found.bytes >= bytes {
                            return found;
                        }
                    }
                    Outcome::Busy(true) => {
                        found.leaving_bytes = found.leaving_bytes.saturating_add(size);
                        found.leaving = Some(item);
                    }
                    Outcome::Claimed(_) | Outcome::Busy(false) | Outcome::Gone | Outcome::Pinned(_) => {}
                }
            }
        }
    }
}

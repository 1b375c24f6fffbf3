//! Making room: items that may move automatically go, oldest use first.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::inside::{in_a_callback, in_a_shift};
use super::item::{Claim, Item, Outcome, Place};
use super::shared::Shared;
use super::shift::{Goal, To};
use crate::base::{DeviceId, Result};
use crate::pool::Pool;
use crate::tier::promise::{Lack, Want};
use crate::tier::{SpaceId, Tier};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many items to look at at a time.
const BATCH: usize = 64;

/// Items found to move out of a space.
struct Found {
    claims: Vec<Claim>,
    bytes: u64,
    /// One of the items another thread is moving out just now. `leaving_bytes` are the bytes of
    /// all.
    leaving: Option<Arc<Item>>,
    leaving_bytes: u64,
}

impl Shared {
    /// Called when there is no memory for an allocation or a restore. Returns whether trying again
    /// is worthwhile.
    pub(super) fn relieve(&self, want: &Want) -> Result<bool> {
        let of_memory = matches!(want.lack, Lack::Memory(_));
        match want.space.tier {
            // Memory that nobody uses is counted nowhere, and goes before anything is moved.
            Tier::Gpu if of_memory && (self.parts.spare)() => return Ok(true),
            Tier::Gpu => {}
            // Pinned memory can only go to a disk. A move finds its data another place instead: it
            // must not wait for other moves, and these may be what it makes room for. What the
            // system does not pin, or has in pieces, may be missing even then.
            Tier::Host if !of_memory && !in_a_shift() && !self.parts.disks.is_empty() => {}
            Tier::Host | Tier::Disk => return Ok(false),
        }
        let missing = match self.missing(want.space, &want.lack)? {
            // Others have given it back meanwhile.
            0 if matches!(want.lack, Lack::Promise { .. }) => return Ok(true),
            missing => missing.max(1),
        };
        let make =
            |bytes, lack: &Lack| self.empty(want.space, bytes, Some(lack), true, &|| true).map(|freed| freed > 0);
        let own = match want.lack {
            // With so much of its own back the reservation needs nothing more of the space, which
            // would have to give more.
            Lack::Promise { short: Some(short), .. } if short.bytes < missing => {
                make(short.bytes, &Lack::Reservation(short))
            }
            _ => Ok(false),
        };
        match own {
            Ok(true) => Ok(true),
            own => Ok(make(missing, &want.lack)? || own?),
        }
    }

    /// Moves items that may move automatically out of a space, until `bytes` more are free. With a
    /// lack, only items that help against it; with `all_or_none`, only if there is as much. Items
    /// that cannot be moved are passed over. Returns the bytes, or an error if nothing could be
    /// moved and something should. Stops when `go_on` says no.
    pub(super) fn empty(
        &self,
        space: SpaceId,
        bytes: u64,
        lack: Option<&Lack>,
        all_or_none: bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let goal = match space.tier {
            Tier::Gpu => Goal::Lower,
            Tier::Host => Goal::Away(To::Tier(Tier::Disk)),
            // There is no lower tier.
            Tier::Disk => return Ok(0),
        };
        let (mut free, mut passed, mut error) = (0u64, BTreeSet::new(), None);
        while free < bytes && go_on() {
            let found = self.find(space, bytes - free, lack, &passed);
            if all_or_none && found.bytes < bytes - free {
                if found.bytes.saturating_add(found.leaving_bytes) < bytes - free {
                    // All of it would not be enough, so it stays.
                    break;
                }
                drop(found.claims);
                if let Some(item) = found.leaving {
                    item.wait_to_leave(space);
                }
                return Ok(free.max(1));
            }
            if found.claims.is_empty() {
                break;
            }
            let tried: Vec<(u64, u64)> = found.claims.iter().map(|c| (c.item.base, would_free(c, lack))).collect();
            let (went, outcome) = self.shift_by_itself(found.claims, &goal, &mut |_, _| go_on());
            for (base, size) in tried {
                match went.contains_key(&base) {
                    true => free += size,
                    false => drop(passed.insert(base)),
                }
            }
            error = error.or(outcome.err());
        }
        match error {
            Some(e) if free == 0 => Err(e),
            _ => Ok(free),
        }
    }

    /// How many bytes must go for what a space lacks: of those that may be promised or, if they
    /// were, of memory itself, after all free memory of its pool has been given back. What is above
    /// a limit that was lowered must go, too. More than there can be if the limits forbid so much.
    fn missing(&self, space: SpaceId, lack: &Lack) -> Result<u64> {
        let device = DeviceId(space.id);
        let (space, pool) = match self.hosts.iter().find(|s| s.id() == space) {
            Some(host) => (host, None),
            None => (self.gpu(device)?, Some(self.pool(device)?)),
        };
        let (bytes, above, missing) = match *lack {
            Lack::Reservation(short) => return Ok(short.bytes),
            Lack::Promise { bytes, above, .. } => (bytes, above, space.missing_for(bytes, above)),
            // What was drawn needs no promise any more.
            Lack::Memory(bytes) => (bytes, 0, pool.map_or(Ok(bytes), |pool| pool.missing_for(bytes))?),
        };
        if bytes > space.limit().saturating_add(above).min(pool.map_or(u64::MAX, Pool::limit)) {
            return Ok(u64::MAX);
        }
        Ok(missing)
    }

    /// Moves items that may move automatically out of a space, until `bytes` more are free or
    /// nothing is left. Returns how many bytes.
    pub(super) fn make_room(&self, space: SpaceId, bytes: u64) -> Result<u64> {
        self.empty(space, bytes, None, false, &|| true)
    }

    /// Claims items that make up `bytes`, except for those of `but` and, with a lack, those that do
    /// not help against it.
    fn find(&self, space: SpaceId, bytes: u64, lack: Option<&Lack>, but: &BTreeSet<u64>) -> Found {
        let mut found = Found { claims: Vec::new(), bytes: 0, leaving: None, leaving_bytes: 0 };
        let mut after = (0, 0);
        // Whether what an item frees is known before it is claimed. If not, it must not look
        // meanwhile as if it left: others would wait for it.
        let known = space.tier == Tier::Gpu || lack.is_none();
        loop {
            let batch = self.register.oldest(space, after, BATCH);
            let Some(&(used, ref last)) = batch.last() else { return found };
            after = (used, last.base);
            for (_, item) in batch {
                let size = frees(space, &item, lack);
                if size == 0 || but.contains(&item.base) {
                    continue;
                }
                match item.try_claim(false, known) {
                    Outcome::Claimed(claim) if claim.place().space(item.device) == space => {
                        let size = would_free(&claim, lack);
                        if size == 0 {
                            continue;
                        }
                        if !known {
                            claim.leaves();
                        }
                        found.bytes += size;
                        found.claims.push(claim);
                        if found.bytes >= bytes {
                            return found;
                        }
                    }
                    Outcome::Busy(leaves) if leaves == Some(space) && !in_a_callback() => {
                        found.leaving_bytes = found.leaving_bytes.saturating_add(size);
                        found.leaving = Some(item);
                    }
                    Outcome::Claimed(_) | Outcome::Busy(_) | Outcome::Gone | Outcome::Held(_) => {}
                }
            }
        }
    }
}

/// How many bytes a claimed item that leaves its place frees there; with a lack, of those that are
/// lacking.
fn would_free(claim: &Claim, lack: Option<&Lack>) -> u64 {
    match (claim.place(), lack) {
        (Place::Host(memory), Some(lack)) => memory.helps(lack),
        (place, _) => frees(place.space(claim.item.device), &claim.item, lack),
    }
}

/// Like [`would_free`], before it is claimed: what it drew of pinned memory is not known yet.
fn frees(space: SpaceId, item: &Item, lack: Option<&Lack>) -> u64 {
    match (space.tier, lack) {
        (Tier::Gpu, Some(lack)) => item.helps(lack),
        (Tier::Gpu, None) => item.mapped,
        (Tier::Host | Tier::Disk, _) => item.bytes.max(1),
    }
}

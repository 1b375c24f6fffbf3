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

/// The most items to look at at a time.
const BATCH: usize = 64;

/// How often to look again for what others had claimed for a moment.
const LOOKS: u32 = 16;

/// How far the search for items in a space has come.
struct Search {
    /// The last use and address of the item looked at last. The search goes on behind it, and round
    /// to it again: what others had claimed may be idle by then.
    at: (u64, u64),
    /// Items that could not be moved, by address.
    passed: BTreeSet<u64>,
    /// The fewest bytes that no lower space had room for. There is none for more.
    refused: u64,
}

/// Items found to move out of a space.
#[derive(Default)]
struct Found {
    claims: Vec<Claim>,
    bytes: u64,
    /// One of the items another thread is moving out just now. `leaving_bytes` are the bytes of
    /// all.
    leaving: Option<Arc<Item>>,
    leaving_bytes: u64,
    /// The same for items that others have claimed without saying that they leave: most of these
    /// stay, and are idle again in a moment.
    busy: Option<Arc<Item>>,
    busy_bytes: u64,
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
        let (mut free, mut error, mut looks) = (0u64, None, LOOKS);
        let mut search = Search { at: (0, 0), passed: BTreeSet::new(), refused: u64::MAX };
        while free < bytes && go_on() {
            let found = self.find(space, bytes - free, lack, &mut search);
            if all_or_none && found.bytes < bytes - free {
                drop(found.claims);
                let going = found.bytes.saturating_add(found.leaving_bytes);
                if going >= bytes - free {
                    if let Some(item) = found.leaving {
                        item.wait_to_leave(space);
                    }
                    return Ok(free.max(1));
                }
                match found.busy {
                    Some(item) if looks > 0 && going.saturating_add(found.busy_bytes) >= bytes - free => {
                        (looks, search.at) = (looks - 1, (0, 0));
                        item.wait_a_moment();
                        continue;
                    }
                    // All of it would not be enough, so it stays.
                    _ => break,
                }
            }
            if found.claims.is_empty() {
                break;
            }
            let tried: Vec<_> = found.claims.iter().map(|c| (c.item.clone(), would_free(c, lack))).collect();
            let (went, refused, outcome) = self.shift_by_itself(found.claims, &goal, &mut |_, _| go_on());
            for (item, size) in tried {
                // One that has ended on the way has left its place as well.
                match went.contains_key(&item.base) || item.has_ended() {
                    true => free += size,
                    false => drop(search.passed.insert(item.base)),
                }
            }
            search.refused = search.refused.min(refused);
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

    /// Claims items that make up `bytes`, except for those passed, those too large for any lower
    /// space and, with a lack, those that do not help against it. Looks at each item once at most.
    fn find(&self, space: SpaceId, bytes: u64, lack: Option<&Lack>, search: &mut Search) -> Found {
        let mut found = Found::default();
        // The second half of the round begins with the oldest.
        let (start, mut most) = (search.at, 1);
        let mut is_second = start == (0, 0);
        // Whether what an item frees is known before it is claimed. If not, it must not look
        // meanwhile as if it left: others would wait for it.
        let known = space.tier == Tier::Gpu || lack.is_none();
        loop {
            let batch = self.register.oldest(space, search.at, most);
            if batch.is_empty() {
                if is_second {
                    return found;
                }
                (search.at, is_second) = ((0, 0), true);
            }
            most = BATCH.min(2 * most);
            for (used, item) in batch {
                #[cfg(all(test, not(loom)))]
                tests::look();
                if is_second && (0, 0) < start && start < (used, item.base) {
                    return found;
                }
                search.at = (used, item.base);
                let size = frees(space, &item, lack);
                if size == 0 || item.bytes >= search.refused || search.passed.contains(&item.base) {
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
                    Outcome::Busy(_) if in_a_callback() => {}
                    Outcome::Busy(leaves) if leaves == Some(space) => {
                        found.leaving_bytes = found.leaving_bytes.saturating_add(size);
                        found.leaving = Some(item);
                    }
                    Outcome::Busy(None) => {
                        found.busy_bytes = found.busy_bytes.saturating_add(size);
                        found.busy = Some(item);
                    }
                    // No later search has to pass it.
                    Outcome::Held(_) => self.register.set_aside(&item),
                    Outcome::Claimed(_) | Outcome::Busy(_) | Outcome::Gone => {}
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

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::base::size::MIB;
    use crate::base::{DeviceId, StreamHandle};
    use crate::driver::disk::OsDisk;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::pool::{AllocFlags, AllocRequest, Pool, PoolOptions};
    use crate::tier::disk::StoreOptions;
    use crate::tier::evict::{Evictor, MoverOptions, Parts};
    use crate::tier::host::{HostNode, HostOptions as Pinned, HostTier};
    use crate::tier::{Disks, Manager, SpaceId, SpaceOptions, Thresholds, Tier};
    use std::cell::Cell;
    use std::sync::{Arc, OnceLock};

    const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
    const ITEMS: u64 = 200;

    thread_local! {
        /// How many items this thread has looked at.
        static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn look() {
        LOOKS.set(LOOKS.get() + 1);
    }

    fn looks<T>(work: impl FnOnce() -> T) -> (u64, T) {
        LOOKS.set(0);
        let done = work();
        (LOOKS.get(), done)
    }

    /// Items that may move automatically, each smaller than the one before, over pinned memory of
    /// so many bytes.
    fn rig(pinned: u64) -> (Evictor, Vec<u64>) {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let manager = Arc::new(Manager::new());
        let gpu = vec![manager.add_space(GPU, &SpaceOptions::new(1024 * MIB)).unwrap()];
        let nodes = vec![HostNode { id: 0, capacity: pinned, limit: pinned }];
        let pinned = Pinned { block_bytes: MIB, blocks: 4, chunks: 1, nodes, ..Pinned::default() };
        let tier = Arc::new(HostTier::new(host.clone(), manager.clone(), &pinned).unwrap());
        let disk = Arc::new(OsDisk::default());
        let disks = Disks::new_on(disk, manager.clone(), StoreOptions::default(), Thresholds::default());
        let pool = Pool::new(host.clone(), DeviceId(0), PoolOptions::default()).unwrap();
        let pools: Arc<[OnceLock<Pool>]> = Arc::new([OnceLock::from(pool)]);
        let parts = Parts {
            driver: host,
            manager,
            pools: pools.clone(),
            gpu,
            host: tier,
            disks: Arc::new(disks),
            spare: Box::new(|| false),
            unasked: Box::new(|_| {}),
        };
        let evictor = Evictor::new(parts, MoverOptions { enabled: false, warn: false });
        let all = (0..ITEMS).map(|i| {
            let req = AllocRequest { size: MIB - i, flags: AllocFlags::EVICTABLE, ..AllocRequest::default() };
            let p = evictor.malloc(pools[0].get().unwrap(), &req, None).unwrap();
            evictor.hold(p).unwrap();
            evictor.unhold(p, StreamHandle::LEGACY).unwrap();
            p
        });
        let all = all.collect();
        (evictor, all)
    }

    /// Those that are held are looked at once, until their unholds.
    #[test]
    fn what_is_held_is_not_searched() {
        let (evictor, all) = rig(1024 * MIB);
        for _ in 0..2 {
            all.iter().for_each(|&p| evictor.hold(p).unwrap());
            let held = [(); 3].map(|()| looks(|| evictor.make_room(GPU, 1).unwrap()));
            assert_eq!(held, [(ITEMS, 0), (0, 0), (0, 0)]);
            evictor.validate().unwrap();
            all.iter().for_each(|&p| evictor.unhold(p, StreamHandle::LEGACY).unwrap());
            evictor.validate().unwrap();
            assert!(evictor.make_room(GPU, u64::MAX).unwrap() >= ITEMS * MIB);
        }
    }

    /// None of the items has a place to go to: each is looked at when it is tried, and once more
    /// before giving up.
    #[test]
    fn the_search_goes_on_where_it_was() {
        let (evictor, _) = rig(0);
        let (looks, moved) = looks(|| evictor.make_room(GPU, 1));
        assert!(moved.is_err());
        assert!(looks <= 3 * ITEMS, "{looks}");
    }
}

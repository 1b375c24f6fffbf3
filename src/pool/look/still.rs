//! A pool held still, and checks of every invariant written above the pool's structures.
//!
//! Other threads wait meanwhile. For tests and debugging.

use crate::base::{Error, Result};
use crate::pool::heap::{Heap, Locked};
use crate::pool::state::{Core, Key, Pool, StreamHeaps};
use crate::pool::types::{Rank, RankHeld, RankedGuard, Scope};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

/// Scopes by their own addresses, each with the requested bytes found in it.
pub type Sums = BTreeMap<usize, (Arc<Scope>, u64)>;

/// Adds bytes found in a scope.
pub fn add_to(sums: &mut Sums, scope: &Arc<Scope>, bytes: u64) {
    sums.entry(Arc::as_ptr(scope) as usize).or_insert_with(|| (scope.clone(), 0)).1 += bytes;
}

/// Keeps everything in a pool as it is until dropped: every lock that the invariants span, taken in
/// the order that `pool/mod.rs` gives. A thread that has one calls nothing else of the pool's.
pub struct Still<'a> {
    pool: &'a Pool,
    _changing: (RwLockWriteGuard<'a, ()>, RankHeld),
    /// Keeps heaps from being added.
    _streams: RankedGuard<'a, HashMap<Key, StreamHeaps>>,
    shells: RankedGuard<'a, Vec<u32>>,
    heaps: Vec<Locked<'a>>,
    core: RankedGuard<'a, Core>,
}

impl Pool {
    /// Waits until no call is half-way through a change, and makes later calls wait.
    pub fn hold_still(&self) -> Still<'_> {
        // A thread that holds several heaps' locks got all but the first by trying, so no thread
        // that this one waits for waits for this one. The same is true of holding several pools
        // still, one after the other: no other thread has locks of two.
        Still {
            pool: self,
            _changing: (self.changing.write().unwrap_or_else(PoisonError::into_inner), Rank::Changing.taken()),
            _streams: self.streams.lock_among_others(),
            shells: self.privates.shells.lock_among_others(),
            heaps: self.all_heaps().map(Heap::lock_among_others).collect(),
            core: self.core.lock_among_others(),
        }
    }

    /// [`Still::counted`], for tests.
    pub fn counted(&self) -> Result<u64> {
        self.hold_still().counted()
    }

    /// Checks the pool's invariants, as they are at one moment.
    pub fn validate(&self) -> Result<()> {
        self.hold_still().validate()
    }
}

impl Still<'_> {
    fn wrong(&self, text: String) -> Error {
        Error::internal(format!("device {}: {text}", self.pool.dev))
    }

    /// Adds up the bytes of each scope in this pool, and checks that scopes list exactly the
    /// dedicated allocations that are in them.
    pub fn add_scopes(&self, sums: &mut Sums) -> Result<()> {
        for st in &self.heaps {
            for (_, place) in st.members.iter() {
                if let Some(scope) = st.scope_at(place) {
                    add_to(sums, &scope, st.at(place).requested);
                }
            }
        }
        let number = self.pool.number;
        let mut listed = 0;
        for (&addr, d) in &self.core.dedicated {
            let Some(scope) = &d.scope else { continue };
            add_to(sums, scope, d.info.requested);
            listed += 1;
            if !scope.dedicated(number).contains(&(addr, d.info.id)) {
                return Err(self.wrong(format!("a scope does not list {addr:#x}")));
            }
        }
        let all: usize = sums.values().map(|s| s.0.dedicated(number).len()).sum();
        match all == listed {
            true => Ok(()),
            false => Err(self.wrong(format!("scopes list {all} dedicated allocations, {listed} are in one"))),
        }
    }

    /// The bytes of all receipts. Checks that exactly the live allocations that count have one.
    pub fn counted(&self) -> Result<u64> {
        let mut sum = 0;
        for st in &self.heaps {
            sum += st.counted().map_err(|e| self.wrong(format!("heap {}: {e}", st.number)))?;
        }
        let counting = self.pool.counter.get().is_some();
        for (addr, d) in &self.core.dedicated {
            let counted = d.receipt.as_ref().map(|r| r.bytes());
            if counted != (counting && d.counts).then_some(d.mapped) {
                return Err(self.wrong(format!("{addr:#x} of {} bytes counts as {counted:?}", d.mapped)));
            }
            sum += counted.unwrap_or(0);
        }
        Ok(sum)
    }

    /// Checks the invariants.
    pub fn validate(&self) -> Result<()> {
        self.pool.order.validate().map_err(|e| self.wrong(e))?;
        self.private().map_err(|e| self.wrong(e))?;
        self.memory().map_err(|e| self.wrong(e))
    }

    /// Checks that shells belong to no arena.
    fn private(&self) -> std::result::Result<(), String> {
        let mut shells = self.shells.clone();
        shells.sort_unstable();
        if let Some(w) = shells.windows(2).find(|w| w.first() == w.last()) {
            return Err(format!("heap {} is a shell twice", w.first().copied().unwrap_or(0)));
        }
        for st in &self.heaps {
            let shell = shells.contains(&st.number);
            ensure!(!shell || (st.private.is_none() && st.kept.1 == 0), "heap {} is a shell and an arena's", st.number);
        }
        Ok(())
    }

    /// Every part's own invariants, and the two equations of the whole.
    fn memory(&self) -> std::result::Result<(), String> {
        // (start, length, what) of everything that has addresses.
        let mut pieces: Vec<(u64, u64, &str)> = Vec::new();
        let mut mapped = 0;
        let mut present = Vec::new();
        for st in &self.heaps {
            st.validate(&self.pool.index).map_err(|e| format!("heap {}: {e}", st.number))?;
            mapped += st.extents.bytes();
            pieces.extend(st.extents.iter().map(|(a, e)| (a, e.size, "extent")));
            present.extend(st.extents.iter());
            let (start, end) = st.kept;
            pieces.extend((start < end).then_some((start, end - start, "kept addresses")));
        }
        let (core, counters) = (&*self.core, &self.pool.counters);
        if let Some((a, _)) = present.iter().find(|&&(a, e)| core.aliases.address(e) != Some(a)) {
            return Err(format!("the extent at {a:#x} is elsewhere by the table of aliases"));
        }
        let placed = core.stock.iter().any(|(e, _)| core.aliases.address(e).is_some());
        ensure!(!placed, "an extent in stock has an address");
        pieces.extend(core.holes.iter().map(|(a, l)| (a, l, "hole")));
        pieces.extend(core.aliases.iter().map(|(a, l, _)| (a, l, "alias")));
        pieces.extend(core.zombies.iter().map(|&(a, l)| (a, l, "zombie")));
        pieces.extend(core.dedicated.values().map(|d| (d.va, d.reserved, "dedicated")));
        pieces.extend(core.graves.values().map(|g| (g.va, g.reserved, "grave")));
        mapped += core.dedicated.values().filter(|d| d.handle.is_some()).map(|d| d.mapped).sum::<u64>();
        mapped += core.stock.bytes();
        mapped += core.graves.values().map(|g| g.mapped).sum::<u64>();
        let recorded = counters.mapped.load(Relaxed);
        ensure!(mapped == recorded, "{recorded} mapped recorded, {mapped} found");
        core.stock.validate()?;
        core.aliases.validate()?;
        pieces.sort_unstable();
        let mut pieces = pieces.into_iter();
        for (base, len) in core.holes.roots() {
            let mut at = base;
            while at < base + len {
                match pieces.next() {
                    Some((a, l, _)) if a == at => at += l,
                    Some((a, l, what)) => {
                        return Err(format!("{what} {a:#x}+{l:#x} found where {at:#x} should be"));
                    }
                    None => return Err(format!("nothing accounts for the addresses from {at:#x}")),
                }
            }
        }
        match pieces.next() {
            Some((a, _, what)) => Err(format!("{what} {a:#x} lies in no reservation")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::DeviceId;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::pool::{AllocRequest, PoolOptions};

    /// The error for a pool with one live block after `change`.
    fn said(change: impl Fn(&Pool, &Scope)) -> String {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host, DeviceId(0), PoolOptions::default()).unwrap();
        let scope = Scope::new(1, None);
        pool.malloc_search(&AllocRequest { size: 3 << 20, scope: Some(&scope), ..AllocRequest::default() }).unwrap();
        let check = || {
            let mut sums = Sums::new();
            add_to(&mut sums, &scope, 0);
            let still = pool.hold_still();
            still.validate().and_then(|()| still.add_scopes(&mut sums))?;
            Ok(sums.values().map(|s| s.1).sum::<u64>())
        };
        assert_eq!(check().unwrap(), 3 << 20);
        change(&pool, &scope);
        check().map_err(|e: Error| e.message).unwrap_err()
    }

    #[test]
    fn each_check_can_fail() {
        let first = |pool: &Pool| pool.all_heaps().next().map_or(0, |h| h.number);
        let text = said(|pool, _| {
            pool.all_heaps().for_each(|h| drop(h.lock_quick().users.insert(4096, vec![1])));
        });
        assert!(text.contains("0x1000 was recorded on streams and is not live"), "{text}");
        let text = said(|pool, _| pool.privates.shells.lock().extend([first(pool); 2]));
        assert!(text.contains("is a shell twice"), "{text}");
        let text = said(|pool, _| pool.all_heaps().for_each(|h| h.lock_quick().kept = (4096, 8192)));
        assert!(text.contains("kept addresses 0x1000+0x1000 found where"), "{text}");
        let text = said(|pool, scope| {
            scope.add_dedicated(pool.number, 4096, 1, 8);
        });
        assert!(text.contains("scopes list 1 dedicated allocations, 0 are in one"), "{text}");
    }
}

//! Checks every invariant written above the pool's structures. For tests and debugging: it takes every lock.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::free::Found;
use super::scope::Scope;
use super::{lock, Held, Pool};
use crate::base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Scopes, by their own addresses, and bytes asked for of what was found in each.
pub type Sums = BTreeMap<usize, (Arc<Scope>, u64)>;

/// Adds to what was found in a scope.
pub fn add_to(sums: &mut Sums, scope: &Arc<Scope>, bytes: u64) {
    sums.entry(Arc::as_ptr(scope) as usize).or_insert_with(|| (scope.clone(), 0)).1 += bytes;
}

impl Pool {
    /// Adds up what of each scope is in this pool, and checks that scopes list just the dedicated allocations that are in
    /// them.
    pub fn add_scopes(&self, sums: &mut Sums) -> Result<()> {
        for heap in self.all_heaps() {
            let st = heap.lock_quick();
            for (_, place) in st.members.iter() {
                if let Some(scope) = st.scope_at(place) {
                    add_to(sums, &scope, st.requested_at(place));
                }
            }
        }
        let core = lock(&*self.core);
        let mut listed = 0;
        for (&addr, d) in &core.dedicated {
            let Some(scope) = &d.scope else { continue };
            add_to(sums, scope, d.info.requested);
            listed += 1;
            if !scope.parts(self.number).dedicated.contains(&(addr, d.info.id)) {
                return Err(Error::internal(format!("device {}: a scope does not list {addr:#x}", self.dev)));
            }
        }
        let all: usize = sums.values().map(|s| s.0.parts(self.number).dedicated.len()).sum();
        match all == listed {
            true => Ok(()),
            false => Err(Error::internal(format!(
                "device {}: scopes list {all} dedicated allocations, {listed} are in one",
                self.dev
            ))),
        }
    }

    /// Whether this is an allocation that counts as freed and is not handed out.
    pub fn keeps(&self, base: u64, id: u64) -> bool {
        match self.look(base) {
            Ok(Found::Pooled { st, place, .. }) => st.id_at(place) == id && st.is_reclaimed(place),
            _ => false,
        }
    }

    /// Whether these addresses are kept.
    pub fn holds(&self, held: Held) -> bool {
        let core = lock(&*self.core);
        core.graves.values().any(|g| g.held && held == Held { va: g.va, bytes: g.reserved })
    }

    /// Heaps that released arenas left are nobody's; addresses kept for a private one are there.
    fn validate_private(&self) -> std::result::Result<(), String> {
        let mut shells = lock(&self.privates.shells).clone();
        shells.sort_unstable();
        if let Some(w) = shells.windows(2).find(|w| w.first() == w.last()) {
            return Err(format!("heap {} is a shell twice", w.first().copied().unwrap_or(0)));
        }
        for heap in self.all_heaps() {
            let (private, (start, end)) = {
                let st = heap.lock_quick();
                (st.private.is_some(), st.room)
            };
            if shells.contains(&heap.number) && (private || end > 0) {
                return Err(format!("heap {} is a shell and an arena's", heap.number));
            }
            let kept = || lock(&*self.core).holes.iter().any(|(a, l)| a == start && a + l == end);
            if start < end && !kept() {
                return Err(format!("addresses from {start:#x} are not kept for heap {}", heap.number));
            }
        }
        Ok(())
    }

    /// Checks the pool's invariants; meant for moments when no other thread is in it.
    pub fn validate(&self) -> Result<()> {
        let wrong = |text: String| Error::internal(format!("device {}: {text}", self.dev));
        self.order.validate()?;
        self.validate_private().map_err(wrong)?;
        self.order.validate_events()?;
        // (start, length, what) of everything that has addresses.
        let mut pieces: Vec<(u64, u64, &str)> = Vec::new();
        let mut mapped = 0;
        let mut present = Vec::new();
        for heap in self.all_heaps() {
            let st = heap.lock_quick();
            st.validate(&self.index).map_err(|e| wrong(format!("heap {}: {e}", heap.number)))?;
            mapped += st.extents.bytes();
            pieces.extend(st.extents.iter().map(|(a, e)| (a, e.size, "extent")));
            present.extend(st.extents.iter());
            if heap.live.load(Relaxed) != st.live_bytes {
                return Err(wrong(format!("heap {}: its published live bytes are stale", heap.number)));
            }
        }
        let core = lock(&*self.core);
        if let Some((a, _)) = present.iter().find(|&&(a, e)| core.aliases.address(e) != Some(a)) {
            return Err(wrong(format!("the extent at {a:#x} is elsewhere by the table of aliases")));
        }
        if core.stock.iter().any(|(e, _)| core.aliases.address(e).is_some()) {
            return Err(wrong("an extent in stock has an address".into()));
        }
        pieces.extend(core.holes.iter().map(|(a, l)| (a, l, "hole")));
        pieces.extend(core.aliases.iter().map(|(a, l, _)| (a, l, "alias")));
        pieces.extend(core.zombies.iter().map(|z| (z.addr, z.size, "zombie")));
        pieces.extend(core.dedicated.values().map(|d| (d.va, d.reserved, "dedicated")));
        pieces.extend(core.graves.values().map(|g| (g.va, g.reserved, "grave")));
        mapped += core.dedicated.values().filter(|d| d.handle.is_some()).map(|d| d.mapped).sum::<u64>();
        mapped += core.stock.bytes();
        mapped += core.graves.values().map(|g| g.mapped).sum::<u64>();
        if mapped != self.counters.mapped.load(Relaxed) {
            return Err(wrong(format!("{} mapped recorded, {mapped} found", self.counters.mapped.load(Relaxed))));
        }
        core.stock.validate().map_err(wrong)?;
        core.aliases.validate().map_err(wrong)?;
        let zombies: u64 = core.zombies.iter().map(|z| z.size).sum();
        if zombies != self.counters.zombie_bytes.load(Relaxed) {
            return Err(wrong("the count of zombie bytes is wrong".into()));
        }
        pieces.sort_unstable();
        let mut pieces = pieces.into_iter();
        for (base, len) in core.holes.roots() {
            let mut at = base;
            while at < base + len {
                match pieces.next() {
                    Some((a, l, _)) if a == at => at += l,
                    Some((a, l, what)) => {
                        return Err(wrong(format!("{what} {a:#x}+{l:#x} found where {at:#x} should be")));
                    }
                    None => return Err(wrong(format!("nothing accounts for the addresses from {at:#x}"))),
                }
            }
        }
        match pieces.next() {
            Some((a, _, what)) => Err(wrong(format!("{what} {a:#x} lies in no reservation"))),
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

    /// What it says of a pool with one live block, in which something was changed.
    fn said(change: impl Fn(&Pool, &Scope)) -> String {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host, DeviceId(0), PoolOptions::default()).unwrap();
        let scope = Scope::new(None);
        pool.malloc_search(&AllocRequest { size: 3 << 20, scope: Some(&scope), ..AllocRequest::default() }).unwrap();
        let check = || {
            let mut sums = Sums::new();
            add_to(&mut sums, &scope, 0);
            pool.validate().and_then(|()| pool.add_scopes(&mut sums))?;
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
        let text = said(|pool, _| lock(&pool.privates.shells).extend([first(pool); 2]));
        assert!(text.contains("is a shell twice"), "{text}");
        let text = said(|pool, _| pool.all_heaps().for_each(|h| h.lock_quick().room = (4096, 8192)));
        assert!(text.contains("addresses from 0x1000 are not kept"), "{text}");
        let text = said(|pool, scope| {
            scope.add_dedicated(pool.number, 4096, 1, 8);
        });
        assert!(text.contains("scopes list 1 dedicated allocations, 0 are in one"), "{text}");
    }
}

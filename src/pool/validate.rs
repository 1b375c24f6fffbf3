//! Checks every invariant written above the pool's structures. For tests and debugging: it takes every lock.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::{lock, Pool};
use crate::base::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// Checks the pool's invariants; meant for moments when no other thread is in it.
    pub fn validate(&self) -> Result<()> {
        let wrong = |text: String| Error::internal(format!("device {}: {text}", self.dev));
        self.order.validate()?;
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
        mapped += core.dedicated.values().map(|d| d.mapped).sum::<u64>();
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

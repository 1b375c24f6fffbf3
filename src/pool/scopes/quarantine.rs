//! Keeps freed memory from being handed out again, to see whether it is used once more, for the
//! detector in [`crate::arena`].
//!
//! Pooled memory is kept in a scope of reclaimed allocations; here it is filled and read back.
//! Dedicated memory is unmapped, and only its addresses are kept. Calls that wait for the device
//! hold no lock meanwhile.

use crate::base::{Result, StreamHandle};
use crate::pool::order::CONTEXT;
use crate::pool::state::Pool;
use crate::pool::types::{AllocInfo, Scope};

/// Bytes read back at a time.
const CHUNK: u64 = 4 << 20;

/// Addresses of a freed dedicated allocation, kept until [`Pool::let_go`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldAddresses {
    pub(crate) va: u64,
    /// How many addresses, bytes.
    pub bytes: u64,
}

impl Pool {
    /// Whether this is an allocation that counts as freed and is kept from being handed out.
    pub fn keeps(&self, base: u64, id: u64) -> bool {
        self.live_at(base, Some(id)).is_some_and(|(st, place)| st.is_reclaimed(place))
    }

    /// Whether these addresses are kept.
    pub fn holds(&self, held: HeldAddresses) -> bool {
        let core = self.core.lock();
        core.graves.values().any(|g| g.held && held == HeldAddresses { va: g.va, bytes: g.reserved })
    }

    /// Waits until the device has done everything submitted to it so far. Returns `false`, without
    /// waiting, if a stream that the pool has met is being captured.
    pub fn wait_for_device(&self) -> Result<bool> {
        let covered = self.order.cover(None, |_| true)?;
        if covered {
            self.order.sync()?;
        }
        Ok(covered)
    }

    /// Forgets the streams a reclaimed allocation was recorded on, so that they need not stay
    /// alive. Unless the device has passed it, a context marker stands for theirs.
    pub fn forget_streams(&self, base: u64, id: u64, passed: bool) {
        if let Some((mut st, _)) = self.live_at(base, Some(id)) {
            if !st.take_users(base).is_empty() && !passed {
                st.users.insert(base, vec![CONTEXT]);
            }
        }
    }

    /// Makes later waits for the device cover a reclaimed allocation's uses on other devices, too.
    pub fn near_streams(&self, base: u64, id: u64) {
        if let Some((mut st, _)) = self.live_at(base, Some(id)) {
            let mut users = st.take_users(base);
            self.bring_near(base, &mut users);
            if !users.is_empty() {
                st.users.insert(base, users);
            }
        }
    }

    /// Fills memory, given as starts and lengths, that the device no longer uses, and waits until
    /// that is done.
    pub fn fill_ranges(&self, ranges: &[(u64, u64)], byte: u8) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let relay = self.relay()?;
        for &(base, bytes) in ranges.iter().filter(|r| r.1 > 0) {
            self.driver.set_async(self.dev, base, byte, bytes, relay)?;
        }
        // What other threads have it do meanwhile is waited for as well.
        self.driver.stream_sync(self.dev, relay)
    }

    /// Offsets from `base` of the first and the last byte that is not `byte`; `None` if all are.
    pub fn differs(&self, base: u64, bytes: u64, byte: u8) -> Result<Option<(u64, u64)>> {
        let relay = self.relay()?;
        let mut found = None;
        let mut at = 0;
        let mut buffer = vec![byte; bytes.min(CHUNK) as usize];
        while at < bytes {
            let n = (bytes - at).min(CHUNK);
            // The data is there when this returns, because the buffer is not page-locked.
            self.driver.copy_async(self.dev, buffer.as_mut_ptr() as u64, base + at, n, relay)?;
            let read = buffer.get(..n as usize).unwrap_or_default();
            if let Some(last) = read.iter().rposition(|&b| b != byte) {
                let first = read.iter().position(|&b| b != byte).unwrap_or(last);
                let start = found.map_or(at + first as u64, |f: (u64, u64)| f.0);
                found = Some((start, at + last as u64));
            }
            at += n;
        }
        Ok(found)
    }

    /// Frees the dedicated allocations of a closed scope, but keeps their addresses until
    /// [`Self::let_go`]. After a wait for the device, the next [`Self::release_graves`] releases
    /// their memory. Leaves out what others free meanwhile.
    pub fn hold_scope(&self, scope: &Scope) -> Vec<(AllocInfo, HeldAddresses)> {
        let mut all = Vec::new();
        for (addr, id) in scope.dedicated(self.number) {
            if let Some(d) = self.entomb(addr, None, Some(id), Some(scope)) {
                self.mark_users(&d.users);
                all.push((d.info, HeldAddresses { va: d.va, bytes: d.reserved }));
            }
        }
        all
    }

    /// Turns what [`Self::hold_scope`] took into ordinary freed allocations. Markers and unmapping
    /// that fail now are made up for later.
    pub fn free_held(&self, all: &[(AllocInfo, HeldAddresses)]) {
        let of_legacy = |d: &(AllocInfo, HeldAddresses)| d.0.stream == StreamHandle::LEGACY;
        if all.iter().any(of_legacy) {
            let _ = self.mark_stream(StreamHandle::LEGACY);
        }
        if !all.iter().all(of_legacy) {
            let _ = self.order.mark_context(None);
        }
        all.iter().for_each(|d| self.let_go(d.1));
        if !all.is_empty() {
            let _ = self.release_graves();
        }
    }

    /// Lets addresses that were held be handed out again, once nothing is mapped there.
    pub fn let_go(&self, held: HeldAddresses) {
        let mut core = self.core.lock();
        let Some(grave) = core.graves.get_mut(&held.va).filter(|g| g.held) else { return };
        grave.held = false;
        if grave.mapped == 0 {
            core.close_grave(held.va);
        }
    }
}

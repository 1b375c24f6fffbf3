//! Pinned memory, as callers see it: by plain address or in pieces, on a given node or the nearest
//! one.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::pinned::unknown;
use super::Context;
use crate::base::{Error, Result};
use crate::driver::Driver;
use crate::tier::host::HostStats;
use crate::tier::{HostMemory, Reservation, Tier};

impl Context {
    /// Allocates pinned memory in one piece. Its alignment is its size rounded up to a power of
    /// two, but at least 256 bytes and at most 4 KiB. Without a node it is on the one nearest to
    /// the current device. It draws from the reservation attached to the thread. Free it with
    /// [`Context::host_free`].
    pub fn host_malloc(&self, node: Option<u32>, bytes: u64) -> Result<u64> {
        let tiers = self.tiers()?;
        let made = tiers.host().contiguous(self.host_node(node)?, bytes, None);
        tiers.evictor().nudge();
        tiers.pinned.keep(made?)
    }

    /// Frees memory from [`Context::host_malloc`]. Copies to and from it must have ended.
    pub fn host_free(&self, addr: u64) -> Result<()> {
        match self.tiers.get() {
            Some(tiers) => tiers.pinned.take(addr).map(drop),
            None => Err(unknown(addr, "was not handed out; nobody has asked for any")),
        }
    }

    /// Allocates pinned memory in pieces; without a node, on the reservation's node.
    pub fn host_blocks(&self, node: Option<u32>, bytes: u64, from: Option<&Reservation>) -> Result<HostMemory> {
        let theirs = from.map(Reservation::space).filter(|s| s.tier == Tier::Host).map(|s| s.id);
        let tiers = self.tiers()?;
        let made = tiers.host().allocate(self.host_node(node.or(theirs))?, bytes, from);
        tiers.evictor().nudge();
        made.inspect(|memory| tiers.pinned.hand_out(memory))
    }

    /// Pins memory of a node until `bytes` of whole blocks are free.
    pub fn host_prepare(&self, node: Option<u32>, bytes: u64) -> Result<()> {
        self.tiers()?.host().prepare(self.host_node(node)?, bytes)
    }

    /// Unpins a node's unused memory, keeping `keep` bytes of blocks free. Returns how many bytes
    /// it unpinned.
    pub fn host_trim(&self, node: Option<u32>, keep: u64) -> Result<u64> {
        self.tiers()?.host().trim(self.host_node(node)?, keep)
    }

    /// A node's number and its counters.
    pub fn host_stats(&self, node: Option<u32>) -> Result<(u32, HostStats)> {
        let node = self.host_node(node)?;
        Ok((node, self.tiers()?.host().stats(node)?))
    }

    /// The given node, else that of the current device, else the first.
    fn host_node(&self, node: Option<u32>) -> Result<u32> {
        if let Some(node) = node {
            return Ok(node);
        }
        let tiers = self.tiers()?;
        let nodes = tiers.host().nodes();
        let near = tiers.gpu(self.driver.current_device()?)?.numa().filter(|n| nodes.contains(n));
        near.or(nodes.first().copied()).ok_or_else(|| Error::internal("a host without a NUMA node"))
    }
}

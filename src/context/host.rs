//! Pinned memory, as callers see it: by plain address or in pieces, of a node or the nearest one.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::pinned::unknown;
use super::Context;
use crate::base::{Error, Result};
use crate::driver::Driver;
use crate::tier::host::HostStats;
use crate::tier::{HostMemory, Reservation, Tier};

impl Context {
    /// Pinned memory in one piece: at a multiple of 4 KiB, or of its size rounded up to a power of
    /// two if that is less, but of 256 at least. Of the node nearest to the current device when
    /// none is named. Drawn from what is attached to the thread. To be given to
    /// [`Context::host_free`].
    pub fn host_malloc(&self, node: Option<u32>, bytes: u64) -> Result<u64> {
        let tiers = self.tiers()?;
        tiers.pinned.keep(tiers.host().contiguous(self.host_node(node)?, bytes, None)?)
    }

    /// Gives memory of [`Context::host_malloc`] back. Copies to and from it must have ended.
    pub fn host_free(&self, addr: u64) -> Result<()> {
        match self.tiers.get() {
            Some(tiers) => tiers.pinned.take(addr).map(drop),
            None => Err(unknown(addr, "was not handed out; nobody has asked for any")),
        }
    }

    /// Pinned memory in pieces; without a node, of the reservation's node.
    pub fn host_blocks(&self, node: Option<u32>, bytes: u64, from: Option<&Reservation>) -> Result<HostMemory> {
        let theirs = from.map(Reservation::space).filter(|s| s.tier == Tier::Host).map(|s| s.id);
        self.tiers()?.host().allocate(self.host_node(node.or(theirs))?, bytes, from)
    }

    /// Pins memory of a node until `bytes` of whole blocks are free.
    pub fn host_prepare(&self, node: Option<u32>, bytes: u64) -> Result<()> {
        self.tiers()?.host().prepare(self.host_node(node)?, bytes)
    }

    /// Unpins what a node can do without when `keep` bytes of blocks stay free; returns how many
    /// bytes.
    pub fn host_trim(&self, node: Option<u32>, keep: u64) -> Result<u64> {
        self.tiers()?.host().trim(self.host_node(node)?, keep)
    }

    /// A node's number and its counters.
    pub fn host_stats(&self, node: Option<u32>) -> Result<(u32, HostStats)> {
        let node = self.host_node(node)?;
        Ok((node, self.tiers()?.host().stats(node)?))
    }

    /// The node that is meant: the one named, else that of the current device, else the first.
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

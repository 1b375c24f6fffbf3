//! What the host tier is made with, and what it says about itself.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::size::{human, MIB};
use crate::base::{Error, Result};
use crate::driver::numa;
use crate::tier::Thresholds;

/// One NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// The system's number for it.
    pub id: u32,
    /// Its memory, bytes.
    pub capacity: u64,
    /// The most to pin, bytes; no more than the capacity counts.
    pub limit: u64,
}

/// How the host tier works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Bytes of a block, a power of two from 4 KiB to 1 GiB.
    pub block_bytes: u64,
    /// Blocks of a chunk.
    pub blocks: u32,
    /// Chunks that are pinned at first use: one for the first caller, the others ahead of need.
    pub chunks: u32,
    /// The nodes, each a space.
    pub nodes: Vec<HostNode>,
    /// When data should be moved out of a node.
    pub thresholds: Thresholds,
}

impl Default for HostOptions {
    /// The nodes of this machine, half the memory of each.
    fn default() -> HostOptions {
        let node = |n: &numa::NumaNode| HostNode { id: n.id, capacity: n.bytes, limit: n.bytes / 2 };
        HostOptions {
            block_bytes: MIB,
            blocks: 128,
            chunks: 4,
            nodes: numa::nodes().iter().map(node).collect(),
            thresholds: Thresholds::default(),
        }
    }
}

impl HostOptions {
    pub(super) fn check(&self) -> Result<()> {
        let (block, most) = (self.block_bytes, 1 << 30);
        if !block.is_power_of_two() || !(4096..=most).contains(&block) {
            return Err(Error::invalid(format!(
                "pinned blocks have {block} B; use a power of two from 4 KiB to 1 GiB"
            )));
        }
        if self.blocks == 0 || self.blocks > 1 << 20 {
            return Err(Error::invalid(format!("{} pinned blocks at a time; use 1 to 1048576", self.blocks)));
        }
        if self.nodes.is_empty() {
            return Err(Error::invalid("the host has no NUMA node; give at least one"));
        }
        Ok(())
    }
}

/// The counters of a node at one moment: bytes, unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Bytes pinned.
    pub pinned: u64,
    /// The most bytes that were pinned.
    pub peak: u64,
    /// Bytes of whole blocks that are given out.
    pub blocks: u64,
    /// Bytes of shared blocks.
    pub shared: u64,
    /// Bytes of parts that are given out.
    pub parts: u64,
    /// Bytes of whole free blocks.
    pub free: u64,
    /// Bytes of the longest free run.
    pub longest: u64,
    /// How many chunks there are.
    pub chunks: u64,
    /// How often memory was pinned.
    pub pins: u64,
    /// How often pinning was refused.
    pub refused: u64,
}

impl HostStats {
    /// Bytes of shared blocks outside of the parts given out.
    pub fn stranded(&self) -> u64 {
        self.shared.saturating_sub(self.parts)
    }
}

impl std::fmt::Display for HostStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (given, stranded) = (self.blocks.saturating_add(self.parts), self.stranded());
        write!(f, "{} pinned, {} given out, {} free", human(self.pinned), human(given), human(self.free))?;
        match stranded {
            0 => Ok(()),
            _ => write!(f, ", {} in parts of shared blocks", human(stranded)),
        }
    }
}

//! The host tier: pinned memory in blocks.
//!
//! - Memory is pinned a *chunk* at a time: a run of neighbouring *blocks* ([`blocks`]). It is given
//!   out in whole blocks. A request for half a block or less gets a *part* of a *shared* block
//!   ([`parts`]): a power of two of bytes.
//! - A *run* is neighbouring free blocks of one chunk. A *piece* is what is given out of one run.
//! - *Pinned*: bytes of all chunks. *Stranded*: bytes of shared blocks outside of the parts given
//!   out.
//! - A *node* ([`node`]) is a NUMA node of the host, and a space: memory given out of it is counted
//!   there, by whole blocks and whole parts. Free blocks count towards the limit only:
//!
//! Equations, which [`HostTier::validate`] checks:
//!
//! - `pinned == blocks given out + shared blocks + free blocks`, and the runs are as long as they
//!   can be
//! - `shared blocks == parts given out + stranded`, and every shared block has a part that is given
//!   out
//! - `space's use == blocks given out + parts given out`
//!
//! And a rule: nothing is pinned that would make `pinned > limit + stranded`. The rest of a shared
//! block may be pinned once more, so that promised memory can be given out, however small parts
//! lie: `use <= limit`, so whole blocks and parts that are counted always find room. One piece of
//! several blocks may not: free neighbours may be missing. If a policy lets the use go beyond the
//! limit, the use counts in place of the limit.
//!
//! Memory is pinned when it is needed; a thread ([`grow`]) pins some ahead of need. Memory that is
//! given back stays pinned until it is trimmed.
//!
//! Each node has one lock, of its books. It is held for no driver call, and may be taken under any
//! other but the manager's. One thread at a time pins or unpins memory of a node; the others wait
//! for it.

mod blocks;
mod grow;
mod memory;
mod node;
mod options;
mod parts;

pub use blocks::Piece;
pub use memory::HostMemory;
pub use options::{HostNode, HostOptions, HostStats};

use super::promise::{DrawFrom, Manager, Space, NO_STREAM};
use crate::base::{Error, Result};
use crate::driver::Driver;
use grow::Grower;
use node::Node;
use std::sync::Arc;

/// Pinned memory of the host's NUMA nodes. Any thread may use it. Memory that is given out outlives
/// it.
pub struct HostTier {
    nodes: Vec<Arc<Node>>,
    manager: Arc<Manager>,
    grower: Grower,
}

impl HostTier {
    /// Adds a space for each node. Pins nothing.
    pub fn new(driver: Arc<dyn Driver>, manager: Arc<Manager>, options: &HostOptions) -> Result<HostTier> {
        options.check()?;
        let nodes: Vec<Arc<Node>> = options
            .nodes
            .iter()
            .map(|n| Node::new(&driver, &manager, options, n).map(Arc::new))
            .collect::<Result<_>>()?;
        let grower = Grower::new(&nodes);
        Ok(HostTier { nodes, manager, grower })
    }

    /// The numbers of the nodes.
    pub fn nodes(&self) -> Vec<u32> {
        self.nodes.iter().map(|n| n.id).collect()
    }

    /// The space of a node.
    pub fn space(&self, node: u32) -> Result<&Arc<Space>> {
        self.node(node).map(|n| &n.space)
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.nodes.first().map_or(0, |n| n.geometry.block)
    }

    /// Memory in as few pieces as possible, in whole blocks; for half a block or less, in a part of
    /// one, of 4 KiB or more. Of attached reservations, only the thread's counts. If there is no
    /// memory, the out-of-memory policy may make room. Pins more if too little is free, which takes
    /// its time. Fails with `OutOfMemory` if so much cannot be promised or pinned. Call it with no
    /// lock held: policies may call back.
    pub fn allocate<'a>(&self, node: u32, bytes: u64, from: impl Into<DrawFrom<'a>>) -> Result<HostMemory> {
        self.take(node, bytes, node::Shape::Pieces, Some(from.into()))
    }

    /// Like [`Self::allocate`], in one piece that starts a block or a part. More than a chunk gets
    /// a chunk of its own; for half a block or less the part may have as few as 256 bytes.
    pub fn contiguous<'a>(&self, node: u32, bytes: u64, from: impl Into<DrawFrom<'a>>) -> Result<HostMemory> {
        self.take(node, bytes, node::Shape::One, Some(from.into()))
    }

    /// Like [`Self::contiguous`], outside of any reservation. Nothing makes room for it and no
    /// policy is asked: it is for what ordinary memory can stand in for.
    pub fn contiguous_quietly(&self, node: u32, bytes: u64) -> Result<HostMemory> {
        self.take(node, bytes, node::Shape::One, None)
    }

    /// `from`: `None` is outside of any reservation, and asks no policy.
    fn take(&self, id: u32, bytes: u64, shape: node::Shape, from: Option<DrawFrom<'_>>) -> Result<HostMemory> {
        let node = self.node(id)?;
        let want = node.want(bytes, shape)?;
        let take = |drawn| Ok((node.take(want)?, drawn));
        let ((pieces, more), drawn) = match from {
            Some(from) => {
                self.manager.allocate_with(&node.space, from, want.bytes(), NO_STREAM, |drawn, _| take(drawn))
            }
            None => self.manager.draw_quietly(&node.space, want.bytes(), NO_STREAM).and_then(take),
        }?;
        if more {
            self.grower.wake();
        }
        Ok(HostMemory::new(node.clone(), want, pieces, bytes, drawn))
    }

    /// Pins memory until `bytes` of whole blocks are free. Fails with `OutOfMemory` if the limit or
    /// the system forbids it; what has been pinned until then stays.
    pub fn prepare(&self, node: u32, bytes: u64) -> Result<()> {
        self.node(node)?.prepare(bytes)
    }

    /// Unpins chunks with nothing given out, as long as `keep` bytes of blocks stay free. Returns
    /// how many bytes.
    pub fn trim(&self, node: u32, keep: u64) -> Result<u64> {
        self.node(node)?.trim(keep)
    }

    /// The counters of a node.
    pub fn stats(&self, node: u32) -> Result<HostStats> {
        Ok(self.node(node)?.stats())
    }

    /// Waits until the thread that pins ahead of need has nothing left to do.
    pub fn settle(&self) {
        self.nodes.iter().for_each(|n| n.settle());
    }

    /// Checks the equations above. Call it at a moment without allocations and frees.
    pub fn validate(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|n| n.validate())
    }

    fn node(&self, id: u32) -> Result<&Arc<Node>> {
        self.nodes.iter().find(|n| n.id == id).ok_or_else(|| {
            let ids: Vec<String> = self.nodes.iter().map(|n| n.id.to_string()).collect();
            Error::invalid(format!("the host has no NUMA node {id} with memory to pin; there is {}", ids.join(", ")))
        })
    }
}

//! Pinned memory, as callers see it: by plain address or in pieces, of a node or the nearest one.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::Context;
use crate::base::sync::{lock, Mutex};
use crate::base::{Error, Result, Status};
use crate::driver::Driver;
use crate::tier::host::HostStats;
use crate::tier::{HostMemory, Reservation, Tier};
use std::collections::{BTreeMap, VecDeque};

/// How many addresses are remembered after their free, so that a second free is told from a wrong pointer.
const REMEMBERED: usize = 1024;

/// Live memory in one piece, by its address. Its lock is held for no other call.
#[derive(Default)]
pub(super) struct Pinned(Mutex<Table>);

#[derive(Default)]
struct Table {
    live: BTreeMap<u64, HostMemory>,
    /// The last addresses freed, oldest first. Some may live again.
    freed: VecDeque<u64>,
}

impl Pinned {
    /// Keeps memory until its address is given to [`Pinned::take`].
    fn keep(&self, memory: HostMemory) -> Result<u64> {
        let [piece] = *memory.pieces() else {
            return Err(Error::internal(format!("{memory:?} should be one piece")));
        };
        lock(&self.0).live.insert(piece.addr, memory);
        Ok(piece.addr)
    }

    /// The memory that starts at an address. Dropped by the caller, outside of the lock.
    fn take(&self, addr: u64) -> Result<HostMemory> {
        let mut table = lock(&self.0);
        if let Some(memory) = table.live.remove(&addr) {
            if table.freed.len() == REMEMBERED {
                table.freed.pop_front();
            }
            table.freed.push_back(addr);
            return Ok(memory);
        }
        if let Some((start, memory)) = table.live.range(..addr).next_back() {
            let (inside, bytes) = (addr - start, memory.bytes());
            if inside < bytes {
                return Err(unknown(addr, &format!("is {inside} bytes into {bytes} at {start:#x}; free its start")));
            }
        }
        if table.freed.contains(&addr) {
            let text = format!("pinned memory: {addr:#x} was freed already and has not been handed out since");
            return Err(Error::new(Status::DoubleFree, text));
        }
        Err(unknown(
            addr,
            "is not live memory of one piece; memory of devices and of blocks is freed by calls of its own",
        ))
    }
}

fn unknown(addr: u64, what: &str) -> Error {
    Error::new(Status::UnknownPointer, format!("pinned memory: {addr:#x} {what}"))
}

impl Context {
    /// Pinned memory in one piece: at a multiple of 4 KiB, or of its size rounded up to a power of two if that is less,
    /// but of 256 at least. Of the node nearest to the current device when none is named. Drawn from what is attached to
    /// the thread. To be given to [`Context::host_free`].
    pub fn host_malloc(&self, node: Option<u32>, bytes: u64) -> Result<u64> {
        let tiers = self.tiers()?;
        tiers.pinned.keep(tiers.host().contiguous(self.host_node(node)?, bytes, None)?)
    }

    /// Gives memory of [`Context::host_malloc`] back. Whoever still copies to or from it waits for that before.
    pub fn host_free(&self, addr: u64) -> Result<()> {
        match self.tiers.get() {
            Some(tiers) => tiers.pinned.take(addr).map(drop),
            None => Err(unknown(addr, "was not handed out; nobody has asked for any")),
        }
    }

    /// Pinned memory in pieces. With a reservation and no node, of that one's.
    pub fn host_blocks(&self, node: Option<u32>, bytes: u64, from: Option<&Reservation>) -> Result<HostMemory> {
        let theirs = from.map(Reservation::space).filter(|s| s.tier == Tier::Host).map(|s| s.id);
        self.tiers()?.host().allocate(self.host_node(node.or(theirs))?, bytes, from)
    }

    /// Pins memory of a node until `bytes` of whole blocks are free.
    pub fn host_prepare(&self, node: Option<u32>, bytes: u64) -> Result<()> {
        self.tiers()?.host().prepare(self.host_node(node)?, bytes)
    }

    /// Unpins what a node can do without when `keep` bytes of blocks stay free; returns how many bytes.
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

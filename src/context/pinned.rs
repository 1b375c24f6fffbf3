//! Pinned memory that is known by its address.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::{lock, Mutex};
use crate::base::{Error, Result, Status};
use crate::tier::HostMemory;
use std::collections::{BTreeMap, VecDeque};

/// How many freed addresses are remembered, to tell a second free from a wrong pointer.
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
    /// Notes memory that is handed out in pieces: its addresses are live again.
    pub(super) fn hand_out(&self, memory: &HostMemory) {
        let lives = |addr: &u64| memory.pieces().iter().any(|p| (p.addr..p.addr + p.bytes).contains(addr));
        lock(&self.0).freed.retain(|addr| !lives(addr));
    }

    /// Keeps memory until its address is given to [`Pinned::take`].
    pub(super) fn keep(&self, memory: HostMemory) -> Result<u64> {
        let [piece] = *memory.pieces() else {
            return Err(Error::internal(format!("{memory:?} should be one piece")));
        };
        lock(&self.0).live.insert(piece.addr, memory);
        Ok(piece.addr)
    }

    /// The memory that starts at an address. Dropped by the caller, outside of the lock.
    pub(super) fn take(&self, addr: u64) -> Result<HostMemory> {
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

pub(super) fn unknown(addr: u64, what: &str) -> Error {
    Error::new(Status::UnknownPointer, format!("pinned memory: {addr:#x} {what}"))
}

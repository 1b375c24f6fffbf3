//! Pinned memory, as its owner holds it.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::blocks::Piece;
use super::node::{Node, Want};
use crate::base::{Error, Result};
use crate::driver::disk::Buffer;
use crate::tier::promise::{Drawn, Lack};
use std::fmt;
use std::sync::Arc;

/// Pinned memory. Dropping it, on any thread, gives it back without a driver call; a copy to or
/// from it must be waited for before. If it outlives its [`HostTier`](super::HostTier), dropping
/// the last of it unpins it.
pub struct HostMemory {
    pieces: Vec<Piece>,
    bytes: u64,
    want: Want,
    node: Arc<Node>,
    /// Dropped after the memory has been given back, so that the next holder of the promise finds
    /// the memory.
    drawn: Drawn,
}

impl HostMemory {
    /// `pieces` are whole blocks, or a part.
    pub(super) fn new(node: Arc<Node>, want: Want, mut pieces: Vec<Piece>, bytes: u64, drawn: Drawn) -> HostMemory {
        let whole: u64 = pieces.iter().map(|p| p.bytes).sum();
        if let Some(last) = pieces.last_mut() {
            last.bytes -= whole.saturating_sub(bytes).min(last.bytes);
        }
        HostMemory { pieces, bytes, want, node, drawn: drawn.made() }
    }

    /// Where it is: pieces that add up to [`HostMemory::bytes`]. All but the last are whole blocks,
    /// each piece starts at a multiple of its size or of 4 KiB, and none overlaps another or
    /// another memory.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes that were asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes it counts as: whole blocks, or a whole part.
    pub fn counted(&self) -> u64 {
        self.drawn.bytes()
    }

    /// How many bytes its end would give back, of those an allocation lacks.
    pub fn helps(&self, lack: &Lack) -> u64 {
        self.drawn.helps(lack)
    }

    /// The NUMA node.
    pub fn node(&self) -> u32 {
        self.node.id
    }

    /// The number of the reservation it was made with, if any.
    pub fn reservation(&self) -> Option<u64> {
        self.drawn.reservation()
    }

    /// All of it as memory to read files into and write them from. If it is not one piece, or not a
    /// multiple of 4 KiB, fails with `Invalid`, and the memory goes back.
    pub fn into_buffer(self) -> Result<Buffer> {
        match *self.pieces.as_slice() {
            [Piece { addr, bytes }] => Buffer::foreign(addr, bytes, Box::new(self)),
            _ => Err(Error::invalid(format!(
                "{} pieces of pinned memory as one buffer; ask for it in one piece",
                self.pieces.len()
            ))),
        }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostMemory { pieces, bytes, .. } = self;
        write!(f, "HostMemory({bytes} B of node {}, {pieces:x?})", self.node.id)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.node.give(self.want, &self.pieces);
    }
}

//! Chunks and the runs of free blocks in them.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Neighbouring bytes of pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Where they start.
    pub addr: u64,
    /// How many there are.
    pub bytes: u64,
}

/// All chunks of a node. Bytes are multiples of a block's.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Bytes by address.
    chunks: BTreeMap<u64, u64>,
    /// Free runs: bytes by address. None reaches over the end of its chunk, and no two of a chunk
    /// touch.
    runs: BTreeMap<u64, u64>,
    /// The free runs as `(bytes, address)`.
    by_length: BTreeSet<(u64, u64)>,
    pinned: u64,
    free: u64,
}

impl Blocks {
    /// Bytes of all chunks.
    pub(super) fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Bytes of all runs.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Bytes of the longest run.
    pub(super) fn longest(&self) -> u64 {
        self.by_length.last().map_or(0, |r| r.0)
    }

    /// How many chunks there are.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// The chunks themselves, as `(address, bytes)`.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.chunks.iter().map(|(addr, bytes)| (*addr, *bytes))
    }

    /// Chunks with nothing given out, as `(address, bytes)`.
    pub(super) fn idle(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.all().filter(|(addr, bytes)| self.runs.get(addr) == Some(bytes))
    }

    /// Adds a chunk, all free.
    pub(super) fn add_chunk(&mut self, addr: u64, bytes: u64) {
        self.chunks.insert(addr, bytes);
        self.pinned += bytes;
        self.free += bytes;
        self.add_run(addr, bytes);
    }

    /// Takes an idle chunk away.
    pub(super) fn remove_chunk(&mut self, addr: u64, bytes: u64) {
        self.remove_run(addr, bytes);
        self.chunks.remove(&addr);
        self.pinned -= bytes;
        self.free -= bytes;
    }

    fn add_run(&mut self, addr: u64, bytes: u64) {
        self.runs.insert(addr, bytes);
        self.by_length.insert((bytes, addr));
    }

    fn remove_run(&mut self, addr: u64, bytes: u64) {
        self.runs.remove(&addr);
        self.by_length.remove(&(bytes, addr));
    }

    /// Takes `bytes` in one piece from the shortest run that has them.
    pub(super) fn take_one(&mut self, bytes: u64) -> Option<u64> {
        let &(run, addr) = self.by_length.range((bytes, 0)..).next()?;
        self.remove_run(addr, run);
        if run > bytes {
            self.add_run(addr + bytes, run - bytes);
        }
        self.free -= bytes;
        Some(addr)
    }

    /// Takes `bytes` in as few pieces as possible: the longest runs, and for the rest the shortest
    /// run that has it.
    pub(super) fn take_many(&mut self, bytes: u64) -> Option<Vec<Piece>> {
        if bytes > self.free {
            return None;
        }
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let part = left.min(self.longest());
            pieces.push(Piece { addr: self.take_one(part)?, bytes: part });
            left -= part;
        }
        Some(pieces)
    }

    /// Gives back what was taken.
    pub(super) fn give(&mut self, addr: u64, bytes: u64) {
        let Some((start, end)) = self.chunk_of(addr) else { return };
        self.free += bytes;
        let (mut addr, mut bytes) = (addr, bytes);
        if let Some((&before, &length)) = self.runs.range(start..addr).next_back() {
            if before + length == addr {
                self.remove_run(before, length);
                (addr, bytes) = (before, bytes + length);
            }
        }
        // A chunk that happens to begin where this one ends is separate for the driver.
        let behind = addr + bytes;
        if let Some(length) = self.runs.get(&behind).copied().filter(|_| behind < end) {
            self.remove_run(behind, length);
            bytes += length;
        }
        self.add_run(addr, bytes);
    }

    /// Start and end of the chunk an address is in.
    fn chunk_of(&self, addr: u64) -> Option<(u64, u64)> {
        let (start, bytes) = self.chunks.range(..=addr).next_back()?;
        (addr - start < *bytes).then_some((*start, start + bytes))
    }

    /// Checks the sums, and that the runs are as long as they can be.
    pub(super) fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::internal(format!("pinned blocks: {what}: {self:x?}")));
        if self.pinned != self.chunks.values().sum::<u64>() || self.free != self.runs.values().sum::<u64>() {
            return bad("the sums are wrong");
        }
        let lengths: BTreeSet<_> = self.runs.iter().map(|(addr, bytes)| (*bytes, *addr)).collect();
        if lengths != self.by_length {
            return bad("the runs by length are not those by address");
        }
        let mut last = None;
        for (&addr, &bytes) in &self.runs {
            let Some((start, end)) = self.chunk_of(addr) else { return bad("a run outside of every chunk") };
            if bytes == 0 || addr + bytes > end {
                return bad("a run over the end of its chunk");
            }
            if last.is_some_and(|(behind, chunk)| behind > addr || (behind == addr && chunk == start)) {
                return bad("two runs that are one");
            }
            last = Some((addr + bytes, start));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(chunks: &[(u64, u64)]) -> Blocks {
        let mut blocks = Blocks::default();
        chunks.iter().for_each(|(addr, bytes)| blocks.add_chunk(*addr, *bytes));
        blocks
    }

    #[test]
    fn one_piece_comes_from_the_shortest_run_that_has_it() {
        let mut b = of(&[(1000, 100), (2000, 40), (3000, 60)]);
        assert_eq!(b.take_one(50), Some(3000));
        assert_eq!(b.take_one(40), Some(2000));
        assert_eq!(b.take_one(101), None);
        assert_eq!((b.free(), b.longest(), b.pinned()), (110, 100, 200));
        assert!(b.validate().is_ok());
    }

    #[test]
    fn many_pieces_are_as_few_as_possible() {
        let mut b = of(&[(1000, 100), (2000, 40), (3000, 60), (4000, 20)]);
        let pieces = b.take_many(130).unwrap_or_default();
        // 100 and 30 more, for which the run of 40 is long enough.
        assert_eq!(pieces, [Piece { addr: 1000, bytes: 100 }, Piece { addr: 2000, bytes: 30 }]);
        assert_eq!(b.take_many(91), None);
        assert_eq!(b.free(), 90);
        assert_eq!(b.take_many(90).map(|p| p.len()), Some(3));
        assert!(b.validate().is_ok() && b.free() == 0 && b.longest() == 0);
    }

    #[test]
    fn what_comes_back_joins_its_neighbours_but_not_another_chunk() {
        let mut b = of(&[(1000, 30), (1030, 30)]);
        let taken: Vec<_> = (0..6).filter_map(|_| b.take_one(10)).collect();
        assert_eq!(taken, [1000, 1010, 1020, 1030, 1040, 1050]);
        for addr in [1000, 1020, 1040, 1030] {
            b.give(addr, 10);
        }
        assert_eq!(b.longest(), 20);
        b.give(1010, 10);
        assert!(b.validate().is_ok());
        assert_eq!((b.longest(), b.idle().collect::<Vec<_>>()), (30, vec![(1000, 30)]));
        assert_eq!(b.take_many(50).map(|p| p.len()), Some(2), "no piece reaches over the end of a chunk");
        b.give(1000, 30);
        b.remove_chunk(1000, 30);
        assert_eq!((b.pinned(), b.free(), b.chunks()), (30, 0, 1));
        b.give(1030, 20);
        b.give(1050, 10);
        assert!(b.validate().is_ok() && b.longest() == 30);
    }
}

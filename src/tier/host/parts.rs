//! Parts of shared blocks: powers of two of bytes, each at a multiple of its size from the start of
//! its block. A part splits in two, and joins with its other half (the buddy system).

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The smallest part, bytes.
pub(super) const SMALLEST: u64 = 256;

/// The shared blocks of a node. `block * shared == given + free parts`.
#[derive(Debug)]
pub(super) struct Parts {
    /// Bytes of a block.
    block: u64,
    /// Free parts by address, for each size from [`SMALLEST`] to half a block. No two are the
    /// halves of one.
    free: Vec<BTreeSet<u64>>,
    /// The shared blocks, and how many bytes of each are given out.
    shared: BTreeMap<u64, u64>,
    given: u64,
}

/// The place of a size among the sizes.
fn order(size: u64) -> usize {
    (size / SMALLEST).checked_ilog2().unwrap_or(0) as usize
}

impl Parts {
    pub(super) fn new(block: u64) -> Parts {
        Parts { block, free: vec![BTreeSet::new(); order(block)], shared: BTreeMap::new(), given: 0 }
    }

    /// Bytes of parts given out.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// Bytes of shared blocks.
    pub(super) fn shared(&self) -> u64 {
        self.shared.len() as u64 * self.block
    }

    /// Takes a part, cut from the smallest free one that is large enough.
    pub(super) fn take(&mut self, size: u64) -> Option<u64> {
        let mut at = (order(size)..self.free.len()).find(|&o| self.free.get(o).is_some_and(|f| !f.is_empty()))?;
        let addr = self.free.get_mut(at)?.pop_first()?;
        while at > order(size) {
            at -= 1;
            self.free.get_mut(at)?.insert(addr + (SMALLEST << at));
        }
        self.count(addr, size);
        Some(addr)
    }

    /// Takes a part of a block that is now shared.
    pub(super) fn take_of_new(&mut self, block: u64, size: u64) -> u64 {
        self.shared.insert(block, 0);
        for (at, free) in self.free.iter_mut().enumerate().skip(order(size)) {
            free.insert(block + (SMALLEST << at));
        }
        self.count(block, size);
        block
    }

    fn count(&mut self, addr: u64, size: u64) {
        self.given += size;
        if let Some((_, given)) = self.shared.range_mut(..=addr).next_back() {
            *given += size;
        }
    }

    /// Gives a part back. Returns its block if nothing of it is given out any more, and so it is
    /// not shared.
    pub(super) fn give(&mut self, addr: u64, size: u64) -> Option<u64> {
        let (&block, given) = self.shared.range_mut(..=addr).next_back()?;
        *given -= size;
        self.given -= size;
        let (mut addr, mut size) = (addr, size);
        while size < self.block {
            let free = self.free.get_mut(order(size))?;
            let other = block + ((addr - block) ^ size);
            if !free.remove(&other) {
                free.insert(addr);
                return None;
            }
            addr = addr.min(other);
            size *= 2;
        }
        self.shared.remove(&block);
        Some(block)
    }

    /// Checks the sums, block by block.
    pub(super) fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::internal(format!("parts of pinned blocks: {what}: {self:x?}")));
        let mut free: BTreeMap<u64, u64> = BTreeMap::new();
        for (at, parts) in self.free.iter().enumerate() {
            let size = SMALLEST << at;
            for &addr in parts {
                let Some((&block, _)) = self.shared.range(..=addr).next_back() else { return bad("no block") };
                if addr - block >= self.block || !(addr - block).is_multiple_of(size) {
                    return bad("a part at the wrong place");
                }
                if parts.contains(&(block + ((addr - block) ^ size))) {
                    return bad("two halves of one part");
                }
                *free.entry(block).or_default() += size;
            }
        }
        for (block, &given) in &self.shared {
            if given == 0 || given + free.get(block).copied().unwrap_or(0) != self.block {
                return bad("the sum of a block is wrong");
            }
        }
        match self.given == self.shared.values().sum::<u64>() {
            true => Ok(()),
            false => bad("the sum of what is given out is wrong"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_split_and_join() {
        let mut p = Parts::new(4096);
        assert_eq!(p.take(512), None);
        assert_eq!(p.take_of_new(0x10000, 512), 0x10000);
        assert_eq!((p.shared(), p.given()), (4096, 512));
        // 512, 1024 and 2048 are free.
        assert_eq!((p.take(256), p.take(256)), (Some(0x10200), Some(0x10300)));
        assert_eq!((p.take(2048), p.take(1024), p.take(256)), (Some(0x10800), Some(0x10400), None));
        assert!(p.validate().is_ok());
        assert_eq!(p.give(0x10800, 2048), None);
        assert_eq!(p.give(0x10000, 512), None);
        assert_eq!(p.give(0x10300, 256), None);
        assert_eq!(p.take(512), Some(0x10000), "no part of 512 has joined: half of it is given out");
        assert_eq!(p.give(0x10000, 512), None);
        assert_eq!(p.give(0x10200, 256), None);
        assert!(p.validate().is_ok());
        assert_eq!(p.give(0x10400, 1024), Some(0x10000));
        assert_eq!((p.shared(), p.given()), (0, 0));
        assert!(p.validate().is_ok() && p.free.iter().all(BTreeSet::is_empty));
    }

    #[test]
    fn blocks_do_not_join() {
        let mut p = Parts::new(1024);
        assert_eq!(p.take_of_new(0x4400, 512), 0x4400);
        assert_eq!(p.take(512), Some(0x4600));
        assert_eq!(p.take_of_new(0x4000, 512), 0x4000);
        assert_eq!(p.give(0x4600, 512), None);
        assert!(p.validate().is_ok());
        assert_eq!(p.give(0x4000, 512), Some(0x4000));
        assert_eq!(p.give(0x4400, 512), Some(0x4400));
        assert!(p.validate().is_ok());
    }
}

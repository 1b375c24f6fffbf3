//! From an address to what starts there, without hashing: a flat table with one entry per 64 KiB
//! slot.
//!
//! Large blocks are at least one slot long, so at most one of them starts in any slot; slabs are
//! aligned to slots and own every slot they cover. The table has two levels: an 8 TiB reservation
//! costs 24 KiB of host memory for the upper one, and for each 32 MiB of addresses that have been
//! in use 4 KiB. Entries are atomics: `free` reads them with no lock held and checks what it found
//! under the heap's lock.

use crate::base::sync::{AtomicU64, AtomicUsize, OnceLock};
#[cfg(not(loom))]
use crate::driver::Words;
use std::sync::atomic::Ordering;

/// Bytes per slot.
pub(crate) const SLOT: u64 = 64 << 10;

/// Slots that are known together to have been in use or not: 256 MiB of addresses in 32 KiB.
const CHUNK_SLOTS: usize = 4096;

/// Slots per second-level table: 16 GiB of addresses in 2 MiB.
#[cfg(not(loom))]
const TABLE_SLOTS: usize = 64 * CHUNK_SLOTS;

#[cfg(loom)]
const TABLE_SLOTS: usize = CHUNK_SLOTS;

/// Most reservations a pool can have.
#[cfg(not(loom))]
const MAX_ROOTS: usize = 64;

#[cfg(loom)]
const MAX_ROOTS: usize = 2;

/// What an address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// No block was ever here, or a slab was and is gone.
    Empty,
    /// A block starts in this slot: region number in that heap.
    Block { heap: u32, region: u32 },
    /// A slab covers this slot: slab number in that heap.
    Slab { heap: u32, slab: u32 },
    /// A dedicated (single-handle) allocation starts in this slot.
    Dedicated,
    /// The block that started at this offset in the slot was freed.
    Freed { offset: u64 },
}

impl Entry {
    /// The heap of a block or slab.
    #[inline(always)]
    pub(crate) fn heap(self) -> Option<u32> {
        match self {
            Entry::Block { heap, .. } | Entry::Slab { heap, .. } => Some(heap),
            _ => None,
        }
    }
}

const KIND: u64 = 61;

const HEAP: u64 = 32;

#[inline(always)]
fn pack(e: Entry) -> u64 {
    match e {
        Entry::Empty => 0,
        Entry::Block { heap, region } => 1 << KIND | u64::from(heap) << HEAP | u64::from(region),
        Entry::Slab { heap, slab } => 2 << KIND | u64::from(heap) << HEAP | u64::from(slab),
        Entry::Dedicated => 3 << KIND,
        Entry::Freed { offset } => 4 << KIND | offset,
    }
}

#[inline]
fn unpack(v: u64) -> Entry {
    let heap = (v >> HEAP) as u32 & 0x1fff_ffff;
    match v >> KIND {
        1 => Entry::Block { heap, region: v as u32 },
        2 => Entry::Slab { heap, slab: v as u32 },
        3 => Entry::Dedicated,
        4 => Entry::Freed { offset: v & (SLOT - 1) },
        _ => Entry::Empty,
    }
}

/// A table of the second level.
struct Table {
    words: Words,
    /// One bit per chunk: whether any of its slots was ever set.
    used: AtomicU64,
}

impl Table {
    fn new(slots: usize) -> Table {
        Table { words: Words::zeroed(slots), used: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn set(&self, slot: usize, e: Entry) {
        let chunk = 1 << (slot / CHUNK_SLOTS);
        if self.used.load(Ordering::Relaxed) & chunk == 0 {
            self.used.fetch_or(chunk, Ordering::Release);
        }
        self.words[slot].store(pack(e), Ordering::Release);
    }

    /// What a slot holds, `None` in a chunk of which none was ever set.
    fn look(&self, slot: usize) -> Option<Entry> {
        let used = self.used.load(Ordering::Acquire) >> (slot / CHUNK_SLOTS) & 1 == 1;
        used.then(|| self.words.get(slot).map_or(Entry::Empty, |w| unpack(w.load(Ordering::Acquire))))
    }
}

/// What loom knows of: only of its own words.
#[cfg(loom)]
struct Words(Box<[AtomicU64]>);

#[cfg(loom)]
impl Words {
    fn zeroed(len: usize) -> Words {
        Words((0..len).map(|_| AtomicU64::new(0)).collect())
    }
}

#[cfg(loom)]
impl std::ops::Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

struct Root {
    base: u64,
    len: u64,
    tables: Box<[OnceLock<Table>]>,
}

impl Root {
    #[inline(always)]
    fn has(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.len
    }

    /// The table of this number, made now unless another thread just has.
    #[cold]
    fn new_table(&self, number: usize) -> &Table {
        // The last one may have fewer slots.
        let slots = (self.len.div_ceil(SLOT) as usize - number * TABLE_SLOTS).min(TABLE_SLOTS);
        self.tables[number].get_or_init(|| Table::new(slots))
    }
}

/// The table of one pool.
pub(crate) struct Index {
    roots: [OnceLock<Root>; MAX_ROOTS],
    count: AtomicUsize,
}

impl Index {
    pub(crate) fn new() -> Index {
        Index { roots: std::array::from_fn(|_| OnceLock::new()), count: AtomicUsize::new(0) }
    }

    /// Covers one more reservation. `false` when there are too many. Callers serialise.
    pub(crate) fn add_root(&self, base: u64, len: u64) -> bool {
        let n = self.count.load(Ordering::Relaxed);
        let Some(cell) = self.roots.get(n) else { return false };
        let slots = len.div_ceil(SLOT) as usize;
        let tables = (0..slots.div_ceil(TABLE_SLOTS)).map(|_| OnceLock::new()).collect();
        let _ = cell.set(Root { base, len, tables });
        self.count.store(n + 1, Ordering::Release);
        true
    }

    /// Bytes of all reservations.
    pub(crate) fn bytes(&self) -> u64 {
        let n = self.count.load(Ordering::Acquire);
        self.roots[..n].iter().filter_map(OnceLock::get).map(|r| r.len).sum()
    }

    /// Whether the pool has another free place for a reservation.
    pub(crate) fn can_add_root(&self) -> bool {
        self.count.load(Ordering::Relaxed) < MAX_ROOTS
    }

    #[inline(always)]
    fn root(&self, addr: u64) -> Option<&Root> {
        // Most pools have one.
        match self.roots[0].get() {
            Some(first) if first.has(addr) => Some(first),
            _ => self.other_root(addr),
        }
    }

    #[inline(never)]
    fn other_root(&self, addr: u64) -> Option<&Root> {
        let n = self.count.load(Ordering::Acquire);
        self.roots[..n].iter().filter_map(OnceLock::get).find(|r| r.has(addr))
    }

    /// Whether the address lies in any of the reservations.
    #[inline]
    pub(crate) fn covers(&self, addr: u64) -> bool {
        self.root(addr).is_some()
    }

    /// What the slot of `addr` holds.
    #[inline]
    pub(crate) fn get(&self, addr: u64) -> Entry {
        let Some(root) = self.root(addr) else { return Entry::Empty };
        let slot = ((addr - root.base) / SLOT) as usize;
        match root.tables[slot / TABLE_SLOTS].get() {
            Some(table) => unpack(table.words[slot % TABLE_SLOTS].load(Ordering::Acquire)),
            None => Entry::Empty,
        }
    }

    /// Sets the slot of `addr`, which lies in a reservation.
    #[inline(always)]
    pub(crate) fn set(&self, addr: u64, e: Entry) {
        let Some(root) = self.root(addr) else { return };
        let slot = ((addr - root.base) / SLOT) as usize;
        match root.tables[slot / TABLE_SLOTS].get() {
            Some(table) => table.set(slot % TABLE_SLOTS, e),
            None => root.new_table(slot / TABLE_SLOTS).set(slot % TABLE_SLOTS, e),
        }
    }

    /// Sets every slot of `[addr, addr + len)`, whole slots.
    pub(crate) fn set_range(&self, addr: u64, len: u64, e: Entry) {
        for slot in 0..len / SLOT {
            self.set(addr + slot * SLOT, e);
        }
    }

    /// The nearest slot at or before that of `addr` that holds a block start, a slab or a dedicated
    /// allocation, no further than `limit` bytes back. For error texts and interior-pointer
    /// queries, not for the hot path.
    pub(crate) fn find_back(&self, addr: u64, limit: u64) -> Option<Entry> {
        self.count_back(addr, limit).0
    }

    /// Like [`Self::find_back`]; also how many slots and chunks were looked at.
    fn count_back(&self, addr: u64, limit: u64) -> (Option<Entry>, usize) {
        let Some(root) = self.root(addr) else { return (None, 0) };
        let slot_of = |addr: u64| ((addr - root.base) / SLOT) as usize;
        let (mut slot, floor) = (slot_of(addr), slot_of(root.base.max(addr.saturating_sub(limit))));
        for looks in 1.. {
            let table = root.tables.get(slot / TABLE_SLOTS).and_then(OnceLock::get);
            let at = match table.and_then(|t| t.look(slot % TABLE_SLOTS)) {
                // Nothing was ever handed out here.
                None => slot / CHUNK_SLOTS * CHUNK_SLOTS,
                Some(Entry::Empty | Entry::Freed { .. }) => slot,
                Some(found) => return (Some(found), looks),
            };
            if at <= floor {
                return (None, looks);
            }
            slot = at - 1;
        }
        (None, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_packing() {
        for e in [
            Entry::Empty,
            Entry::Block { heap: 0, region: 0 },
            Entry::Block { heap: 0x1fff_ffff, region: u32::MAX },
            Entry::Slab { heap: 7, slab: 9 },
            Entry::Dedicated,
            Entry::Freed { offset: 0 },
            Entry::Freed { offset: SLOT - 512 },
        ] {
            assert_eq!(unpack(pack(e)), e);
        }
    }

    #[test]
    fn roots_are_found_and_others_are_empty() {
        let t = Index::new();
        assert!(t.add_root(1 << 40, 1 << 30));
        assert!(t.add_root(1 << 41, 1 << 30));
        let a = (1 << 41) + 5 * SLOT + 512;
        t.set(a, Entry::Block { heap: 1, region: 2 });
        assert_eq!(t.get(a), Entry::Block { heap: 1, region: 2 });
        assert_eq!(t.get(a + 100), Entry::Block { heap: 1, region: 2 }, "same slot");
        assert_eq!(t.get(a + SLOT), Entry::Empty);
        assert_eq!(t.get(12345), Entry::Empty);
        assert!(!t.covers((1 << 40) + (1 << 30)));
        assert_eq!(t.find_back(a + 3 * SLOT, 1 << 30), Some(Entry::Block { heap: 1, region: 2 }));
        assert_eq!(t.find_back(a + 3 * SLOT, 2 * SLOT), None);
        assert_eq!(t.find_back(a - SLOT, 1 << 30), None);
    }

    #[test]
    fn searching_backwards_looks_no_further_than_it_must() {
        let t = Index::new();
        let (base, len) = (1 << 40, 1 << 40);
        assert!(t.add_root(base, len));
        let block = Entry::Block { heap: 1, region: 2 };
        t.set(base, block);
        t.set(base + len - SLOT, Entry::Freed { offset: 0 });
        // 4096 slots of the last chunk, 4094 chunks that were never used, and 4096 slots of the
        // first one.
        assert_eq!(t.count_back(base + len - SLOT, len), (Some(block), 4096 + 4094 + 4096));
        assert_eq!(t.count_back(base + len - SLOT, 10 * SLOT), (None, 11));
        assert_eq!(t.count_back(base + len / 2 + 100 * SLOT, 10 * SLOT), (None, 1));
        assert_eq!(t.count_back(base + 9 * SLOT, 10 * SLOT), (Some(block), 10));
        assert_eq!(t.count_back(base + 9 * SLOT, 9 * SLOT), (Some(block), 10));
        assert_eq!(t.count_back(base + 9 * SLOT, 8 * SLOT), (None, 9));
    }
}

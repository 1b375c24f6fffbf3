//! From an address to what starts there, without hashing: a flat table with one entry per 64 KiB
//! slot.
//!
//! Large blocks are at least one slot long, so at most one of them starts in any slot; slabs are
//! aligned to slots and own every slot they cover. The table has two levels. For an 8 TiB
//! reservation the upper one costs 24 KiB of host memory, and the lower one 4 KiB for each 32 MiB
//! of addresses that are no hole, or lie beside such. Entries are atomics: `free` reads
//! them without a lock, and checks what it found under the heap's lock.
//!
//! Beside the entries lies a bit for each slot that says whether a block of 16 MiB or more starts
//! there, for pointers into the middle of one. The bits of a page are a word, and a page is one
//! heap's at a time, so the holder of that heap's lock is the word's only writer.

use crate::base::sync::{AtomicU64, AtomicUsize, OnceLock};
#[cfg(not(loom))]
use crate::driver::Words;
use std::sync::atomic::Ordering;

/// Bytes per slot.
pub(crate) const SLOT: u64 = 64 << 10;

/// The start of a block with fewer bytes is found by the slots in front of a pointer into it.
const LARGE: u64 = 256 * SLOT;

/// Slots that share a bit for whether a large block ever started there: 256 MiB of addresses.
const CHUNK_SLOTS: usize = 4096;

/// Slots per second-level table: 16 GiB of addresses in 2 MiB.
const TABLE_SLOTS: usize = if cfg!(loom) { CHUNK_SLOTS } else { 64 * CHUNK_SLOTS };

/// Addresses that a host page of entries is for, at most: pages have 64 KiB on some machines.
const PAGE_OF_ENTRIES: u64 = 8192 * SLOT;

/// Most reservations a pool can have.
const MAX_ROOTS: usize = if cfg!(loom) { 2 } else { 64 };

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
    /// One bit per slot, `1 << group` of them a word: whether a large block starts there.
    large: Words,
    /// log2 of the slots whose bits are in one word.
    group: u32,
    /// One bit per chunk: whether a large block ever started in it.
    used: AtomicU64,
}

impl Table {
    fn new(slots: usize, group: u32) -> Table {
        let large = Words::zeroed(slots.div_ceil(1 << group));
        Table { words: Words::zeroed(slots), large, group, used: AtomicU64::new(0) }
    }

    /// Notes whether a large block starts in a slot.
    fn set_large(&self, slot: usize, starts: bool) {
        let chunk = 1 << (slot / CHUNK_SLOTS);
        if self.used.load(Ordering::Relaxed) & chunk == 0 {
            self.used.fetch_or(chunk, Ordering::Release);
        }
        let (word, bit) = (&self.large[slot >> self.group], 1 << (slot & ((1 << self.group) - 1)));
        // The heap's lock keeps other threads from writing this word.
        let before = word.load(Ordering::Relaxed);
        word.store(if starts { before | bit } else { before & !bit }, Ordering::Release);
    }

    /// Whether a large block ever started in the chunk of this slot.
    fn uses(&self, slot: usize) -> bool {
        self.used.load(Ordering::Acquire) >> (slot / CHUNK_SLOTS) & 1 == 1
    }

    /// The last slot up to this one, in its chunk, in which a large block starts. Also returns how
    /// many words of bits were looked at.
    fn last_large(&self, slot: usize) -> (Option<usize>, usize) {
        let first = slot / CHUNK_SLOTS * CHUNK_SLOTS;
        let (first, last) = (first >> self.group, slot >> self.group);
        let kept = u64::MAX >> (63 - (slot & ((1 << self.group) - 1)));
        for word in (first..=last).rev() {
            let bits = self.large[word].load(Ordering::Acquire) & if word == last { kept } else { u64::MAX };
            if let Some(bit) = bits.checked_ilog2() {
                return (Some((word << self.group) + bit as usize), last + 1 - word);
            }
        }
        (None, last + 1 - first)
    }
}

/// Words that loom can follow.
#[cfg(loom)]
struct Words(Box<[AtomicU64]>);

#[cfg(loom)]
impl Words {
    fn zeroed(len: usize) -> Words {
        Words((0..len).map(|_| AtomicU64::new(0)).collect())
    }

    fn forget(&self, _: std::ops::Range<usize>) {}
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
    /// [`Table::group`].
    group: u32,
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
        // The last table may have fewer slots.
        let slots = (self.len.div_ceil(SLOT) as usize - number * TABLE_SLOTS).min(TABLE_SLOTS);
        self.tables[number].get_or_init(|| Table::new(slots, self.group))
    }
}

/// The table of one pool.
pub(crate) struct Index {
    roots: [OnceLock<Root>; MAX_ROOTS],
    count: AtomicUsize,
    /// [`Table::group`].
    group: u32,
}

impl Index {
    /// No reservations yet, for a pool with pages of this size (a power of two).
    pub(crate) fn of_pages(page: u64) -> Index {
        // No more slots a word than a page has, as neighbouring pages may be different heaps'.
        let group = (page / SLOT).checked_ilog2().unwrap_or(0).min(u64::BITS.ilog2());
        Index { roots: std::array::from_fn(|_| OnceLock::new()), count: AtomicUsize::new(0), group }
    }

    /// Covers one more reservation. `false` when there are too many. Callers serialise.
    pub(crate) fn add_root(&self, base: u64, len: u64) -> bool {
        let n = self.count.load(Ordering::Relaxed);
        let Some(cell) = self.roots.get(n) else { return false };
        let slots = len.div_ceil(SLOT) as usize;
        let tables = (0..slots.div_ceil(TABLE_SLOTS)).map(|_| OnceLock::new()).collect();
        let _ = cell.set(Root { base, len, group: self.group, tables });
        self.count.store(n + 1, Ordering::Release);
        true
    }

    /// Whether the pool has another free place for a reservation.
    pub(crate) fn can_add_root(&self) -> bool {
        self.count.load(Ordering::Relaxed) < MAX_ROOTS
    }

    #[inline(always)]
    fn root(&self, addr: u64) -> Option<&Root> {
        // Most pools have one root.
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
        let number = slot / TABLE_SLOTS;
        let table = root.tables[number].get().unwrap_or_else(|| root.new_table(number));
        table.words[slot % TABLE_SLOTS].store(pack(e), Ordering::Release);
    }

    /// Sets every slot of `[addr, addr + len)`, whole slots.
    pub(crate) fn set_range(&self, addr: u64, len: u64, e: Entry) {
        for slot in 0..len / SLOT {
            self.set(addr + slot * SLOT, e);
        }
    }

    /// Sets the slot of a block of `bytes` that starts at `addr`. The caller has its heap's lock.
    #[inline(always)]
    pub(crate) fn block_begins(&self, addr: u64, bytes: u64, e: Entry) {
        self.set(addr, e);
        if bytes >= LARGE {
            self.set_large(addr, true);
        }
    }

    /// Notes that the block of `bytes` at `addr` was freed. The caller has its heap's lock.
    #[inline(always)]
    pub(crate) fn block_ends(&self, addr: u64, bytes: u64) {
        self.set(addr, Entry::Freed { offset: addr % SLOT });
        if bytes >= LARGE {
            self.set_large(addr, false);
        }
    }

    /// Notes the bytes of a resized block at `addr`. The caller has its heap's lock.
    pub(crate) fn block_resized(&self, addr: u64, before: u64, after: u64) {
        if (before >= LARGE) != (after >= LARGE) {
            self.set_large(addr, after >= LARGE);
        }
    }

    #[inline(never)]
    fn set_large(&self, addr: u64, starts: bool) {
        let Some(root) = self.root(addr) else { return };
        let slot = ((addr - root.base) / SLOT) as usize;
        if let Some(table) = root.tables[slot / TABLE_SLOTS].get() {
            table.set_large(slot % TABLE_SLOTS, starts);
        }
    }

    /// Gives back what entries take for `[addr, addr + len)`, which has just become part of the
    /// hole `[hole.0, hole.1)`. Nothing starts there before the caller has released the core's
    /// lock. That something did, and was freed, is forgotten.
    pub(crate) fn forget(&self, hole: (u64, u64), addr: u64, len: u64) {
        let Some(root) = self.root(addr) else { return };
        // A page of entries may reach beyond both ends.
        let start = addr.saturating_sub(PAGE_OF_ENTRIES).max(hole.0).max(root.base) - root.base;
        let end = (addr + len + PAGE_OF_ENTRIES).min(hole.1).min(root.base + root.len) - root.base;
        let (mut slot, end) = (start.div_ceil(SLOT) as usize, (end / SLOT) as usize);
        while slot < end {
            let (table, first) = (slot / TABLE_SLOTS, slot % TABLE_SLOTS);
            let last = TABLE_SLOTS.min(first + end - slot);
            if let Some(table) = root.tables[table].get() {
                table.words.forget(first..last);
            }
            slot += last - first;
        }
    }

    /// What `addr` is in, if it is in anything: the nearest slot at or before its own that holds a
    /// slab, a dedicated allocation or the start of a block that may reach to `addr`. For error
    /// texts and interior pointers, not for the hot path: in a block of 16 MiB or more it looks at
    /// 256 slots, and at a word for each page behind the start.
    pub(crate) fn find_back(&self, addr: u64) -> Option<Entry> {
        self.count_back(addr).0
    }

    /// Like [`Self::find_back`]; also how many words were looked at.
    fn count_back(&self, addr: u64) -> (Option<Entry>, usize) {
        let Some(root) = self.root(addr) else { return (None, 0) };
        let table = |slot: usize| root.tables.get(slot / TABLE_SLOTS).and_then(OnceLock::get);
        let at = ((addr - root.base) / SLOT) as usize;
        let mut looks = 0;
        // A smaller block starts in one of these.
        for slot in (at.saturating_sub((LARGE / SLOT) as usize)..=at).rev() {
            looks += 1;
            let entry =
                table(slot).map_or(Entry::Empty, |t| unpack(t.words[slot % TABLE_SLOTS].load(Ordering::Acquire)));
            if !matches!(entry, Entry::Empty | Entry::Freed { .. }) {
                return (Some(entry), looks);
            }
        }
        let mut slot = at;
        loop {
            let used = table(slot).filter(|t| t.uses(slot % TABLE_SLOTS));
            let (found, looked) = used.map_or((None, 1), |t| t.last_large(slot % TABLE_SLOTS));
            looks += looked;
            if let Some(start) = found {
                return (Some(self.get(root.base + (slot / TABLE_SLOTS * TABLE_SLOTS + start) as u64 * SLOT)), looks);
            }
            if slot < CHUNK_SLOTS {
                return (None, looks);
            }
            slot = slot / CHUNK_SLOTS * CHUNK_SLOTS - 1;
        }
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
        let t = Index::of_pages(2 << 20);
        assert!(t.add_root(1 << 40, 1 << 30));
        assert!(t.add_root(1 << 41, 1 << 30));
        let a = (1 << 41) + 5 * SLOT + 512;
        t.set(a, Entry::Block { heap: 1, region: 2 });
        assert_eq!(t.get(a), Entry::Block { heap: 1, region: 2 });
        assert_eq!(t.get(a + 100), Entry::Block { heap: 1, region: 2 }, "same slot");
        assert_eq!(t.get(a + SLOT), Entry::Empty);
        assert_eq!(t.get(12345), Entry::Empty);
        assert!(!t.covers((1 << 40) + (1 << 30)));
        assert_eq!(t.find_back(a + 3 * SLOT), Some(Entry::Block { heap: 1, region: 2 }));
        assert_eq!(t.find_back(a - SLOT), None);
    }

    #[test]
    fn searching_backwards_looks_at_few_slots_and_a_word_for_a_page() {
        let t = Index::of_pages(32 * SLOT);
        let (base, len) = (1 << 40, 1 << 40);
        assert!(t.add_root(base, len));
        let block = Entry::Block { heap: 1, region: 2 };
        t.block_begins(base, len, block);
        // A large block was in the last chunk, too.
        t.block_begins(base + len - LARGE, LARGE, block);
        t.block_ends(base + len - LARGE, LARGE);
        // The slots of 16 MiB, 128 pages of the last chunk, 4094 chunks without large blocks, the
        // first page.
        let pages = 4096 / 32;
        assert_eq!(t.count_back(base + len - SLOT), (Some(block), 257 + pages + 4094 + pages));
        assert_eq!(t.count_back(base + 9 * SLOT), (Some(block), 10));
        assert_eq!(t.count_back(base + 256 * SLOT), (Some(block), 257));
        assert_eq!(t.count_back(base + 257 * SLOT), (Some(block), 257 + 9));
        t.block_resized(base, len, LARGE - 1);
        assert_eq!(t.find_back(base + 257 * SLOT), None, "it does not reach that far");
        t.block_resized(base, LARGE - 1, LARGE);
        t.block_ends(base, LARGE);
        assert_eq!(t.find_back(base + 257 * SLOT), None);
        assert_eq!(Index::of_pages(SLOT / 16).group, 0, "two heaps may share a slot, and no word");
        assert_eq!(Index::of_pages(1 << 30).group, 6);
    }

    #[test]
    fn holes_are_forgotten_and_what_lies_beside_them_is_not() {
        let t = Index::of_pages(32 * SLOT);
        let (base, len) = ((1 << 40) + 5 * SLOT, 40 << 30);
        assert!(t.add_root(base, len));
        let entries = || (0..len / SLOT).map(|slot| base + slot * SLOT);
        entries().for_each(|addr| t.set(addr, Entry::Freed { offset: 0 }));
        // Across the end of a table, in two pieces.
        let (start, middle, end) = (base + (9 << 30), base + (17 << 30), base + (20 << 30));
        t.forget((start, middle), start, middle - start);
        t.forget((start, end), middle, end - middle);
        let known: Vec<u64> = entries().filter(|&addr| t.get(addr) != Entry::Empty).collect();
        let within = known.iter().filter(|&&addr| (start..end).contains(&addr)).count();
        assert_eq!(known.len() as u64 - within as u64, (len - (end - start)) / SLOT);
        assert!(within < 2 * 8192, "{within} entries of {} are left", (end - start) / SLOT);
        // What became a hole, and was taken again.
        t.forget((base, base), base, len);
        t.forget((start, end), 12345, SLOT);
        assert_eq!(entries().filter(|&addr| t.get(addr) != Entry::Empty).count(), known.len());
    }

    /// Blocks of all sizes come and go; every pointer leads to what it is in.
    #[test]
    fn what_is_around_a_pointer_is_found() {
        const SLOTS: u64 = 9000;
        for page in [SLOT / 16, SLOT, 8 * SLOT, 32 * SLOT, 1024 * SLOT] {
            let t = Index::of_pages(page);
            assert!(t.add_root(1 << 40, SLOTS * SLOT));
            let at = |slot: u64| (1 << 40) + slot * SLOT;
            let mut random = fastrand::Rng::with_seed(page);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for _ in 0..3000 {
                let (from, slots) = (random.u64(..SLOTS), 1 << random.u32(..12));
                let to = (from + slots).min(SLOTS);
                live.retain(|&(a, b)| {
                    let stays = b <= from || to <= a;
                    if !stays {
                        t.block_ends(at(a), (b - a) * SLOT);
                    }
                    stays
                });
                t.block_begins(at(from), (to - from) * SLOT, Entry::Block { heap: 1, region: from as u32 });
                live.push((from, to));
                for _ in 0..8 {
                    let slot = random.u64(..SLOTS);
                    let around = live.iter().find(|&&(a, b)| a <= slot && slot < b);
                    let found = t.find_back(at(slot));
                    match around {
                        Some(&(a, _)) => assert_eq!(found, Some(Entry::Block { heap: 1, region: a as u32 })),
                        None => assert!(found.is_none() || live.iter().any(|&(a, _)| found == Some(t.get(at(a))))),
                    }
                }
            }
        }
    }
}

//! Regions: the byte-granular pieces of a heap's mapped addresses.
//!
//! A *span* is a longest run of mapped addresses in one heap; regions tile it without gaps and are linked to their
//! neighbours in address order. The free ones that the heap's own stream may use are *ready* and sit in size bins, or, the
//! last few freed, in the quick list.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::bins::{Bins, NONE};
use super::order::Tag;
use super::quick::Quick;
use super::wide::Wide;
use crate::base::StreamHandle;
use rustc_hash::FxHashMap;

/// Smallest unit of a large block and of every free region, bytes.
pub(super) const GRANULE: u64 = 512;
/// A remainder smaller than this stays with the block in front of it: no request could use it alone.
pub(super) const MIN_SPLIT: u64 = 4096;
/// How many regions of one bin a search looks at.
const LOOK: usize = 12;

/// What a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A descriptor that describes nothing at present.
    Vacant,
    /// The end of a span, on either side: no bytes, at the address where the span begins or ends.
    Edge,
    /// Handed out.
    Live,
    /// Holds a slab of small blocks.
    Slab,
    /// Free; the heap's own stream may use it. In a bin.
    Ready,
    /// As `Ready`, but in the quick list and not joined with its neighbours.
    Quick,
    /// Free, but the heap's stream must not use it before its tag is settled. In the waiting list.
    Waiting,
}

/// What is known about a live block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) requested: u64,
    pub(super) id: u64,
    pub(super) tag: u64,
    pub(super) stream: StreamHandle,
    /// Identity of `stream` and its lane when the block was made.
    pub(super) stream_id: u64,
    pub(super) lane: u32,
    /// Its record in the heap's [`Members`](super::members::Members).
    pub(super) member: u32,
    pub(super) align: u64,
}

impl Block {
    pub(super) const NONE: Block =
        Block { requested: 0, id: 0, tag: 0, stream: StreamHandle::LEGACY, stream_id: 0, lane: 0, member: 0, align: 0 };
}

/// One piece of a span, in a cache line; what is known about its block is elsewhere.
#[repr(align(64))]
pub(super) struct Region {
    pub(super) addr: u64,
    pub(super) size: u64,
    /// Neighbours in the span; at its ends, its edges.
    pub(super) prev: u32,
    pub(super) next: u32,
    bin_prev: u32,
    bin_next: u32,
    /// Its place among the wide ones, if it is one.
    wide: u32,
    pub(super) state: State,
    /// Ready, quick or waiting: when it was last used.
    pub(super) order: Tag,
    /// Waiting: the number of its entry in the waiting list.
    pub(super) ticket: u64,
}

impl Region {
    pub(super) fn end(&self) -> u64 {
        self.addr + self.size
    }

    /// Whether `size` bytes at a multiple of `align`, a power of two, fit.
    #[inline]
    pub(super) fn holds(&self, size: u64, align: u64) -> bool {
        // Bytes in front of the first aligned one: a mask, as a division would be dearer than the rest of the look.
        let lead = self.addr.wrapping_neg() & (align - 1);
        self.size >= size && self.size - size >= lead
    }
}

/// A heap's regions.
///
/// Invariants: a span's regions tile it; no two neighbours are both ready; a region is in a bin iff it is ready, and in the
/// quick list iff it is quick; it is among the wide ones iff it is ready and has at least a page; `ready_bytes` is the sum of
/// the sizes of the ready and the quick; sizes and addresses are multiples of [`GRANULE`].
pub(super) struct Regions {
    pub(super) all: Vec<Region>,
    /// By region.
    blocks: Vec<Block>,
    pub(super) vacant: Vec<u32>,
    bins: Bins,
    quick: Quick,
    /// By the address of a span's first byte, or after its last: spans do not touch.
    pub(super) edges: FxHashMap<u64, u32>,
    /// What a wide region has at least, bytes.
    page: u64,
    ready_bytes: u64,
    wide: Wide,
}

impl Regions {
    /// None yet, of a pool with pages of this size.
    pub(super) fn of_pages(page: u64) -> Regions {
        Regions {
            all: Vec::new(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            bins: Bins::new(),
            quick: Quick::new(),
            edges: FxHashMap::default(),
            page,
            ready_bytes: 0,
            wide: Wide::default(),
        }
    }

    #[inline]
    pub(super) fn get(&self, r: u32) -> &Region {
        &self.all[r as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, r: u32) -> &mut Region {
        &mut self.all[r as usize]
    }

    /// The region with this number, if there is one.
    pub(super) fn try_get(&self, r: u32) -> Option<&Region> {
        self.all.get(r as usize)
    }

    pub(super) fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// What is known about the block of a live region.
    #[inline]
    pub(super) fn block(&self, r: u32) -> &Block {
        &self.blocks[r as usize]
    }

    #[inline]
    pub(super) fn block_mut(&mut self, r: u32) -> &mut Block {
        &mut self.blocks[r as usize]
    }

    /// Whether this is the end of a span and no region.
    #[inline]
    pub(super) fn is_edge(&self, r: u32) -> bool {
        self.get(r).state == State::Edge
    }

    /// The regions of a span from `first` on, in address order.
    pub(super) fn walk(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(first), |&r| Some(self.get(r).next).filter(|&n| !self.is_edge(n)))
    }

    /// Every ready region of at least `size` bytes, smallest bins first.
    pub(super) fn ready_from(&self, size: u64) -> impl Iterator<Item = u32> + '_ {
        let bins =
            std::iter::successors(self.bins.next_used(Bins::index(size.max(GRANULE))), |&b| self.bins.next_used(b + 1));
        bins.flat_map(|b| self.bin(b)).filter(move |&r| self.get(r).size >= size)
    }

    /// The ready regions, the largest bins first, bin by bin.
    pub(super) fn ready_bins_down(&self) -> impl Iterator<Item = impl Iterator<Item = u32> + '_> + '_ {
        std::iter::successors(self.bins.last_used(), |&b| self.bins.used_before(b)).map(|b| self.bin(b))
    }

    fn bin(&self, bin: usize) -> impl Iterator<Item = u32> + '_ {
        let first = Some(self.bins.head(bin)).filter(|&r| r != NONE);
        std::iter::successors(first, |&r| Some(self.get(r).bin_next).filter(|&n| n != NONE))
    }

    /// The ready region in which `[addr, end)` lies, which are whole pages: probably the one with the number `hint`.
    #[inline]
    pub(super) fn wide_around(&self, addr: u64, end: u64, hint: u32) -> Option<u32> {
        let around = |r: &&Region| r.state == State::Ready && r.addr <= addr && end <= r.end();
        match self.try_get(hint).filter(around) {
            Some(_) => Some(hint),
            None => self.wide.around(addr, end),
        }
    }

    /// Size of the largest ready region.
    pub(super) fn largest_ready(&self) -> u64 {
        let last = self.ready_bins_down().next();
        last.into_iter().flatten().map(|r| self.get(r).size).max().unwrap_or(0)
    }

    /// The smallest ready region seen in which `size` bytes fit at a multiple of `align`, and which `accept`s.
    #[inline]
    pub(super) fn find(&self, size: u64, align: u64, accept: impl Fn(&Region) -> bool) -> Option<u32> {
        let fits = |r: &Region| r.holds(size, align) && accept(r);
        let mut bin = self.bins.next_used(Bins::index(size));
        let mut looks = 64usize;
        while let Some(b) = bin {
            let mut best: Option<(u64, u32)> = None;
            for r in self.bin(b).take(LOOK.min(looks)) {
                looks -= 1;
                let region = self.get(r);
                if fits(region) && best.is_none_or(|(s, _)| region.size < s) {
                    best = Some((region.size, r));
                    if region.size == size {
                        break;
                    }
                }
            }
            if let Some((_, r)) = best {
                return Some(r);
            }
            if looks == 0 {
                break;
            }
            bin = self.bins.next_used(b + 1);
        }
        // Regions of the request's own bin may all be too small or misaligned; larger ones always fit.
        let sure = size.checked_add(align - GRANULE)?;
        let mut bin = self.bins.next_used(Bins::index(sure) + 1);
        while let Some(b) = bin {
            if let Some(r) = self.bin(b).find(|&r| fits(self.get(r))) {
                return Some(r);
            }
            bin = self.bins.next_used(b + 1);
        }
        None
    }

    /// Frees a live block that requests of `size` bytes get, for the next of them. Returns the region that had its place, which is for
    /// [`Self::join`].
    #[inline]
    pub(super) fn make_quick(&mut self, r: u32, size: u64, order: Tag) -> Option<u32> {
        let region = self.get_mut(r);
        region.state = State::Quick;
        region.order = order;
        self.ready_bytes += region.size;
        self.quick.put(size, r)
    }

    /// A block freed by [`Self::make_quick`] for just this size, live again.
    #[inline]
    pub(super) fn take_quick(&mut self, size: u64, align: u64) -> Option<u32> {
        let r = self.quick.get(size)?;
        let region = &mut self.all[r as usize];
        if region.addr & (align - 1) != 0 {
            return None;
        }
        region.state = State::Live;
        self.ready_bytes -= region.size;
        self.quick.take(size);
        Some(r)
    }

    /// Makes every quick region ready, joined with its neighbours.
    #[inline]
    pub(super) fn tidy(&mut self) {
        while let Some(r) = self.quick.pop() {
            self.join(r);
        }
    }

    /// Makes a region that just left the quick list ready.
    pub(super) fn join(&mut self, r: u32) {
        let (size, order) = (self.get(r).size, self.get(r).order);
        self.ready_bytes -= size;
        self.make_ready(r, order);
    }

    /// Whether the quick list is empty, as everything but an exact search wants it.
    pub(super) fn is_tidy(&self) -> bool {
        self.quick.is_empty()
    }

    /// A live region of no span yet.
    #[inline]
    pub(super) fn alloc(&mut self, addr: u64, size: u64) -> u32 {
        let region = Region {
            addr,
            size,
            prev: NONE,
            next: NONE,
            bin_prev: NONE,
            bin_next: NONE,
            wide: NONE,
            state: State::Live,
            order: Tag::SETTLED,
            ticket: 0,
        };
        let Some(r) = self.vacant.pop() else { return self.grow(region) };
        *self.get_mut(r) = region;
        r
    }

    #[cold]
    fn grow(&mut self, region: Region) -> u32 {
        self.all.push(region);
        self.blocks.push(Block::NONE);
        (self.all.len() - 1) as u32
    }

    #[inline]
    pub(super) fn release(&mut self, r: u32) {
        self.get_mut(r).state = State::Vacant;
        self.vacant.push(r);
    }

    pub(super) fn unlink_bin(&mut self, r: u32) {
        let Region { size, bin_prev: prev, bin_next: next, wide: place, .. } = *self.get(r);
        if next != NONE {
            self.get_mut(next).bin_prev = prev;
        }
        match prev {
            NONE => self.bins.pop(Bins::index(size), next),
            _ => self.get_mut(prev).bin_next = next,
        }
        self.ready_bytes -= size;
        if size >= self.page {
            if let Some(moved) = self.wide.remove(place) {
                self.get_mut(moved).wide = place;
            }
        }
    }

    /// Takes a ready region out of its bin; the caller gives it another state at once.
    pub(super) fn take_ready(&mut self, r: u32) {
        debug_assert_eq!(self.get(r).state, State::Ready);
        self.unlink_bin(r);
        self.get_mut(r).state = State::Live;
    }

    /// Makes a region (not in a bin) ready, whose neighbours are not.
    pub(super) fn put_back(&mut self, r: u32, order: Tag) {
        let Region { addr, size, .. } = *self.get(r);
        let head = self.bins.push(Bins::index(size), r);
        if head != NONE {
            self.get_mut(head).bin_prev = r;
        }
        self.ready_bytes += size;
        let wide = if size >= self.page { self.wide.add(addr, size, r) } else { NONE };
        let region = self.get_mut(r);
        (region.state, region.order, region.wide) = (State::Ready, order, wide);
        (region.bin_prev, region.bin_next) = (NONE, head);
    }

    /// Where no region is left, the next ones have the numbers that those of a new heap have: a workload that repeats finds
    /// its regions under the same numbers each time, which is what hints rely on.
    pub(super) fn start_over(&mut self) {
        self.quick.start_over();
        if self.vacant.len() == self.all.len() {
            self.all.clear();
            self.blocks.clear();
            self.vacant.clear();
        }
    }

    /// Checks the invariants written above; `Err` says which one fails where.
    pub(super) fn validate(&self) -> Result<(), String> {
        let (mut ready, mut quick, mut wide) = (0, 0, 0);
        let mut seen = self.validate_spans()?;
        for first in self.spans() {
            let mut at = self.get(first).addr;
            let mut prev = self.get(first).prev;
            for r in self.walk(first) {
                let g = self.get(r);
                seen += 1;
                if g.addr != at || g.prev != prev || g.size == 0 || !g.size.is_multiple_of(GRANULE) {
                    return Err(format!("region {:#x}+{:#x} does not tile its span at {at:#x}", g.addr, g.size));
                }
                let before_ready = self.get(prev).state == State::Ready;
                match g.state {
                    State::Vacant | State::Edge => return Err(format!("no region is linked at {at:#x}")),
                    State::Ready if before_ready => return Err(format!("ready neighbours at {at:#x} not joined")),
                    State::Ready => {
                        ready += g.size;
                        if !self.bin(Bins::index(g.size)).any(|b| b == r) {
                            return Err(format!("ready region {at:#x} is in no bin"));
                        }
                        wide += usize::from(g.size >= self.page);
                        if g.size >= self.page && !self.wide.has(g.wide, g.addr, g.size, r) {
                            return Err(format!("ready region {at:#x} is not among the wide ones"));
                        }
                    }
                    State::Quick => {
                        ready += g.size;
                        quick += 1;
                        if !self.quick.contains(r) {
                            return Err(format!("quick region {at:#x} is not in the quick list"));
                        }
                    }
                    _ => {}
                }
                at = g.end();
                prev = r;
            }
            let edge = self.get(self.get(prev).next);
            if edge.addr != at {
                return Err(format!(
                    "the span at {:#x} ends at {at:#x} and not at {:#x}",
                    self.get(first).addr,
                    edge.addr
                ));
            }
        }
        if wide != self.wide.len() {
            return Err(format!("{wide} wide regions, {} in their list", self.wide.len()));
        }
        if quick != self.quick.len() {
            return Err(format!("{quick} quick regions, {} in the quick list", self.quick.len()));
        }
        if ready != self.ready_bytes {
            return Err(format!("ready_bytes is {}, the regions add up to {ready}", self.ready_bytes));
        }
        let binned: usize = std::iter::successors(self.bins.next_used(0), |&b| self.bins.next_used(b + 1))
            .map(|b| self.bin(b).count())
            .sum();
        let ready_count = self.all.iter().filter(|r| r.state == State::Ready).count();
        if binned != ready_count || seen + self.vacant.len() != self.all.len() {
            return Err(format!("{binned} regions in bins, {ready_count} ready; {seen} linked of {}", self.all.len()));
        }
        Ok(())
    }
}

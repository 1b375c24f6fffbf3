//! Regions: the byte-granular pieces of a heap's mapped addresses.
//!
//! A *span* is a longest run of mapped addresses in one heap. Regions tile it without gaps and are
//! linked to their neighbours in address order. Free regions that the heap's own stream may use are
//! *ready* and sit in size bins, except for the last few freed, which sit in the quick list. At
//! either end of a span lies an *edge*, a descriptor with no bytes and one neighbour. Splitting and
//! joining regions never touches the edges, so the table that finds a span by its address changes
//! only when memory is mapped or leaves.

use crate::base::size::round_up;
use crate::base::{Result, StreamHandle};
use crate::pool::heap::bins::Bins;
use crate::pool::heap::quick_list::QuickList;
use crate::pool::memory::SLOT;
use crate::pool::order::Tag;
use crate::pool::types::{too_large, NONE};
use rustc_hash::FxHashMap;
use std::cell::Cell;

/// Smallest unit of a large block and of every free region, bytes.
pub(crate) const GRANULE: u64 = 512;

/// A remainder smaller than this stays with the block in front of it: no request could use it
/// alone.
pub(crate) const MIN_SPLIT: u64 = 4096;

/// Bytes of the block for a request: one slot at least, so that no two blocks start in the same
/// slot of the index.
pub(crate) fn block_size(requested: u64) -> Result<u64> {
    round_up(requested.max(SLOT), GRANULE).ok_or_else(|| too_large(requested))
}

/// How many regions of one bin a search looks at.
const LOOK: usize = 12;

/// How many regions of all bins together a search looks at.
const LOOKS: usize = 64;

/// What a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
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
    /// Like `Ready`, but in the quick list and not joined with its neighbours.
    Quick,
    /// Free, but the heap's stream must not use it before its tag is settled. In the waiting list.
    Waiting,
}

/// What is known about a live block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) requested: u64,
    pub(crate) id: u64,
    /// The caller's.
    pub(crate) user_tag: u64,
    pub(crate) stream: StreamHandle,
    /// Identity of `stream` and its lane when the block was made.
    pub(crate) stream_id: u64,
    pub(crate) lane: u32,
    /// Its record in the heap's [`Members`](crate::pool::heap::members::Members).
    pub(crate) member: u32,
    pub(crate) align: u64,
}

impl Block {
    pub(crate) const NONE: Block = Block {
        requested: 0,
        id: 0,
        user_tag: 0,
        stream: StreamHandle::LEGACY,
        stream_id: 0,
        lane: 0,
        member: 0,
        align: 0,
    };
}

/// One piece of a span, in one cache line. Facts about its block are kept elsewhere.
#[repr(align(64))]
pub(crate) struct Region {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    /// Neighbours in the span; at its ends, its edges.
    pub(crate) prev: u32,
    pub(crate) next: u32,
    bin_prev: u32,
    bin_next: u32,
    pub(crate) state: State,
    /// If ready: whether it is known to hold no whole extent. As long as it is in its bin, that
    /// stays so.
    pub(crate) barren: Cell<bool>,
    /// If ready, quick or waiting: when it was last used.
    pub(crate) tag: Tag,
}

impl Region {
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.size
    }

    /// Whether `size` bytes at a multiple of `align`, a power of two, fit.
    #[inline]
    pub(crate) fn holds(&self, size: u64, align: u64) -> bool {
        // Bytes in front of the first aligned one. A mask, because a division would cost more than
        // the rest of the look.
        let lead = self.addr.wrapping_neg() & (align - 1);
        self.size >= size && self.size - size >= lead
    }
}

/// A heap's regions.
///
/// Invariants: a span's regions tile it; no two neighbours are both ready; a region is in a bin iff
/// it is ready, and in the quick list iff it is quick; `ready_bytes` is the sum of the sizes of the
/// ready and the quick; sizes and addresses are multiples of [`GRANULE`].
#[derive(Default)]
pub(crate) struct Regions {
    pub(crate) all: Vec<Region>,
    /// Facts about live blocks, by region.
    blocks: Vec<Block>,
    pub(crate) vacant: Vec<u32>,
    bins: Bins,
    quick: QuickList,
    /// Edges by address: of a span's first byte, or of the one after its last. Spans do not touch.
    pub(crate) edges: FxHashMap<u64, u32>,
    ready_bytes: u64,
}

impl Regions {
    #[inline]
    pub(crate) fn get(&self, r: u32) -> &Region {
        &self.all[r as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, r: u32) -> &mut Region {
        &mut self.all[r as usize]
    }

    /// The region with this number, if any.
    pub(crate) fn try_get(&self, r: u32) -> Option<&Region> {
        self.all.get(r as usize)
    }

    pub(crate) fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// What is known about the block of a live region.
    #[inline]
    pub(crate) fn block(&self, r: u32) -> &Block {
        &self.blocks[r as usize]
    }

    #[inline]
    pub(crate) fn block_mut(&mut self, r: u32) -> &mut Block {
        &mut self.blocks[r as usize]
    }

    /// Whether this is the end of a span and no region.
    #[inline]
    pub(crate) fn is_edge(&self, r: u32) -> bool {
        self.get(r).state == State::Edge
    }

    /// The regions of a span from `first` on, in address order.
    pub(crate) fn walk(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(first), |&r| Some(self.get(r).next).filter(|&n| !self.is_edge(n)))
    }

    /// Every region by its number, span by span, in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.spans().flat_map(|first| self.walk(first)).map(|r| (r, self.get(r)))
    }

    /// At least `count` descriptors, if there are as many, spread evenly by their numbers; some may
    /// be vacant or edges.
    pub(crate) fn sample(&self, count: usize) -> impl Iterator<Item = (u32, &Region)> {
        (0u32..).zip(&self.all).step_by((self.all.len() / count.max(1)).max(1))
    }

    /// Every ready region of at least `size` bytes, smallest bins first.
    pub(crate) fn ready_from(&self, size: u64) -> impl Iterator<Item = u32> + '_ {
        let bins = self.bins.used_from(Bins::index(size.max(GRANULE)));
        bins.flat_map(|b| self.bin(b)).filter(move |&r| self.get(r).size >= size)
    }

    /// The ready regions, the largest bins first, bin by bin.
    pub(crate) fn ready_bins_down(&self) -> impl Iterator<Item = impl Iterator<Item = u32> + '_> + '_ {
        let used: Vec<usize> = self.bins.used_from(0).collect();
        used.into_iter().rev().map(|b| self.bin(b))
    }

    fn bin(&self, bin: usize) -> impl Iterator<Item = u32> + '_ {
        let first = Some(self.bins.head(bin)).filter(|&r| r != NONE);
        std::iter::successors(first, |&r| Some(self.get(r).bin_next).filter(|&n| n != NONE))
    }

    /// The ready region that contains `[addr, end)`, most likely the one with the number `hint`.
    #[inline]
    pub(crate) fn ready_around(&self, addr: u64, end: u64, hint: u32) -> Option<u32> {
        let around = |r: &Region| r.state == State::Ready && r.addr <= addr && end <= r.end();
        match self.try_get(hint).is_some_and(around) {
            true => Some(hint),
            false => self.ready_from(end - addr).find(|&r| around(self.get(r))),
        }
    }

    /// Size of the largest ready region.
    pub(crate) fn largest_ready(&self) -> u64 {
        let last = self.ready_bins_down().next();
        last.into_iter().flatten().map(|r| self.get(r).size).max().unwrap_or(0)
    }

    /// The smallest ready region seen in which `size` bytes fit at a multiple of `align`, and which
    /// `accept`s.
    #[inline]
    pub(crate) fn find(&self, size: u64, align: u64, accept: impl Fn(&Region) -> bool) -> Option<u32> {
        let fits = |r: &Region| r.holds(size, align) && accept(r);
        let mut bin = self.bins.next_used(Bins::index(size));
        let mut looks = LOOKS;
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
        // Regions of the request's own bin may all be too small or misaligned; larger ones always
        // fit.
        let sure = size.checked_add(align - GRANULE)?;
        self.bins.used_from(Bins::index(sure) + 1).flat_map(|b| self.bin(b)).find(|&r| fits(self.get(r)))
    }

    /// Frees a live block into the quick list, for the next request of `size` bytes. Returns the
    /// region that this pushes out, for [`Self::join`].
    #[inline]
    pub(crate) fn make_quick(&mut self, r: u32, size: u64, tag: Tag) -> Option<u32> {
        let region = self.get_mut(r);
        region.state = State::Quick;
        region.tag = tag;
        self.ready_bytes += region.size;
        self.quick.put(size, r)
    }

    /// Takes a block that [`Self::make_quick`] freed for just this size, now live again.
    #[inline]
    pub(crate) fn take_quick(&mut self, size: u64, align: u64) -> Option<u32> {
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
    pub(crate) fn tidy(&mut self) {
        while let Some(r) = self.quick.pop() {
            self.join(r);
        }
    }

    /// Makes a region that just left the quick list ready.
    pub(crate) fn join(&mut self, r: u32) {
        let (size, tag) = (self.get(r).size, self.get(r).tag);
        self.ready_bytes -= size;
        self.make_ready(r, tag);
    }

    /// Whether the quick list is empty, which every search but an exact one requires.
    pub(crate) fn is_tidy(&self) -> bool {
        self.quick.is_empty()
    }

    /// A live region of no span yet.
    #[inline]
    pub(crate) fn alloc(&mut self, addr: u64, size: u64) -> u32 {
        let region = Region {
            addr,
            size,
            prev: NONE,
            next: NONE,
            bin_prev: NONE,
            bin_next: NONE,
            state: State::Live,
            barren: Cell::new(false),
            tag: Tag::SETTLED,
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
    pub(crate) fn release(&mut self, r: u32) {
        self.get_mut(r).state = State::Vacant;
        self.vacant.push(r);
    }

    pub(crate) fn unlink_bin(&mut self, r: u32) {
        let Region { size, bin_prev: prev, bin_next: next, .. } = *self.get(r);
        if next != NONE {
            self.get_mut(next).bin_prev = prev;
        }
        match prev {
            NONE => self.bins.pop(Bins::index(size), next),
            _ => self.get_mut(prev).bin_next = next,
        }
        self.ready_bytes -= size;
    }

    /// Takes a ready region out of its bin; the caller gives it another state at once.
    pub(crate) fn take_ready(&mut self, r: u32) {
        debug_assert_eq!(self.get(r).state, State::Ready);
        self.unlink_bin(r);
        self.get_mut(r).state = State::Live;
    }

    /// Makes a region ready that is in no bin. It joins no neighbour, so the caller makes sure that
    /// none is ready, or that the region is about to be taken out.
    pub(crate) fn put_back(&mut self, r: u32, tag: Tag) {
        let size = self.get(r).size;
        let head = self.bins.push(Bins::index(size), r);
        if head != NONE {
            self.get_mut(head).bin_prev = r;
        }
        self.ready_bytes += size;
        let region = self.get_mut(r);
        (region.state, region.tag) = (State::Ready, tag);
        region.barren.set(false);
        (region.bin_prev, region.bin_next) = (NONE, head);
    }

    /// If no region is left, numbers regions from 0 again, as in a new heap. Work that repeats then
    /// finds its regions under the same numbers each time, which hints rely on.
    pub(crate) fn start_over(&mut self) {
        if self.vacant.len() == self.all.len() {
            self.all.clear();
            self.blocks.clear();
            self.vacant.clear();
        }
    }

    /// Checks the invariants written above; `Err` says which one fails where.
    pub(crate) fn validate(&self) -> std::result::Result<(), String> {
        let (mut ready, mut quick) = (0, 0);
        let mut seen = self.validate_spans()?;
        for first in self.spans() {
            let mut at = self.get(first).addr;
            let mut prev = self.get(first).prev;
            for r in self.walk(first) {
                let g = self.get(r);
                seen += 1;
                let tiles = g.addr == at && g.prev == prev && g.size > 0 && g.size.is_multiple_of(GRANULE);
                ensure!(tiles, "region {:#x}+{:#x} does not tile its span at {at:#x}", g.addr, g.size);
                let before_ready = self.get(prev).state == State::Ready;
                match g.state {
                    State::Vacant | State::Edge => return Err(format!("no region is linked at {at:#x}")),
                    State::Ready if before_ready => return Err(format!("ready neighbours at {at:#x} not joined")),
                    State::Ready => {
                        ready += g.size;
                        ensure!(self.bin(Bins::index(g.size)).any(|b| b == r), "ready region {at:#x} is in no bin");
                    }
                    State::Quick => {
                        ready += g.size;
                        quick += 1;
                        ensure!(self.quick.contains(r), "quick region {at:#x} is not in the quick list");
                    }
                    _ => {}
                }
                at = g.end();
                prev = r;
            }
            let edge = self.get(self.get(prev).next);
            ensure!(edge.addr == at, "a span ends at {at:#x} and not at {:#x}", edge.addr);
        }
        ensure!(quick == self.quick.len(), "{quick} quick regions, {} in the quick list", self.quick.len());
        ensure!(ready == self.ready_bytes, "ready_bytes is {}, the regions add up to {ready}", self.ready_bytes);
        let binned = self.bins.used_from(0).flat_map(|b| self.bin(b)).count();
        let ready_count = self.all.iter().filter(|r| r.state == State::Ready).count();
        ensure!(binned == ready_count, "{binned} regions in bins, {ready_count} ready");
        ensure!(seen + self.vacant.len() == self.all.len(), "{seen} regions linked of {}", self.all.len());
        Ok(())
    }

    /// Makes a region (not in a bin) ready, joined with ready neighbours. Returns the joined
    /// region.
    pub(crate) fn make_ready(&mut self, r: u32, mut tag: Tag) -> u32 {
        let r = self.join_ready(r, &mut tag);
        self.put_back(r, tag);
        r
    }

    /// Joins a region (not in a bin) with ready neighbours, which leave their bins; `tag` becomes
    /// the latest of theirs.
    fn join_ready(&mut self, mut r: u32, tag: &mut Tag) -> u32 {
        let (prev, next) = (self.get(r).prev, self.get(r).next);
        if self.get(next).state == State::Ready {
            *tag = tag.later(self.get(next).tag);
            self.unlink_bin(next);
            self.absorb_next(r);
        }
        if self.get(prev).state == State::Ready {
            *tag = tag.later(self.get(prev).tag);
            self.unlink_bin(prev);
            self.absorb_next(prev);
            r = prev;
        }
        r
    }

    /// Joins a live region, last used at `tag`, with ready neighbours into a live one, for
    /// [`Self::cut_apart`] to cut. This saves putting it into a bin and taking it out again.
    pub(crate) fn take_neighbours(&mut self, r: u32, mut tag: Tag) -> u32 {
        let r = self.join_ready(r, &mut tag);
        let region = self.get_mut(r);
        (region.state, region.tag) = (State::Live, tag);
        r
    }

    /// Joins `r` with the region after it, whose descriptor becomes vacant. Neither is in a bin.
    pub(crate) fn absorb_next(&mut self, r: u32) {
        let next = self.get(r).next;
        let Region { size, next: after, .. } = *self.get(next);
        self.get_mut(r).size += size;
        self.link(r, after);
        self.release(next);
    }

    /// Cuts a region (not in a bin) after `size` bytes; returns the new right part, in the same
    /// state and order.
    pub(crate) fn split(&mut self, r: u32, size: u64) -> u32 {
        let Region { addr, size: old, next, state, tag, .. } = *self.get(r);
        debug_assert!(size > 0 && size < old);
        let right = self.alloc(addr + size, old - size);
        let region = self.get_mut(right);
        (region.state, region.tag) = (state, tag);
        self.get_mut(r).size = size;
        self.link(r, right);
        self.link(right, next);
        right
    }

    /// Cuts `[addr, addr + size)` out of a ready region as a live one; what is left on either side
    /// is ready again.
    pub(crate) fn cut(&mut self, r: u32, addr: u64, size: u64) -> u32 {
        self.take_ready(r);
        let tag = self.get(r).tag;
        let (block, left) = self.cut_apart(r, addr, size);
        left.into_iter().flatten().for_each(|part| self.put_back(part, tag));
        block
    }

    /// Like [`Self::cut`], out of a live region of which nothing else is in use. Returns what is
    /// left on either side, too, which stays live until the caller puts it back.
    #[inline]
    pub(crate) fn cut_apart(&mut self, r: u32, addr: u64, size: u64) -> (u32, [Option<u32>; 2]) {
        let lead = addr - self.get(r).addr;
        let (lead, block) = if lead == 0 { (None, r) } else { (Some(r), self.split(r, lead)) };
        let rest = (self.get(block).size > size).then(|| self.split(block, size));
        (block, [lead, rest])
    }

    /// First regions of all spans, by address.
    pub(crate) fn spans(&self) -> impl Iterator<Item = u32> + '_ {
        let firsts = self.edges.values().map(|&edge| self.get(edge).next).filter(|&r| r != NONE);
        let mut firsts: Vec<u32> = firsts.collect();
        firsts.sort_unstable_by_key(|&r| self.get(r).addr);
        firsts.into_iter()
    }

    /// The last region of the span that ends at `end`.
    pub(crate) fn tail_at(&self, end: u64) -> Option<u32> {
        self.edges.get(&end).map(|&edge| self.get(edge).prev).filter(|&r| r != NONE)
    }

    /// The first region of the span that starts at `start`.
    pub(crate) fn head_at(&self, start: u64) -> Option<u32> {
        self.edges.get(&start).map(|&edge| self.get(edge).next).filter(|&r| r != NONE)
    }

    fn edge(&mut self, addr: u64) -> u32 {
        let e = self.alloc(addr, 0);
        self.get_mut(e).state = State::Edge;
        self.edges.insert(addr, e);
        e
    }

    fn link(&mut self, left: u32, right: u32) {
        self.get_mut(left).next = right;
        self.get_mut(right).prev = left;
    }

    /// The neighbour, at `addr`, of a region about to be added: the region that ends or starts
    /// there, whose edge is removed, or else a new edge.
    fn border(&mut self, addr: u64) -> u32 {
        let Some(edge) = self.edges.remove(&addr) else { return self.edge(addr) };
        let Region { prev, next, .. } = *self.get(edge);
        self.release(edge);
        if next == NONE {
            prev
        } else {
            next
        }
    }

    /// Adds newly mapped addresses as one live region: next to the spans that end or start there,
    /// or as a span of its own.
    pub(crate) fn add(&mut self, addr: u64, size: u64) -> u32 {
        let r = self.alloc(addr, size);
        let end = addr + size;
        // The new addresses were in no span. So a span with an edge at their start ends there, and
        // one with an edge at their end starts there.
        let (before, after) = (self.border(addr), self.border(end));
        self.link(before, r);
        self.link(r, after);
        r
    }

    /// Takes `[addr, stop)` of the ready region `r` out of the heap, which cuts the span. What is
    /// left of the region stays ready; the part before, if any, keeps the number.
    pub(crate) fn take_out(&mut self, r: u32, addr: u64, stop: u64) {
        let region = self.get(r);
        let (start, end, prev, next, tag) = (region.addr, region.end(), region.prev, region.next, region.tag);
        self.take_ready(r);
        if stop < end {
            let right = self.alloc(stop, end - stop);
            self.link(right, next);
            self.close(right, stop, false);
            self.put_back(right, tag);
        } else {
            self.close(next, stop, false);
        }
        if start == addr {
            self.close(prev, addr, true);
            self.release(r);
        } else {
            self.get_mut(r).size = addr - start;
            self.close(r, addr, true);
            self.put_back(r, tag);
        }
    }

    /// Makes the span of region `r` end, or start, at `addr`. If `r` is the edge there, nothing is
    /// left of the span.
    fn close(&mut self, r: u32, addr: u64, ends: bool) {
        if self.is_edge(r) {
            self.edges.remove(&addr);
            return self.release(r);
        }
        let edge = self.edge(addr);
        let (left, right) = if ends { (r, edge) } else { (edge, r) };
        self.link(left, right);
    }

    /// Checks that every span has two edges, where they should be; returns how many edges there
    /// are.
    pub(crate) fn validate_spans(&self) -> std::result::Result<usize, String> {
        let (mut starts, mut ends) = (0, 0);
        for (&addr, &edge) in &self.edges {
            let e = self.get(edge);
            let whole = e.state == State::Edge && e.addr == addr && e.size == 0 && (e.prev == NONE) != (e.next == NONE);
            ensure!(whole, "the edge at {addr:#x} is {:?} at {:#x}+{:#x}", e.state, e.addr, e.size);
            *(if e.prev == NONE { &mut starts } else { &mut ends }) += 1;
        }
        ensure!(starts == ends, "{starts} spans start and {ends} end");
        Ok(starts + ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = 2 << 20;

    #[test]
    fn a_hint_may_be_right_or_wrong() {
        let mut regions = Regions::default();
        let [a, b] = [10, 20].map(|at| {
            let r = regions.add(at * P, 4 * P);
            regions.make_ready(r, Tag::SETTLED)
        });
        for hint in [a, b, 2, 1000, u32::MAX] {
            assert_eq!(regions.ready_around(11 * P, 13 * P, hint), Some(a), "hint {hint}");
            assert_eq!(regions.ready_around(13 * P, 15 * P, hint), None, "beyond its end, hint {hint}");
        }
        let live = regions.cut(a, 10 * P, 4 * P);
        assert_eq!((live, regions.ready_around(11 * P, 13 * P, a)), (a, None), "not free any more");
    }

    #[test]
    fn takes_neighbours_and_gives_back_the_rest() {
        let mut regions = Regions::default();
        for at in [10, 18] {
            let r = regions.add(at * P, 4 * P);
            regions.make_ready(r, Tag::SETTLED);
        }
        let r = regions.add(14 * P, 4 * P);
        let r = regions.take_neighbours(r, Tag::SETTLED);
        assert_eq!((regions.get(r).addr, regions.get(r).size, regions.ready_bytes()), (10 * P, 12 * P, 0));
        let (r, left) = regions.cut_apart(r, 11 * P, 6 * P);
        left.into_iter().flatten().for_each(|part| regions.put_back(part, Tag::SETTLED));
        assert_eq!((regions.get(r).addr, regions.get(r).size, regions.get(r).state), (11 * P, 6 * P, State::Live));
        assert_eq!(regions.ready_bytes(), 6 * P);
        assert_eq!(regions.validate(), Ok(()));
        regions.make_ready(r, Tag::SETTLED);
        assert_eq!((regions.largest_ready(), regions.validate()), (12 * P, Ok(())));
    }

    #[test]
    fn numbers_start_over_when_nothing_is_left() {
        let mut regions = Regions::default();
        let numbers = |regions: &mut Regions| {
            let r = regions.add(10 * P, 8 * P);
            let r = regions.make_ready(r, Tag::SETTLED);
            let live = regions.cut(r, 12 * P, 2 * P);
            (r, live, regions.get(live).prev, regions.get(live).next)
        };
        let first = numbers(&mut regions);
        regions.start_over();
        assert_eq!(regions.get(first.1).addr, 12 * P, "something is left");
        let whole = regions.make_ready(first.1, Tag::SETTLED);
        regions.take_out(whole, 14 * P, 18 * P);
        regions.take_out(whole, 10 * P, 14 * P);
        regions.start_over();
        assert_eq!((numbers(&mut regions), regions.validate()), (first, Ok(())));
    }
}

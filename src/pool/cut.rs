//! Cutting regions in two, and joining free neighbours.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::order::Tag;
use super::region::{Regions, State};

/// A region in pieces: the block that was wanted, and what there was in front of it and behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) lead: Option<u32>,
    pub(super) block: u32,
    pub(super) rest: Option<u32>,
}

impl Regions {
    /// Makes a region (not in a bin) ready, joined with ready neighbours. Returns the joined region.
    pub(super) fn make_ready(&mut self, r: u32, mut order: Tag) -> u32 {
        let r = self.join_ready(r, &mut order);
        self.put_back(r, order);
        r
    }

    /// Joins a region (not in a bin) with ready neighbours, which leave their bins; `order` becomes the latest of theirs.
    fn join_ready(&mut self, mut r: u32, order: &mut Tag) -> u32 {
        let (prev, next) = (self.get(r).prev, self.get(r).next);
        if self.get(next).state == State::Ready {
            *order = order.later(self.get(next).order);
            self.unlink_bin(next);
            self.absorb_next(r);
        }
        if self.get(prev).state == State::Ready {
            *order = order.later(self.get(prev).order);
            self.unlink_bin(prev);
            self.absorb_next(prev);
            r = prev;
        }
        r
    }

    /// Joins a live region, last used at `order`, with ready neighbours into a live one: for [`Self::cut_loose`], which gives back
    /// what is left of it. Short for making it ready and taking it out of its bin again.
    pub(super) fn take_neighbours(&mut self, r: u32, mut order: Tag) -> u32 {
        let r = self.join_ready(r, &mut order);
        let region = self.get_mut(r);
        (region.state, region.order) = (State::Live, order);
        r
    }

    /// Joins `r` with the region after it, whose descriptor goes. Neither is in a bin.
    pub(super) fn absorb_next(&mut self, r: u32) {
        let next = self.get(r).next;
        let (size, after) = (self.get(next).size, self.get(next).next);
        let region = self.get_mut(r);
        region.size += size;
        region.next = after;
        self.get_mut(after).prev = r;
        self.release(next);
    }

    /// Cuts a region (not in a bin) after `size` bytes; returns the new right part, in the same state and order.
    pub(super) fn split(&mut self, r: u32, size: u64) -> u32 {
        let (addr, old, next) = (self.get(r).addr, self.get(r).size, self.get(r).next);
        debug_assert!(size > 0 && size < old);
        let right = self.alloc(addr + size, old - size);
        let (state, order) = (self.get(r).state, self.get(r).order);
        let region = self.get_mut(right);
        region.prev = r;
        region.next = next;
        region.state = state;
        region.order = order;
        self.get_mut(r).next = right;
        self.get_mut(r).size = size;
        self.get_mut(next).prev = right;
        right
    }

    /// Cuts `[addr, addr + size)` out of a ready region as a live one; what is left on either side is ready again.
    pub(super) fn cut(&mut self, r: u32, addr: u64, size: u64) -> u32 {
        self.take_ready(r);
        self.cut_loose(r, addr, size)
    }

    /// As [`Self::cut`], out of a live region of which nothing else is in use.
    pub(super) fn cut_loose(&mut self, r: u32, addr: u64, size: u64) -> u32 {
        let order = self.get(r).order;
        let Cut { lead, block, rest } = self.cut_apart(r, addr, size);
        lead.into_iter().chain(rest).for_each(|part| self.put_back(part, order));
        block
    }

    /// As [`Self::cut_loose`]; what is left on either side is live, and free once the caller has put it back.
    #[inline]
    pub(super) fn cut_apart(&mut self, r: u32, addr: u64, size: u64) -> Cut {
        let lead = addr - self.get(r).addr;
        let (lead, block) = match lead {
            0 => (None, r),
            _ => (Some(r), self.split(r, lead)),
        };
        let rest = (self.get(block).size > size).then(|| self.split(block, size));
        Cut { lead, block, rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = 2 << 20;

    #[test]
    fn a_hint_may_be_right_or_wrong() {
        let mut regions = Regions::of_pages(P);
        let [a, b] = [10, 20].map(|at| {
            let r = regions.add(at * P, 4 * P);
            regions.make_ready(r, Tag::SETTLED)
        });
        for hint in [a, b, 2, 1000, u32::MAX] {
            assert_eq!(regions.wide_around(11 * P, 13 * P, hint), Some(a), "hint {hint}");
            assert_eq!(regions.wide_around(13 * P, 15 * P, hint), None, "beyond its end, hint {hint}");
        }
        let live = regions.cut(a, 10 * P, 4 * P);
        assert_eq!((live, regions.wide_around(11 * P, 13 * P, a)), (a, None), "not free any more");
    }

    #[test]
    fn takes_neighbours_and_gives_back_the_rest() {
        let mut regions = Regions::of_pages(P);
        for at in [10, 18] {
            let r = regions.add(at * P, 4 * P);
            regions.make_ready(r, Tag::SETTLED);
        }
        let r = regions.add(14 * P, 4 * P);
        let r = regions.take_neighbours(r, Tag::SETTLED);
        assert_eq!((regions.get(r).addr, regions.get(r).size, regions.ready_bytes()), (10 * P, 12 * P, 0));
        let r = regions.cut_loose(r, 11 * P, 6 * P);
        assert_eq!((regions.get(r).addr, regions.get(r).size, regions.get(r).state), (11 * P, 6 * P, State::Live));
        assert_eq!(regions.ready_bytes(), 6 * P);
        assert_eq!(regions.validate(), Ok(()));
        regions.make_ready(r, Tag::SETTLED);
        assert_eq!((regions.largest_ready(), regions.validate()), (12 * P, Ok(())));
    }

    #[test]
    fn numbers_start_over_when_nothing_is_left() {
        let mut regions = Regions::of_pages(P);
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

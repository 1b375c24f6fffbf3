//! Free memory of other heaps: whole extents taken over where they are, or single blocks borrowed.
//!
//! Only memory that the device has passed, or that the request's own stream has freed. A step that
//! has been in vain of late is tried less often (`heap/backoff.rs`), as it takes other heaps'
//! locks, their threads' time, and questions to the device.

use crate::base::Result;
use crate::pool::heap::{slab, Backoff, Heap, HeapState};
use crate::pool::remap::economy::MUCH_ELSEWHERE;
use crate::pool::state::Pool;
use crate::pool::types::{AllocRequest, Want, SMALL_MIN};
use std::sync::atomic::Ordering::Relaxed;

/// Even a heap that lacks nothing may take extents of one part in this many of what another heap
/// has ready.
const MODEST_SHARE: u64 = 8;

/// How extents are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adoption {
    /// With no question to the device, and no more than the heap lacks or [`MODEST_SHARE`] allows.
    Known,
    /// After asking the device, and whatever holds the request.
    AfterAsking,
}

/// Memory for a request.
pub(crate) enum Obtained {
    /// A live region of the heap.
    Region(u32),
    /// An allocation that has been handed out: another heap's block, or an object of its stream.
    Made(u64),
}

impl Pool {
    /// Moves whole extents that hold the request from another heap's free memory into this heap,
    /// where they are: nothing is mapped or unmapped. Takes memory of the same stream, or that the
    /// device has passed, which may be asked first. Returns whether it found any.
    fn adopt(&self, st: &mut HeapState, want: Want, how: Adoption, which: impl Fn(&Heap) -> bool) -> Result<bool> {
        for other in self.others_with(st.number, want.size).filter(|h| which(h)).take(want.reach) {
            let Some(mut from) = other.try_lock_open() else { continue };
            // A capture takes settled memory only, and a slab's last use has seldom settled.
            if from.live_bytes == 0 && !st.of_captures {
                from.drop_empty_slabs(&self.order, &self.index);
            }
            let most = match how {
                Adoption::AfterAsking => {
                    self.refresh(&mut from, want)?;
                    u64::MAX
                }
                Adoption::Known => self.lacks(st, want.size).max(from.regions.ready_bytes() / MODEST_SHARE),
            };
            let run = self.whole_run(st, &from, want).filter(|&(_, (start, end))| end - start <= most);
            if let Some((region, run)) = run {
                self.hand_on(&mut from, st, region, run);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Where neighbouring extents in one usable free region of another heap hold the request, with
    /// the fewest bytes: the region, and from where to where.
    fn whole_run(&self, me: &HeapState, st: &HeapState, want: Want) -> Option<(u32, (u64, u64))> {
        let mut best: Option<(u32, (u64, u64))> = None;
        let bytes = |&(_, (start, end)): &(u32, (u64, u64))| end - start;
        // Nothing smaller holds an extent.
        for r in st.regions.ready_from(want.size.max(self.page)) {
            let g = st.regions.get(r);
            if !self.usable(g.tag, me, me.lane) {
                continue;
            }
            let extents = || st.extents.within(g.addr, g.end());
            let Some((start, _)) = extents().next() else { continue };
            let least = start.next_multiple_of(want.align) + want.size;
            let end = extents().map(|(addr, m)| addr + m.extent.size).find(|&end| end >= least);
            let run = end.map(|end| (r, (start, end)));
            best = best.into_iter().chain(run).min_by_key(bytes);
            if best.as_ref().is_some_and(|b| bytes(b) < want.size + self.page) {
                break;
            }
        }
        best
    }

    /// Bytes a heap lacks of the most it has had live, a request included, plus its least slack.
    fn lacks(&self, st: &HeapState, size: u64) -> u64 {
        (st.learnt.peak_live.max(st.live_bytes + size) + self.options.slack_floor).saturating_sub(st.extents.bytes())
    }

    /// Takes ready memory of the heap itself: an object of the request's class, or a region.
    pub(crate) fn take_own(&self, st: &mut HeapState, want: Want, req: &AllocRequest) -> Option<Obtained> {
        let object = want.class.and_then(|class| self.take_object(st, class, req));
        object.map(Obtained::Made).or_else(|| st.cut_for(want.size, want.align).map(Obtained::Region))
    }

    /// Takes other heaps' free memory with no question to the device: whole extents, if the heap
    /// lacks them, or else a single block, if that will do, which stays the other heap's.
    pub(crate) fn take_known(&self, st: &mut HeapState, want: Want, req: &AllocRequest) -> Result<Option<Obtained>> {
        if self.heap_count.load(Relaxed) < 2 || !st.vain.borrowing.try_now() {
            return Ok(None);
        }
        let adopted = self.adopt(st, want, Adoption::Known, |_| true)?;
        let region = if adopted { st.cut_for(want.size, want.align) } else { None };
        let taken = region.map(Obtained::Region).or_else(|| self.borrow(st, want, req).map(Obtained::Made));
        st.vain.borrowing.ended(taken.is_some());
        Ok(taken)
    }

    /// Borrows a block of another heap's free memory, if the request is for one: settled, or freed
    /// there by this very stream.
    pub(crate) fn borrow(&self, me: &HeapState, want: Want, req: &AllocRequest) -> Option<u64> {
        if !want.for_block || me.private.is_some() {
            return None;
        }
        self.others_with(me.number, want.size).take(want.reach).find_map(|other| {
            let mut st = other.try_lock_open()?;
            let known = st.cut_where(want.size, want.align, |r| self.usable(r.tag, me, want.lane));
            let r = known.or_else(|| match me.of_captures {
                true => None,
                false => st.take_waiting_of(me.lane, want.size, want.align, &self.order),
            })?;
            Some(self.finish_block(&mut st, r, req, want.lane))
        })
    }

    /// An object of another heap of the same stream, for a small request: there are parts of
    /// extents free where whole ones are not. `new`: in a slab made for it, if need be.
    pub(crate) fn borrow_object(&self, me: &HeapState, want: Want, req: &AllocRequest, new: bool) -> Option<u64> {
        let class = want.class.filter(|_| !me.of_captures)?;
        let beside = self.all_heaps().filter(|h| h.lane == me.lane && h.number != me.number);
        beside.filter_map(Heap::try_lock_open).filter(|st| st.is_current(&self.order)).find_map(|mut st| {
            if new && !st.slabs.has_free(class) {
                let region = st.cut_where(want.size, want.align, |r| self.usable(r.tag, me, want.lane))?;
                st.add_slab(class, region, &self.index);
            }
            self.take_object(&mut st, class, req)
        })
    }

    /// An object of a larger class, for a small request that there is no room for a slab for.
    pub(crate) fn take_larger(&self, st: &mut HeapState, want: Want, req: &AllocRequest) -> Option<u64> {
        let fits = |&c: &usize| st.slabs.has_free(c) && slab::class_size(c).is_multiple_of(req.align.max(SMALL_MIN));
        let class = (want.class? + 1..slab::CLASSES).find(fits)?;
        self.take_object(st, class, req)
    }

    /// Asks the device a few times about markers already recorded, unless that has been in vain of
    /// late: memory is often ready within microseconds, sooner than anything could be mapped. Goes
    /// on after memory that does not suffice, while more is on its way. Returns whether the request
    /// fits now.
    pub(crate) fn wait_a_moment(&self, st: &mut HeapState, want: Want) -> Result<bool> {
        let queries = self.options.patience;
        let objects = |st: &HeapState| want.class.is_some_and(|class| st.slabs.pending(class) > 0);
        if queries == 0
            || (st.waiting_bytes < want.size && !objects(st))
            || !st.about_to_settle(&self.order)
            || !st.vain.patience.try_now()
        {
            return Ok(false);
        }
        for _ in 0..queries {
            self.order.poll(st.waits_for())?;
            if st.settle(&self.order, &self.index) {
                if st.serves(want) {
                    st.vain.patience.ended(true);
                    return Ok(true);
                }
                if !st.about_to_settle(&self.order) {
                    break;
                }
            }
        }
        st.vain.patience.ended(false);
        Ok(false)
    }

    /// Looks into other heaps for whole extents, but not into other streams' heaps if that has been
    /// in vain of late: it takes their locks, their threads' time, and questions to the device.
    pub(crate) fn take_over(&self, st: &mut HeapState, want: Want) -> Result<bool> {
        if self.heap_count.load(Relaxed) < 2 {
            return Ok(false);
        }
        if st.private.is_some() {
            // It takes over, where it is, only what earlier captures left. Anything else is mapped
            // into its own range of addresses.
            return self.adopt(st, want, Adoption::AfterAsking, |other| other.of_captures);
        }
        if !st.vain.others.try_now() {
            let lane = st.lane;
            return self.adopt(st, want, Adoption::AfterAsking, |other| other.lane == lane);
        }
        let found = self.adopt(st, want, Adoption::AfterAsking, |_| true)?;
        st.vain.others.ended(found);
        Ok(found)
    }

    /// Before anything is mapped, brings other heaps up to date, if they hold a lot of free memory
    /// or the request is beyond the budget of all heaps. One context marker tells whether the
    /// device has passed everything freed so far, on idle and dead streams too. The marker is left
    /// out if little is free elsewhere, if a capture was ever met (the marker could invalidate it),
    /// or if asking was in vain of late. A large request beyond the budget asks all the same, as
    /// mapping costs more than asking. For the shared heap beyond the budget, enough is free
    /// elsewhere once waiting memory and other heaps' would do together; it takes over what it
    /// finds. Returns the memory found for the request. That is rent as well, if the device has
    /// passed the marker: with many heaps, to look into them takes as long as to move it.
    pub(crate) fn look_around(
        &self,
        st: &mut HeapState,
        mut want: Want,
        req: &AllocRequest,
    ) -> Result<Option<Obtained>> {
        let shared = self.is_shared(st.number);
        let elsewhere = self.others_with(st.number, self.page).map(|h| h.free.load(Relaxed)).sum::<u64>();
        let over = self.budget(st, want.size) < want.size;
        let a_lot = match over {
            _ if shared => want.size.saturating_sub(st.waiting_bytes),
            true => MUCH_ELSEWHERE,
            false => want.size.max(MUCH_ELSEWHERE).max(self.mapped_now() / 8),
        };
        let dear = over && want.size >= MUCH_ELSEWHERE;
        let ask = elsewhere >= a_lot && self.order.captures.changes() == 0 && (dear || st.asking.try_now());
        if !ask && !over {
            return Ok(None);
        }
        let marked = ask && self.order.mark_context(Some(want.stream))?;
        let passed = marked && self.order.context_passes_within(self.options.patience.max(1))?;
        if passed {
            want.reach = usize::MAX;
        }
        self.poll_and_settle(st)?;
        for other in self.others_with(st.number, self.page).take(want.reach) {
            let Some(mut of_other) = other.try_lock_open() else { continue };
            self.refresh(&mut of_other, want)?;
            if shared {
                self.take_settled(st, &mut of_other, want.size);
            }
            // There may be a hundred heaps: the first that has enough will do.
            let enough = !shared
                && of_other.regions.find(want.size, want.align, |r| self.usable(r.tag, st, want.lane)).is_some();
            if enough {
                break;
            }
        }
        let found = match self.take_own(st, want, req) {
            Some(own) => Some(own),
            None => {
                st.vain.borrowing = Backoff::default();
                self.take_known(st, want, req)?
            }
        };
        if ask {
            st.asking.ended(found.is_some());
        }
        if passed && found.is_some() {
            self.counters.paid.fetch_add(want.size, Relaxed);
        }
        Ok(found)
    }
}

//! Giving memory back to the driver: free extents, what is in the stock, and the graves of
//! dedicated allocations, which were freed while the device may still have been using them.

use crate::base::Result;
use crate::driver::nvtx;
use crate::pool::heap::{Heap, HeapState};
use crate::pool::memory::{Extent, Grave};
use crate::pool::order::Tag;
use crate::pool::remap::sources::{take_out, Source};
use crate::pool::state::Pool;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// Sets the most bytes the pool may map (0: no limit) and gives free memory back if it has
    /// more.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        let limit = if bytes == 0 { u64::MAX } else { bytes };
        self.limit.store(limit, Relaxed);
        if self.mapped_now() > limit {
            self.trim(limit)?;
        }
        Ok(())
    }

    /// Gives free memory of all heaps back to the driver so that `bytes` can be created: as much as
    /// that takes, within the limit and on the device. If that does not do, it still helps later
    /// requests, for which finer extents are created.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        let mapped = self.mapped_now();
        let keep = mapped.min(self.limit.load(Relaxed)).saturating_sub(bytes.saturating_add(self.page));
        let _range = nvtx::range(c"trim", keep);
        if self.core.lock().no_place.is_some() {
            // The system may be out of mappings.
            self.reap()?;
        }
        self.release_free(keep).map(drop)
    }

    /// Frees all slabs that are known to be empty.
    pub(crate) fn drop_empty_slabs(&self) {
        for heap in self.all_heaps() {
            let mut st = heap.lock();
            st.settle(&self.order, &self.index);
            st.drop_empty_slabs(&self.order, &self.index);
        }
    }

    /// Releases wholly free extents the device has passed until no more than `keep` bytes are
    /// mapped. What the device may still be using stays; synchronise first to give everything back.
    /// May invalidate a stream capture in progress. Returns the bytes released.
    pub fn trim(&self, keep: u64) -> Result<u64> {
        let _changing = self.change();
        let _range = nvtx::range(c"trim", keep);
        if self.mapped_now() > keep || self.core.lock().aliases.dormant() > 0 {
            // Settles what was freed so far, on any stream, once the device has passed this point.
            // Slabs go first, so that the marker covers their memory too.
            self.drop_empty_slabs();
            if self.order.mark_context_heeding(None, |_| false)? {
                self.order.poll_patiently()?;
            }
        }
        self.reap()?;
        let released = self.release_free(keep)?;
        self.start_to_earn_anew();
        Ok(released)
    }

    /// Gives back free memory that nothing has needed since the last call, until no more than
    /// `keep` bytes of it stay. For calls at intervals: records one context marker if there is
    /// something to give back, and none while a capture is known. What the device has not passed
    /// stays until the next time. Returns the bytes released.
    pub fn trim_unused(&self, keep: u64) -> Result<u64> {
        let _changing = self.change();
        let mut graves = self.release_graves()?;
        let mut unused = Vec::new();
        for heap in self.all_heaps() {
            let mut st = heap.lock();
            if st.private.is_none() {
                // What has been ready all the time since the last call. Empty slabs count from now.
                unused.push((heap, st.least_ready));
                st.drop_empty_slabs(&self.order, &self.index);
                st.least_ready = st.regions.ready_bytes();
            }
        }
        let stocked = self.core.lock().stock.take_unused();
        let mut spare = (stocked + unused.iter().map(|u| u.1).sum::<u64>()).saturating_sub(keep);
        if spare < self.page {
            return Ok(graves);
        }
        let _range = nvtx::range(c"trim", keep);
        self.order.mark_context_and_poll(None)?;
        self.order.poll([])?;
        self.drop_orphans()?;
        graves += self.release_graves()?;
        let mut released = self.release_stock(0, stocked.min(spare))?;
        spare = spare.saturating_sub(released);
        for (heap, bytes) in unused.into_iter().filter(|u| u.1 >= self.page) {
            let given = self.release_from(heap, 0, bytes.min(spare))?;
            spare -= given;
            released += given;
        }
        self.lower_peaks();
        Ok(graves + released)
    }

    /// Like [`Self::trim`], but without a marker of its own. Unmaps only old addresses that stand
    /// in the way.
    pub(crate) fn release_free(&self, keep: u64) -> Result<u64> {
        self.order.poll([])?;
        // An extent goes with all its old addresses, whose last uses may be of other streams than
        // its own.
        self.poll_aliases()?;
        self.drop_orphans()?;
        let mut released = self.release_graves()? + self.release_stock(keep, u64::MAX)?;
        for heap in self.all_heaps() {
            if self.mapped_now() <= keep {
                break;
            }
            released += self.release_from(heap, keep, u64::MAX)?;
        }
        Ok(released)
    }

    /// Releases settled extents of the stock, at most `most` bytes, until no more than `keep` are
    /// mapped.
    fn release_stock(&self, keep: u64, most: u64) -> Result<u64> {
        let lanes = self.core.lock().stock.lanes(&self.order);
        self.order.poll(lanes)?;
        let stocked: Vec<Extent> = self.core.lock().stock.iter().map(|x| x.0).collect();
        let mut released = 0;
        for extent in stocked {
            if self.mapped_now() <= keep {
                break;
            }
            if extent.size > most - released {
                continue;
            }
            // An extent goes only once its old addresses are gone, or the driver would keep the
            // memory for them.
            let claims = {
                let mut core = self.core.lock();
                if !core.stock.tag(extent).is_some_and(|tag| self.order.settled(tag)) {
                    continue;
                }
                let Some(claims) = core.aliases.claim_of(extent, &self.order) else { continue };
                core.stock.take_this(extent);
                claims
            };
            let gone = self.unmap_claims(&claims).and_then(|()| self.driver.phys_release(extent.handle));
            let mut core = self.core.lock();
            gone.inspect_err(|_| core.stock.put(extent, Tag::SETTLED))?;
            core.aliases.remove_extent(extent);
            self.sub_mapped(extent.size);
            released += extent.size;
        }
        Ok(released)
    }

    /// Releases settled free extents of a heap, at most `most` bytes, until no more than `keep` are
    /// mapped: what has been free longest first.
    fn release_from(&self, heap: &Heap, keep: u64, most: u64) -> Result<u64> {
        let mut st = heap.lock();
        self.order.poll(st.waits_for().chain([heap.lane]))?;
        st.settle(&self.order, &self.index);
        st.drop_empty_slabs(&self.order, &self.index);
        let mut free = self.sources(&st, None, |tag| self.order.settled(tag));
        // One region has one tag, and goes from high to low addresses: what is left of it before a
        // cut keeps its number.
        free.sort_unstable_by_key(|s| (s.tag, Reverse(s.addr)));
        let mut released = 0;
        let done = free.iter().try_for_each(|s| {
            if self.mapped_now() > keep && s.extent.size <= most - released {
                released += self.release_extent(&mut st, s)?;
            }
            Ok(())
        });
        done.map(|()| released)
    }

    /// Releases an extent. Returns the bytes released: 0 if the device may still be using one of
    /// its old addresses.
    pub(crate) fn release_extent(&self, st: &mut HeapState, s: &Source) -> Result<u64> {
        let claims = self.core.lock().aliases.claim_of(s.extent, &self.order);
        let Some(claims) = claims else { return Ok(0) };
        self.unmap_claims(&claims)?;
        self.driver.unmap(s.addr, s.extent.size)?;
        take_out(st, s.region, (s.addr, s.end()));
        st.note_taken();
        {
            let mut core = self.core.lock();
            core.aliases.present_gone(s.extent);
            core.aliases.remove_extent(s.extent);
            self.give_used_addresses(&mut core, s.addr, s.extent.size);
        }
        self.sub_mapped(s.extent.size);
        self.drop_handle(s.extent.handle)?;
        Ok(s.extent.size)
    }

    /// Unmaps and releases freed dedicated allocations the device has passed. Returns the bytes
    /// released.
    pub fn release_graves(&self) -> Result<u64> {
        let lanes: BTreeSet<u32> = {
            let core = self.core.lock();
            core.graves.values().filter(|g| g.mapped > 0).flat_map(|g| g.tags.iter().map(|t| t.lane())).collect()
        };
        if lanes.is_empty() {
            return Ok(0);
        }
        self.order.poll(lanes)?;
        let ready = |g: &Grave| g.mapped > 0 && !g.busy && g.tags.iter().all(|&t| self.order.settled(t));
        let next = |from: u64| {
            let mut core = self.core.lock();
            let grave = core.graves.range_mut(from..).map(|(_, g)| g).find(|g| ready(g))?;
            grave.busy = true;
            Some(grave.clone())
        };
        let (mut released, mut from) = (0, 0);
        while let Some(g) = next(from) {
            from = g.va + 1;
            let done = self.driver.unmap(g.va, g.mapped);
            let mut core = self.core.lock();
            let Some(grave) = core.graves.get_mut(&g.va) else { continue };
            grave.busy = false;
            done?;
            // It is unmapped. Its addresses are free, unless they are held, whatever becomes of the
            // handle.
            if grave.held {
                grave.mapped = 0;
            } else {
                core.close_grave(g.va);
            }
            self.sub_mapped(g.mapped);
            drop(core);
            released += g.mapped;
            g.handle.map_or(Ok(()), |h| self.drop_handle(h))?;
        }
        Ok(released)
    }
}

//! Stitching: mapping moved and created extents at one run of addresses.
//!
//! All driver calls that can fail come before the first change of the pool's own state, so a
//! failure is undone by unmapping addresses that were never handed out. Moved extents stay mapped
//! at their old addresses too, so that they can return there for nothing (`flip.rs`).

use crate::base::size::human;
use crate::base::{Error, Result, Status};
use crate::driver::nvtx;
use crate::pool::heap::HeapState;
use crate::pool::memory::{Extent, RunId, Supply};
use crate::pool::order::Tag;
use crate::pool::remap::anchor::Anchor;
use crate::pool::remap::economy::MUCH_ELSEWHERE;
use crate::pool::remap::plan::{plan, Allowance, Plan};
use crate::pool::remap::sources::{bytes_of, take_out, Others, Source};
use crate::pool::state::{Core, Pool};
use crate::pool::types::{too_large, Want};
use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// Gives the heap a ready region for the request, cut and live. `None` when memory does not
    /// suffice within the limit and the device.
    pub(crate) fn stitch_or_grow(&self, st: &mut HeapState, want: Want) -> Result<Option<u32>> {
        if let Err(e) = self.reap_surplus(want) {
            // Old addresses that stay a little longer are no reason to refuse memory.
            self.say(|| format!("heap {}: old addresses not unmapped: {}", st.number, e.message));
        }
        self.core.lock().no_place = None;
        st.learnt.gives_up = self.gives_up_old_addresses(st);
        if st.learnt.gives_up {
            // Only those that the device is known to have passed; `carry_out` has left markers.
            self.order.poll([want.lane])?;
        }
        if let Some(anchor) = self.anchor(st, want) {
            if let Some(r) = self.stitch_at(st, want, Some(anchor))? {
                return Ok(Some(r));
            }
        }
        self.stitch_at(st, want, None)
    }

    /// One try at a place. `None` if memory or room does not suffice.
    fn stitch_at(&self, st: &mut HeapState, want: Want, anchor: Option<Anchor>) -> Result<Option<u32>> {
        let need = (want.size - anchor.map_or(0, |a| a.has))
            .checked_next_multiple_of(self.page)
            .ok_or_else(|| too_large(want.size))?;
        let exchanged = self.exchange_coarse(st, anchor.map(|a| a.region), need, want);
        // Before other heaps' locks are taken, because it looks into those heaps.
        let mut allowed = self.decide_allowance(st, want);
        // What was given back is created again; it is no reason to take other heaps' memory.
        let lacks = need.saturating_sub(exchanged);
        let (mut sources, mut others) = self.gather(st, anchor, (lacks, want), false)?;
        // A graph is not launched behind what its stream waits for now.
        let mut may_wait = self.options.wait && !st.of_captures;
        let mut reaped = false;
        let movable = bytes_of(&sources) + self.core.lock().stock.bytes();
        if lacks > movable {
            self.refine(st, want, need - movable);
        }
        let only_grows = sources.is_empty() && self.shares_extents(st, want.size);
        let (mut ahead, extent) = self.ahead(st, want, only_grows, allowed);
        let mut in_place = anchor.is_none() && only_grows;
        loop {
            let largest = if ahead > 0 { extent } else { self.largest_extent(st, want.size) };
            let Some(plan) = plan(need.max(ahead), self.page, largest, &sources, allowed) else {
                // Last, memory that the device has not passed: this stream would wait for it, on
                // the device. A captured stream cannot wait for anything outside its capture.
                if !std::mem::take(&mut may_wait) || self.driver.stream_is_capturing(self.dev, want.stream)? {
                    return Ok(None);
                }
                drop(std::mem::take(&mut others));
                (sources, others) = self.gather(st, anchor, (need, Want { reach: usize::MAX, ..want }), true)?;
                continue;
            };
            // New memory goes behind the last new memory, so that a heap that only grows is one
            // span.
            let behind = anchor.or_else(|| self.growth_anchor(st, want).filter(|_| in_place));
            match self.carry_out(st, &mut others, behind, &plan, (want, true)) {
                Ok(None) if in_place => in_place = false,
                Ok(done) => return Ok(done),
                Err(e) if e.status == Status::OutOfMemory && ahead > 0 => {
                    ahead = 0;
                    st.goes_without();
                }
                // The device has less than the limit allows: see whether moving alone is enough.
                Err(e) if e.status == Status::OutOfMemory && allowed.hard > 0 && !plan.creates.is_empty() => {
                    allowed = Allowance { hard: 0, cheap: 0, floor: 0 };
                }
                // Nothing was to be created, so the system has run out of mappings.
                Err(e) if e.status == Status::OutOfMemory && !std::mem::replace(&mut reaped, true) => {
                    self.reap()?;
                }
                Err(e) if e.status == Status::OutOfMemory => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// The extents that could move: the heap's own free ones, and if those do not suffice, others'
    /// that the device has passed. With `unsettled`, also those that it has not passed but that a
    /// marker covers.
    fn gather<'a>(
        &'a self,
        me: &HeapState,
        anchor: Option<Anchor>,
        (need, want): (u64, Want),
        unsettled: bool,
    ) -> Result<(Vec<Source>, Others<'a>)> {
        let mut sources = self.sources(me, anchor.map(|a| a.region), |_| true);
        let mut others = Others::new();
        let mut have = bytes_of(&sources);
        // Hundreds of heaps can hold more than their streams use together: then all are looked at.
        let much = self.mapped_now() / 3 > self.counters.most_live.load(Relaxed) / 2;
        let reach = if much { usize::MAX } else { want.reach };
        for other in self.others_with(me.number, self.page).take(reach) {
            if have >= need {
                break;
            }
            let Some(mut st) = other.try_lock() else { continue };
            self.order.poll([other.lane])?;
            st.settle(&self.order, &self.index);
            let usable = |tag| self.usable(tag, me, want.lane) || (unsettled && self.order.marked(tag));
            let found = self.sources(&st, None, usable);
            if !found.is_empty() {
                have += bytes_of(&found);
                sources.extend(found);
                others.insert(other.number, st);
            }
        }
        Ok((sources, others))
    }

    /// Carries a plan out. Returns the region of the run, or with `cut` that of the request, live,
    /// which is cut out of it. `None` if the run would not fit next to the anchor any more.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn carry_out(
        &self,
        st: &mut HeapState,
        others: &mut Others<'_>,
        anchor: Option<Anchor>,
        plan: &Plan,
        (want, cut): (Want, bool),
    ) -> Result<Option<u32>> {
        // This stream waits, on the device, for other streams' memory that the device has not
        // passed. If a later step fails, that wait does no harm.
        let Plan { moves, creates } = plan;
        let mut waited = false;
        for s in moves.iter().filter(|s| s.heap != st.number && !self.usable(s.tag, st, want.lane)) {
            waited = true;
            if !self.order.wait(s.tag, want.stream)? {
                return Err(Error::internal("memory of unknown order was chosen for a stitch"));
            }
        }
        // Whether the device keeps up matters to the shared heap only; a captured stream cannot
        // tell.
        let may_share = self.heap_count.load(Relaxed) > 1 && !st.of_captures;
        let tells = may_share && (!moves.is_empty() || self.is_shared(st.number));
        let marked = (tells || st.learnt.gives_up).then(|| self.mark_here(want));
        let supply = self.supply(want, creates)?;
        let created = supply.create.iter().sum::<u64>();
        let stocked = supply.stocked.iter().map(|(e, _)| e.size).sum::<u64>();
        let remapped = bytes_of(moves) + stocked;
        let range = match created {
            0 => nvtx::range(c"stitch", remapped),
            new => nvtx::range(c"growth", new),
        };
        let run = self.map_supply(st, anchor, want, moves, &supply);
        drop(range);
        let (va, run) = match run {
            Ok(Some(done)) => done,
            other => {
                let mut core = self.core.lock();
                supply.stocked.into_iter().for_each(|(extent, tag)| core.stock.put(extent, tag));
                return other.map(|_| None);
            }
        };

        // From here on nothing fails: the driver has done its part.
        let mut last_use = if waited { self.order.tag(want.lane) } else { Tag::SETTLED };
        for (_, tag) in &supply.stocked {
            // A tag of another lane is settled.
            last_use = if self.order.settled(*tag) { last_use } else { last_use.later(*tag) };
        }
        let run_bytes: u64 = run.iter().map(|e| e.size).sum();
        self.say(|| {
            let (heap, moved, stocked, created) = (st.number, moves.len(), supply.stocked.len(), supply.create.len());
            let [run, asked] = [run_bytes, want.size].map(human);
            let place = match anchor {
                Some(a) if a.in_front => "in front of a free region",
                Some(_) => "behind a free region",
                None => "at addresses of its own",
            };
            format!(
                "heap {heap}: {run} for a request of {asked} {place}: {moved} extents moved, {stocked} from the stock, \
                 {created} created"
            )
        });
        let own = moves.iter().filter(|s| s.heap == st.number).count();
        st.count_moves(moves.len() as u64, own as u64);
        st.learnt.remapped += remapped;
        self.counters.remapped.fetch_add(remapped, Relaxed);
        self.counters.paid.fetch_add(remapped, Relaxed);
        if let Some(marked) = marked.filter(|_| tells) {
            self.look_whether_behind(marked);
        }
        st.learnt.fresh_starts.mapped_again += (moves.len() + supply.stocked.len()) as u64;
        let (run, region) = commit(&mut self.core.lock(), st, others, moves, last_use, (va, &run), (want, cut));
        st.learnt.memo.note(want, run);
        match supply.create.is_empty() {
            true => st.stitches += 1,
            false => {
                self.counters.growths.fetch_add(1, Relaxed);
                self.want_annex(st);
            }
        }
        if moves.is_empty() {
            st.grown_to = va + run_bytes;
        }
        Ok(Some(region))
    }

    /// Makes up the planned sizes from the stock as far as possible. Before anything is created,
    /// asks the device about what other streams have left there. If that is much, records a context
    /// marker for it, as an idle stream records none.
    fn supply(&self, want: Want, sizes: &[u64]) -> Result<Supply> {
        let largest = sizes.first().copied().unwrap_or(self.page);
        let mut core = self.core.lock();
        let supply = core.stock.supply(sizes, self.page, largest, want.lane, &self.order);
        if supply.create.is_empty() || core.stock.bytes() == 0 {
            return Ok(supply);
        }
        let lanes = core.stock.lanes(&self.order);
        let orphaned = core.stock.iter().any(|(_, t)| !self.order.marked(t) && self.order.only_context(t));
        let created = supply.create.iter().sum();
        supply.stocked.into_iter().for_each(|(extent, tag)| core.stock.put(extent, tag));
        let unmarked = core.stock.iter().filter(|(_, t)| !self.order.marked(*t)).map(|(e, _)| e.size).sum::<u64>();
        drop(core);
        lanes.iter().filter(|&&l| l != want.lane).for_each(|&l| self.order.ask_for_marker(l));
        let much = unmarked >= MUCH_ELSEWHERE.min(created) && self.order.captures.changes() == 0;
        let marked = (orphaned || much) && self.order.mark_context(Some(want.stream))?;
        if marked && much {
            self.order.context_passes_within(self.options.patience)?;
        }
        self.order.poll(lanes)?;
        Ok(self.core.lock().stock.supply(sizes, self.page, largest, want.lane, &self.order))
    }

    /// Takes addresses and maps everything a stitch needs there. Returns the addresses and the
    /// extents in their order, or `None` when there is no room next to the anchor.
    fn map_supply(
        &self,
        st: &mut HeapState,
        anchor: Option<Anchor>,
        want: Want,
        moves: &[Source],
        supply: &Supply,
    ) -> Result<Option<(u64, Vec<Extent>)>> {
        let moved = moves.iter().map(|s| s.extent).chain(supply.stocked.iter().map(|x| x.0));
        let len = moved.clone().map(|e| e.size).sum::<u64>() + supply.create.iter().sum::<u64>();
        if anchor.is_some_and(|a| a.old && !self.make_way(a.at, a.in_front, len)) {
            return Ok(None);
        }
        let kept = st.kept;
        let va = match anchor.map(|a| a.start(len)) {
            Some(start) if start == kept.0 && len <= kept.1 - kept.0 => {
                st.kept.0 += len;
                start
            }
            Some(start) if self.core.lock().holes.take_at(start, len) => start,
            Some(_) => return Ok(None),
            None => self.take_addresses(len, want.align)?,
        };
        let run = self.map_run(va, len, moved, &supply.create).inspect_err(|_| {
            if st.kept != kept && self.core.lock().holes.take_at(va, len) {
                st.kept = kept;
            }
        });
        run.map(|run| Some((va, run)))
    }
}

/// The part of a stitch that cannot fail, after the driver has done its part. `moves` leave their
/// regions. The run just mapped at `va`, which begins with them, becomes a ready region, last used
/// at `last_use` or when they were. With `cut`, the request, which fits, is cut out of it. Returns
/// the run's number and the request's region, or the run's.
#[allow(clippy::too_many_arguments)]
fn commit(
    core: &mut Core,
    st: &mut HeapState,
    others: &mut Others<'_>,
    moves: &[Source],
    mut last_use: Tag,
    (va, run): (u64, &[Extent]),
    (want, cut): (Want, bool),
) -> (RunId, u32) {
    // Work that repeats finds them at the same places when it wants the run back.
    let from = moves.iter().map(|s| Some((s.place, s.addr, s.region))).chain(std::iter::repeat(None));
    let parts = core.aliases.parts_from(run.iter().copied().zip(from));
    let mut moves = moves.to_vec();
    // From high to low addresses: what is left of a region before the cut keeps its number.
    moves.sort_unstable_by_key(|s| Reverse(s.addr));
    for s in &moves {
        core.aliases.leave(s.place, s.tag);
        // Tags of other lanes have settled, or the stream waits for them on the device, so all that
        // are joined here are of one lane.
        if s.heap == st.number || s.tag.lane() == want.lane {
            last_use = last_use.later(s.tag);
        }
    }
    let id = core.aliases.add_run(va, run);
    core.aliases.set_parts(id, parts);
    let (start, end, _) = core.aliases.bounds(id);
    if st.kept == (start, start) {
        // Beyond the addresses that it keeps, a private heap grows where it can.
        st.kept = (end, end);
    }
    st.extents.insert_all(start, end, core.aliases.run(id));
    for s in &moves {
        let from = others.get_mut(&s.heap).map_or(&mut *st, |other| &mut **other);
        take_out(from, s.region, (s.addr, s.end()));
    }
    others.values_mut().for_each(|other| other.note_taken());
    (id, st.enter_run((start, end), last_use, Some(want).filter(|_| cut)))
}

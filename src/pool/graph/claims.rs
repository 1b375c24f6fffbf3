//! Claims: which stream allocates from a part of an arena at present, and by which route.
//!
//! A part belongs to a stream handle. CUDA gives the handle of a destroyed stream to the next one,
//! while the old one's work may still be running. And memory that a stream has freed in its own
//! order is ready for that stream, but not for a graph, which may be launched on any stream. So if
//! the handle stands for another stream, or its stream is captured after it was used eagerly,
//! unsettled free memory first waits for the context.

use crate::base::sync::lock;
use crate::base::{Result, StreamHandle};
use crate::pool::heap::{Heap, Now, Place, StreamPart};
use crate::pool::order::{Order, CONTEXT};
use crate::pool::state::{Claim, Ids, Pool, Route};
use crate::pool::types::Ranked;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Routes of one arena that take turns add a claim each time. From this many claims on, each time
/// they have doubled, those with no live allocation are dropped.
const MANY: usize = 1024;

impl Claim {
    /// The heap's last id before the claim.
    fn since(&self, heap: u32) -> u64 {
        self.since.iter().find(|s| s.0 == heap).map_or(0, |s| s.1)
    }
}

impl StreamPart {
    /// Forgets the stream's capture, because the arena is released and its graphs are gone.
    pub(crate) fn forget_capture(&self, order: &Order) {
        let met = lock(&self.user).met;
        if met > 0 {
            order.captures.gone(self.key, met);
        }
    }
}

impl Pool {
    /// Begins a route for the part's stream, which is `now`. What an earlier stream of the handle
    /// may still be using waits for the context. What this stream has used eagerly gets a marker,
    /// so that its capture may use it once the device has passed that: a context marker, because a
    /// new lane needs one in front of its own.
    pub(crate) fn begin_use(&self, part: &StreamPart, stream: StreamHandle, now: Now) -> Result<()> {
        let mut user = lock(&part.user);
        let Now::Idle(id) = now else { return Ok(()) };
        if user.id == Some(id) {
            if user.eager {
                self.order.mark_context(&*self.driver, Some(stream))?;
            }
            return Ok(());
        }
        if self.hand_over_part(part) && self.order.mark_context(&*self.driver, Some(stream))? {
            self.order.poll(&*self.driver, [])?;
        }
        (user.id, user.eager) = (Some(id), false);
        Ok(())
    }

    /// Claims the part for the route, whose stream, which is `now`, is about to allocate or free by
    /// it. Returns `false` if the route has ended.
    pub(crate) fn claim_part(&self, route: &Route, part: &Arc<StreamPart>, now: Now) -> Result<bool> {
        let mut user = lock(&part.user);
        if now == Now::Captured {
            user.met = self.order.captures.met(part.key);
        }
        match now {
            Now::Idle(id) => {
                if user.id != Some(id) {
                    self.hand_over_part(part);
                }
                (user.id, user.eager) = (Some(id), true);
            }
            Now::Captured if user.eager => {
                self.order.poll(&*self.driver, self.heaps_of(&part.heaps).map(|h| h.lane))?;
                self.hand_over_part(part);
                user.eager = false;
            }
            Now::Captured => {}
        }
        if user.route == route.number {
            return Ok(true);
        }
        let ids = self.ids_of(part);
        if let Some(before) = self.route(user.route) {
            close(&mut lock(&before.claims), part, &ids);
        }
        let mut claims = lock(&route.claims);
        if route.is_over() {
            return Ok(false);
        }
        if claims.len() == claims.capacity() && claims.len() >= MANY {
            self.drop_dead(&mut claims);
        }
        claims.push(Claim { part: part.clone(), since: ids, until: None });
        user.route = route.number;
        Ok(true)
    }

    /// Closes the route's claims: it allocates nothing any more.
    pub(crate) fn close_claims(&self, route: &Route) {
        for claim in lock(&route.claims).iter_mut().filter(|c| c.until.is_none()) {
            claim.until = Some(self.ids_of(&claim.part));
        }
    }

    /// Frees all live allocations of a route that has ended. Returns their addresses.
    pub(crate) fn free_claimed(&self, route: &Route) -> Vec<u64> {
        let mut freed = Vec::new();
        for mut claim in std::mem::take(&mut *lock(&route.claims)) {
            for (number, last) in claim.until.take().unwrap_or_else(|| self.ids_of(&claim.part)) {
                self.free_between((number, claim.since(number), last), &mut freed);
            }
        }
        freed
    }

    /// Forgets closed claims with no live allocation.
    fn drop_dead(&self, claims: &mut Vec<Claim>) {
        let mut live: HashMap<u32, Vec<u64>> = HashMap::new();
        let mut is_alive = |claim: &Claim, (number, last): (u32, u64)| {
            let ids = live.entry(number).or_insert_with(|| self.live_ids(number));
            let next = ids.partition_point(|&id| id <= claim.since(number));
            ids.get(next).is_some_and(|&id| id <= last)
        };
        claims.retain(|c| c.until.as_ref().is_none_or(|until| until.iter().any(|&u| is_alive(c, u))));
    }

    /// The ids of a heap's live allocations, ascending.
    fn live_ids(&self, number: u32) -> Vec<u64> {
        let Some(heap) = self.heap(number) else { return Vec::new() };
        let st = heap.lock();
        let mut ids: Vec<u64> = st.live().map(|p| st.at(p).id).collect();
        ids.sort_unstable();
        ids
    }

    /// Frees a heap's live allocations with ids after `first` and up to `last`.
    fn free_between(&self, (number, first, last): (u32, u64, u64), freed: &mut Vec<u64>) {
        let Some(heap) = self.heap(number) else { return };
        let mut st = heap.lock();
        // Allocations the end of an arena has in hand are freed there.
        let meant = |&p: &Place| (first + 1..=last).contains(&st.at(p).id) && !st.is_reclaimed(p);
        for place in st.live().filter(meant).collect::<Vec<_>>() {
            let addr = st.at(place).addr;
            freed.push(addr);
            let mut users = st.take_users(addr);
            self.bring_near(addr, &mut users);
            st.take_back(place, &[self.order.tag(CONTEXT)], &self.order, &self.index);
        }
        heap.publish(&st);
    }

    /// The heaps of a list, which is unlocked again by then.
    pub(crate) fn heaps_of(&self, list: &Ranked<Vec<u32>>) -> impl Iterator<Item = &Heap> {
        lock(list).clone().into_iter().filter_map(|n| self.heap(n))
    }

    fn ids_of(&self, part: &StreamPart) -> Ids {
        self.heaps_of(&part.heaps).map(|h| (h.number, h.lock_quick().last_id)).collect()
    }

    /// A route by its number, if it has not ended.
    fn route(&self, number: u64) -> Option<Arc<Route>> {
        lock(&self.privates.routes.list).iter().find(|r| r.number == number).cloned()
    }

    /// Makes unsettled free memory of the part wait for the context, and puts a barrier between
    /// uses so far and those to come. Returns whether anything waits that has no marker.
    fn hand_over_part(&self, part: &StreamPart) -> bool {
        let waits = self.heaps_of(&part.heaps).filter(|heap| {
            // First the barrier, then the heap: a later free into the heap sees the barrier.
            self.order.hand_over(heap.lane, self.privates.identities.fetch_sub(1, Relaxed));
            self.retire(heap)
        });
        // Counted, so that every heap is handed over.
        waits.count() > 0
    }
}

/// Closes the route's claims to the part: another route allocates from it from now on.
fn close(claims: &mut [Claim], part: &Arc<StreamPart>, ids: &Ids) {
    for claim in claims.iter_mut().filter(|c| Arc::ptr_eq(&c.part, part) && c.until.is_none()) {
        claim.until = Some(ids.clone());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::{size::MIB, DeviceId};
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::Driver;
    use crate::pool::{AllocRequest, GraphArenaOptions, PoolOptions, WhichStreams};

    /// Two captures of a stream, into each of which another stream is forked. The host device
    /// cannot fork, so the test claims that stream by hand.
    #[test]
    fn an_abort_reaches_the_streams_of_its_own_capture() {
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
        let (s, t) = (host.stream_create(d).unwrap(), host.stream_create(d).unwrap());
        let arena = pool.open_arena(GraphArenaOptions::default());
        let capture = || {
            let route = pool.begin_route(&arena, WhichStreams::Handle(s), 0, None).unwrap();
            let malloc = |stream, size| {
                let part = pool.member(&arena, stream, Now::Captured).unwrap();
                assert!(pool.claim_part(&route, &part, Now::Captured).unwrap());
                let req = AllocRequest { size, stream, ..AllocRequest::default() };
                pool.malloc_captured(pool.member_heap(&part).unwrap(), &req, 16).unwrap()
            };
            let made = [(s, 100), (t, 100), (s, MIB), (t, MIB)].map(|(stream, size)| malloc(stream, size));
            pool.end_route(&route);
            (route, made)
        };
        let all = [capture(), capture(), capture()];
        let live = || all.iter().map(|c| c.1.iter().filter(|&&p| pool.info(p).is_ok()).count()).collect::<Vec<_>>();
        for (which, left) in [(1, [4, 0, 4]), (0, [0, 0, 4]), (2, [0, 0, 0])] {
            pool.abort_route(&all[which].0);
            assert_eq!(live(), left);
            pool.validate().unwrap();
        }
        pool.release_arena(&arena);
    }

    /// Two routes of one arena take turns for one stream, as when two threads each speak for it by
    /// a filter.
    #[test]
    fn claims_of_routes_that_take_turns_do_not_pile_up() {
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
        let stream = host.stream_create(d).unwrap();
        let arena = pool.open_arena(GraphArenaOptions::default());
        let begin = |_| pool.begin_route(&arena, WhichStreams::Filter(Box::new(|_| true)), 0, None).unwrap();
        let routes = [0, 1].map(begin);
        let part = pool.member(&arena, stream, Now::Captured).unwrap();
        let mut kept = [Vec::new(), Vec::new()];
        for i in 0..20 * MANY {
            assert!(pool.claim_part(&routes[i % 2], &part, Now::Captured).unwrap());
            let req = AllocRequest { size: 4096, stream, ..AllocRequest::default() };
            let p = pool.malloc_captured(pool.member_heap(&part).unwrap(), &req, 16).unwrap();
            match i % 307 {
                0 => kept[i % 2].push(p),
                _ => pool.free(p, None).unwrap(),
            }
        }
        for route in &routes {
            let claims = lock(&route.claims).len();
            assert!(claims <= MANY, "{claims}");
        }
        for (route, mut kept) in routes.iter().zip(kept) {
            let mut freed = pool.abort_route(route);
            freed.sort_unstable();
            kept.sort_unstable();
            assert_eq!(freed, kept);
        }
        pool.validate().unwrap();
        pool.release_arena(&arena);
    }
}

//! Which stream allocates from a part of an arena at present, and what each route has allocated.
//!
//! A part belongs to a stream handle. CUDA gives the handle of a destroyed stream to the next one,
//! while the old one's work may still be running. And memory that a stream has freed in its own
//! order is ready for that stream, but not for a graph, which may be launched on any stream. So if
//! the handle stands for another stream, or its stream is captured after it was used eagerly,
//! unsettled free memory first waits for the context.

use crate::base::{Result, StreamHandle};
use crate::pool::heap::{Heap, Locked, Made, Now, Place, StreamPart};
use crate::pool::order::CONTEXT;
use crate::pool::state::{Pool, Route};
use crate::pool::types::Ranked;

/// An arena's list of what its routes have allocated keeps what was freed since. With this many
/// entries or more, that is dropped before the list grows.
const MANY: usize = 1024;

impl Pool {
    /// Begins a route for the part's stream, which is `now`. What an earlier stream of the handle
    /// may still be using waits for the context. What this stream has used eagerly gets a marker,
    /// so that its capture may use it once the device has passed that: a context marker, because a
    /// new lane needs one in front of its own.
    pub(crate) fn begin_use(&self, part: &StreamPart, stream: StreamHandle, now: Now) -> Result<()> {
        let mut user = part.user.lock();
        let Now::Idle(id) = now else { return Ok(()) };
        if user.id == Some(id) {
            if user.eager {
                self.order.mark_context(Some(stream))?;
            }
            return Ok(());
        }
        if self.hand_over_part(part) && self.order.mark_context(Some(stream))? {
            self.order.poll([])?;
        }
        (user.id, user.eager) = (Some(id), false);
        Ok(())
    }

    /// Notes that the part's stream, which is `now`, is about to allocate or free from it.
    pub(crate) fn use_part(&self, part: &StreamPart, stream: StreamHandle, now: Now) -> Result<()> {
        let mut user = part.user.lock();
        match now {
            Now::Idle(id) => {
                if user.id != Some(id) {
                    self.hand_over_part(part);
                }
                (user.id, user.eager) = (Some(id), true);
            }
            Now::Captured => {
                user.met = self.order.captures.met(part.key, self.seen_captured(stream), true);
                if user.eager {
                    self.order.poll(self.heaps_of(&part.heaps).map(|h| h.lane))?;
                    self.hand_over_part(part);
                    user.eager = false;
                }
            }
        }
        Ok(())
    }

    /// Notes that the route has made the allocation that starts at `addr` and has this id. If the
    /// route is aborted before that, the allocation stays live.
    pub(crate) fn note_made(&self, route: &Route, addr: u64, id: u64) {
        let mut made = route.arena.counts.made.lock();
        if made.len() == made.capacity() && made.len() >= MANY {
            made.retain(|&id, m| self.live_at(m.addr, Some(id)).is_some());
            // Room for as many again, so that looking at all of them stays rare.
            let live = made.len();
            made.reserve(live);
        }
        made.insert(id, Made { addr, route: route.number });
    }

    /// Frees all live allocations of a route that has ended. Returns their addresses.
    pub(crate) fn free_made(&self, route: &Route) -> Vec<u64> {
        let of_route = |_: &u64, m: &mut Made| m.route == route.number;
        let mut mine: Vec<(u64, Made)> = route.arena.counts.made.lock().extract_if(of_route).collect();
        mine.sort_unstable_by_key(|m| m.0);
        let mut freed = Vec::new();
        for (id, Made { addr, .. }) in mine {
            let Some((mut st, place)) = self.live_at(addr, Some(id)) else { continue };
            // Allocations the end of an arena has in hand are freed there.
            if st.is_reclaimed(place) {
                continue;
            }
            freed.push(addr);
            let mut users = st.take_users(addr);
            self.bring_near(addr, &mut users);
            st.note_death(addr);
            st.take_back(place, &[self.order.tag(CONTEXT)], &self.order, &self.index);
        }
        freed
    }

    /// The live allocation that starts at `addr`, if it is pooled, with its heap's lock; with an
    /// `id`, only the one that has it. It may count as freed. While it lives, its entry in the
    /// index stays as it is.
    pub(crate) fn live_at(&self, addr: u64, id: Option<u64>) -> Option<(Locked<'_>, Place)> {
        let entry = self.index.get(addr);
        let st = self.heap(entry.heap()?)?.lock_quick();
        let (place, known) = st.find(entry, addr)?;
        id.is_none_or(|id| known.id == id).then_some((st, place))
    }

    /// The heaps of a list, which is unlocked again by then.
    pub(crate) fn heaps_of<const RANK: u8>(&self, list: &Ranked<Vec<u32>, RANK>) -> impl Iterator<Item = &Heap> {
        list.lock().clone().into_iter().filter_map(|n| self.heap(n))
    }

    /// Makes unsettled free memory of the part wait for the context, and puts a barrier between
    /// uses so far and those to come. Returns whether anything waits that has no marker.
    fn hand_over_part(&self, part: &StreamPart) -> bool {
        let waits = self.heaps_of(&part.heaps).filter(|heap| {
            // First the barrier, then the heap: a later free into the heap sees the barrier.
            self.order.hand_over(heap.lane, self.privates.new_identity());
            self.retire(heap)
        });
        // Counted, so that every heap is handed over.
        waits.count() > 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::{size::MIB, DeviceId};
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::Driver;
    use crate::pool::state::Routed;
    use crate::pool::{AllocRequest, GraphArenaOptions, PoolOptions, WhichStreams};
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::Arc;

    /// Two captures of a stream, into each of which another stream is forked. The host device
    /// cannot fork, so the test uses that stream's part by hand.
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
                let part = pool.part_for(&arena, stream, Now::Captured).unwrap();
                pool.use_part(&part, stream, Now::Captured).unwrap();
                let req = AllocRequest { size, stream, ..AllocRequest::default() };
                pool.malloc_captured(pool.part_heap(&part).unwrap(), &Routed { route: route.clone(), part }, &req, 16)
                    .unwrap()
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
    /// a filter: what is freed does not pile up in their list, and an abort frees what its own
    /// route has allocated.
    #[test]
    fn routes_that_take_turns_forget_what_was_freed() {
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
        let stream = host.stream_create(d).unwrap();
        let arena = pool.open_arena(GraphArenaOptions::default());
        let begin = |_| pool.begin_route(&arena, WhichStreams::Filter(Box::new(|_| true)), 0, None).unwrap();
        let routes = [0, 1].map(begin);
        let part = pool.part_for(&arena, stream, Now::Captured).unwrap();
        let mut kept = [Vec::new(), Vec::new()];
        for i in 0..20 * MANY {
            pool.use_part(&part, stream, Now::Captured).unwrap();
            let req = AllocRequest { size: 4096, stream, ..AllocRequest::default() };
            let routed = Routed { route: routes[i % 2].clone(), part: part.clone() };
            let p = pool.malloc_captured(pool.part_heap(&part).unwrap(), &routed, &req, 16).unwrap();
            match i % 307 {
                0 => kept[i % 2].push(p),
                _ => pool.free(p, None).unwrap(),
            }
        }
        let made = arena.counts.made.lock().len();
        // The list grows by more than one at a time.
        assert!(made <= 2 * MANY, "{made}");
        for (route, mut kept) in routes.iter().zip(kept) {
            let mut freed = pool.abort_route(route);
            freed.sort_unstable();
            kept.sort_unstable();
            assert_eq!(freed, kept);
        }
        pool.validate().unwrap();
        pool.release_arena(&arena);
    }

    /// Two threads speak for one stream, each by a route of its own. One allocates only after the
    /// other, too, has found its way to the stream's heap.
    #[test]
    fn an_abort_leaves_what_another_route_had_in_flight() {
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
        let stream = host.stream_create(d).unwrap();
        let arena = pool.open_arena(GraphArenaOptions::default());
        let turn = Arc::new(AtomicUsize::new(0));
        let begin = |me| {
            let turn = turn.clone();
            let mine = move |_| turn.load(Relaxed) == me;
            pool.begin_route(&arena, WhichStreams::Filter(Box::new(mine)), 0, None).unwrap()
        };
        let routes = [0, 1].map(begin);
        let found = [0, 1].map(|me| {
            turn.store(me, Relaxed);
            pool.routed_heap(stream).unwrap().unwrap()
        });
        let made = found.map(|(heap, routed)| {
            [100, MIB].map(|size| {
                let req = AllocRequest { size, stream, ..AllocRequest::default() };
                pool.malloc_captured(heap, &routed, &req, 16).unwrap()
            })
        });
        for me in [1, 0] {
            assert_eq!(pool.abort_route(&routes[me]), made[me]);
            pool.validate().unwrap();
        }
        pool.release_arena(&arena);
    }

    /// A thread has found its way to the heap of a capture. Before it allocates, another thread
    /// aborts that capture and releases its arena. The next arena must not share the heap with it.
    #[test]
    fn what_is_in_flight_when_an_arena_is_released_comes_from_no_other_arena() {
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
        let (s, t) = (host.stream_create(d).unwrap(), host.stream_create(d).unwrap());
        let begin = |stream| {
            let arena = pool.open_arena(GraphArenaOptions::default());
            let route = pool.begin_route(&arena, WhichStreams::Handle(stream), 0, None).unwrap();
            (arena, route)
        };
        let request = |stream| AllocRequest { size: MIB, stream, ..AllocRequest::default() };
        let next_arena = || {
            let (arena, _) = begin(t);
            let p = pool.malloc(&request(t)).unwrap();
            pool.free(p, Some(t)).unwrap();
            (arena, p)
        };
        let (arena, route) = begin(s);
        let (heap, routed) = pool.routed_heap(s).unwrap().unwrap();
        pool.abort_route(&route);
        pool.release_arena(&arena);
        let (second, freed_there) = next_arena();
        let late = pool.malloc_captured(heap, &routed, &request(s), 16).unwrap();
        assert_ne!(late, freed_there);
        assert_eq!(pool.arena_stats(&second).live, 0);
        pool.validate().unwrap();
        pool.free(late, Some(s)).unwrap();
        pool.release_arena(&second);
        // Once that thread is done, the heap serves arenas again.
        drop(routed);
        let heaps = pool.heap_count.load(Relaxed);
        let (third, _) = next_arena();
        assert_eq!(pool.heap_count.load(Relaxed), heaps);
        pool.release_arena(&third);
    }
}

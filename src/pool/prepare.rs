//! Getting ready for a flip that is expected.
//!
//! A workload that repeats wants the same run back after the same number of calls as the time before. So the calls
//! in front of that one do a part of the work each: they fetch what is known about the run, and the last one looks
//! whether it is free, as the request itself would. The request then only takes it back. If anything else comes in between, what was found
//! is forgotten, and all that has happened is that the quick list was emptied a call early.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::alloc::Want;
use super::flip::Free;
use super::heap::{Heap, HeapState};
use super::memo::Step;
use super::region::GRANULE;
use super::{lock, Core, Pool};
use crate::base::StreamHandle;

/// A run that is free, for the request that is expected next.
pub(super) struct Ready {
    step: Step,
    free: Free,
    /// The heap's calls at the time: none is to come in between,
    calls: u64,
    /// and nothing that others could have changed: see [`Core::version`].
    version: (u64, u64),
    barrier: u64,
}

impl Core {
    /// Changes whenever anything does that a free run hangs on besides its heap: what is known about runs, and the stock.
    fn version(&self) -> (u64, u64) {
        (self.aliases.changes(), self.stock.changes())
    }
}

impl Pool {
    /// Called after a hit, when a flip may be wanted soon.
    #[inline(never)]
    pub(super) fn approach(&self, heap: &Heap, st: &mut HeapState) {
        let Some((calls, step)) = st.memo.coming(st.calls()) else { return };
        if calls == 0 {
            return self.prepare(heap, st, step);
        }
        let core = lock(&*self.core);
        if calls == 1 {
            return core.aliases.fetch_sources(step.run, &st.regions);
        }
        core.aliases.fetch_parts(step.run);
        let (start, end, _) = core.aliases.bounds(step.run);
        if start < end {
            st.extents.fetch(start, end);
        }
    }

    /// Notes that the memo's next step was followed, and fetches what leads to the one behind it.
    pub(super) fn followed(core: &Core, st: &mut HeapState) {
        st.memo.followed(st.calls());
        if let Some(run) = st.memo.next_run() {
            core.aliases.fetch_run(run);
        }
    }

    /// Looks whether the next call's run is free, if that is what it will want.
    fn prepare(&self, heap: &Heap, st: &mut HeapState, step: Step) {
        let Step { size, align, run, .. } = step;
        if align != GRANULE || st.private.is_some() || st.waits_for().next().is_some() {
            return;
        }
        st.tidy();
        if st.regions.find(size, align, |_| true).is_some() {
            return;
        }
        let mut core = lock(&*self.core);
        let want = Want { size, align, stream: StreamHandle::LEGACY };
        if let Some(free) = self.look_at(&mut core, heap, st, run, want) {
            let (calls, version, barrier) = (st.calls(), core.version(), self.order.barrier(heap.lane));
            st.ready = Some(Ready { step, free, calls, version, barrier });
        }
    }

    /// Takes the run back that is ready for this request, if one is. Returns the request's own region, live.
    #[inline(never)]
    pub(super) fn take_ready(&self, heap: &Heap, st: &mut HeapState, size: u64, stream: StreamHandle) -> Option<u32> {
        let Ready { step, free, calls, version, barrier } = st.ready.take()?;
        if (calls, step.size) != (st.calls(), size) || barrier != self.order.barrier(heap.lane) {
            return None;
        }
        let mut core = lock(&*self.core);
        if version != core.version() {
            return None;
        }
        let region = self.bring_back(&mut core, heap, st, step.run, free, Want { size, align: GRANULE, stream });
        Self::followed(&core, st);
        Some(region)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::size::MIB;
    use crate::base::DeviceId;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::{Driver, PhysHandle};
    use crate::pool::order::Tag;
    use crate::pool::{AllocRequest, PoolOptions};

    const P: u64 = 2 * MIB;
    /// What finds no room in one piece among pages of which every other one is free.
    const WANTED: u64 = 11 * P + MIB;

    struct Rig {
        pool: Pool,
        s: StreamHandle,
    }

    impl Rig {
        fn new() -> Rig {
            let d = DeviceId(0);
            let host = HostDriver::new(HostOptions::default()).unwrap();
            let options = PoolOptions {
                first_extent: P,
                max_extent: P,
                extents_per_request: u64::MAX,
                slack_floor: 0,
                slack_permille: 0,
                ..PoolOptions::default()
            };
            Rig { pool: Pool::new(host.clone(), d, options).unwrap(), s: host.stream_create(d).unwrap() }
        }

        fn malloc(&self, size: u64) -> u64 {
            self.pool.malloc(&AllocRequest { size, stream: self.s, ..AllocRequest::default() }).unwrap()
        }

        fn free(&self, p: u64) {
            self.pool.free(p, Some(self.s)).unwrap();
        }

        /// A pass of a workload that repeats, with something done right before the request that finds no room; all is freed at the end.
        /// Returns where the request's block was, and the number of stitches and flips it took.
        fn pass(&self, before: impl FnOnce(&mut Vec<u64>)) -> (u64, u64) {
            let all = self.malloc(24 * P);
            self.free(all);
            let mut live: Vec<u64> = (0..24).map(|_| self.malloc(P)).collect();
            (0..12).rev().for_each(|i| self.free(live.remove(2 * i)));
            before(&mut live);
            let stitches = self.stitches();
            let p = self.malloc(WANTED);
            let stitches = self.stitches() - stitches;
            self.pool.validate().unwrap();
            assert!(live.iter().all(|&q| q + P <= p || p + WANTED <= q), "{p:#x} is in use");
            live.into_iter().chain([p]).for_each(|p| self.free(p));
            (p, stitches)
        }

        /// Without a lock that forgets what is ready.
        fn stitches(&self) -> u64 {
            self.state(|st| st.stitches)
        }

        fn is_ready(&self) -> bool {
            self.state(|st| st.ready.is_some())
        }

        fn state<R>(&self, f: impl FnOnce(&HeapState) -> R) -> R {
            f(&self.pool.heap_for(self.s).unwrap().try_lock_as_it_is().unwrap())
        }
    }

    #[test]
    fn the_call_in_front_of_a_flip_finds_its_run() {
        let rig = Rig::new();
        let first = rig.pass(|_| assert!(!rig.is_ready()));
        for _ in 0..3 {
            assert_eq!(rig.pass(|_| assert!(rig.is_ready())), first);
        }
    }

    #[test]
    fn what_is_ready_is_forgotten_when_something_else_comes() {
        let rig = Rig::new();
        let first = rig.pass(|_| {});
        // Two pages between free ones: those are joined, under other numbers.
        let joined = rig.pass(|live| (0..2).for_each(|_| rig.free(live.remove(1))));
        assert_eq!(joined.1, 1);
        let asked = rig.pass(|live| drop(rig.pool.info(live[0])));
        assert_eq!(asked, first);
        let taken = rig.pass(|live| live.push(rig.malloc(P)));
        assert_eq!(taken.1, 1);
        assert_eq!(rig.pass(|_| {}).1, 1);
    }

    #[test]
    fn what_others_change_is_seen() {
        let others: [fn(&Rig); 3] = [
            // Another heap looks at the run, and finds other parts.
            |rig| {
                let run = rig.state(|st| st.ready.as_ref().unwrap().step.run);
                lock(&*rig.pool.core).aliases.kept(run);
            },
            |rig| {
                let mut core = lock(&*rig.pool.core);
                let extent = core.aliases.add_extent(PhysHandle(1 << 40), P);
                core.stock.put(extent, Tag::SETTLED);
                core.stock.take_this(extent);
                core.aliases.remove_extent(extent);
            },
            // The stream's handle stands for another stream.
            |rig| rig.pool.order.hand_over(rig.pool.heap_for(rig.s).unwrap().lane, u64::MAX - 1),
        ];
        for change in others {
            let rig = Rig::new();
            let first = rig.pass(|_| {});
            let again = rig.pass(|_| {
                assert!(rig.is_ready());
                change(&rig);
                let heap = rig.pool.heap_for(rig.s).unwrap();
                let ready = rig.pool.take_ready(heap, &mut heap.try_lock_as_it_is().unwrap(), WANTED, rig.s);
                assert_eq!(ready, None);
            });
            assert_eq!(again, first, "taken back all the same");
        }
    }

    #[test]
    fn free_memory_goes_before_a_run() {
        let rig = Rig::new();
        let small = || (0..6).for_each(|_| rig.free(rig.malloc(100)));
        assert_eq!(rig.pass(|_| small()).1, 1);
        // As many calls, after which there is room in one piece, and the run is free, too.
        let roomy = rig.pass(|live| live.drain(..).for_each(|p| rig.free(p)));
        assert_eq!(roomy.1, 0);
    }
}

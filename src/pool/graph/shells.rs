//! Shells: heaps that released arenas left, and what was in them.
//!
//! Lanes and heaps are never destroyed, so the next arena's heaps are made of shells. Private heaps
//! start empty; a shell with memory is emptied into another one, which costs no driver call. Shells
//! with live blocks are left alone.

use crate::base::{Result, StreamHandle};
use crate::pool::heap::{Heap, State};
use crate::pool::order::KnownCapture;
use crate::pool::state::{Pool, WhichStreams};
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

impl Pool {
    /// Makes a heap of a released arena an ordinary one, and a shell.
    pub(crate) fn make_public(&self, number: u32) {
        let Some(heap) = self.heap(number) else { return };
        let mut st = heap.lock();
        let (start, end) = std::mem::take(&mut st.kept);
        self.core.lock().holes.give(start, end - start);
        st.former = st.private.take().as_ref().map(Arc::downgrade).unwrap_or_default();
        self.order.hand_over(heap.lane, self.privates.new_identity());
        st.retire(&self.order, &self.index, true);
        drop(st);
        self.privates.shells.lock().push(number);
    }

    /// A heap without memory, in the order of `stream` only: a shell, or a new one.
    pub(crate) fn empty_heap(&self, stream: StreamHandle) -> Result<&Heap> {
        let heap = self.take_shell().map_or_else(|| self.add_private_heap(), Ok)?;
        let mut st = heap.lock();
        self.order.hand_over(heap.lane, self.privates.new_identity());
        self.order.rename(heap.lane, stream);
        st.retire(&self.order, &self.index, false);
        st.forget();
        drop(st);
        Ok(heap)
    }

    /// A shell that is empty, or that was just emptied into another.
    fn take_shell(&self) -> Option<&Heap> {
        let mut shells = self.privates.shells.lock();
        let unused = |&n: &u32| self.heap(n).is_some_and(|h| h.live.load(Relaxed) == 0);
        let mut idle: Vec<u32> = shells.iter().copied().filter(unused).collect();
        // The smallest that can be is emptied into the largest. An empty one needs nothing done.
        idle.sort_by_cached_key(|&n| self.heap(n).map_or(0, |h| h.free.load(Relaxed)));
        let &most = idle.last()?;
        let found = idle.into_iter().find(|&n| self.empty_into(n, most))?;
        shells.retain(|&n| n != found);
        self.heap(found)
    }

    /// Moves all memory of a heap to another heap, at the addresses where it is, unless something
    /// is live in it or waits, or a thread may be about to allocate from it for the arena it was
    /// in. Returns whether it has none now. One with memory is not emptied into itself.
    fn empty_into(&self, from: u32, to: u32) -> bool {
        let (Some(source), Some(target)) = (self.heap(from), self.heap(to)) else { return false };
        let mut st = source.lock();
        if st.former.strong_count() > 0 {
            return false;
        }
        st.settle(&self.order, &self.index);
        st.drop_empty_slabs(&self.order, &self.index);
        let spans: Vec<u32> = st.regions.spans().collect();
        if spans.is_empty() {
            return true;
        }
        let whole = |&r: &u32| {
            let g = st.regions.get(r);
            g.state == State::Ready && st.regions.is_edge(g.next) && self.order.settled(g.tag)
        };
        if !spans.iter().all(whole) {
            return false;
        }
        let Some(mut other) = target.try_lock() else { return false };
        for r in spans {
            self.hand_on_all(&mut st, &mut other, r);
        }
        true
    }

    /// Asks the device about what released arenas left, before the next one begins. Records a
    /// context marker if something waits that has none, unless a route may have a capture that no
    /// call has named yet. `stream` must not be in a capture. Captures that only routes of the past
    /// have named count as over: PyTorch names the stream of its captures at no other time.
    pub(crate) fn settle_shells(&self, stream: Option<StreamHandle>) -> Result<()> {
        let quiet = !self.captures_may_be_unmet();
        if quiet && self.shells_lack_a_marker() && self.order.mark_context_heeding(stream, KnownCapture::is_open)? {
            return self.order.poll_patiently();
        }
        self.order.poll([])
    }

    /// Whether a route may have a capture that no call has named yet. A route for the streams of
    /// one capture began when that was met.
    pub(crate) fn captures_may_be_unmet(&self) -> bool {
        let routes = self.privates.routes.lock();
        routes.iter().any(|r| !matches!(r.which, WhichStreams::CaptureOf(_)))
    }

    /// Whether something that released arenas left waits for a context marker yet to be recorded.
    pub(crate) fn shells_lack_a_marker(&self) -> bool {
        let unmarked = |h: &Heap| h.lock().unmarked(&self.order).any(|t| self.order.only_context(t));
        self.heaps_of(&self.privates.shells).filter(|h| h.free.load(Relaxed) > 0).any(unmarked)
    }
}

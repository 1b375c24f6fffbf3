//! How far the device has come: recording markers for what a request may need, and asking about
//! them.

use crate::base::{Result, StreamHandle};
use crate::pool::heap::HeapState;
use crate::pool::order::Tag;
use crate::pool::state::Pool;
use crate::pool::types::Want;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// Makes ready whatever of a heap the device has passed since. Returns whether anything was.
    pub(crate) fn poll_and_settle(&self, st: &mut HeapState) -> Result<bool> {
        if st.waits_for().next().is_none() {
            return Ok(false);
        }
        self.order.poll(st.waits_for())?;
        Ok(st.settle(&self.order, &self.index))
    }

    /// Sees to it that everything a heap waits for gets a marker: from the request's stream at
    /// once, from other streams when they free next, and from the context if only that can settle
    /// it.
    pub(crate) fn ask_for_markers(&self, st: &HeapState, want: Want) -> Result<()> {
        let (mut context, mut own) = (false, false);
        for tag in st.unmarked(&self.order) {
            if self.order.own(tag, want.lane) {
                own = true;
            } else if self.order.only_context(tag) {
                context = true;
            } else {
                self.order.ask_for_marker(tag.lane());
            }
        }
        if own {
            self.order.mark(want.lane, want.stream)?;
        }
        if context {
            self.order.mark_context(Some(want.stream))?;
        }
        Ok(())
    }

    /// Brings what is known about another heap up to date. Its stream may be gone, so nothing is
    /// recorded on it, unless it is the legacy stream, which always lives.
    pub(crate) fn refresh(&self, other: &mut HeapState, want: Want) -> Result<()> {
        self.ask_for_markers(other, want)?;
        let unmarked = |r| !self.order.marked(other.regions.get(r).tag);
        if other.lane != want.lane && other.regions.ready_from(self.page).any(unmarked) {
            if self.order.stream(other.lane) == StreamHandle::LEGACY {
                self.order.mark(other.lane, StreamHandle::LEGACY)?;
            } else {
                self.order.ask_for_marker(other.lane);
            }
        }
        self.order.poll(other.waits_for().chain([other.lane]))?;
        other.settle(&self.order, &self.index);
        Ok(())
    }

    /// Records a marker on a request's stream; `None` if that is impossible.
    pub(crate) fn mark_here(&self, want: Want) -> Option<Tag> {
        let here = self.order.tag(want.lane);
        let marked = self.order.mark(want.lane, want.stream);
        matches!(marked, Ok(true)).then_some(here)
    }

    /// Asks whether the device has passed a marker recorded before a move, which takes longer than
    /// an idle device needs for that. If not, rent counts from now on.
    pub(crate) fn look_whether_behind(&self, marked: Option<Tag>) {
        let passed = marked.is_some_and(|tag| {
            let asked = self.order.poll([tag.lane()]);
            asked.is_ok() && self.order.settled(tag)
        });
        if !passed {
            self.counters.paid.store(0, Relaxed);
        }
    }
}

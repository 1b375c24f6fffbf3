//! Copies, fills, pinned memory, and the stand-in for the driver's own allocator.

use super::device::HostDriver;
use super::memory::{range, Origin};
use super::op::{Source, Submission, Work};
use super::schedule::Guard;
use super::state::State;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::pages;
use std::ops::Range;

/// The kind of memory at an address.
enum Place {
    /// Device or pinned memory, tracked.
    Tracked,
    /// Any other memory of the process, which answers for it.
    Pageable,
}

/// Finds out what a copy or fill would reach; an error when it is known to reach nothing.
fn place(st: &State, r: &Range<u64>, what: &str) -> Result<Place> {
    if st.memory.mapping_at(r.start).is_some() {
        st.memory.resolve(r, None).map_err(|why| Error::invalid(format!("{what} {r:#x?}: {why}")))?;
        return Ok(Place::Tracked);
    }
    if st.memory.reserved(r.start) {
        return Err(Error::invalid(format!("{what} {r:#x?}: {:#x} is reserved but not mapped", r.start)));
    }
    if r.start < pages::page_size() {
        return Err(Error::invalid(format!("{what} {r:#x?}: that is a null pointer, or next to one")));
    }
    Ok(Place::Pageable)
}

impl HostDriver {
    pub(super) fn copy(&self, dev: DeviceId, dst: u64, src: u64, size: u64, s: StreamHandle) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        if size == 0 {
            return Ok(());
        }
        let (to, from) = (range(dst, size)?, range(src, size)?);
        let into_tracked = matches!(place(&st, &to, "copy to")?, Place::Tracked);
        let from_tracked = matches!(place(&st, &from, "copy from")?, Place::Tracked);
        if st.lanes.is_captured(lane)? && !(into_tracked && from_tracked) {
            st.invalidate_capture(lane);
            return Err(Error::new(
                Status::Capturing,
                format!(
                    "a copy of pageable memory during a capture: it must be complete when the call returns, and stream {s} \
                     only records; the capture is now invalid, use pinned memory"
                ),
            ));
        }
        let source = if from_tracked || self.options.eager || !into_tracked {
            Source::Address(src)
        } else {
            // CUDA lets the caller reuse pageable memory when the call returns, however late the
            // copy runs.
            // SAFETY: the caller promises that `size` bytes can be read at `src` during the call.
            Source::Staged(unsafe { std::slice::from_raw_parts(src as *const u8, size as usize) }.into())
        };
        let on_stack = !into_tracked || (!from_tracked && matches!(source, Source::Address(_)));
        // Pageable memory may be gone when the call returns, so the copy must have run by then.
        if on_stack {
            self.check_may_wait("copy_async with pageable memory")?;
        }
        let mut sub = Submission::new("copy", Work::Copy { dst, src: source, size });
        sub.reads.extend(from_tracked.then_some(from));
        sub.writes.extend(into_tracked.then_some(to));
        let seq = st.submit(lane, sub)?;
        let mark = st.lanes.get(lane)?.mark(lane);
        let st = self.settle(st);
        if on_stack {
            let mut st = match self.run_until(st, lane, seq) {
                Ok(st) => st,
                Err(e) => {
                    self.cancel(lane, seq);
                    return Err(e);
                }
            };
            if !into_tracked {
                // Only the copy out of the device is synchronous by contract.
                st.observe(&mark);
            }
        }
        Ok(())
    }

    pub(super) fn fill(&self, dev: DeviceId, dst: u64, byte: u8, size: u64, s: StreamHandle) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        if size == 0 {
            return Ok(());
        }
        let to = range(dst, size)?;
        let Place::Tracked = place(&st, &to, "fill")? else {
            return Err(Error::invalid(format!("fill {to:#x?}: that is not device memory")));
        };
        let mut sub = Submission::new("fill", Work::Fill { dst, byte, size });
        sub.writes.push(to);
        st.submit(lane, sub)?;
        drop(self.settle(st));
        Ok(())
    }

    pub(super) fn pinned_alloc(&self, dev: DeviceId, size: u64) -> Result<u64> {
        self.check_device(dev)?;
        if size == 0 {
            return Err(Error::invalid("host_alloc of 0 bytes"));
        }
        self.enter().memory.add_block(dev, size, Origin::Pinned)
    }

    pub(super) fn pinned_free(&self, dev: DeviceId, ptr: u64) -> Result<()> {
        self.check_device(dev)?;
        self.check_may_wait("host_free")?;
        let mut st = self.enter();
        let size = match st.memory.mapping_at(ptr) {
            Some((va, m)) if va == ptr && m.origin == Origin::Pinned => m.size,
            _ => return Err(Error::invalid(format!("{ptr:#x} was not returned by host_alloc, or is free already"))),
        };
        st = self.finish_users(st, ptr..ptr + size)?;
        let mut st = self.wait_unused(st, ptr, size)?;
        if let Some(keys) = st.memory.remove_block(ptr)? {
            st.shadow.forget(&keys);
        }
        Ok(())
    }

    /// Runs queued work that touches `r`.
    fn finish_users<'a>(&'a self, mut st: Guard<'a>, r: Range<u64>) -> Result<Guard<'a>> {
        loop {
            let pending = st.lanes.active.iter().find_map(|lane| {
                let op = st.lanes.list.get(*lane)?.queue.iter().rev().find(|op| op.touches(&r))?;
                Some((*lane, op.info.seq))
            });
            let Some((lane, seq)) = pending else { return Ok(st) };
            st = self.run_until(st, lane, seq)?;
        }
    }

    pub(super) fn block_alloc(&self, dev: DeviceId, size: u64, s: StreamHandle) -> Result<u64> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        st.lanes.refuse_captured(lane, || "native_alloc on a stream that is being captured".into())?;
        if size == 0 {
            return Err(Error::invalid("native_alloc of 0 bytes"));
        }
        match st.memory.add_block(dev, size, Origin::Native { freed: false }) {
            Err(e) if e.status == Status::OutOfMemory => {}
            done => return done,
        }
        // Memory whose free is on its way counts as free.
        self.check_may_wait("native_alloc when memory is short")?;
        loop {
            let pending = st.lanes.active.iter().find_map(|lane| {
                let queue = &st.lanes.list.get(*lane)?.queue;
                let op = queue.iter().find(|op| matches!(op.work, Work::NativeFree { .. }))?;
                Some((*lane, op.info.seq))
            });
            let Some((lane, seq)) = pending else { break };
            st = self.run_until(st, lane, seq)?;
        }
        st.memory.add_block(dev, size, Origin::Native { freed: false })
    }

    pub(super) fn block_free(&self, dev: DeviceId, ptr: u64, s: StreamHandle) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        st.lanes.refuse_captured(lane, || "native_free on a stream that is being captured".into())?;
        st.memory.begin_native_free(ptr)?;
        let submitted = st.submit(lane, Submission::new("native free", Work::NativeFree { va: ptr }));
        submitted.inspect_err(|_| st.memory.undo_native_free(ptr))?;
        drop(self.settle(st));
        Ok(())
    }

    /// Makes an operation do nothing when its turn comes, or waits for it if its turn has come.
    fn cancel(&self, lane: usize, seq: u64) {
        let mut st = self.look();
        let queue = st.lanes.list.get_mut(lane).map(|l| &mut l.queue);
        if let Some(op) = queue.and_then(|q| q.iter_mut().find(|op| op.info.seq == seq)) {
            op.work = Work::Mark;
            return;
        }
        while !st.lanes.done(lane, seq) {
            st = self.wait_for_progress(st);
        }
    }
}

//! The device's calls for tests.

#![deny(unsafe_code)]

use super::device::HostDriver;
use super::kernel::Kernel;
use super::op::{Submission, Work};
use super::ranges::span;
use super::report::{Report, ReportKind};
use crate::base::{DeviceId, Error, Result, StreamHandle};
use std::ops::Range;

impl HostDriver {
    /// Submits a simulated kernel. Its ranges are checked when it runs, not now (except for live
    /// ranges, see `mark_live`).
    pub fn launch(&self, dev: DeviceId, s: StreamHandle, k: Kernel) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        let mut sub = Submission::new(k.label, Work::Kernel(k.body));
        for r in k.reads.iter().chain(&k.writes) {
            if r.start > r.end {
                return Err(Error::invalid(format!("{:?}: {} ends before it starts", sub.label, span(r))));
            }
        }
        if st.lanes.get(lane)?.capture.as_ref().is_some_and(|c| !c.is_valid()) {
            // CUDA would refuse the kernel, but a test that has lost its capture may go on.
            return Ok(());
        }
        sub.reads = k.reads.into_iter().filter(|r| !r.is_empty()).collect();
        sub.writes = k.writes.into_iter().filter(|r| !r.is_empty()).collect();
        st.submit(lane, sub)?;
        drop(self.settle(st));
        Ok(())
    }

    /// The mistakes found so far. Queued work has not been checked yet: synchronise first.
    pub fn reports(&self) -> Vec<Report> {
        self.look().reports.list().to_vec()
    }

    /// How many reports there have been in all.
    pub fn reports_made(&self) -> u64 {
        self.look().reports.made()
    }

    /// Takes the reports that [`Self::reports`] would return.
    pub fn take_reports(&self) -> Vec<Report> {
        self.look().reports.take()
    }

    /// Declares that an allocator has handed out a range. From the first such call on, work
    /// submitted for device memory must keep within one live range; a range that overlaps another
    /// live one is reported at once.
    pub fn mark_live(&self, r: Range<u64>, label: impl Into<String>) {
        let st = &mut *self.look();
        let label = label.into();
        let text = |other: &str, at: &Range<u64>| format!("{label:?} {} overlaps {other:?} {}", span(&r), span(at));
        if let Some((other, at)) = st.live.overlapped(&r) {
            let text = text(&other, &at);
            st.reports.push(Report::new(ReportKind::LiveOverlap, &[], r.clone(), text));
        }
        st.live.add(r, label);
    }

    /// Declares that the live range that starts at `start` has been freed; says whether there was
    /// one.
    pub fn mark_dead(&self, start: u64) -> bool {
        self.look().live.remove(start)
    }

    /// Makes a device without `eager` keep up with the host from now on, as if it were set, or work
    /// late again.
    pub fn keep_up(&self, prompt: bool) {
        let mut st = self.look();
        st.mood.prompt = prompt;
        drop(self.settle(st));
    }

    /// Keeps a stream from making progress until `release`, to stand for work that takes long.
    /// Calls that would wait for it fail meanwhile.
    pub fn hold(&self, dev: DeviceId, s: StreamHandle) -> Result<()> {
        self.set_held(dev, s, true)
    }

    /// Lets a held stream go on.
    pub fn release(&self, dev: DeviceId, s: StreamHandle) -> Result<()> {
        self.set_held(dev, s, false)
    }

    fn set_held(&self, dev: DeviceId, s: StreamHandle, held: bool) -> Result<()> {
        let mut st = self.look();
        let lane = self.lane(&mut st, dev, s)?;
        st.lanes.get_mut(lane)?.held = held;
        drop(self.settle(st));
        Ok(())
    }

    /// Creates a stream that synchronises with the legacy default stream, as `cudaStreamCreate`
    /// does.
    pub fn stream_create_blocking(&self, dev: DeviceId) -> Result<StreamHandle> {
        self.new_stream(dev, true)
    }

    /// Bytes of real memory that the device's physical memory occupies, exportable allocations not
    /// included.
    pub fn resident_bytes(&self, dev: DeviceId) -> Result<u64> {
        self.look().memory.physical.resident(dev)
    }
}

//! Streams: handles, identities and queues.
//!
//! A *lane* is the queue behind a stream. Handles are slots, reused last in first out like CUDA's;
//! identities come from a counter of the process and are never reused. A stream ends when it is
//! destroyed, a per-thread default stream with its thread; its work stays in its lane and still
//! runs. A dead lane whose work the host has seen complete can serve a new stream, which goes on
//! with its numbering: all of the old work is ordered before anything new anyway.

#![deny(unsafe_code)]

use super::device::HostDriver;
use super::identities::Identities;
use super::physical::no_device;
use super::state::State;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use std::sync::atomic::Ordering;

impl HostDriver {
    /// The lane of a stream of `dev`.
    pub(super) fn lane(&self, st: &mut State, dev: DeviceId, s: StreamHandle) -> Result<usize> {
        self.check_device(dev)?;
        match s.canonical() {
            StreamHandle::LEGACY => {
                st.lanes.legacy.get(dev.0 as usize).copied().ok_or_else(|| Error::internal("no legacy stream"))
            }
            StreamHandle::PER_THREAD => Ok(self.per_thread(st, dev).0),
            s => {
                let (owner, _) = self.handles.lookup(s)?;
                if owner != dev {
                    return Err(Error::invalid(format!("stream {s} belongs to device {owner}, not {dev}")));
                }
                // The table said it lives; under the lock the answer is final.
                Identities::slot(s).and_then(|slot| st.lanes.by_slot(slot)).ok_or_else(|| {
                    Error::new(Status::InvalidStream, format!("stream {s} has just been destroyed by another thread"))
                })
            }
        }
    }

    /// Lane and identity of the calling thread's default stream.
    pub(super) fn per_thread(&self, st: &mut State, dev: DeviceId) -> (usize, u64) {
        self.seat(|seat| {
            if let Some((_, lane, id)) = seat.streams.iter().find(|(d, ..)| *d == dev) {
                return (*lane, *id);
            }
            let lane = st.lanes.open(dev, true, &st.host);
            let id = st.lanes.list.get_mut(lane).map_or(0, |l| {
                l.handle = StreamHandle::PER_THREAD;
                l.id
            });
            seat.streams.push((dev, lane, id));
            (lane, id)
        })
    }

    /// A stream's identity, whether or not it is being captured.
    pub(super) fn identity(&self, dev: DeviceId, s: StreamHandle) -> Result<u64> {
        match s.canonical() {
            StreamHandle::LEGACY => {
                self.legacy_ids.get(dev.0 as usize).copied().ok_or_else(|| no_device(dev, self.legacy_ids.len()))
            }
            StreamHandle::PER_THREAD => {
                self.check_device(dev)?;
                let known = self.seat(|seat| seat.streams.iter().find(|(d, ..)| *d == dev).map(|(.., id)| *id));
                Ok(known.unwrap_or_else(|| self.per_thread(&mut self.look(), dev).1))
            }
            s => {
                let (owner, id) = self.handles.lookup(s)?;
                if owner != dev {
                    return Err(Error::invalid(format!("stream {s} belongs to device {owner}, not {dev}")));
                }
                Ok(id)
            }
        }
    }

    /// Ends the default streams of a thread that has ended. Nobody can end a capture of one: its
    /// work is lost.
    pub(super) fn end_per_thread(&self, streams: &[(DeviceId, usize, u64)]) {
        let mut st = self.look();
        let captures: Vec<_> = streams.iter().filter_map(|(_, lane, _)| st.lanes.end(*lane)).collect();
        self.captures.fetch_sub(captures.len(), Ordering::Release);
        // The captures are dropped outside the lock: a body may own anything.
        drop(st);
    }

    pub(super) fn new_stream(&self, dev: DeviceId, blocking: bool) -> Result<StreamHandle> {
        self.check_device(dev)?;
        let st = &mut *self.enter();
        let lane = st.lanes.open(dev, blocking, &st.host);
        let slot = st.lanes.assign_slot(lane);
        let l = st.lanes.get_mut(lane)?;
        match self.handles.set(slot, dev, l.id) {
            Some(handle) => {
                l.handle = handle;
                Ok(handle)
            }
            None => {
                st.lanes.close(slot);
                Err(Error::new(Status::Driver, "the host device has no room for more streams; destroy some"))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::driver::host::{HostOptions, Kernel};
    use crate::driver::Driver;

    const D: DeviceId = DeviceId(0);
    const OWN: StreamHandle = StreamHandle::PER_THREAD;

    /// How many lanes a device has after each of 40 threads has done `work` on its own stream.
    fn lanes(options: HostOptions, work: fn(&HostDriver)) -> usize {
        let d = HostDriver::new(options).unwrap();
        for _ in 0..40 {
            let d = d.clone();
            std::thread::spawn(move || work(&d)).join().unwrap();
        }
        let lanes = d.look().lanes.list.len();
        d.device_sync(D).unwrap();
        lanes
    }

    #[test]
    fn the_lane_of_a_thread_that_has_ended_serves_the_next() {
        let launch = |d: &HostDriver| d.launch(D, OWN, Kernel::new("work")).unwrap();
        let both = 2; // The legacy stream's, and one for all the threads.
        assert_eq!(lanes(HostOptions::default(), |d| assert!(d.stream_id(D, OWN).is_ok())), both);
        assert_eq!(lanes(HostOptions::default(), launch), both);
        let seen = |d: &HostDriver| {
            d.launch(D, OWN, Kernel::new("work")).unwrap();
            d.stream_sync(D, OWN).unwrap();
        };
        assert_eq!(lanes(HostOptions::simulation(1), seen), both);
        // Nobody has seen the work complete, so a race with it must still be found.
        assert_eq!(lanes(HostOptions { check: true, ..HostOptions::default() }, launch), 41);
    }

    #[test]
    fn a_capture_ends_with_its_thread() {
        let begin = |d: &HostDriver| d.begin_capture(OWN).unwrap();
        assert_eq!(lanes(HostOptions::default(), begin), 2);
    }
}

//! Streams: handles, identities and queues.
//!
//! A *lane* is the queue behind a stream. Handles are slots, reused last in first out like CUDA's;
//! identities come from a counter of the process and are never reused. The work of a destroyed
//! stream stays in its lane and still runs. A dead lane whose work the host has seen complete can
//! serve a new stream, which goes on with its numbering: all of the old work is ordered before
//! anything new anyway.

#![deny(unsafe_code)]

use super::device::HostDriver;
use super::identities::Identities;
use super::seats::seat;
use super::state::State;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};

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
        seat(self.instance, |seat| {
            if let Some((_, lane, id)) = seat.streams.iter().find(|(d, ..)| *d == dev) {
                return (*lane, *id);
            }
            let lane = st.lanes.open(dev, true, &st.host, st.host_version);
            let id = st.lanes.list.get_mut(lane).map_or(0, |l| {
                l.handle = StreamHandle::PER_THREAD;
                l.id
            });
            seat.streams.push((dev, lane, id));
            (lane, id)
        })
    }

    pub(super) fn new_stream(&self, dev: DeviceId, blocking: bool) -> Result<StreamHandle> {
        self.check_device(dev)?;
        let st = &mut *self.enter();
        let lane = st.lanes.open(dev, blocking, &st.host, st.host_version);
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

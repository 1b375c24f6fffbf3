//! The claim of `order/lanes.rs`: nothing counts as settled before the device has done what was
//! submitted before the free. A free happens under its heap's lock, which is all that orders it
//! against a marker of another thread.

use super::device::Device;
use super::explore;
use crate::base::sync::{lock, Mutex};
use crate::base::{DeviceId, StreamHandle};
use crate::driver::Watch;
use crate::pool::order::{lanes::Order, tag::Tag};
use loom::thread;
use std::sync::Arc;

const A: StreamHandle = StreamHandle(1);
const B: StreamHandle = StreamHandle(2);

struct Model {
    device: Arc<Device>,
    order: Order,
    lanes: [u32; 2],
    /// What was freed: the stream, the last work on the memory, and the free's tag. The lock is the
    /// heap's.
    freed: Mutex<Vec<(StreamHandle, u64, Tag)>>,
}

impl Model {
    fn new() -> Arc<Model> {
        let device = Arc::new(Device::new());
        let order = Order::new(device.clone(), DeviceId(0), 4, Watch::Ask);
        let lanes = [
            order.add_lane(false, StreamHandle::LEGACY, 1).unwrap(),
            order.add_lane(false, StreamHandle::LEGACY, 1).unwrap(),
        ];
        Arc::new(Model { device, order, lanes, freed: Mutex::new(Vec::new()) })
    }

    fn lane(&self, s: StreamHandle) -> u32 {
        self.lanes[s.0 - 1]
    }

    /// Uses memory on a stream and frees it there.
    fn use_and_free(&self, s: StreamHandle) {
        let work = self.device.submit(s);
        let mut freed = lock(&self.freed);
        let tag = self.order.tag(self.lane(s));
        freed.push((s, work, tag));
    }

    fn mark(&self, s: StreamHandle) {
        assert!(self.order.mark(self.lane(s), s).unwrap());
    }

    fn mark_context(&self) {
        assert!(self.order.mark_context(None).unwrap());
    }

    /// Learns what the device has done, and checks the claim for everything freed.
    fn poll_and_check(&self) {
        self.order.poll(self.lanes).unwrap();
        self.check();
    }

    fn check(&self) -> usize {
        let freed = lock(&self.freed);
        let settled = freed.iter().filter(|f| self.order.settled(f.2));
        settled.map(|&(s, work, _)| assert!(self.device.has_done(s, work), "settled too early")).count()
    }

    /// Once all is marked and done, everything is settled.
    fn finish(&self) {
        self.mark(A);
        self.mark(B);
        self.poll_and_check();
        assert_eq!(self.check(), lock(&self.freed).len(), "never settled");
        self.order.validate().unwrap();
    }
}

/// Fails when `Order::mark` closes the epoch after it has recorded the event: a free between the
/// two has the closed epoch's tag and is not covered.
#[test]
fn a_marker_covers_every_free_of_its_epoch() {
    explore(|| {
        let m = Model::new();
        let other = thread::spawn({
            let m = m.clone();
            move || m.use_and_free(A)
        });
        m.mark(A);
        m.poll_and_check();
        other.join().unwrap();
        m.finish();
    });
}

/// Fails when `Order::mark_context` closes the epochs after it has recorded the event.
#[test]
fn a_context_marker_covers_every_stream() {
    explore(|| {
        let m = Model::new();
        let other = thread::spawn({
            let m = m.clone();
            move || {
                m.use_and_free(A);
                m.use_and_free(B);
            }
        });
        m.mark_context();
        m.poll_and_check();
        other.join().unwrap();
        m.finish();
    });
}

/// Fails when `Order::mark` closes the epoch before it has the lock of the lane's markers: then two
/// markers stand in the queue in the wrong order.
#[test]
fn markers_of_two_threads_stay_in_order() {
    explore(|| {
        let m = Model::new();
        let other = thread::spawn({
            let m = m.clone();
            move || {
                m.use_and_free(A);
                m.mark(A);
            }
        });
        m.mark(A);
        m.check();
        m.order.validate().unwrap();
        other.join().unwrap();
        m.finish();
    });
}

/// No marker of a lane's present stream settles what its former stream freed. Fails when
/// `Order::pop_done` does not look at the barrier a marker stands behind.
#[test]
fn a_lane_that_changes_hands_keeps_what_it_owes() {
    explore(|| {
        let m = Model::new();
        m.use_and_free(A);
        let other = thread::spawn({
            let m = m.clone();
            move || {
                // The handle of A names another stream from here on, B, in the same lane.
                m.order.hand_over(m.lane(A), 2);
                assert!(m.order.mark(m.lane(A), B).unwrap());
            }
        });
        m.poll_and_check();
        other.join().unwrap();
        m.poll_and_check();
        assert_eq!(m.check(), 0, "only the context can settle it");
        m.mark_context();
        m.poll_and_check();
        assert_eq!(m.check(), 1);
    });
}

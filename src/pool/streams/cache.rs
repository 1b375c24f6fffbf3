//! What a thread remembers of the streams it uses.
//!
//! A free takes the lane from here without looking at the stream. An allocation makes sure that the
//! handle still stands for the same stream (`calls/resolve.rs`).

use crate::base::sync::lock;
use crate::base::StreamHandle;
use crate::driver::thread_end;
use crate::pool::state::SpareStreams;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

/// How to make sure that a handle still stands for the same stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// It always does: the legacy stream.
    Never,
    /// By the driver's structures.
    Look,
    /// By a driver call.
    Ask,
}

/// A place of the per-thread cache.
#[derive(Clone, Copy)]
pub(crate) struct CachedStream {
    /// The pool's number; 0 in an empty place.
    pub(crate) pool: u64,
    pub(crate) handle: usize,
    pub(crate) id: u64,
    pub(crate) heap: u32,
    pub(crate) lane: u32,
    pub(crate) check: Check,
    /// The order's count of capture changes when the place was filled: it is refilled after each.
    pub(crate) captures: u64,
    /// How often the thread met others at the heap's lock of late, and the heap's count of
    /// allocations the last time.
    pub(crate) collisions: u32,
    pub(crate) collided_at: u64,
}

const EMPTY: CachedStream = CachedStream {
    pool: 0,
    handle: 0,
    id: 0,
    heap: 0,
    lane: 0,
    check: Check::Ask,
    captures: 0,
    collisions: 0,
    collided_at: 0,
};

/// Places of the per-thread cache. A stream without a place costs each call a question to the
/// driver and a look into the registry, more than the rest of a hit; a place costs each thread 56
/// bytes.
const PLACES: usize = 128;

thread_local! {
    pub(crate) static CACHE: [Cell<CachedStream>; PLACES] = const { [const { Cell::new(EMPTY) }; PLACES] };
}

/// The identity of a thread's own stream, and where the pool wants it when the thread ends, if the
/// pool is still there.
type OwnStream = (Weak<SpareStreams>, u64);

thread_local! {
    /// A thread's own streams, one for each pool; passed on when it ends.
    static OWN_STREAMS: ManuallyDrop<RefCell<Vec<OwnStream>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Passes on the streams of a thread that ends.
fn pass_on() {
    for (spare, id) in OWN_STREAMS.with(|l| l.take()) {
        if let Some(spare) = spare.upgrade() {
            lock(&*spare).push(id);
        }
    }
}

pub(crate) fn leave_at_exit(spare: &Arc<SpareStreams>, id: u64) {
    // A thread whose end cannot be watched never passes its lane on: one per such thread at most.
    if thread_end::watch(pass_on).is_ok() {
        OWN_STREAMS.with(|own| {
            let mut own = own.borrow_mut();
            own.retain(|(spare, _)| spare.strong_count() > 0);
            own.push((Arc::downgrade(spare), id));
        });
    }
}

pub(crate) fn take_spare(spare: &SpareStreams) -> Option<u64> {
    lock(spare).pop()
}

/// Tells streams that are being captured from each other: by their handles, and per-thread streams,
/// which share one, by an address of their thread's own.
pub(crate) fn capture_key(stream: StreamHandle) -> usize {
    match stream {
        StreamHandle::PER_THREAD => CACHE.with(|c| std::ptr::from_ref(c) as usize),
        s => s.0,
    }
}

#[inline]
pub(crate) fn slot(stream: StreamHandle) -> usize {
    // Handles are pointers to structures of one size: the top bits of a product tell them apart.
    stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - PLACES.ilog2())
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::DeviceId;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::pool::{AllocRequest, Pool, PoolOptions};

    #[test]
    fn what_threads_leave_to_pools_goes_with_the_pools() {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let own = || OWN_STREAMS.with(|own| own.borrow().len());
        for _ in 0..100 {
            let options = PoolOptions { va_size: 1 << 30, ..PoolOptions::default() };
            let pool = Pool::new(host.clone(), DeviceId(0), options).unwrap();
            let allocate = || {
                let req = AllocRequest { size: 1, stream: StreamHandle::PER_THREAD, ..AllocRequest::default() };
                pool.free(pool.malloc(&req).unwrap(), None).unwrap();
            };
            for _ in 0..3 {
                std::thread::scope(|s| s.spawn(allocate).join().unwrap());
                assert_eq!(lock(&*pool.spare_streams).len(), 1, "the next thread has the stream of the one before");
            }
            allocate();
            assert_eq!(lock(&*pool.spare_streams).len(), 0);
            pool.trim(0).unwrap();
        }
        assert!(own() <= 1, "{} pools are gone, and known still", own());
    }
}

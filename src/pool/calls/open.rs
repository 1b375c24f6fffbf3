//! Making a pool, and mapping memory ahead for it.

use crate::base::sync::{Apart, AtomicU64, OnceLock};
use crate::base::{size, DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::{empty_cells, Driver, Watch};
use crate::pool::heap::GRANULE;
use crate::pool::memory::{Index, SLOT};
use crate::pool::order::{Order, Tag};
use crate::pool::state::Pool;
use crate::pool::types::{PoolOptions, Want, NONE};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

impl Pool {
    /// A pool on one device. It reserves addresses, and maps nothing unless `prealloc` says so.
    pub fn new(driver: Arc<dyn Driver>, dev: DeviceId, options: PoolOptions) -> Result<Pool> {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let props = driver.device_props(dev)?;
        if !props.vmm {
            let why = format!("device {dev} ({}) has no virtual memory management; set GPUMEM_POOL=off", props.name);
            return Err(Error::new(Status::Unsupported, why));
        }
        // Index slots must not straddle extents.
        let page = options.page_size.max(props.granularity).max(SLOT);
        if !page.is_power_of_two() || page > size::GIB {
            let why = format!("page size {page} is not a power of two from {} to {}", props.granularity, size::GIB);
            return Err(Error::new(Status::Config, why));
        }
        let mut access = vec![dev];
        for peer in (0..driver.device_count()).map(DeviceId).filter(|&d| d != dev) {
            if driver.can_access(peer, dev)? {
                access.push(peer);
            }
        }
        let watch = if options.watch { driver.stream_watch(dev) } else { Watch::Ask };
        let pool = Pool {
            dev,
            number: NUMBER.fetch_add(1, Relaxed),
            props,
            options,
            page,
            access,
            limit: AtomicU64::new(if options.limit == 0 { u64::MAX } else { options.limit }),
            index: Index::of_pages(page),
            order: Order::new(driver.clone(), dev, options.max_lanes, watch.clone()),
            watch,
            heap_count: AtomicU32::new(0),
            heaps: empty_cells(options.max_lanes),
            streams: Apart::default(),
            spare_streams: Arc::default(),
            core: Apart::default(),
            changing: std::sync::RwLock::new(()),
            counters: Apart::default(),
            other_devices: Apart::default(),
            privates: Apart::default(),
            unclaimed: OnceLock::new(),
            shared: AtomicU32::new(NONE),
            counter: OnceLock::new(),
            driver,
        };
        pool.reserve_root(&mut pool.core.lock(), page)?;
        if options.prealloc > 0 {
            // After a failure nothing is mapped. The next try would reserve kept addresses again.
            pool.prealloc(options.prealloc).inspect_err(|_| _ = pool.give_up_addresses())?;
        }
        Ok(pool)
    }

    /// Maps `bytes` ahead when the pool starts: one ready run in the legacy stream's heap, for any
    /// stream to take over.
    pub(crate) fn prealloc(&self, bytes: u64) -> Result<()> {
        let less = |e: Error| e.context("GPUMEM_PREALLOC is more than can be had, so set less");
        self.check_size(bytes).map_err(less)?;
        let heap = self.heap_for(StreamHandle::LEGACY)?;
        let mut st = heap.lock();
        let size = self.whole_pages(bytes)?;
        let want = Want::new(size, GRANULE, (StreamHandle::LEGACY, heap.lane));
        st.learnt.ahead = true;
        match self.stitch_or_grow(&mut st, want)? {
            Some(r) => {
                st.regions.make_ready(r, Tag::SETTLED);
                Ok(())
            }
            None => Err(less(self.out_of_memory(size))),
        }
    }
}

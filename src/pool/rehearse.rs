//! A rehearsal: everything that the first growth of a process finds cold is used once before.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::{lock, Pool, PoolOptions};
use crate::base::{DeviceId, Result};
use crate::driver::{Driver, PhysFlags};
use std::sync::Arc;

impl Pool {
    /// Maps a page in a pool of its own and gives it back. The first mapping of a process makes the driver set itself up, and
    /// its pages of code and gpumem's are brought in one by one: as much again as it takes to map 1 GiB, and better spent here
    /// than in somebody's first request. Nothing is recorded on any stream, nothing waits for the device, and nothing stays.
    ///
    /// What fails here is not told: it fails again, and is told, when a request needs it.
    pub(super) fn rehearse_elsewhere(driver: &Arc<dyn Driver>, dev: DeviceId, options: &PoolOptions) {
        let _ = Self::map_a_page(driver, dev, options);
    }

    fn map_a_page(driver: &Arc<dyn Driver>, dev: DeviceId, options: &PoolOptions) -> Result<()> {
        let small = PoolOptions {
            // One page: the pool rounds both up.
            va_size: 1,
            prealloc: 1,
            limit: 0,
            // The context's, and the stream's that it is made ready for.
            max_lanes: 2,
            watch: false,
            log_decisions: false,
            rehearse: false,
            ..*options
        };
        let pool = Pool::new(driver.clone(), dev, small)?;
        // An undo that failed may do the second time.
        pool.release_free(0).or_else(|_| pool.release_free(0))?;
        pool.give_up_addresses()
    }

    /// The same once more where the first request will be, by driver calls alone: for new addresses the driver makes tables
    /// that it then keeps, and much of the rest is quicker the second time. What fails is not told here, either; what could not
    /// be undone is tried again when memory is given back.
    pub(super) fn rehearse_at_home(&self) {
        let Ok(handle) = self.driver.phys_create(self.dev, self.page, PhysFlags::default()) else { return };
        // An undo that failed may do the second time.
        if let Ok(Some(va)) = self.take_addresses(None, self.page, self.page) {
            let mapped = self.map_handle(va, self.page, handle);
            let _ = mapped.and_then(|()| self.undo_map(va, self.page)).or_else(|_| self.reap_zombies());
        }
        let _ = self.drop_handle(handle).or_else(|_| self.drop_orphans());
    }

    /// Gives the pool's addresses back, of which none is mapped: the end of it.
    pub(super) fn give_up_addresses(&self) -> Result<()> {
        let mut done = Ok(());
        for (base, len) in lock(&*self.core).holes.roots() {
            done = done.and(self.driver.va_free(self.dev, base, len));
        }
        done
    }
}

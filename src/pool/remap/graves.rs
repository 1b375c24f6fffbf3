//! Graves: freed dedicated allocations the device may still be using, and giving their memory back.

use crate::base::Result;
use crate::pool::memory::Grave;
use crate::pool::state::Pool;

impl Pool {
    /// Unmaps and releases freed dedicated allocations the device has passed. Returns the bytes
    /// released.
    pub(crate) fn release_graves(&self) -> Result<u64> {
        let lanes: std::collections::BTreeSet<u32> = {
            let core = self.core.lock();
            core.graves.values().filter(|g| g.mapped > 0).flat_map(|g| g.tags.iter().map(|t| t.lane())).collect()
        };
        if lanes.is_empty() {
            return Ok(0);
        }
        self.order.poll(lanes)?;
        let mut ready: Vec<Grave> = Vec::new();
        for g in self.core.lock().graves.values_mut() {
            if g.mapped > 0 && !g.busy && g.tags.iter().all(|&t| self.order.settled(t)) {
                g.busy = true;
                ready.push(g.clone());
            }
        }
        let mut released = 0;
        let mut done = Ok(());
        for g in ready {
            // After a failure the others stay where they were.
            done = done.and_then(|()| self.driver.unmap(g.va, g.mapped));
            let mut core = self.core.lock();
            let Some(grave) = core.graves.get_mut(&g.va) else { continue };
            grave.busy = false;
            if done.is_err() {
                continue;
            }
            // It is unmapped. Its addresses are free, unless they are held, whatever becomes of the
            // handle.
            if grave.held {
                grave.mapped = 0;
            } else {
                core.close_grave(g.va);
            }
            self.sub_mapped(g.mapped);
            drop(core);
            released += g.mapped;
            done = g.handle.map_or(Ok(()), |h| self.drop_handle(h));
        }
        done.map(|()| released)
    }
}

//! The tiers of one context: spaces, reservations, and what moves data between them. Made by the first call about any of
//! them, or by the first pool with `GPUMEM_TIERS=on`.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::Context;
use crate::base::sync::lock;
use crate::base::{DeviceId, Error, Result, Status};
use crate::driver::Driver;
use crate::pool::Pool;
use crate::tier::{LiveCounter, Manager, Space, SpaceId, SpaceOptions, Tier};
use std::sync::Arc;

/// Spaces and who uses them.
pub struct Tiers {
    manager: Arc<Manager>,
    /// The space of each device.
    gpu: Vec<Arc<Space>>,
}

impl Tiers {
    fn start(cx: &Context) -> Result<Tiers> {
        let manager = Arc::new(Manager::new());
        let gpu = (0..cx.pools.len() as u32).map(|d| gpu_space(cx, &manager, d)).collect::<Result<_>>()?;
        Ok(Tiers { manager, gpu })
    }

    /// The spaces' promises.
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// The device whose space it is.
    pub(super) fn device_of(&self, space: &Arc<Space>) -> Option<DeviceId> {
        self.gpu.iter().position(|s| Arc::ptr_eq(s, space)).map(|d| DeviceId(d as u32))
    }

    /// From now on all that lives in the pool counts in its device's space.
    pub(super) fn count(&self, pool: &Pool) -> Result<()> {
        let space = self.gpu(pool.device())?.clone();
        pool.count_live(Arc::new(LiveCounter::new(self.manager.clone(), space)));
        Ok(())
    }

    /// The space of a device.
    pub fn gpu(&self, device: DeviceId) -> Result<&Arc<Space>> {
        self.gpu.get(device.0 as usize).ok_or_else(|| {
            Error::invalid(format!(
                "there is no device {device}; devices are 0 to {}",
                self.gpu.len().saturating_sub(1)
            ))
        })
    }
}

fn gpu_space(cx: &Context, manager: &Manager, device: u32) -> Result<Arc<Space>> {
    let capacity = cx.driver.device_props(DeviceId(device))?.total_bytes;
    let options = SpaceOptions {
        limit: Some(cx.config.limit.of(capacity).min(capacity)),
        thresholds: cx.config.thresholds,
        ..SpaceOptions::new(capacity)
    };
    manager.add_space(SpaceId::new(Tier::Gpu, device), &options)
}

impl Context {
    /// The tiers, started if they are not.
    pub fn tiers(&self) -> Result<&Tiers> {
        match self.tiers.get() {
            Some(tiers) => Ok(tiers),
            None => self.start_tiers(),
        }
    }

    #[cold]
    fn start_tiers(&self) -> Result<&Tiers> {
        if !self.config.pool {
            return Err(Error::new(Status::Unsupported, "spaces and reservations need the pool; GPUMEM_POOL is off"));
        }
        let _making = lock(&self.making);
        self.tiers_making()
    }

    /// As [`Self::tiers`], under `making`.
    pub(super) fn tiers_making(&self) -> Result<&Tiers> {
        if let Some(tiers) = self.tiers.get() {
            return Ok(tiers);
        }
        let tiers = Tiers::start(self).map_err(|e| e.context("starting the tiers"))?;
        // Nobody gets a promise before all that lives is counted. What is allocated until the tiers are there is counted
        // by the pool itself, outside of any reservation.
        self.pools().try_for_each(|pool| tiers.count(pool))?;
        let tiers = self.tiers.get_or_init(|| tiers);
        self.arenas.count_all();
        Ok(tiers)
    }
}

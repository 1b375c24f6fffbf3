//! The tiers of one context: spaces, reservations, and what moves data between them. Made by the first call about any of
//! them, or by the first pool with `GPUMEM_TIERS=on`.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::config::Limit;
use super::host::Pinned;
use super::{Config, Context};
use crate::base::sync::lock;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::{numa, Driver};
use crate::pool::Pool;
use crate::tier::disk::StoreOptions;
use crate::tier::evict::{Evictor, MoverOptions, Parts};
use crate::tier::host::{HostNode, HostOptions};
use crate::tier::{Disks, HostTier, LiveCounter, Manager, Space, SpaceId, SpaceOptions, Tier};
use std::sync::Arc;

/// Spaces and who uses them.
pub struct Tiers {
    manager: Arc<Manager>,
    /// The space of each device.
    gpu: Vec<Arc<Space>>,
    host: Arc<HostTier>,
    disks: Arc<Disks>,
    /// Evictable allocations.
    evictor: Evictor,
    /// Pinned memory that is known by its address.
    pub(super) pinned: Pinned,
}

impl Tiers {
    fn start(cx: &Context) -> Result<Tiers> {
        let manager = Arc::new(Manager::new());
        let gpu = (0..cx.pools.len() as u32).map(|d| gpu_space(cx, &manager, d)).collect::<Result<Vec<_>>>()?;
        let driver: Arc<dyn Driver> = cx.driver.clone();
        let host = Arc::new(HostTier::new(driver, manager.clone(), &host_options(cx))?);
        let disks = Arc::new(Disks::new(manager.clone(), StoreOptions::default(), cx.config.thresholds));
        for mount in &cx.config.disks {
            disks.add_mount(&mount.path, mount.limit)?;
        }
        let parts = Parts {
            driver: cx.driver.clone(),
            manager: manager.clone(),
            pools: cx.pools.clone(),
            gpu: gpu.clone(),
            host: host.clone(),
            disks: disks.clone(),
        };
        let evictor = Evictor::new(parts, MoverOptions { enabled: cx.config.mover, warn: cx.config.log >= 1 });
        Ok(Tiers { manager, gpu, host, disks, evictor, pinned: Pinned::default() })
    }

    /// The spaces' promises.
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// Pinned memory, a space for each NUMA node.
    pub fn host(&self) -> &Arc<HostTier> {
        &self.host
    }

    /// Directories that data may be moved to, a space for each.
    pub fn disks(&self) -> &Arc<Disks> {
        &self.disks
    }

    /// Evictable allocations, and what moves them.
    pub fn evictor(&self) -> &Evictor {
        &self.evictor
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
    let props = cx.driver.device_props(DeviceId(device))?;
    let capacity = props.total_bytes;
    let options = SpaceOptions {
        limit: Some(cx.config.limit.of(capacity).min(capacity)),
        thresholds: cx.config.thresholds,
        numa: props.numa,
        ..SpaceOptions::new(capacity)
    };
    manager.add_space(SpaceId::new(Tier::Gpu, device), &options)
}

fn host_options(cx: &Context) -> HostOptions {
    let Config { pinned_blocks, pinned_limit, thresholds, .. } = &cx.config;
    // Who names bytes knows more than the system shows: a virtual machine may get memory as it uses it.
    let capacity = |bytes: u64| match *pinned_limit {
        Limit::Bytes(limit) => bytes.max(limit),
        _ => bytes,
    };
    let node = |n: &numa::NumaNode| {
        let capacity = capacity(n.bytes);
        HostNode { id: n.id, capacity, limit: pinned_limit.of(capacity) }
    };
    HostOptions {
        block_bytes: pinned_blocks.block_bytes,
        blocks: pinned_blocks.blocks,
        chunks: pinned_blocks.chunks,
        nodes: numa::nodes().iter().map(node).collect(),
        thresholds: *thresholds,
    }
}

impl Context {
    /// The tiers, started if they are not.
    pub fn tiers(&self) -> Result<&Tiers> {
        match self.tiers.get() {
            Some(tiers) => Ok(tiers),
            None => self.start_tiers(),
        }
    }

    /// Removes the files of disk spaces, as the process exits: nobody else can read them. Touches nothing else, as the driver
    /// may be gone, and waits for nobody.
    pub fn leave_disks(&self) {
        if let Some(tiers) = self.tiers.get() {
            tiers.disks.leave();
        }
    }

    /// Forgets a stream that is gone, and what was attached to it: the driver gives its handle to another one.
    pub fn forget_stream(&self, stream: StreamHandle) {
        if let Some(tiers) = self.tiers.get() {
            tiers.manager.forget_stream(stream.0 as u64);
        }
    }

    /// Takes every reservation off a stream: it goes to another user.
    pub fn detach_stream(&self, stream: StreamHandle) -> Result<()> {
        let Some(tiers) = self.tiers.get() else { return Ok(()) };
        for space in tiers.manager.spaces() {
            match tiers.manager.detach_stream(&space, stream.0 as u64) {
                // There was none.
                Err(e) if e.status == Status::Invalid => {}
                other => other?,
            }
        }
        Ok(())
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

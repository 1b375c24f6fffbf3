//! The tiers of one context: spaces, reservations, and what moves data between them.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::config::{Config, Limit};
use super::pinned::Pinned;
use crate::arena::Detector;
use crate::base::sync::OnceLock;
use crate::base::{DeviceId, Error, Interest, Result, Status};
use crate::driver::{numa, Counted, Driver};
use crate::observe::{Event, Kind, Recorder};
use crate::pool::Pool;
use crate::tier::disk::StoreOptions;
use crate::tier::evict::{Evictor, MoverOptions, Parts, Unasked};
use crate::tier::host::{HostNode, HostOptions};
use crate::tier::promise::settled;
use crate::tier::{Disks, HostTier, LiveCounter, Manager, Space, SpaceId, SpaceOptions, Tier};
use std::sync::Arc;

/// The setting of the directories, by its two names.
const DISK: &str = "GPUMEM_DISK or gpumem_context_options.disk";

/// Spaces, and what uses them.
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
    pub(super) fn start(
        driver: &Arc<Counted>,
        config: &Config,
        pools: &Arc<[OnceLock<Pool>]>,
        detector: Option<Arc<Detector>>,
        watched: (Arc<Interest>, Arc<Recorder>),
    ) -> Result<Tiers> {
        let manager = Arc::new(Manager::new());
        let limits = pools.iter().map(|p| p.get().map(|p| p.stats().limit));
        let space = |(d, limit)| gpu_space(&**driver, config, &manager, d, limit);
        let gpu = (0..).zip(limits).map(space).collect::<Result<Vec<_>>>()?;
        let host = Arc::new(HostTier::new(driver.clone(), manager.clone(), &host_options(config))?);
        let disks = Arc::new(Disks::new(manager.clone(), StoreOptions::default(), config.thresholds));
        for mount in &config.disks {
            // A setting that cannot be used, whatever is wrong with the directory.
            disks
                .add_mount(&mount.path, mount.limit)
                .map_err(|e| Error::new(Status::Config, format!("{DISK}: {}", e.message)))?;
        }
        let parts = Parts {
            driver: driver.clone(),
            manager: manager.clone(),
            pools: pools.clone(),
            gpu: gpu.clone(),
            host: host.clone(),
            disks: disks.clone(),
            spare: Box::new({
                let pools = pools.clone();
                move || detector.as_ref().is_some_and(|d| d.empty(&pools))
            }),
            unasked: Box::new(move |moved| saw_unasked(&watched.0, &watched.1, moved)),
        };
        let evictor = Evictor::new(parts, MoverOptions { enabled: config.mover, warn: config.log >= 1 });
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

    /// Checks the books of the spaces and of all that is in them. Other threads may go on.
    pub(super) fn validate(&self) -> Result<()> {
        self.manager.validate()?;
        settled(|| {
            self.evictor.validate()?;
            self.host.validate()?;
            self.disks.validate()
        })
    }

    /// The device whose space it is.
    pub(super) fn device_of(&self, space: &Arc<Space>) -> Option<DeviceId> {
        self.gpu.iter().position(|s| Arc::ptr_eq(s, space)).map(|d| DeviceId(d as u32))
    }

    /// Counts everything live in the pool in its device's space from now on.
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

/// Makes an event for a move that no call named, if events are wanted.
fn saw_unasked(interest: &Interest, recorder: &Recorder, moved: &Unasked) {
    if !interest.in_events() || recorder.is_inside() {
        return;
    }
    let Unasked { nearer, base, device, bytes, took } = *moved;
    let kind = if nearer { Kind::Restore } else { Kind::Evict };
    let other = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let time = recorder.now().saturating_sub(other);
    recorder.push(Event { address: base, bytes, other, device: device.0 as u8, ..Event::new(kind, time) });
}

/// The space of a device. It starts with the limit that is set, or with its pool's limit in force,
/// 0 for none, if a call has raised that.
fn gpu_space(
    driver: &dyn Driver,
    config: &Config,
    manager: &Manager,
    device: u32,
    in_force: Option<u64>,
) -> Result<Arc<Space>> {
    let props = driver.device_props(DeviceId(device))?;
    let capacity = props.total_bytes;
    let raised = match in_force {
        Some(0) => capacity,
        raised => raised.unwrap_or(0),
    };
    let limit = config.limit.of(capacity).max(raised);
    let options = SpaceOptions {
        limit: Some(limit.min(capacity)),
        thresholds: config.thresholds,
        numa: props.numa,
        ..SpaceOptions::new(capacity)
    };
    manager.add_space(SpaceId::new(Tier::Gpu, device), &options)
}

fn host_options(config: &Config) -> HostOptions {
    let Config { pinned_blocks, pinned_limit, thresholds, .. } = config;
    // A setting in bytes knows more than the system shows: a virtual machine may get memory as it
    // uses it.
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

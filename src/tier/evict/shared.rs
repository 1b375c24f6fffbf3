//! What moves share: the parts, the register, the way to wake the mover.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::bell::Bell;
use super::item::Item;
use super::lanes::Lanes;
use super::register::Register;
use crate::base::sync::OnceLock;
use crate::base::{DeviceId, Error, Result, Status};
use crate::driver::Driver;
use crate::pool::Pool;
use crate::tier::disk::Disks;
use crate::tier::host::HostTier;
use crate::tier::promise::{Manager, Space};
use std::sync::Arc;
use std::time::Duration;

/// What the evictor is made of.
pub struct Parts {
    /// Copies, streams and events.
    pub driver: Arc<dyn Driver>,
    /// The spaces' promises.
    pub manager: Arc<Manager>,
    /// The pools, by device; one that is not there yet has no evictable allocation.
    pub pools: Arc<[OnceLock<Pool>]>,
    /// The space of each device.
    pub gpu: Vec<Arc<Space>>,
    /// Pinned memory.
    pub host: Arc<HostTier>,
    /// Mounts.
    pub disks: Arc<Disks>,
    /// Gives back device memory that nobody uses. Returns whether there was any. Called with no
    /// lock held.
    pub spare: Box<dyn Fn() -> bool + Send + Sync>,
    /// Hears of items that have moved automatically, or for a hold. Called with no lock held.
    pub unasked: Box<dyn Fn(&Unasked) + Send + Sync>,
}

/// An allocation that has moved although no call named it to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unasked {
    /// Whether it moved nearer to the device.
    pub nearer: bool,
    /// Where it starts.
    pub base: u64,
    /// The device it is of.
    pub device: DeviceId,
    /// Bytes asked for.
    pub bytes: u64,
    /// Its share of the time taken, together with those that moved at the same time.
    pub took: Duration,
}

/// What the evictor and its thread share.
pub(super) struct Shared {
    pub(super) parts: Parts,
    /// The spaces of pinned memory.
    pub(super) hosts: Vec<Arc<Space>>,
    pub(super) register: Arc<Register<Item>>,
    pub(super) lanes: Lanes,
    pub(super) bell: Bell,
}

impl Shared {
    pub(super) fn pool(&self, device: DeviceId) -> Result<&Pool> {
        let pool = self.parts.pools.get(device.0 as usize).and_then(OnceLock::get);
        pool.ok_or_else(|| Error::internal(format!("device {device} has evictable memory and no pool")))
    }

    pub(super) fn gpu(&self, device: DeviceId) -> Result<&Arc<Space>> {
        let space = self.parts.gpu.get(device.0 as usize);
        space.ok_or_else(|| Error::internal(format!("device {device} has no space")))
    }

    /// Why `base` is not evictable.
    pub(super) fn none(&self, base: u64) -> Error {
        let mut pools = self.parts.pools.iter().filter_map(OnceLock::get);
        match pools.find_map(|p| p.info_containing(base).ok()) {
            None => Error::new(Status::UnknownPointer, format!("{base:#x} is no live memory of gpumem's")),
            Some(i) if i.base != base && self.register.find(i.base).is_some() => {
                let text = format!("{base:#x} is inside the evictable allocation at {:#x}; pass its start", i.base);
                Error::new(Status::UnknownPointer, text)
            }
            Some(i) => Error::invalid(format!(
                "{base:#x} (device {}, {} bytes, flags {:#x}) cannot be moved: it was not allocated with the EVICTABLE flag",
                i.device, i.requested, i.flags.0
            )),
        }
    }
}

//! The options of the host device.

#![deny(unsafe_code)]

use crate::base::{size, Error, Result};
use crate::driver::pages;

/// Access masks have a bit for each device.
const MAX_DEVICES: u32 = 64;

/// The properties of the host device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// How many devices, 1 to 64.
    pub devices: u32,
    /// Memory of each, bytes. Sparse: only what is touched costs anything.
    pub bytes_per_device: u64,
    /// Granularity of mappings, bytes: a power of two and at least a page.
    pub granularity: u64,
    /// Decides the schedule when `eager` is off.
    pub seed: u64,
    /// Run work as soon as it is submitted. Otherwise it runs late and in surprising orders.
    pub eager: bool,
    /// Check accesses for races and for memory unmapped in use.
    pub check: bool,
    /// How to announce mistakes, besides [`HostDriver::reports`](super::HostDriver::reports).
    pub tell: Tell,
    /// Whether devices can access each other's memory.
    pub peers: bool,
}

/// How to announce mistakes as they are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tell {
    /// Not at all: callers ask for the reports.
    #[default]
    Nobody,
    /// A line on stderr.
    Stderr,
    /// A line on stderr, and the process ends at the first mistake.
    Abort,
}

impl Default for HostOptions {
    /// For users without a GPU: one device of 16 GiB that runs work at once and checks nothing.
    fn default() -> HostOptions {
        HostOptions {
            devices: 1,
            bytes_per_device: 16 * size::GIB,
            granularity: 2 * size::MIB,
            seed: 1,
            eager: true,
            check: false,
            tell: Tell::Nobody,
            peers: true,
        }
    }
}

impl HostOptions {
    /// For tests: work runs late, in an order that `seed` decides, and every access is checked.
    pub fn simulation(seed: u64) -> HostOptions {
        HostOptions { seed, eager: false, check: true, ..HostOptions::default() }
    }

    /// Checks the options; returns the bytes of a device in whole granules.
    pub(super) fn check(&self) -> Result<u64> {
        if self.devices == 0 || self.devices > MAX_DEVICES {
            return Err(Error::invalid(format!("{} host devices: 1 to {MAX_DEVICES} are possible", self.devices)));
        }
        let granularity = self.granularity;
        if !granularity.is_power_of_two() || granularity < pages::page_size() || granularity > 1 << 40 {
            return Err(Error::invalid(format!(
                "granularity {granularity}: it must be a power of two, at least a page ({} bytes) and at most 1 TiB",
                pages::page_size()
            )));
        }
        let bytes = size::round_down(self.bytes_per_device, granularity);
        if bytes == 0 || bytes > 1 << 50 {
            return Err(Error::invalid(format!(
                "{} bytes a device: at least one granule ({granularity} bytes) and at most 1 PiB are possible",
                self.bytes_per_device
            )));
        }
        Ok(bytes)
    }
}

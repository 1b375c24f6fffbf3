//! The device, and what is behind its lock.

#![deny(unsafe_code)]

use super::clock::Clock;
use super::events::Events;
use super::graphs::Graphs;
use super::identities::Identities;
use super::lanes::Lanes;
use super::live::Live;
use super::memory::Memory;
use super::mood::Mood;
use super::options::HostOptions;
use super::physical::{no_device, Physical};
use super::race::Shadow;
use super::report::Reports;
use super::state::State;
use crate::base::{DeviceId, Result};
use crate::driver::graph::Gone;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, Weak};

/// The host device, described in `host/mod.rs`.
pub struct HostDriver {
    pub(super) options: HostOptions,
    /// The driver itself, for its threads' seats.
    pub(super) me: Weak<HostDriver>,
    pub(super) state: Mutex<State>,
    /// Signalled when an operation is complete, if anyone waits.
    pub(super) progress: Condvar,
    pub(super) handles: Arc<Identities>,
    /// Identities of the legacy streams, by device.
    pub(super) legacy_ids: Vec<u64>,
    /// How many captures are in progress; `stream_is_capturing` looks no further while it is 0.
    pub(super) captures: AtomicUsize,
    /// Tokens of graphs that are gone.
    pub(super) gone: Arc<Gone>,
}

impl HostDriver {
    /// A driver with its own devices.
    pub fn new(options: HostOptions) -> Result<Arc<HostDriver>> {
        let bytes = options.check()?;
        let granularity = options.granularity;
        let physical = Physical::new(options.devices, bytes, granularity)?;
        let lanes = Lanes::new(options.devices);
        let legacy_ids = lanes.legacy.iter().filter_map(|l| lanes.list.get(*l)).map(|l| l.id).collect();
        let graphs = Graphs::default();
        let gone = graphs.gone.clone();
        let state = State {
            memory: Memory::new(physical, granularity),
            lanes,
            events: Events::default(),
            graphs,
            host: Clock::default(),
            host_version: 0,
            shadow: Shadow::new(),
            live: Live::default(),
            reports: Reports::new(options.tell),
            mood: Mood::new(options.seed),
            checking: options.check,
            waiters: 0,
        };
        Ok(Arc::new_cyclic(|me| HostDriver {
            options,
            me: me.clone(),
            state: Mutex::new(state),
            progress: Condvar::new(),
            handles: Arc::new(Identities::new()),
            legacy_ids,
            captures: AtomicUsize::new(0),
            gone,
        }))
    }

    pub(super) fn check_device(&self, dev: DeviceId) -> Result<()> {
        if dev.0 < self.options.devices {
            return Ok(());
        }
        Err(no_device(dev, self.options.devices as usize))
    }
}

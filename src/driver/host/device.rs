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
use super::seats::{leave, seat};
use super::state::State;
use crate::base::{DeviceId, Error, Result, StreamHandle};
use crate::driver::graph::Gone;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// The host device, described in `host/mod.rs`.
pub struct HostDriver {
    pub(super) options: HostOptions,
    /// Tells this driver's thread-local data from that of other instances.
    pub(super) instance: u64,
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
        static NEXT: AtomicU64 = AtomicU64::new(1);
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
        Ok(Arc::new(HostDriver {
            options,
            instance: NEXT.fetch_add(1, Ordering::Relaxed),
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

    /// A stream's identity, whether or not it is being captured.
    pub(super) fn identity(&self, dev: DeviceId, s: StreamHandle) -> Result<u64> {
        match s.canonical() {
            StreamHandle::LEGACY => {
                self.legacy_ids.get(dev.0 as usize).copied().ok_or_else(|| no_device(dev, self.legacy_ids.len()))
            }
            StreamHandle::PER_THREAD => {
                self.check_device(dev)?;
                let known =
                    seat(self.instance, |seat| seat.streams.iter().find(|(d, ..)| *d == dev).map(|(.., id)| *id));
                Ok(known.unwrap_or_else(|| self.per_thread(&mut self.look(), dev).1))
            }
            s => {
                let (owner, id) = self.handles.lookup(s)?;
                if owner != dev {
                    return Err(Error::invalid(format!("stream {s} belongs to device {owner}, not {dev}")));
                }
                Ok(id)
            }
        }
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        leave(self.instance);
    }
}

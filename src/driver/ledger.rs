//! A driver that records which addresses are reserved, which memory exists and where it is mapped,
//! to export the memory under a range, give another device access, or undo everything at once.
//!
//! If somebody counts the stream captures open in the process ([`captures`]), it also refuses calls
//! that would invalidate them.

use super::wrap::{Change, Gate, Hook, Wrap};
use super::{Call, Driver, PhysFlags, PhysHandle};
use crate::base::{DeviceId, Error, Result, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// How many captures are open. A thread that begins one holds the write lock during the call.
static CAPTURES: RwLock<u64> = RwLock::new(0);

/// The number of captures that are open in this process; a writer counts those that it begins and
/// ends.
pub fn captures() -> &'static RwLock<u64> {
    &CAPTURES
}

/// The records of a [`Ledger`].
#[derive(Default)]
struct Pages {
    /// Reservations: address, bytes.
    reserved: BTreeMap<u64, u64>,
    handles: BTreeSet<PhysHandle>,
    /// Mappings: address, bytes and handle.
    mapped: BTreeMap<u64, (u64, PhysHandle)>,
    /// Devices that have been given access.
    guests: Vec<DeviceId>,
}

/// Writes down what a driver does.
pub struct Book {
    pages: Mutex<Pages>,
    /// By device: whether memory is made exportable.
    exportable: Vec<bool>,
    /// Whether everything has been undone. Later callers, such as a thread that gives free memory
    /// back now and then, may name reused addresses and handles.
    ended: AtomicBool,
}

/// A driver that records what it does.
pub type Ledger = Wrap<Book>;

/// A piece of physical memory under a range, exported.
pub struct Piece {
    /// Keeps the memory alive.
    pub fd: OwnedFd,
    /// Its whole size, bytes.
    pub bytes: u64,
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hook for Book {
    #[inline]
    fn before(&self, _call: Call) -> Result<()> {
        match self.ended.load(Relaxed) {
            true => Err(Error::new(Status::ShuttingDown, "the device's context has ended, and all memory with it")),
            false => Ok(()),
        }
    }

    fn open_gate(&self) -> Result<Gate<'_>> {
        let open = captures().read().unwrap_or_else(PoisonError::into_inner);
        refuse(*open)?;
        Ok(Some(open))
    }

    /// Waits behind a context marker: until the driver has come to wait for the device, a capture
    /// may begin, which that would end.
    fn device_sync(&self, inner: &dyn Driver, dev: DeviceId) -> Result<()> {
        let event = inner.event_create(dev)?;
        let marked = self.open_gate().and_then(|_open| inner.context_record(dev, event));
        let waited = match marked {
            Ok(()) => inner.event_sync(dev, event),
            // A driver that has no markers.
            Err(e) if e.status == Status::Unsupported => inner.device_sync(dev),
            failed => failed,
        };
        let _ = inner.event_destroy(dev, event);
        waited
    }

    fn flags(&self, dev: DeviceId, flags: PhysFlags) -> PhysFlags {
        let exportable = self.exportable.get(dev.0 as usize).is_some_and(|e| *e);
        PhysFlags { posix_fd: flags.posix_fd || exportable, ..flags }
    }

    fn also(&self) -> Vec<DeviceId> {
        self.pages().guests.clone()
    }

    fn changed(&self, change: Change) {
        let pages = &mut *self.pages();
        match change {
            Change::Reserved(va, bytes) => drop(pages.reserved.insert(va, bytes)),
            Change::Freed(va) => drop(pages.reserved.remove(&va)),
            Change::Created(h) => drop(pages.handles.insert(h)),
            Change::Released(h) => drop(pages.handles.remove(&h)),
            Change::Mapped(va, bytes, h) => drop(pages.mapped.insert(va, (bytes, h))),
            Change::Unmapped(va, bytes) => {
                let under: Vec<u64> = pages.mapped.range(va..va.saturating_add(bytes)).map(|m| *m.0).collect();
                for at in under {
                    pages.mapped.remove(&at);
                }
            }
        }
    }
}

fn refuse(open: u64) -> Result<()> {
    match open {
        0 => Ok(()),
        n => Err(Error::new(
            Status::Capturing,
            format!("{n} stream captures are open, which this call would invalidate"),
        )),
    }
}

impl Wrap<Book> {
    /// Wraps `inner` and records the calls made to it. All memory is made exportable if the device
    /// can.
    pub fn new(inner: Arc<dyn Driver>) -> Ledger {
        let can = |d| inner.device_props(DeviceId(d)).is_ok_and(|p| p.posix_fd);
        let exportable = (0..inner.device_count()).map(can).collect();
        Wrap::around(inner, Book { pages: Mutex::default(), exportable, ended: AtomicBool::new(false) })
    }

    /// Exports the memory under `[va, va + bytes)`: whole handles in address order, `most` of them
    /// at most, and the offset in the first at which the range begins.
    pub fn export(&self, va: u64, bytes: u64, most: usize) -> Result<(Vec<Piece>, u64)> {
        let end = va.saturating_add(bytes.max(1));
        let under: Vec<(u64, u64, PhysHandle)> = {
            let pages = self.hook.pages();
            let first = pages.mapped.range(..=va).next_back().map_or(va, |(at, _)| *at);
            pages.mapped.range(first..end).take(most).map(|(at, (bytes, h))| (*at, *bytes, *h)).collect()
        };
        let mut at = under.first().map_or(0, |(at, ..)| *at);
        let offset = va.wrapping_sub(at);
        let mut pieces = Vec::new();
        for (start, bytes, handle) in under {
            if start != at {
                break;
            }
            pieces.push(Piece { fd: self.phys_export(handle)?, bytes });
            at = start + bytes;
        }
        match !pieces.is_empty() && (at >= end || pieces.len() == most) {
            true => Ok((pieces, offset)),
            false => Err(Error::invalid(format!("{bytes} bytes at {va:#x} are not mapped without gaps"))),
        }
    }

    /// Lets `guest` access everything that is mapped now and later.
    pub fn let_in(&self, guest: DeviceId) -> Result<()> {
        let mapped = {
            let mut pages = self.hook.pages();
            if !pages.guests.contains(&guest) {
                pages.guests.push(guest);
            }
            pages.mapped.clone()
        };
        let mut first = Ok(());
        for (at, mapping) in mapped {
            if let Err(e) = self.inner().set_access(at, mapping.0, &[guest]) {
                // Another thread may have unmapped it meanwhile. A newer mapping includes the
                // guest.
                if self.hook.pages().mapped.get(&at) == Some(&mapping) {
                    first = first.and(Err(e));
                }
            }
        }
        first
    }

    /// Devices that have been given access.
    pub fn guests(&self) -> Vec<DeviceId> {
        self.hook.pages().guests.clone()
    }

    /// Unmaps everything, drops every handle and gives every address back. Device work that still
    /// uses it faults. Nobody owns any of it from now on: every later call gives `ShuttingDown`. A
    /// failure does not stop it; the first is returned.
    pub fn tear_down(&self, dev: DeviceId) -> Result<()> {
        self.hook.ended.store(true, Relaxed);
        let pages = std::mem::take(&mut *self.hook.pages());
        let inner = self.inner();
        let mapped = pages.mapped.iter().map(|(at, (bytes, _))| inner.unmap(*at, *bytes));
        let handles = pages.handles.iter().map(|h| inner.phys_release(*h));
        let reserved = pages.reserved.iter().map(|(at, bytes)| inner.va_free(dev, *at, *bytes));
        let mut first = Ok(());
        for result in mapped.chain(handles).chain(reserved) {
            first = first.and(result);
        }
        first
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::base::size::MIB;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::{Fault, FaultRule};

    const DEV: DeviceId = DeviceId(0);

    fn ledger(devices: u32) -> Ledger {
        Ledger::new(HostDriver::new(HostOptions { devices, ..HostOptions::default() }).unwrap())
    }

    /// Two handles of 2 and 4 MiB side by side.
    fn two(l: &Ledger) -> (u64, [PhysHandle; 2]) {
        let va = l.va_reserve(DEV, 16 * MIB, 2 * MIB).unwrap();
        let a = l.phys_create(DEV, 2 * MIB, PhysFlags::default()).unwrap();
        let b = l.phys_create(DEV, 4 * MIB, PhysFlags::default()).unwrap();
        l.map(DEV, va, 2 * MIB, a).unwrap();
        l.map(DEV, va + 2 * MIB, 4 * MIB, b).unwrap();
        l.set_access(va, 6 * MIB, &[DEV]).unwrap();
        (va, [a, b])
    }

    #[test]
    fn a_range_over_two_handles_is_exported_as_both() {
        let l = ledger(1);
        let (va, _) = two(&l);
        let export = |at, bytes, most| {
            let (pieces, offset) = l.export(at, bytes, most)?;
            Ok::<_, Error>((pieces.iter().map(|p| p.bytes).collect::<Vec<_>>(), offset))
        };
        assert_eq!(export(va + MIB, 2 * MIB, 9).unwrap(), (vec![2 * MIB, 4 * MIB], MIB));
        assert_eq!(export(va + MIB, 2 * MIB, 1).unwrap(), (vec![2 * MIB], MIB), "the first of them");
        assert_eq!(export(va + 2 * MIB, MIB, 1).unwrap(), (vec![4 * MIB], 0), "and what follows it");
        assert!(export(va + 5 * MIB, 2 * MIB, 9).is_err(), "it ends in a hole");
        assert!(export(va + 8 * MIB, 1, 9).is_err());
    }

    #[test]
    fn nothing_is_left_after_a_tear_down() {
        let l = ledger(1);
        let free = l.mem_info(DEV).unwrap().free;
        let (va, _) = two(&l);
        assert_eq!(l.mem_info(DEV).unwrap().free, free - 6 * MIB);
        l.tear_down(DEV).unwrap();
        assert_eq!(l.inner().mem_info(DEV).unwrap().free, free);
        assert!(l.inner().va_free(DEV, va, 16 * MIB).is_err(), "the addresses are given back already");
    }

    /// Addresses and handles may have been reused by then.
    #[test]
    fn after_a_tear_down_nothing_is_undone_any_more() {
        let again = || {
            let host = HostDriver::new(HostOptions::default()).unwrap();
            let (before, after) = (Ledger::new(host.clone()), Ledger::new(host));
            let (old, handles) = two(&before);
            before.tear_down(DEV).unwrap();
            let (new, _) = two(&after);
            (new == old).then_some((before, after, new, old, handles))
        };
        // The test is about addresses that come again; another thread may be given them first.
        let came = std::iter::repeat_with(again).take(100).flatten().next();
        let (before, after, new, old, handles) = came.unwrap();
        let refused = [
            before.unmap(old, 6 * MIB),
            before.phys_release(handles[0]),
            before.va_free(DEV, old, 16 * MIB),
            before.va_reserve(DEV, 2 * MIB, 2 * MIB).map(drop),
        ];
        assert!(refused.iter().all(|r| r.as_ref().is_err_and(|e| e.status == Status::ShuttingDown)), "{refused:?}");
        let s = after.stream_create(DEV).unwrap();
        after.set_async(DEV, new, 1, 6 * MIB, s).unwrap();
        after.stream_sync(DEV, s).unwrap();
    }

    #[test]
    fn one_mapping_that_refuses_a_guest_does_not_keep_it_from_the_others() {
        let host = HostDriver::new(HostOptions { devices: 2, ..HostOptions::default() }).unwrap();
        let fault = Arc::new(Fault::new(host));
        let l = Ledger::new(fault.clone());
        let (va, _) = two(&l);
        fault.set_rule(Some(FaultRule::nth_of(Call::SetAccess, 0)));
        assert_eq!(l.let_in(DeviceId(1)).unwrap_err().status, Status::Driver);
        fault.set_rule(None);
        let s = l.stream_create(DeviceId(1)).unwrap();
        l.set_async(DeviceId(1), va + 2 * MIB, 1, 4 * MIB, s).unwrap();
        l.stream_sync(DeviceId(1), s).unwrap();
    }

    #[test]
    fn a_guest_sees_what_is_and_what_comes() {
        let l = ledger(2);
        let (va, [_, b]) = two(&l);
        l.let_in(DeviceId(1)).unwrap();
        assert_eq!(l.guests(), [DeviceId(1)]);
        l.unmap(va + 2 * MIB, 4 * MIB).unwrap();
        l.map(DEV, va + 2 * MIB, 4 * MIB, b).unwrap();
        l.set_access(va + 2 * MIB, 4 * MIB, &[DEV]).unwrap();
        // The host device refuses what a device may not access.
        let s = l.stream_create(DeviceId(1)).unwrap();
        l.set_async(DeviceId(1), va, 1, 6 * MIB, s).unwrap();
        l.stream_sync(DeviceId(1), s).unwrap();
    }
}

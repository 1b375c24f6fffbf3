//! Dedicated allocations: one physical handle each, never moved, for NCCL, RDMA, IPC and guarded memory.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::index::{Entry, SLOT};
use super::order::{Tag, CONTEXT};
use super::{lock, too_large, AllocFlags, AllocInfo, AllocRequest, Core, Pool};
use crate::base::size::{human, round_up};
use crate::base::{Error, Result, Status, StreamHandle};
use crate::driver::{PhysFlags, PhysHandle};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

/// One dedicated allocation, by the pointer handed out.
///
/// Addresses: `[va, va + mapped)` is mapped, `[va + mapped, va + reserved)` is a guard.
#[derive(Clone, Debug)]
pub(super) struct Dedicated {
    pub(super) va: u64,
    pub(super) mapped: u64,
    pub(super) reserved: u64,
    handle: PhysHandle,
    info: AllocInfo,
    lane: u32,
    stream_id: u64,
    users: Vec<u32>,
    exportable: bool,
}

impl Dedicated {
    pub(super) fn add_user(&mut self, lane: u32) {
        if lane != self.lane && !self.users.contains(&lane) {
            self.users.push(lane);
        }
    }
}

/// A freed dedicated allocation that the device may still be using.
#[derive(Clone, Debug)]
pub(super) struct Grave {
    pub(super) va: u64,
    pub(super) mapped: u64,
    pub(super) reserved: u64,
    handle: PhysHandle,
    tags: Vec<Tag>,
}

impl Pool {
    pub(super) fn malloc_dedicated(&self, req: &AllocRequest, align: u64) -> Result<u64> {
        let unknown = req.flags.0 & !AllocFlags::ALL.0;
        if unknown != 0 {
            return Err(Error::invalid(format!("allocation flags {unknown:#x} are not known to this version")));
        }
        let has = |f: AllocFlags| req.flags.0 & f.0 != 0;
        if has(AllocFlags::EXPORTABLE) && !self.props.posix_fd {
            return Err(Error::new(
                Status::Unsupported,
                format!("device {} cannot export memory as a file descriptor", self.dev),
            ));
        }
        let flags = PhysFlags {
            posix_fd: has(AllocFlags::EXPORTABLE),
            rdma: has(AllocFlags::SINGLE_HANDLE) && self.props.rdma,
        };
        let mapped = round_up(req.size.max(1), self.page).ok_or_else(|| too_large(req.size))?;
        let guard = if has(AllocFlags::GUARD) { self.page } else { 0 };
        // A guarded block ends where its mapping ends, as nearly as its alignment allows.
        let lead = match guard {
            _ if guard == 0 || align > self.page => 0,
            _ => mapped - round_up(req.size.max(1), align).ok_or_else(|| too_large(req.size))?.min(mapped),
        };
        let handle = self.create(mapped, flags, req.size)?;
        self.place(req, handle, mapped, guard, lead, align).inspect_err(|_| {
            // The handle has no mapping; failing to drop it as well would change nothing for the caller.
            let _ = self.driver.phys_release(handle);
            self.sub_mapped(mapped);
        })
    }

    /// Creates physical memory within the limit, giving free memory back where that is needed.
    fn create(&self, bytes: u64, flags: PhysFlags, requested: u64) -> Result<PhysHandle> {
        for attempt in 0..3 {
            if bytes <= self.headroom() {
                match self.driver.phys_create(self.dev, bytes, flags) {
                    Ok(h) => {
                        self.add_mapped(bytes);
                        return Ok(h);
                    }
                    Err(e) if e.status == Status::OutOfMemory => {}
                    Err(e) => return Err(e),
                }
            }
            if attempt == 1 {
                self.order.mark_context(&*self.driver)?;
                self.order.sync(&*self.driver)?;
            }
            self.release_free(0)?;
        }
        self.counters.out_of_memory.fetch_add(1, Relaxed);
        Err(self.out_of_memory(requested))
    }

    fn place(
        &self,
        req: &AllocRequest,
        handle: PhysHandle,
        mapped: u64,
        guard: u64,
        lead: u64,
        align: u64,
    ) -> Result<u64> {
        let heap = self.heap_for(req.stream)?;
        let reserved = mapped + guard;
        let va = self.take_addresses(None, reserved, align)?;
        let done = self.driver.map(self.dev, va, mapped, handle).and_then(|()| {
            self.driver.set_access(va, mapped, &self.access).inspect_err(|_| {
                let _ = self.driver.unmap(va, mapped);
            })
        });
        if let Err(e) = done {
            lock(&self.core).holes.give(va, reserved);
            return Err(e);
        }
        let base = va + lead;
        let id = lock(&heap.state).new_id(self.number);
        let info = AllocInfo {
            base,
            requested: req.size,
            usable: mapped - lead,
            device: self.dev,
            stream: req.stream,
            id,
            tag: req.tag,
            flags: req.flags,
        };
        let dedicated = Dedicated {
            va,
            mapped,
            reserved,
            handle,
            info,
            lane: heap.number,
            stream_id: heap.stream_id.load(Relaxed),
            users: Vec::new(),
            exportable: req.flags.0 & AllocFlags::EXPORTABLE.0 != 0,
        };
        lock(&self.core).dedicated.insert(base, dedicated);
        self.index.set(base, Entry::Dedicated);
        self.counters.dedicated_live.fetch_add(mapped, Relaxed);
        self.counters.dedicated_requested.fetch_add(req.size, Relaxed);
        self.counters.dedicated_mallocs.fetch_add(1, Relaxed);
        self.live_now();
        Ok(base)
    }

    pub(super) fn free_dedicated(&self, ptr: u64, stream: Option<StreamHandle>) -> Result<()> {
        let by = stream.map(|s| self.heap_for(s)).transpose()?;
        let Some(d) = lock(&self.core).dedicated.remove(&ptr) else {
            return Err(Error::new(Status::DoubleFree, format!("free: {ptr:#x} was freed already")));
        };
        let lane = match by {
            Some(heap) => heap.number,
            None => match self.heap(d.lane) {
                Some(h) if h.stream_id.load(Relaxed) == d.stream_id => d.lane,
                _ => CONTEXT,
            },
        };
        let tags = d.users.iter().copied().chain([lane]).map(|l| self.order.tag(l)).collect();
        self.index.set(ptr, Entry::Freed { offset: ptr % SLOT });
        self.counters.dedicated_live.fetch_sub(d.mapped, Relaxed);
        self.counters.dedicated_requested.fetch_sub(d.info.requested, Relaxed);
        self.counters.dedicated_frees.fetch_add(1, Relaxed);
        let grave = Grave { va: d.va, mapped: d.mapped, reserved: d.reserved, handle: d.handle, tags };
        lock(&self.core).graves.push(grave);
        if let (Some(heap), Some(s)) = (by, stream) {
            self.order.mark(&*self.driver, heap.number, s)?;
        }
        for &user in &d.users {
            if let Some(heap) = self.heap(user) {
                let handle = StreamHandle(heap.stream.load(Relaxed));
                if self.driver.stream_id(self.dev, handle)? == heap.stream_id.load(Relaxed) {
                    self.order.mark(&*self.driver, user, handle)?;
                }
            }
        }
        self.bury().map(|_| ())
    }

    /// Unmaps and releases freed dedicated allocations that the device has passed. Returns the bytes released.
    pub(super) fn bury(&self) -> Result<u64> {
        let lanes: std::collections::BTreeSet<u32> =
            lock(&self.core).graves.iter().flat_map(|g| g.tags.iter().map(|t| t.lane())).collect();
        lanes.into_iter().try_for_each(|lane| self.order.poll(&*self.driver, lane))?;
        let ready: Vec<Grave> = {
            let mut core = lock(&self.core);
            let Core { graves, .. } = &mut *core;
            let (ready, rest) = graves.drain(..).partition(|g| g.tags.iter().all(|&t| self.order.settled(t)));
            *graves = rest;
            ready
        };
        let mut released = 0;
        for (i, g) in ready.iter().enumerate() {
            if let Err(e) = self.driver.unmap(g.va, g.mapped) {
                lock(&self.core).graves.extend_from_slice(&ready[i..]);
                return Err(e);
            }
            // Unmapped: the addresses are free whatever becomes of the handle.
            lock(&self.core).holes.give(g.va, g.reserved);
            self.sub_mapped(g.mapped);
            released += g.mapped;
            self.driver.phys_release(g.handle)?;
        }
        Ok(released)
    }

    /// Facts about the dedicated allocation that contains `ptr`.
    pub(super) fn dedicated_info(&self, ptr: u64) -> Result<AllocInfo> {
        let core = lock(&self.core);
        match core.dedicated.range(..=ptr).next_back() {
            Some((&base, d)) if ptr - base < d.info.usable => Ok(d.info),
            _ => Err(Error::new(Status::UnknownPointer, format!("{ptr:#x} is in no dedicated allocation"))),
        }
    }

    /// A file descriptor for an exportable allocation.
    pub fn export_fd(&self, ptr: u64) -> Result<OwnedFd> {
        let handle = match lock(&self.core).dedicated.get(&ptr) {
            Some(d) if d.exportable => d.handle,
            Some(_) => {
                return Err(Error::invalid(format!("{ptr:#x} was not allocated with the EXPORTABLE flag")));
            }
            None => {
                let info = self.info(ptr)?;
                return Err(Error::invalid(format!(
                    "{:#x} ({}) is pooled memory; allocate it with the EXPORTABLE flag",
                    info.base,
                    human(info.requested)
                )));
            }
        };
        self.driver.phys_export(handle)
    }

    /// Maps memory exported by another process (or this one): `size` is what was asked for there.
    pub fn import_fd(&self, fd: &OwnedFd, size: u64, stream: StreamHandle) -> Result<u64> {
        if size == 0 || size > self.props.total_bytes {
            return Err(Error::invalid(format!("cannot import {size} bytes; pass the size that was allocated")));
        }
        let mapped = round_up(size, self.page).ok_or_else(|| too_large(size))?;
        let handle = self.driver.phys_import(self.dev, fd)?;
        self.add_mapped(mapped);
        let req = AllocRequest { size, stream, flags: AllocFlags::SINGLE_HANDLE, ..AllocRequest::default() };
        self.place(&req, handle, mapped, 0, 0, self.page).map_err(|e| {
            let _ = self.driver.phys_release(handle);
            self.sub_mapped(mapped);
            e.context(format!("importing {}", human(size)))
        })
    }
}

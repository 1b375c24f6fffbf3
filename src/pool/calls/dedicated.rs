//! Dedicated allocations: one physical handle each, never moved, for NCCL, RDMA, IPC and guarded
//! memory. The memory of some may be given up and come back (`evictable.rs`).

use crate::base::size::{human, round_up};
use crate::base::{Error, Result, Status, StreamHandle};
use crate::driver::{nvtx, PhysFlags, PhysHandle};
use crate::pool::memory::{Dedicated, Entry, Extent, Grave, Guest, SLOT};
use crate::pool::state::Pool;
use crate::pool::types::{too_large, AllocFlags, AllocInfo, AllocRequest, Scope, SMALL_MIN};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// How often physical memory is asked for before a request fails.
const MOST_ATTEMPTS: usize = 10;

impl Pool {
    pub(crate) fn malloc_dedicated(
        &self,
        req: &AllocRequest,
        align: u64,
        guest: Option<Arc<dyn Guest>>,
    ) -> Result<u64> {
        let unknown = req.flags.0 & !(AllocFlags::ALL.0 | AllocFlags::SEPARATE.0);
        if unknown != 0 {
            return Err(Error::invalid(format!("allocation flags {unknown:#x} are not known to this version")));
        }
        let has = |f: AllocFlags| req.flags.has(f);
        if has(AllocFlags::EVICTABLE) != guest.is_some() {
            return Err(Error::invalid("evictable memory needs an evictor; allocate it with gpumem_malloc_with"));
        }
        if has(AllocFlags::EXPORTABLE) && !self.props.posix_fd {
            let why = format!("device {} cannot export memory as a file descriptor", self.dev);
            return Err(Error::new(Status::Unsupported, why));
        }
        let flags = PhysFlags {
            posix_fd: has(AllocFlags::EXPORTABLE),
            rdma: has(AllocFlags::SINGLE_HANDLE) && self.props.rdma,
        };
        let mapped = self.whole_pages(req.size.max(1))?;
        let guard = if has(AllocFlags::GUARD) { self.page } else { 0 };
        // A guarded block ends where its mapping ends, as nearly as the promised alignment allows.
        // An exportable one starts where its mapping starts, since an importer gets the mapping's
        // start.
        let aligned = align.max(SMALL_MIN);
        let lead = match guard {
            _ if guard == 0 || flags.posix_fd || aligned > self.page => 0,
            _ => mapped - round_up(req.size.max(1), aligned).ok_or_else(|| too_large(req.size))?.min(mapped),
        };
        let _changing = self.change();
        let handle = self.create(mapped, flags, req)?;
        // Evictable memory is counted by the code that moves it.
        let counts = guest.is_none();
        let map = || self.map_dedicated(req, (handle, counts), (mapped, guard, lead), align, guest.clone());
        self.or_without_old_addresses(map).inspect_err(|_| {
            // If dropping the handle fails as well, nothing changes for the caller.
            let _ = self.drop_handle(handle);
            self.sub_mapped(mapped);
        })
    }

    /// Creates physical memory within the limit, after giving free memory back if need be.
    pub(crate) fn create(&self, bytes: u64, flags: PhysFlags, req: &AllocRequest) -> Result<PhysHandle> {
        // Or a program that frees such memory and allocates it again would have it twice. What
        // fails is made up for later.
        let _ = self.release_graves();
        let mut before = (0, 0);
        for attempt in 0..MOST_ATTEMPTS {
            match attempt {
                0 | 1 => {}
                2 => self.order.drain(req.stream, self.heeded(req, bytes))?,
                _ => self.order.drain(req.stream, |_| true)?,
            }
            if attempt > 0 {
                self.make_room(bytes)?;
            }
            if self.claim(bytes).is_ok() {
                let _range = nvtx::range(c"growth", bytes);
                match self.driver.phys_create(self.dev, bytes, flags) {
                    Ok(h) => {
                        self.note_peak();
                        return Ok(h);
                    }
                    Err(e) => {
                        self.sub_mapped(bytes);
                        if e.status != Status::OutOfMemory {
                            return Err(e);
                        }
                    }
                }
            }
            // Other threads may have taken what was given back for this one, and freed other
            // memory.
            let now = (self.mapped_now(), self.live_now());
            if attempt >= 2 && (now == before || !self.as_much_is_free(bytes)) {
                break;
            }
            before = now;
        }
        self.counters.out_of_memory.fetch_add(1, Relaxed);
        Err(self.refusal(None, req.size, bytes))
    }

    /// Maps a handle at addresses of its own: `mapped` bytes, and behind them `guard` bytes that
    /// stay unmapped. The allocation starts `lead` bytes into the mapping. `counts` becomes
    /// [`Dedicated::counts`].
    fn map_dedicated(
        &self,
        req: &AllocRequest,
        (handle, counts): (PhysHandle, bool),
        (mapped, guard, lead): (u64, u64, u64),
        align: u64,
        guest: Option<Arc<dyn Guest>>,
    ) -> Result<u64> {
        let heap = self.heap_for(req.stream)?;
        let reserved = mapped + guard;
        let va = self.take_addresses(reserved, align)?;
        let extent = Extent { handle, size: mapped, id: u32::MAX };
        self.map_run(va, mapped, std::iter::once(extent), &[]).inspect_err(|_| {
            self.core.lock().holes.give(va + mapped, guard);
        })?;
        let base = va + lead;
        let id = heap.lock_quick().new_id();
        let info = AllocInfo {
            base,
            requested: req.size,
            // An evictable allocation moves the requested bytes, so no others may be used.
            usable: if guest.is_some() { req.size.max(1) } else { mapped - lead },
            device: self.dev,
            stream: req.stream,
            id,
            tag: req.tag,
            flags: AllocFlags(req.flags.0 & AllocFlags::ALL.0),
        };
        let dedicated = Dedicated {
            va,
            mapped,
            reserved,
            handle: Some(handle),
            guest,
            moving: false,
            uses: Vec::new(),
            info,
            lane: heap.lane,
            stream_id: self.order.identity(heap.lane),
            users: Vec::new(),
            flags: req.flags,
            align,
            scope: None,
            counts,
            receipt: None,
        };
        {
            // Joins its scope under this lock, so that a thread that finds it by its scope finds it
            // here, too.
            let mut core = self.core.lock();
            let scope = self.join_dedicated(req.scope, &info);
            self.index.set(base, Entry::Dedicated);
            let receipt = if counts { req.receipt(self.counter.get(), mapped) } else { None };
            core.dedicated.insert(base, Dedicated { scope, receipt, ..dedicated });
        }
        self.add_dedicated_live(mapped, req.size);
        self.counters.dedicated_mallocs.fetch_add(1, Relaxed);
        Ok(base)
    }

    /// Frees a dedicated allocation; with an `id`, only the one that has it. Returns whether it
    /// did.
    pub(crate) fn free_dedicated(&self, ptr: u64, stream: Option<StreamHandle>, id: Option<u64>) -> Result<bool> {
        let by = stream.map(|s| self.heap_for(s)).transpose()?;
        let Some(d) = self.entomb(ptr, by.map(|heap| heap.lane), id, None) else {
            return match id {
                Some(_) => Ok(false),
                None => Err(Error::new(Status::DoubleFree, format!("free: {ptr:#x} was freed already"))),
            };
        };
        // The free is done. Markers and burials that fail now are made up for later.
        let _ = match stream {
            Some(s) => self.mark_stream(s),
            None if d.info.stream == StreamHandle::LEGACY => self.mark_stream(StreamHandle::LEGACY),
            None => self.order.mark_context(None).map(|_| ()),
        };
        self.mark_users(&d.users);
        let _ = self.release_graves();
        if let Some(guest) = &d.guest {
            guest.gone();
        }
        Ok(true)
    }

    /// Makes a grave of a dedicated allocation, freed in the order of `lane`, or of the stream it
    /// was allocated on if that is `None`. With an `id`, only of the one that has it. With a scope
    /// `of`, only of one that is still in it; then its addresses are held.
    pub(crate) fn entomb(&self, ptr: u64, lane: Option<u32>, id: Option<u64>, of: Option<&Scope>) -> Option<Dedicated> {
        let held = of.is_some();
        let inside = |d: &Dedicated| of.is_none_or(|of| d.scope.as_deref().is_some_and(|s| std::ptr::eq(s, of)));
        let same = |d: &Dedicated| id.is_none_or(|id| d.info.id == id) && inside(d);
        // All of this under one hold of the lock: a thread that is moving the allocation finds it
        // either alive or in its grave.
        let mut core = self.core.lock();
        let mut d = core.dedicated.get(&ptr).is_some_and(same).then(|| core.dedicated.remove(&ptr)).flatten()?;
        self.bring_near(ptr, &mut d.users);
        if let Some(scope) = &d.scope {
            scope.remove_dedicated(self.number, ptr, d.info.id, d.info.requested);
        }
        let tag = lane.map_or_else(|| self.tag_of(d.lane, d.stream_id), |lane| self.order.tag(lane));
        let tags = d.users.iter().map(|&l| self.order.tag(l)).chain(d.uses.iter().copied()).chain([tag]).collect();
        self.index.set(ptr, Entry::Freed { offset: ptr % SLOT });
        if d.handle.is_some() {
            self.sub_dedicated_live(d.mapped, d.info.requested);
        }
        self.counters.dedicated_frees.fetch_add(1, Relaxed);
        let Dedicated { va, reserved, handle, .. } = d;
        let mapped = if handle.is_some() { d.mapped } else { 0 };
        if mapped > 0 || held || d.moving {
            core.graves.insert(va, Grave { va, mapped, reserved, handle, tags, held, busy: d.moving });
        } else {
            core.holes.rest(va, reserved);
        }
        drop(core);
        Some(d)
    }

    /// Enters a dedicated allocation into a scope, or into the nearest open one around it.
    pub(crate) fn join_dedicated(&self, scope: Option<&Arc<Scope>>, info: &AllocInfo) -> Option<Arc<Scope>> {
        let mut around = std::iter::successors(scope, |s| s.parent());
        around.find(|s| s.add_dedicated(self.number, info.base, info.id, info.requested)).cloned()
    }

    /// A file descriptor for an exportable allocation.
    pub fn export_fd(&self, ptr: u64) -> Result<OwnedFd> {
        // A statement of its own, so that the lock is released: `info` takes the core's lock too.
        let found = self.core.lock().dedicated.get(&ptr).map(|d| (d.info, d.handle));
        match found {
            Some((info, Some(handle))) if info.flags.has(AllocFlags::EXPORTABLE) => match info.requested {
                0 => Err(Error::invalid(format!("{ptr:#x} is an allocation of 0 bytes; there is nothing to export"))),
                _ => self.driver.phys_export(handle),
            },
            Some(_) => Err(Error::invalid(format!("{ptr:#x} was not allocated with the EXPORTABLE flag"))),
            None => {
                let AllocInfo { base, requested, .. } = self.info(ptr)?;
                let what = format!("{base:#x} ({})", human(requested));
                Err(Error::invalid(format!("{what} is pooled memory; allocate it with the EXPORTABLE flag")))
            }
        }
    }

    /// Maps memory exported by another process (or this one): `size` is what was asked for there.
    pub fn import_fd(&self, fd: &OwnedFd, size: u64, stream: StreamHandle) -> Result<u64> {
        if size == 0 || size > self.props.total_bytes {
            return Err(Error::invalid(format!("cannot import {size} bytes; pass the size that was allocated")));
        }
        let mapped = self.whole_pages(size)?;
        let _changing = self.change();
        // The memory is another allocation's and counts against its owner's limit, but it is mapped
        // here too.
        let handle = self.driver.phys_import(self.dev, fd)?;
        self.counters.mapped.fetch_add(mapped, Relaxed);
        self.note_peak();
        let req = AllocRequest { size, stream, flags: AllocFlags::SINGLE_HANDLE, ..AllocRequest::default() };
        let map = || self.map_dedicated(&req, (handle, false), (mapped, 0, 0), self.page, None);
        self.or_without_old_addresses(map).map_err(|e| {
            let _ = self.drop_handle(handle);
            self.sub_mapped(mapped);
            e.context(format!("importing {}", human(size)))
        })
    }
}

//! Evictable allocations: their physical memory may be given up, and come back at the same
//! addresses.
//!
//! An evictable allocation is a dedicated one with a *guest*: the code that moves its bytes
//! ([`crate::tier`]) and knows where they are while the allocation has no memory. A move begins and
//! waits for the device's uses. Then it either *vacates* the addresses, once the bytes have been
//! copied elsewhere, or *populates* them with new memory, into which the bytes are copied back.
//! While it lasts, nothing else maps or unmaps there: an allocation freed meanwhile is buried when
//! the move ends.

use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::{PhysFlags, PhysHandle};
use crate::pool::heap::{Heap, Now};
use crate::pool::memory::{Dedicated, Guest};
use crate::pool::order::{KnownCapture, Tag, CONTEXT};
use crate::pool::state::{Core, Pool};
use crate::pool::types::{AllocFlags, AllocInfo, AllocRequest};
use std::cell::Cell;
use std::fmt::Debug;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// A move that has begun. [`Pool::vacate`] and [`Pool::end_move`] end it, and so does a
/// [`Pool::populate`] that returns `false`; one of them must.
#[derive(Debug, PartialEq, Eq)]
pub struct Moving {
    /// The allocation.
    pub base: u64,
    id: u64,
    va: u64,
    /// Bytes mapped there, or to be mapped.
    pub mapped: u64,
}

/// Uses of an allocation that a move waits for, beyond those noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// All work submitted so far to this stream of this device.
    Stream(DeviceId, StreamHandle),
    /// If no unhold has noted a use: all work submitted so far to the device, or to the stream it
    /// was allocated on if streams were recorded.
    Allocation,
    /// No use but those noted.
    Noted,
}

/// What a stream already waits for when one request moves several allocations. Uses known only by
/// their stream were all submitted before the request, so one wait covers them.
#[derive(Debug, Default)]
pub struct Waited {
    /// Whether it waits for the stream that [`By::Stream`] names.
    named: bool,
    /// Lanes and identities of the streams waited for by [`By::Allocation`]; the context's lane
    /// stands for the device.
    own: Vec<(u32, u64)>,
}

/// Why a move fails.
const MOVED: &str = "while a stream is being captured, what uses the allocation cannot be waited for; end the capture \
    first (if it is over, name its stream in any call, or the last use's stream in this one), and hold what its graph \
    uses";
/// Why an allocation fails.
const ALLOCATED: &str = "evictable memory cannot be allocated on a stream that is being captured; allocate it before \
    the capture, or on another stream";
/// Why an unhold fails.
const UNHELD: &str = "a hold cannot end on a stream that is being captured; keep holding what its graph uses until \
    the graph is launched no more";

fn capturing(why: &str) -> Error {
    Error::new(Status::Capturing, why)
}

impl Pool {
    /// Allocates memory that can be given up for a while. The guest is told when the allocation
    /// ends.
    pub fn malloc_evictable(&self, req: &AllocRequest, guest: Arc<dyn Guest>) -> Result<AllocInfo> {
        if req.flags.has(AllocFlags::SINGLE_HANDLE) || req.flags.has(AllocFlags::EXPORTABLE) {
            return Err(Error::invalid(
                "memory that others hold a handle of (SINGLE_HANDLE, EXPORTABLE) cannot be evictable; drop one of the flags",
            ));
        }
        self.refuse_captured(self.heap_for(req.stream)?, req.stream, ALLOCATED)?;
        let align = self.checked_align(req)?;
        let flags = AllocFlags(req.flags.0 | AllocFlags::EVICTABLE.0);
        let base = self.malloc_dedicated(&AllocRequest { flags, scope: None, ..*req }, align, Some(guest))?;
        self.info(base)
    }

    /// The most bytes that may be mapped: the limit, or what the device has.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed).min(self.props.total_bytes)
    }

    /// Begins to move an evictable allocation. `None` if it has ended. The caller makes sure that
    /// no other thread moves it.
    pub fn begin_move(&self, base: u64, id: u64) -> Result<Option<Moving>> {
        let mut core = self.core.lock();
        let Some(d) = evictable(&mut core, base, id) else { return Ok(None) };
        if std::mem::replace(&mut d.moving, true) {
            return Err(Error::internal(format!("{base:#x} is being moved already")));
        }
        Ok(Some(Moving { base, id, va: d.va, mapped: d.mapped }))
    }

    /// Makes the stream `on` wait, on the device, for every use of the allocation: by streams named
    /// when it was unheld, by streams it was recorded on, and what `by` adds. Fails with
    /// `Capturing` if that cannot be waited for. `waited` is empty at first, and serves one request
    /// and one `on` only.
    pub fn wait_for_uses(&self, m: &Moving, by: By, on: StreamHandle, waited: &mut Waited) -> Result<()> {
        let named = match by {
            By::Stream(dev, stream) if !waited.named => {
                let stream = if dev == self.dev { stream } else { self.after(dev, stream)? };
                let (heap, routed) = self.heap_and_route(stream)?;
                Some((stream, heap.lane, routed))
            }
            _ => None,
        };
        self.bring_near_alive(m.base)?;
        let mut own = None;
        let (mut tags, users) = {
            let mut core = self.core.lock();
            let Some(d) = evictable(&mut core, m.base, m.id) else { return Ok(()) };
            let mut tags = d.uses.clone();
            match &named {
                Some((_, lane, _)) => tags.push(self.order.tag(*lane)),
                // An unhold or recording names the streams that use the allocation. If no caller
                // has done either, any stream may use it.
                None if by == By::Allocation && tags.is_empty() => {
                    let streams = if d.users.is_empty() { (CONTEXT, 0) } else { (d.lane, d.stream_id) };
                    own = Some(streams).filter(|streams| !waited.own.contains(streams));
                    tags.extend(own.map(|(lane, stream_id)| self.tag_of(lane, stream_id)));
                }
                None => {}
            }
            (tags, d.users.clone())
        };
        tags.extend(users.iter().map(|&lane| self.order.tag(lane)));
        for &user in &users {
            self.mark_user(user)?;
        }
        if let Some((stream, lane, _)) = &named {
            // Its marker closes the epoch of the tag above.
            self.mark_or_refuse(*lane, *stream, MOVED)?;
        }
        tags.into_iter().try_for_each(|tag| self.wait_for(tag, on))?;
        waited.named |= named.is_some();
        waited.own.extend(own);
        Ok(())
    }

    /// Fails with `Capturing` if the stream, whose heap this is, is being captured. Not every one
    /// that allocates from an arena is.
    fn refuse_captured(&self, heap: &Heap, stream: StreamHandle, why: &str) -> Result<()> {
        match heap.of_captures && self.now(stream)? == Now::Captured {
            true => Err(capturing(why)),
            false => Ok(()),
        }
    }

    /// Records a marker on a stream, or leaves it to a later one if very many are pending. Fails
    /// with `Capturing` if the stream is being captured.
    fn mark_or_refuse(&self, lane: u32, stream: StreamHandle, why: &str) -> Result<()> {
        let marked = self.order.mark(lane, stream)?;
        let fine = marked || !self.driver.stream_is_capturing(self.dev, stream)?;
        fine.then_some(()).ok_or_else(|| capturing(why))
    }

    /// Makes a stream wait for a tag that may have no marker yet.
    fn wait_for(&self, tag: Tag, on: StreamHandle) -> Result<()> {
        self.order.poll([tag.lane()])?;
        if self.order.settled(tag) {
            return Ok(());
        }
        // A marker may not cover what came before its stream; then the context's does.
        if self.order.wait(tag, on)? {
            return Ok(());
        }
        self.mark_for(tag)?;
        self.order.wait(tag, on)?.then_some(()).ok_or_else(|| capturing(MOVED))
    }

    fn mark_for(&self, tag: Tag) -> Result<()> {
        let lane = tag.lane();
        if lane != CONTEXT && !self.order.only_context(tag) && self.order.stream(lane) == StreamHandle::LEGACY {
            self.order.mark(lane, StreamHandle::LEGACY)?;
        } else if !self.order.cover(None, KnownCapture::is_open)? {
            return Err(capturing(MOVED));
        }
        Ok(())
    }

    /// Notes that all use of an evictable allocation so far has been submitted to `stream` or is
    /// ordered before it.
    pub fn note_use(&self, base: u64, id: u64, stream: StreamHandle) -> Result<()> {
        let (heap, _routed) = self.heap_and_route(stream)?;
        let tag = self.order.tag(heap.lane);
        self.refuse_captured(heap, stream, UNHELD)?;
        // With a marker recorded now, no later call has to name the stream, which may be gone by
        // then.
        self.mark_or_refuse(heap.lane, stream, UNHELD)?;
        let mut core = self.core.lock();
        if let Some(d) = evictable(&mut core, base, id) {
            // The latest tag of the lane's present stream covers the earlier ones. Another thread
            // may have noted a later one since this one was read.
            let own = |t: Tag| self.order.own(t, heap.lane);
            d.uses.retain(|&t| !(self.order.settled(t) || own(t) && t.epoch() < tag.epoch()));
            if !d.uses.iter().any(|&t| own(t)) {
                d.uses.push(tag);
            }
        }
        Ok(())
    }

    /// Gives the memory up, whose bytes have been copied and which the device has done with, and
    /// ends the move. `false` if the allocation has ended meanwhile. After an error it still has
    /// its memory.
    pub fn vacate(&self, m: Moving) -> Result<bool> {
        let unmapped = self.unmap_moving(&m);
        let there = self.end_move(&m);
        unmapped.map_err(|e| e.context("giving up the memory of an evictable allocation"))?;
        Ok(there)
    }

    /// Maps new memory at the allocation's addresses. The move goes on, so that the bytes can be
    /// copied there. If the allocation has ended meanwhile, the move ends, and this returns
    /// `false`. After an error there is no memory, and the move goes on. `spared` is that of a
    /// request.
    pub fn populate(&self, m: &Moving, stream: StreamHandle, spared: Option<&Cell<bool>>) -> Result<bool> {
        let _changing = self.change();
        // An earlier move may have left memory here that the driver would not unmap.
        let left = evictable(&mut self.core.lock(), m.base, m.id).and_then(|d| d.handle);
        let handle = match left {
            Some(handle) => handle,
            None => {
                let req = AllocRequest { size: m.mapped, stream, spared, ..AllocRequest::default() };
                let handle = self.create(m.mapped, PhysFlags::default(), &req)?;
                let map = || self.driver.map(self.dev, m.va, m.mapped, handle);
                self.or_without_old_addresses(map).inspect_err(|_| {
                    let _ = self.drop_handle(handle);
                    self.sub_mapped(m.mapped);
                })?;
                handle
            }
        };
        let accessible = self.driver.set_access(m.va, m.mapped, &self.access);
        let there = self.keep_mapped(m, handle);
        if !there {
            // If it cannot be unmapped, it stays mapped and is the grave's.
            let _ = self.unmap_moving(m);
            self.end_move(m);
            return Ok(false);
        }
        let Err(e) = accessible else { return Ok(true) };
        // If it cannot be unmapped, it stays mapped and is the allocation's.
        match self.unmap_moving(m) {
            Ok(()) => Err(e),
            Err(u) => Err(Error::new(e.status, format!("{}; undoing it failed too: {}", e.message, u.message))),
        }
    }

    /// Notes the memory mapped at an allocation's addresses. Returns whether the allocation lives.
    fn keep_mapped(&self, m: &Moving, handle: PhysHandle) -> bool {
        let mut core = self.core.lock();
        if let Some(d) = evictable(&mut core, m.base, m.id) {
            if d.handle.replace(handle).is_none() {
                self.add_dedicated_live(d.mapped, d.info.requested);
            }
            return true;
        }
        if let Some(grave) = core.graves.get_mut(&m.va) {
            (grave.handle, grave.mapped) = (Some(handle), m.mapped);
        }
        false
    }

    /// Unmaps and releases the memory at the addresses of an allocation whose move goes on.
    fn unmap_moving(&self, m: &Moving) -> Result<()> {
        self.driver.unmap(m.va, m.mapped)?;
        let handle = {
            let mut core = self.core.lock();
            let handle = match evictable(&mut core, m.base, m.id) {
                Some(d) => {
                    self.sub_dedicated_live(d.mapped, d.info.requested);
                    d.handle.take()
                }
                None => core.graves.get_mut(&m.va).and_then(|grave| {
                    grave.mapped = 0;
                    grave.handle.take()
                }),
            };
            self.sub_mapped(handle.map_or(0, |_| m.mapped));
            handle
        };
        if let Some(handle) = handle {
            // If the driver will not drop it now, it is dropped later.
            let _ = self.drop_handle(handle);
        }
        Ok(())
    }

    /// Whether a live evictable allocation has memory, and whether it is being moved. `None` when
    /// it has ended.
    pub fn residence(&self, base: u64, id: u64) -> Option<(bool, bool)> {
        evictable(&mut self.core.lock(), base, id).map(|d| (d.handle.is_some(), d.moving))
    }

    /// How many live evictable allocations there are.
    pub fn evictables(&self) -> usize {
        self.core.lock().dedicated.values().filter(|d| d.guest.is_some()).count()
    }

    /// Ends a move. `false` if the allocation has ended meanwhile.
    pub fn end_move(&self, m: &Moving) -> bool {
        let mut core = self.core.lock();
        if let Some(d) = evictable(&mut core, m.base, m.id) {
            d.moving = false;
            if d.handle.is_none() {
                d.uses.clear();
            }
            return true;
        }
        if let Some(grave) = core.graves.get_mut(&m.va) {
            grave.busy = false;
            if grave.mapped == 0 {
                core.close_grave(m.va);
            }
        }
        false
    }
}

/// The live evictable allocation with this id.
fn evictable(core: &mut Core, base: u64, id: u64) -> Option<&mut Dedicated> {
    core.dedicated.get_mut(&base).filter(|d| d.info.id == id && d.guest.is_some())
}

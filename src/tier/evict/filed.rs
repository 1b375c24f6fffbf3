//! Moves to and from files: through a few pinned buffers, so that the disk and the copies overlap.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::item::{Claim, Filed, Item, Place};
use super::lanes::Flow;
use super::pending::Begun;
use super::shift::{Goal, Shift, Step, To, Told};
use crate::base::{Error, Result, Status};
use crate::driver::disk::{Buffer, ALIGN};
use crate::tier::disk::{After, Sink, Slot, Store};
use crate::tier::host::HostMemory;
use crate::tier::{SpaceId, Tier};

/// Buffers of a move to or from a file: 16 MiB in chunks of the usual size, so that a buffer has
/// left the nearest cache of the processor that checked it when the disk writes there again. Half
/// of that was read a tenth slower on an H200 machine (docs/adr/disk-io.md).
const BUFFERS: u64 = 32;
/// Bytes copied at a time from one node to another: how finely progress is told and moves are
/// cancelled.
const HOST_PART: u64 = 1 << 20;

impl Shift<'_> {
    /// Writes an item's bytes into a file of a mount.
    pub(super) fn file(&mut self, claim: Claim, target: SpaceId) -> Result<Step> {
        let item = claim.item.clone();
        let opened = self.shared.parts.disks.mount(target.id).and_then(|m| Ok((m.store()?, m)));
        let (store, mount) = match opened {
            Ok(opened) => opened,
            Err(e) => return Step::or(e, claim),
        };
        let bytes = item.bytes.max(1);
        let drawn = match mount.draw(bytes, self.draws_from()) {
            Ok(drawn) => drawn,
            Err(e) => return Step::or(e, claim),
        };
        let begun = match claim.place() {
            Place::Device => {
                let pool = self.shared.pool(item.device)?;
                let Some(begun) = Begun::new(pool, &item)? else { return Ok(Step::Taken) };
                self.wait_for_uses(pool, &begun)?;
                Some(begun)
            }
            _ => None,
        };
        let slot = match self.write(&claim, &store, bytes) {
            Ok(slot) => slot,
            Err(e) => {
                drop(begun);
                return Step::or(e, claim);
            }
        };
        let filed = Filed { store, slot, space: mount.space().clone(), drawn: Some(drawn.made()) };
        let there = match begun {
            Some(begun) => begun.vacate()?,
            None => true,
        };
        self.arrive(claim, there, Place::Disk(filed));
        Ok(Step::Taken)
    }

    fn write(&mut self, claim: &Claim, store: &Store, bytes: u64) -> Result<Slot> {
        let item = &claim.item;
        let mut from_file = match claim.place() {
            Place::Disk(filed) => Some(filed.store.read_ahead(filed.slot)?),
            _ => None,
        };
        // What leaves the host because that is full must not need more of it. No device copies
        // here.
        let pinned = !(self.by_itself && matches!(claim.place(), Place::Host(_)));
        self.buffers = self.new_buffers(store, bytes, pinned)?;
        let base = item.base;
        let (flow, told, buffers) = self.copying()?;
        let start = flow.submitted();
        let mut over = 0;
        let written = store.write(bytes, buffers, |offset, part| {
            let n = of_item(item, offset, part);
            match (claim.place(), &mut from_file) {
                (Place::Host(memory), _) => copy_from(memory, offset, part)?,
                (_, Some(file)) => file.fill(offset, part)?,
                (_, None) => flow.copy_now(part.as_mut_ptr() as u64, base + offset, n)?,
            }
            over += n;
            told.tell(start + over)
        });
        let released = self.release();
        let slot = written?;
        if let Err(e) = released {
            let _ = store.remove(slot);
            return Err(e);
        }
        self.told.over += over - (self.flow()?.submitted() - start);
        Ok(slot)
    }

    /// Reads an item's bytes from its file into new device memory.
    pub(super) fn device_from_file(&mut self, claim: Claim) -> Result<()> {
        let Some(begun) = self.populate(&claim)? else { return Ok(()) };
        if let Err(e) = self.read(&claim, None) {
            begun.undo(self.is_broken())?;
            return Err(e);
        }
        let there = begun.end();
        self.arrive(claim, there, Place::Device);
        Ok(())
    }

    /// Reads an item's bytes from its file into pinned memory of a node.
    pub(super) fn host_from_file(&mut self, claim: Claim, node: u32) -> Result<Step> {
        let memory = match self.shared.parts.host.allocate(node, claim.item.bytes.max(1), None) {
            Ok(memory) => memory,
            Err(e) => return Step::or(e, claim),
        };
        self.read(&claim, Some(&memory))?;
        self.arrive(claim, true, Place::Host(memory));
        Ok(Step::Taken)
    }

    /// Copies an item's bytes from pinned memory of one node to another's.
    pub(super) fn host_from_host(&mut self, claim: Claim, node: u32) -> Result<Step> {
        let Place::Host(from) = claim.place() else { return Err(Error::internal("the bytes are not in the host")) };
        let bytes = claim.item.bytes.max(1);
        let to = match self.shared.parts.host.allocate(node, bytes, None) {
            Ok(memory) => memory,
            Err(e) => return Step::or(e, claim),
        };
        let start = self.flow()?.submitted();
        let mut part = vec![0; bytes.min(HOST_PART) as usize];
        let mut over = 0;
        while over < bytes {
            let n = (bytes - over).min(HOST_PART);
            let part = part.get_mut(..n as usize).unwrap_or_default();
            copy_from(from, over, part)?;
            copy_to(&to, over, part)?;
            over += n;
            self.told.tell(start + over.min(claim.item.bytes))?;
        }
        self.told.over += claim.item.bytes;
        self.arrive(claim, true, Place::Host(to));
        Ok(Step::Taken)
    }

    /// Reads a claim's file into pinned memory, or to its addresses on the device.
    fn read(&mut self, claim: &Claim, into: Option<&HostMemory>) -> Result<()> {
        let item = &claim.item;
        let Place::Disk(filed) = claim.place() else { return Err(Error::internal("the bytes are in no file")) };
        self.buffers = self.new_buffers(&filed.store, item.bytes.max(1), true)?;
        let (flow, told, buffers) = self.copying()?;
        let start = flow.submitted();
        let mut reading = Reading { flow, told, item, into, start, over: 0 };
        let read = filed.store.read_into(filed.slot, After::Keep, buffers, &mut reading);
        let over = reading.over;
        self.release()?;
        read?;
        self.told.over += over - (self.flow()?.submitted() - start);
        Ok(())
    }

    /// Buffers for a store's chunks: pinned, or ordinary ones if that is refused or not wanted.
    fn new_buffers(&self, store: &Store, bytes: u64, pinned: bool) -> Result<Vec<Buffer>> {
        let chunk = store.chunk_bytes().min(bytes.next_multiple_of(ALIGN));
        let count = bytes.div_ceil(chunk).min(BUFFERS);
        let buffer = || if pinned { self.buffer(chunk) } else { Buffer::new(chunk) };
        (0..count).map(|_| buffer()).collect()
    }

    /// Drops the buffers once the device no longer touches them.
    fn release(&mut self) -> Result<()> {
        let buffers = std::mem::take(&mut self.buffers);
        let flow = self.flow()?;
        let drained = flow.drain();
        if drained.is_err() {
            flow.hold(buffers);
        }
        drained
    }

    /// A pinned buffer, or an ordinary one if there is no pinned memory to spare: what was promised
    /// is for data.
    fn buffer(&self, bytes: u64) -> Result<Buffer> {
        let host = &self.shared.parts.host;
        let from = self.flow.as_ref().map(|f| SpaceId::new(Tier::Gpu, f.0 .0));
        let node = match from {
            Some(from) => self.shared.targets(&Goal::Away(To::Tier(Tier::Host)), from)?.first().map_or(0, |s| s.id),
            None => 0,
        };
        match host.contiguous_quietly(node, bytes).and_then(|m| m.into_buffer()) {
            Err(e) if e.status == Status::OutOfMemory => Buffer::new(bytes),
            other => other,
        }
    }
}

/// A file being read: into pinned memory, or to the item's addresses on the device.
struct Reading<'r, 'a> {
    flow: &'r mut Flow<'a>,
    told: &'r mut Told<'a>,
    item: &'r Item,
    into: Option<&'r HostMemory>,
    /// Bytes the flow had submitted before.
    start: u64,
    /// Bytes that have arrived.
    over: u64,
}

/// How many of a file's bytes from `offset` on are the item's: 0 bytes are kept as one.
fn of_item(item: &Item, offset: u64, data: &[u8]) -> u64 {
    (data.len() as u64).min(item.bytes.saturating_sub(offset))
}

impl Sink for Reading<'_, '_> {
    /// The device copies while the processor checks. If the bytes are not those that were written,
    /// the memory is not handed out.
    fn arrived(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        match self.into {
            None => {
                let n = of_item(self.item, offset, data);
                self.flow.copy(self.item.base + offset, data.as_ptr() as u64, n, &mut |_| Ok(()))
            }
            Some(_) => Ok(()),
        }
    }

    fn checked(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        match self.into {
            None => self.flow.wait(self.flow.submitted(), &mut |_| Ok(()))?,
            Some(memory) => copy_to(memory, offset, data)?,
        }
        self.over += of_item(self.item, offset, data);
        self.told.tell(self.start + self.over)
    }
}

/// Calls `copy` with each part of pinned memory that holds some of `bytes` bytes from `offset` on,
/// and which of the bytes these are.
fn each_piece(
    memory: &HostMemory,
    offset: u64,
    bytes: u64,
    mut copy: impl FnMut(&mut [u8], std::ops::Range<usize>) -> Option<()>,
) -> Result<()> {
    let (mut start, end) = (0, offset + bytes);
    for piece in memory.pieces() {
        let (from, to) = (start.max(offset), (start + piece.bytes).min(end));
        if from < to {
            // The memory is this move's alone, in parts of at least ALIGN bytes, and outlives the
            // buffer, which is gone at the end of the loop.
            let mut view = Buffer::foreign(piece.addr, piece.bytes.next_multiple_of(ALIGN), Box::new(()))?;
            let part = view.bytes_mut().get_mut((from - start) as usize..(to - start) as usize);
            let copied = part.and_then(|part| copy(part, (from - offset) as usize..(to - offset) as usize));
            copied.ok_or_else(|| Error::internal("a piece outside of its memory"))?;
        }
        start += piece.bytes;
    }
    match start >= end {
        true => Ok(()),
        false => Err(Error::internal(format!("{end} bytes in pinned memory of {start}"))),
    }
}

fn copy_from(memory: &HostMemory, offset: u64, out: &mut [u8]) -> Result<()> {
    each_piece(memory, offset, out.len() as u64, |part, range| {
        out.get_mut(range)?.copy_from_slice(part);
        Some(())
    })
}

fn copy_to(memory: &HostMemory, offset: u64, data: &[u8]) -> Result<()> {
    each_piece(memory, offset, data.len() as u64, |part, range| {
        part.copy_from_slice(data.get(range)?);
        Some(())
    })
}

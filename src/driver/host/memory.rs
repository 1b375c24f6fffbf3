//! Address space: reservations, and what is mapped where.
//!
//! The tables here are what the device believes; the operating system's mappings follow them. They
//! enforce CUDA's rules, which are stricter than the system's: whole extents only, nothing mapped
//! over, access set separately.

use super::op::OpInfo;
use super::os;
use super::physical::{block_key, check_size, Gone, Physical};
use super::ranges::{overlap, span};
use crate::base::{size, DeviceId, Error, Result};
use crate::driver::pages;
use crate::driver::PhysHandle;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The call that made a mapping, and so the call that may remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// `Driver::map`.
    Mapped,
    /// `Driver::native_alloc`; `freed` once its free has been submitted.
    Native { freed: bool },
    /// `Driver::host_alloc`.
    Pinned,
}

/// One mapping of a whole extent, native allocation or pinned block.
pub(super) struct Mapping {
    pub(super) size: u64,
    /// Key of the first physical byte (see `physical.rs`).
    pub(super) key: u64,
    /// The device whose memory it is.
    pub(super) owner: DeviceId,
    pub(super) origin: Origin,
    /// Bit `d` is set when device `d` may access it.
    access: u64,
    /// For each lane, the last operation submitted that uses it; kept only while races are checked.
    pub(super) users: Vec<Arc<OpInfo>>,
}

/// The address space of the devices.
pub(super) struct Memory {
    granularity: u64,
    /// Start → bytes.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    pub(super) physical: Physical,
    headroom: Option<os::Headroom>,
}

/// Physical bytes, and the address of the first of them as the operation named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) va: u64,
    pub(super) keys: Range<u64>,
}

/// `[va, va + size)`, if that is an address range at all.
pub(super) fn range(va: u64, size: u64) -> Result<Range<u64>> {
    match va.checked_add(size) {
        Some(end) => Ok(va..end),
        None => Err(Error::invalid(format!("{size} bytes at {va:#x} run over the end of the address space"))),
    }
}

fn bit(dev: DeviceId) -> u64 {
    1u64.checked_shl(dev.0).unwrap_or(0)
}

impl Memory {
    pub(super) fn new(physical: Physical, granularity: u64) -> Memory {
        Memory { granularity, reservations: BTreeMap::new(), mappings: BTreeMap::new(), physical, headroom: None }
    }

    /// Keeps some mappings in reserve for [`Memory::taking_away`], as long as there are enough of
    /// them.
    fn keep_headroom(&mut self) -> Result<()> {
        if self.headroom.is_none() {
            self.headroom = Some(os::Headroom::new()?);
        }
        Ok(())
    }

    /// Runs `f`, which takes mappings away; if it fails, gives up the headroom and tries again.
    fn taking_away(&mut self, f: impl Fn() -> Result<()>) -> Result<()> {
        let done = f();
        if done.is_ok() || self.headroom.take().is_none() {
            return done;
        }
        f()
    }

    // ---- reservations ---------------------------------------------------------------------------

    pub(super) fn reserve(&mut self, size: u64, align: u64) -> Result<u64> {
        check_size("a reservation", size, self.granularity)?;
        if !align.is_power_of_two() {
            return Err(Error::invalid(format!("alignment {align} is not a power of two")));
        }
        let va = os::reserve(size, align.max(self.granularity))?;
        self.reservations.insert(va, size);
        Ok(va)
    }

    pub(super) fn free(&mut self, va: u64, size: u64) -> Result<()> {
        match self.reservations.get(&va) {
            Some(&whole) if whole == size => {}
            Some(whole) => {
                return Err(Error::invalid(format!(
                    "the reservation at {va:#x} has {whole} bytes, not {size}; reservations are freed whole"
                )))
            }
            None => return Err(Error::invalid(format!("no reservation starts at {va:#x}"))),
        }
        if let Some((at, m)) = self.mappings.range(va..va + size).next() {
            return Err(Error::invalid(format!(
                "the reservation at {va:#x} still has {} mapped at {at:#x}; unmap it first",
                size::human(m.size)
            )));
        }
        self.taking_away(|| os::unmap(va, size))?;
        self.reservations.remove(&va);
        Ok(())
    }

    /// Whether `addr` lies in a reservation.
    pub(super) fn reserved(&self, addr: u64) -> bool {
        self.reservations.range(..=addr).next_back().is_some_and(|(va, size)| addr - va < *size)
    }

    // ---- mappings -------------------------------------------------------------------------------

    pub(super) fn map(&mut self, va: u64, size: u64, h: PhysHandle) -> Result<()> {
        let r = range(va, size)?;
        let (key, x) = self.physical.lookup(h)?;
        if size != x.size {
            return Err(Error::invalid(format!(
                "physical handle {} has {} bytes and can only be mapped whole, not {size} of them",
                h.0, x.size
            )));
        }
        if !va.is_multiple_of(self.granularity) {
            return Err(Error::invalid(format!("{va:#x} is not a multiple of the granularity, {}", self.granularity)));
        }
        let owner = x.dev;
        let inside = self.reservations.range(..=va).next_back().is_some_and(|(start, size)| r.end <= start + size);
        if !inside {
            return Err(Error::invalid(format!("{} is not inside one reservation", span(&r))));
        }
        if let Some((at, m)) =
            self.mappings.range(..r.end).next_back().filter(|(at, m)| overlap(&r, &(**at..*at + m.size)))
        {
            return Err(Error::invalid(format!(
                "{} is not free: {} are mapped at {at:#x}; unmap them first",
                span(&r),
                size::human(m.size)
            )));
        }
        self.keep_headroom()?;
        let (file, offset) = self.physical.file(key)?;
        os::map_file(va, size, file, offset)?;
        self.physical.pin(key);
        self.mappings.insert(va, Mapping { size, key, owner, origin: Origin::Mapped, access: 0, users: Vec::new() });
        Ok(())
    }

    /// Checks that `[va, va + size)` consists of whole mappings made by `map`, without gaps.
    fn check_whole(&self, r: &Range<u64>) -> Result<()> {
        let mut at = r.start;
        for (start, m) in self.mappings.range(r.clone()) {
            if *start != at || m.origin != Origin::Mapped {
                break;
            }
            at += m.size;
        }
        if at == r.end && !r.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} does not consist of whole mappings without gaps: something is wrong from {at:#x} on",
            span(r)
        )))
    }

    pub(super) fn set_access(&mut self, va: u64, size: u64, devs: &[DeviceId], peers: bool) -> Result<()> {
        let r = range(va, size)?;
        self.check_whole(&r)?;
        if devs.is_empty() {
            return Err(Error::invalid("set_access without a device"));
        }
        let mut mask = 0;
        for dev in devs {
            self.physical.free_total(*dev)?;
            mask |= bit(*dev);
        }
        if let Some((at, m)) = self.mappings.range(r.clone()).find(|(_, m)| !peers && mask & !bit(m.owner) != 0) {
            return Err(Error::invalid(format!(
                "memory of device {} at {at:#x} cannot be accessed by other devices here; ask can_access first",
                m.owner
            )));
        }
        if self.mappings.range(r.clone()).any(|(_, m)| m.access == 0) {
            if let Err(e) = os::protect(va, size, true) {
                self.restore_access(&r);
                return Err(e);
            }
        }
        for (_, m) in self.mappings.range_mut(r) {
            m.access |= mask;
        }
        Ok(())
    }

    /// Restores the access in the table after a change of protection that may be incomplete.
    fn restore_access(&self, r: &Range<u64>) {
        for (va, m) in self.mappings.range(r.clone()) {
            if m.access == 0 {
                // It was inaccessible before, so making it so again needs no more mappings than
                // there were.
                let _ = os::protect(*va, m.size, false);
            }
        }
    }

    /// Checks that the range may be unmapped.
    pub(super) fn check_unmap(&self, va: u64, size: u64) -> Result<Range<u64>> {
        let r = range(va, size)?;
        self.check_whole(&r)?;
        Ok(r)
    }

    /// Unmaps a range that `check_unmap` passed; returns the extents that are gone with it.
    pub(super) fn unmap(&mut self, r: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.taking_away(|| os::unmap_to_reserved(r.start, r.end - r.start))?;
        let starts: Vec<u64> = self.mappings.range(r).map(|(va, _)| *va).collect();
        let mut gone = Vec::new();
        for va in starts {
            if let Some(m) = self.mappings.remove(&va) {
                gone.extend(self.physical.unpin(m.key));
            }
        }
        Ok(gone)
    }

    /// Mappings that touch `r`, in address order.
    pub(super) fn mappings_in(&mut self, r: &Range<u64>) -> impl Iterator<Item = (&u64, &mut Mapping)> {
        let first = self.mappings.range(..=r.start).next_back().map_or(r.start, |(va, _)| *va);
        let r = r.clone();
        self.mappings.range_mut(first..r.end).filter(move |(va, m)| **va + m.size > r.start)
    }

    /// The mapping that contains `addr`.
    pub(super) fn mapping_at(&self, addr: u64) -> Option<(u64, &Mapping)> {
        let (va, m) = self.mappings.range(..=addr).next_back()?;
        (addr - va < m.size).then_some((*va, m))
    }

    /// The physical bytes behind `r`, or why it cannot be accessed: by device `dev`, or (`None`) by
    /// copy engines, which reach whatever any device may access.
    pub(super) fn resolve(&self, r: &Range<u64>, dev: Option<DeviceId>) -> std::result::Result<Vec<Piece>, String> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = r.start;
        let first = self.mappings.range(..=r.start).next_back().map_or(r.start, |(va, _)| *va);
        for (va, m) in self.mappings.range(first..r.end.max(first)) {
            let end = va + m.size;
            if end <= at {
                continue;
            }
            if *va > at {
                break;
            }
            if m.access & dev.map_or(u64::MAX, bit) == 0 {
                return Err(match dev {
                    Some(d) if m.access != 0 => format!("{at:#x} is not accessible from device {d}"),
                    _ => format!("{at:#x} is mapped but set_access has not been called"),
                });
            }
            let stop = end.min(r.end);
            let keys = m.key + (at - va)..m.key + (stop - va);
            match pieces.last_mut() {
                Some(p) if p.keys.end == keys.start => p.keys.end = keys.end,
                _ => pieces.push(Piece { va: at, keys }),
            }
            at = stop;
        }
        if at < r.end {
            return Err(format!("{at:#x} is not mapped"));
        }
        Ok(pieces)
    }

    // ---- memory that is not mapped by the caller ------------------------------------------------

    /// Maps `size` bytes (rounded up to pages) of new memory, accessible to every device.
    pub(super) fn add_block(&mut self, dev: DeviceId, size: u64, origin: Origin) -> Result<u64> {
        let size = size::round_up(size.max(1), pages::page_size())
            .ok_or_else(|| Error::new(crate::base::Status::OutOfMemory, format!("{size} bytes overflow")))?;
        let native = matches!(origin, Origin::Native { .. });
        if native {
            self.physical.take(dev, size)?;
        }
        let va = match os::map_anonymous(size) {
            Ok(va) => va,
            Err(e) => {
                if native {
                    self.physical.give_back(dev, size);
                }
                return Err(e);
            }
        };
        let key = block_key(va);
        self.mappings.insert(va, Mapping { size, key, owner: dev, origin, access: u64::MAX, users: Vec::new() });
        Ok(va)
    }

    /// Marks a native allocation as freed (its free is on its way); an error if there is none, or
    /// it is freed already.
    pub(super) fn begin_native_free(&mut self, va: u64) -> Result<()> {
        match self.mappings.get_mut(&va).map(|m| &mut m.origin) {
            Some(Origin::Native { freed }) if !*freed => {
                *freed = true;
                Ok(())
            }
            Some(Origin::Native { .. }) => Err(Error::invalid(format!("{va:#x} has been freed already"))),
            _ => Err(Error::invalid(format!("{va:#x} was not returned by native_alloc"))),
        }
    }

    /// Undoes `begin_native_free` if the free failed.
    pub(super) fn undo_native_free(&mut self, va: u64) {
        if let Some(Origin::Native { freed }) = self.mappings.get_mut(&va).map(|m| &mut m.origin) {
            *freed = false;
        }
    }

    /// Takes a native allocation or pinned block away.
    pub(super) fn remove_block(&mut self, va: u64) -> Result<Gone> {
        let Some(m) = self.mappings.get(&va).filter(|m| m.origin != Origin::Mapped) else {
            return Err(Error::invalid(format!("{va:#x} is not the start of a block")));
        };
        os::unmap(va, m.size)?;
        let Some(m) = self.mappings.remove(&va) else { return Ok(None) };
        if matches!(m.origin, Origin::Native { .. }) {
            self.physical.give_back(m.owner, m.size);
        }
        Ok(Some(m.key..m.key + m.size))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Nothing can be done about failures here; they cost addresses.
        for (va, m) in self.mappings.iter().filter(|(_, m)| m.origin != Origin::Mapped) {
            let _ = os::unmap(*va, m.size);
        }
        for (va, size) in &self.reservations {
            let _ = os::unmap(*va, *size);
        }
    }
}

//! Physical memory: sparse files, the extents in them, and the handles that keep extents alive.
//!
//! Each device has one file. Extents are taken from it at ever higher offsets, which costs nothing
//! in a sparse file and makes extents that are created one after another adjacent in it: mapped
//! side by side they become one mapping of the kernel's. Exportable extents have files of their
//! own, because a descriptor gives access to a whole file.
//!
//! A *key* is the address of a physical byte: unique across devices, and the same through every
//! alias. Keys of extents are never reused. Memory that the caller does not map has one address as
//! long as it lives, so that its keys are made of it.

use super::os;
use crate::base::{size, DeviceId, Error, Result, Status};
use crate::driver::process;
use crate::driver::{PhysFlags, PhysHandle};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Keys of device `d` start at `d << DEVICE_SHIFT`; the rest is the offset in the device's file.
const DEVICE_SHIFT: u32 = 56;
/// Set in the keys of memory that is not in extents; the rest is its address.
const BLOCK: u64 = 1 << 63;
/// A file grows in steps of this many bytes, sparse.
const FILE_STEP: u64 = 64 * size::GIB;

struct Store {
    file: OwnedFd,
    file_len: u64,
    /// The lowest offset never used.
    next: u64,
    used: u64,
    capacity: u64,
}

/// One physical allocation.
pub(super) struct Extent {
    pub(super) dev: DeviceId,
    pub(super) size: u64,
    /// Its own file, when it was created exportable or imported.
    own: Option<(OwnedFd, (u64, u64))>,
    handles: u32,
    maps: u32,
    /// Whether it uses this process's device memory; memory imported from elsewhere does not.
    counted: bool,
}

/// All devices' physical memory.
pub(super) struct Physical {
    stores: Vec<Store>,
    granularity: u64,
    /// By key of the first byte.
    extents: HashMap<u64, Extent>,
    /// Handle → key of its extent. Handles are never reused, so a dropped one is recognised.
    handles: HashMap<u64, u64>,
    next_handle: u64,
    by_inode: HashMap<(u64, u64), u64>,
}

/// The keys of an extent that is gone.
pub(super) type Gone = Option<Range<u64>>;

impl Physical {
    pub(super) fn new(devices: u32, bytes: u64, granularity: u64) -> Result<Physical> {
        let stores = (0..devices)
            .map(|_| Ok(Store { file: os::memfd(false)?, file_len: 0, next: 0, used: 0, capacity: bytes }))
            .collect::<Result<_>>()?;
        Ok(Physical {
            stores,
            granularity,
            extents: HashMap::new(),
            handles: HashMap::new(),
            next_handle: 1,
            by_inode: HashMap::new(),
        })
    }

    fn store(&self, dev: DeviceId) -> Result<&Store> {
        self.stores.get(dev.0 as usize).ok_or_else(|| no_device(dev, self.stores.len()))
    }

    fn store_mut(&mut self, dev: DeviceId) -> Result<&mut Store> {
        let n = self.stores.len();
        self.stores.get_mut(dev.0 as usize).ok_or_else(|| no_device(dev, n))
    }

    /// `(free, total)` bytes of a device.
    pub(super) fn free_total(&self, dev: DeviceId) -> Result<(u64, u64)> {
        let s = self.store(dev)?;
        Ok((s.capacity - s.used, s.capacity))
    }

    /// Bytes of real memory behind a device's file (exportable extents have files of their own).
    pub(super) fn resident(&self, dev: DeviceId) -> Result<u64> {
        Ok(os::facts(&self.store(dev)?.file)?.resident)
    }

    /// Takes `size` bytes of a device's capacity.
    pub(super) fn take(&mut self, dev: DeviceId, size: u64) -> Result<()> {
        let (available, capacity) = self.free_total(dev)?;
        if size > available {
            return Err(Error::new(
                Status::OutOfMemory,
                format!(
                    "host device {dev}: {} requested, {} available of {}",
                    size::human(size),
                    size::human(available),
                    size::human(capacity)
                ),
            ));
        }
        self.store_mut(dev)?.used += size;
        Ok(())
    }

    /// Keys for an extent.
    fn keys(&mut self, dev: DeviceId, size: u64) -> Result<u64> {
        let s = self.store_mut(dev)?;
        let end = s.next.checked_add(size).filter(|e| *e < 1 << DEVICE_SHIFT).ok_or_else(|| {
            Error::new(Status::OutOfMemory, format!("host device {dev} has no physical addresses left"))
        })?;
        let key = (u64::from(dev.0) << DEVICE_SHIFT) | s.next;
        s.next = end;
        Ok(key)
    }

    /// Gives capacity back.
    pub(super) fn give_back(&mut self, dev: DeviceId, size: u64) {
        if let Ok(s) = self.store_mut(dev) {
            s.used = s.used.saturating_sub(size);
        }
    }

    pub(super) fn create(&mut self, dev: DeviceId, size: u64, flags: PhysFlags) -> Result<PhysHandle> {
        check_size("physical memory", size, self.granularity)?;
        if flags.rdma {
            return Err(Error::new(Status::Unsupported, "the host device has no RDMA; ask device_props first"));
        }
        self.take(dev, size)?;
        let made = self.keys(dev, size).and_then(|key| match flags.posix_fd {
            true => own_file(size).map(|own| (key, Some(own))),
            false => self.grow_file(dev, key, size).map(|()| (key, None)),
        });
        let (key, own) = made.inspect_err(|_| self.give_back(dev, size))?;
        if let Some((_, inode)) = &own {
            self.by_inode.insert(*inode, key);
        }
        self.extents.insert(key, Extent { dev, size, own, handles: 1, maps: 0, counted: true });
        Ok(self.new_handle(key))
    }

    fn new_handle(&mut self, key: u64) -> PhysHandle {
        let h = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(h, key);
        PhysHandle(h)
    }

    fn grow_file(&mut self, dev: DeviceId, key: u64, size: u64) -> Result<()> {
        let end = offset_of(key) + size;
        let s = self.store_mut(dev)?;
        if end > s.file_len {
            let len = end.next_multiple_of(FILE_STEP).min(process::largest_file()).max(end);
            os::set_len(&s.file, len)?;
            s.file_len = len;
        }
        Ok(())
    }

    fn key_of(&self, h: PhysHandle) -> Result<u64> {
        self.handles.get(&h.0).copied().ok_or_else(|| {
            Error::invalid(format!("physical handle {} was never created, or has been released already", h.0))
        })
    }

    /// The key and extent of a live handle.
    pub(super) fn lookup(&self, h: PhysHandle) -> Result<(u64, &Extent)> {
        let key = self.key_of(h)?;
        let x = self.extents.get(&key).ok_or_else(|| Error::internal("a handle without an extent"))?;
        Ok((key, x))
    }

    pub(super) fn release(&mut self, h: PhysHandle) -> Result<Gone> {
        let key = self.key_of(h)?;
        self.handles.remove(&h.0);
        if let Some(x) = self.extents.get_mut(&key) {
            x.handles -= 1;
        }
        Ok(self.drop_unused(key))
    }

    /// The file and the offset in it where an extent's bytes are.
    pub(super) fn file(&self, key: u64) -> Result<(&OwnedFd, u64)> {
        let x = self.extents.get(&key).ok_or_else(|| Error::internal("a mapping without an extent"))?;
        match &x.own {
            Some((fd, _)) => Ok((fd, 0)),
            None => Ok((&self.store(x.dev)?.file, offset_of(key))),
        }
    }

    /// Counts one more mapping of an extent.
    pub(super) fn pin(&mut self, key: u64) {
        if let Some(x) = self.extents.get_mut(&key) {
            x.maps += 1;
        }
    }

    /// Counts one mapping fewer; returns the keys if the extent is gone.
    pub(super) fn unpin(&mut self, key: u64) -> Gone {
        if let Some(x) = self.extents.get_mut(&key) {
            x.maps -= 1;
        }
        self.drop_unused(key)
    }

    fn drop_unused(&mut self, key: u64) -> Gone {
        let x = self.extents.get(&key).filter(|x| x.handles == 0 && x.maps == 0)?;
        let (dev, size, counted) = (x.dev, x.size, x.counted);
        if let Some(x) = self.extents.remove(&key) {
            match x.own {
                Some((_, inode)) => drop(self.by_inode.remove(&inode)),
                // Failing to punch costs real memory, not correctness: the offsets are never used
                // again.
                None => drop(self.store(dev).map(|s| os::punch_hole(&s.file, offset_of(key), size))),
            }
        }
        if counted {
            self.give_back(dev, size);
        }
        Some(key..key + size)
    }

    pub(super) fn export(&self, h: PhysHandle) -> Result<OwnedFd> {
        let (_, x) = self.lookup(h)?;
        let Some((fd, _)) = &x.own else {
            return Err(Error::invalid(format!(
                "physical handle {} was not created exportable; set PhysFlags::posix_fd when creating it",
                h.0
            )));
        };
        fd.try_clone().map_err(|e| Error::new(Status::Driver, format!("cannot duplicate a descriptor: {e}")))
    }

    pub(super) fn import(&mut self, dev: DeviceId, fd: &OwnedFd) -> Result<PhysHandle> {
        self.store(dev)?;
        let facts = os::facts(fd)?;
        if !facts.size_sealed || facts.size == 0 || facts.size % self.granularity != 0 {
            return Err(Error::invalid(format!(
                "the descriptor is not an exported allocation of a host device (a memory file of a fixed size, a \
                 multiple of {})",
                size::human(self.granularity)
            )));
        }
        if let Some(key) = self.by_inode.get(&facts.inode).copied() {
            if let Some(x) = self.extents.get_mut(&key) {
                x.handles += 1;
            }
            return Ok(self.new_handle(key));
        }
        let fd =
            fd.try_clone().map_err(|e| Error::new(Status::Driver, format!("cannot duplicate a descriptor: {e}")))?;
        let key = self.keys(dev, facts.size)?;
        self.by_inode.insert(facts.inode, key);
        let own = Some((fd, facts.inode));
        self.extents.insert(key, Extent { dev, size: facts.size, own, handles: 1, maps: 0, counted: false });
        Ok(self.new_handle(key))
    }
}

/// The key of the first byte of memory at `va` that is not in an extent.
pub(super) fn block_key(va: u64) -> u64 {
    BLOCK | va
}

fn offset_of(key: u64) -> u64 {
    key & ((1 << DEVICE_SHIFT) - 1)
}

fn own_file(size: u64) -> Result<(OwnedFd, (u64, u64))> {
    let fd = os::memfd(true)?;
    os::set_len(&fd, size)?;
    os::seal_size(&fd)?;
    let inode = os::facts(&fd)?.inode;
    Ok((fd, inode))
}

/// `size` must be a multiple of the granularity and not 0.
pub(super) fn check_size(what: &str, size: u64, granularity: u64) -> Result<()> {
    if size == 0 || !size.is_multiple_of(granularity) {
        return Err(Error::invalid(format!(
            "{what} of {size} bytes: sizes are multiples of the granularity, {granularity} bytes, and not 0"
        )));
    }
    Ok(())
}

/// The error for a device that does not exist.
pub(super) fn no_device(dev: DeviceId, count: usize) -> Error {
    Error::invalid(format!("device {dev} does not exist; the host device has {count} (numbered from 0)"))
}

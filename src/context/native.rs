//! `GPUMEM_POOL=off`: every request goes to the driver's own allocator, so that the two can be
//! compared in place.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::size::human;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::context::config::Limit;
use crate::driver::Driver;
use crate::pool::{asked, checked_alignment, AllocFlags, AllocInfo, PoolStats};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The live allocations of a process without a pool. A lock around a map: this path is for
/// comparison, not for speed.
pub(super) struct Native {
    /// The initial limit of each device.
    limit: Limit,
    state: Mutex<State>,
}

/// Invariant: a device's `requested` and `allocations` add up its allocations in `live`, those
/// about to be made, and those about to be freed.
#[derive(Default)]
struct State {
    live: BTreeMap<u64, AllocInfo>,
    last_id: u64,
    /// By device; only what is counted here is set.
    books: HashMap<DeviceId, PoolStats>,
    /// Frees of memory that is not live.
    unknown_pointers: u64,
    /// Frees by the id of an allocation that is not live.
    late_frees: u64,
}

impl State {
    /// The counters of a device, which [`Native::lock_for`] has made.
    fn books(&mut self, device: DeviceId) -> &mut PoolStats {
        self.books.entry(device).or_default()
    }

    /// Takes an allocation out of the device's counters.
    fn forget(&mut self, device: DeviceId, bytes: u64) {
        let books = self.books(device);
        books.requested -= bytes;
        books.allocations -= 1;
    }
}

impl Native {
    pub(super) fn new(limit: Limit) -> Native {
        Native { limit, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`Self::lock`], with counters for a device.
    fn lock_for(&self, driver: &dyn Driver, device: DeviceId) -> Result<MutexGuard<'_, State>> {
        let st = self.lock();
        if st.books.contains_key(&device) {
            return Ok(st);
        }
        drop(st);
        let total = driver.device_props(device)?.total_bytes;
        let limit = Some(self.limit.of(total)).filter(|&l| l < total).unwrap_or(0);
        let mut st = self.lock();
        st.books.entry(device).or_insert(PoolStats { limit, ..PoolStats::default() });
        Ok(st)
    }

    /// The driver chooses the alignment; a request for more fails and leaves nothing behind. 0 is
    /// 256 bytes.
    pub(super) fn malloc(
        &self,
        driver: &dyn Driver,
        device: DeviceId,
        (size, align): (u64, u64),
        stream: StreamHandle,
        tag: u64,
    ) -> Result<u64> {
        let align = checked_alignment(align)?;
        self.take_share(driver, device, size)?;
        let made = driver.native_alloc(device, size.max(1), stream).and_then(|base| {
            if base.is_multiple_of(align) {
                return Ok(base);
            }
            driver.native_free(device, base, stream)?;
            let text = format!(
                "{align} bytes of alignment were asked for, and the driver's memory is at {base:#x}; with GPUMEM_POOL=off it \
                 chooses: ask for 256 bytes, or leave the pool on"
            );
            Err(Error::new(Status::Unsupported, text))
        });
        let mut st = self.lock();
        let base = made.inspect_err(|e| {
            st.forget(device, size);
            st.books(device).out_of_memory += u64::from(e.status == Status::OutOfMemory);
        })?;
        st.last_id += 1;
        let (id, flags) = (st.last_id, AllocFlags::default());
        st.live.insert(base, AllocInfo { base, requested: size, usable: size, device, stream, id, tag, flags });
        let books = st.books(device);
        books.mallocs += 1;
        books.peak_live = books.peak_live.max(books.requested);
        Ok(base)
    }

    /// Counts an allocation that is about to be made, if the device's limit allows it.
    fn take_share(&self, driver: &dyn Driver, device: DeviceId, size: u64) -> Result<()> {
        let mut st = self.lock_for(driver, device)?;
        let books = st.books(device);
        let live = books.requested;
        let most = if books.limit == 0 { u64::MAX } else { books.limit };
        if live.checked_add(size).is_none_or(|sum| sum > most) {
            books.out_of_memory += 1;
            let (limit, raise) = match books.limit {
                0 => ("no limit is set".to_string(), ""),
                limit => (
                    format!("the limit is {}", human(limit)),
                    " or raise the limit (GPUMEM_LIMIT or the program's own)",
                ),
            };
            let [asked, live] = [size, live].map(human);
            let text = format!(
                "{size} bytes ({asked}) were requested on device {device}; {live} are live there, and {limit}. Free \
                 memory{raise}"
            );
            return Err(Error::new(Status::OutOfMemory, text));
        }
        books.requested += size;
        books.allocations += 1;
        Ok(())
    }

    /// Sets the most bytes that may be live on a device; 0: what it has. What is live stays.
    pub(super) fn set_limit(&self, driver: &dyn Driver, device: DeviceId, bytes: u64) -> Result<()> {
        let total = driver.device_props(device)?.total_bytes;
        self.lock_for(driver, device)?.books(device).limit = if bytes < total { bytes } else { 0 };
        Ok(())
    }

    /// Everything that is live.
    pub(super) fn all(&self) -> Vec<AllocInfo> {
        self.lock().live.values().copied().collect()
    }

    /// Changes a size by a copy in the order of a stream. If that is of another device, the host
    /// waits for the new memory. Meanwhile the old memory is out of the table, so that no other
    /// thread frees it during the copy.
    pub(super) fn realloc(
        &self,
        driver: &dyn Driver,
        ptr: u64,
        size: u64,
        (dev, stream): (DeviceId, StreamHandle),
    ) -> Result<u64> {
        let old = self.take(ptr, None, "realloc")?;
        let of = if dev == old.device { stream } else { StreamHandle::LEGACY };
        let moved = self.malloc(driver, old.device, (size, 0), of, old.tag).and_then(|new| {
            let ready = if dev == old.device { Ok(()) } else { driver.stream_sync(old.device, of) };
            let copied = ready.and_then(|()| match old.usable.min(size) {
                0 => Ok(()),
                n => driver.copy_async(dev, new, ptr, n, stream),
            });
            match copied.and_then(|()| self.end(driver, old, (dev, stream))) {
                Ok(()) => Ok(new),
                Err(e) => self.free(driver, (new, None), Some((dev, stream))).and(Err(e)),
            }
        });
        moved.inspect_err(|_| self.put_back(old))
    }

    /// Frees the allocation that starts at an address, and has this id if one is given: in the
    /// order of a stream and its device, or after the stream that it was allocated on.
    pub(super) fn free(
        &self,
        driver: &dyn Driver,
        (ptr, id): (u64, Option<u64>),
        stream: Option<(DeviceId, StreamHandle)>,
    ) -> Result<()> {
        let info = self.take(ptr, id, "free")?;
        let passed = match stream {
            // By now that stream may be gone, or the handle mean another thread's.
            None if info.stream != StreamHandle::LEGACY => driver.device_sync(info.device),
            _ => Ok(()),
        };
        let order = stream.unwrap_or((info.device, StreamHandle::LEGACY));
        passed.and_then(|()| self.end(driver, info, order)).inspect_err(|_| self.put_back(info))
    }

    /// Takes the allocation that starts at `ptr`, and has this id if one is given, away from other
    /// threads. It is counted still.
    fn take(&self, ptr: u64, id: Option<u64>, what: &str) -> Result<AllocInfo> {
        let mut st = self.lock();
        let is_it = st.live.get(&ptr).is_some_and(|found| id.is_none_or(|id| found.id == id));
        if let Some(found) = is_it.then(|| st.live.remove(&ptr)).flatten() {
            return Ok(found);
        }
        match id {
            None => st.unknown_pointers += u64::from(what == "free"),
            Some(_) => st.late_frees += 1,
        }
        Err(Error::new(Status::UnknownPointer, format!("{what}: {ptr:#x} is not a live allocation")))
    }

    /// Frees what was taken.
    fn end(&self, driver: &dyn Driver, info: AllocInfo, (dev, stream): (DeviceId, StreamHandle)) -> Result<()> {
        driver.native_free(dev, info.base, stream)?;
        let mut st = self.lock();
        st.forget(info.device, info.requested);
        st.books(info.device).frees += 1;
        Ok(())
    }

    /// Puts back what was taken: it has not ended after all.
    fn put_back(&self, info: AllocInfo) {
        self.lock().live.insert(info.base, info);
    }

    pub(super) fn info_containing(&self, ptr: u64) -> Result<AllocInfo> {
        match self.lock().live.range(..=ptr).next_back() {
            Some((&base, info)) if ptr - base < info.usable.max(1) => Ok(*info),
            _ => Err(Error::new(Status::UnknownPointer, format!("{ptr:#x} is in no live allocation"))),
        }
    }

    /// Counters and every live allocation of a device, for people.
    pub(super) fn dump(&self, device: DeviceId) -> String {
        let st = self.lock();
        let here = || st.live.values().filter(|i| i.device == device);
        let live = human(here().map(|i| i.requested).sum());
        let mut out = format!("device {device}: GPUMEM_POOL=off, {live} live in {} allocations\n", here().count());
        for AllocInfo { base, requested, stream, tag, id, .. } in here() {
            let _ =
                writeln!(out, "  {base:#014x} [{}] {}, id {id}", human(*requested), asked(*requested, *stream, *tag));
        }
        out
    }

    /// Resets a device's peak to the present value.
    pub(super) fn reset_peak(&self, driver: &dyn Driver, device: DeviceId) -> Result<()> {
        let mut st = self.lock_for(driver, device)?;
        let books = st.books(device);
        books.peak_live = books.requested;
        Ok(())
    }

    pub(super) fn stats(&self, driver: &dyn Driver, device: DeviceId) -> Result<PoolStats> {
        let mut st = self.lock_for(driver, device)?;
        let books = *st.books(device);
        let (live, peak_mapped) = (books.requested, books.peak_live);
        // They are no device's; the first one's counters have them.
        let (unknown_pointers, late_frees) =
            if device == DeviceId(0) { (st.unknown_pointers, st.late_frees) } else { (0, 0) };
        Ok(PoolStats { live, mapped: live, peak_mapped, unknown_pointers, late_frees, ..books })
    }
}

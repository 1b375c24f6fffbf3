//! `GPUMEM_POOL=off`: every request goes to the driver's own allocator, so that the two can be compared in place.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::size::human;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::Driver;
use crate::pool::{asked, checked_alignment, AllocFlags, AllocInfo, PoolStats};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The live allocations of a process without a pool. A lock around a map: this path is for comparison, not for speed.
#[derive(Default)]
pub(super) struct Native {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: BTreeMap<u64, AllocInfo>,
    next_id: u64,
    frees: u64,
    bytes: u64,
    peak: u64,
    unknown: u64,
}

impl Native {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver chooses the alignment, so one that it has not given fails, and leaves nothing behind. 0 is 256 bytes.
    pub(super) fn malloc(
        &self,
        driver: &dyn Driver,
        device: DeviceId,
        (size, align): (u64, u64),
        stream: StreamHandle,
        tag: u64,
    ) -> Result<u64> {
        let align = checked_alignment(align)?;
        let base = driver.native_alloc(device, size.max(1), stream)?;
        if !base.is_multiple_of(align) {
            driver.native_free(device, base, stream)?;
            let text = format!(
                "{align} bytes of alignment were asked for, and the driver's memory is at {base:#x}; with GPUMEM_POOL=off it \
                 chooses: ask for 256 bytes, or leave the pool on"
            );
            return Err(Error::new(Status::Unsupported, text));
        }
        let mut st = self.lock();
        st.next_id += 1;
        let id = st.next_id;
        let info =
            AllocInfo { base, requested: size, usable: size, device, stream, id, tag, flags: AllocFlags::default() };
        st.live.insert(base, info);
        st.bytes += size;
        st.peak = st.peak.max(st.bytes);
        Ok(base)
    }

    /// Everything that is live.
    pub(super) fn all(&self) -> Vec<AllocInfo> {
        self.lock().live.values().copied().collect()
    }

    /// Changes a size by a copy in the order of a stream, which may be one of another device: then the host waits for the new
    /// memory. The old memory is nobody's meanwhile, so that no other thread frees it during the copy.
    pub(super) fn realloc(
        &self,
        driver: &dyn Driver,
        ptr: u64,
        size: u64,
        (dev, stream): (DeviceId, StreamHandle),
    ) -> Result<u64> {
        let old = self.take(ptr, "realloc")?;
        let of = if dev == old.device { stream } else { StreamHandle::LEGACY };
        let moved = self.malloc(driver, old.device, (size, 0), of, old.tag).and_then(|new| {
            let ready = if dev == old.device { Ok(()) } else { driver.stream_sync(old.device, of) };
            let copied = ready.and_then(|()| match old.usable.min(size) {
                0 => Ok(()),
                n => driver.copy_async(dev, new, ptr, n, stream),
            });
            match copied.and_then(|()| driver.native_free(dev, ptr, stream)) {
                Ok(()) => Ok(new),
                Err(e) => self.free(driver, new, Some((dev, stream))).and(Err(e)),
            }
        });
        moved.inspect_err(|_| self.put_back(old))
    }

    /// In the order of a stream and its device, or of the stream that it was allocated on.
    pub(super) fn free(&self, driver: &dyn Driver, ptr: u64, stream: Option<(DeviceId, StreamHandle)>) -> Result<()> {
        let info = self.take(ptr, "free")?;
        let (dev, stream) = stream.unwrap_or((info.device, info.stream));
        driver.native_free(dev, ptr, stream).inspect_err(|_| self.put_back(info))
    }

    /// Ends an allocation, whose start `ptr` must be.
    fn take(&self, ptr: u64, what: &str) -> Result<AllocInfo> {
        let mut st = self.lock();
        let Some(info) = st.live.remove(&ptr) else {
            st.unknown += u64::from(what == "free");
            return Err(Error::new(Status::UnknownPointer, format!("{what}: {ptr:#x} is not a live allocation")));
        };
        st.frees += 1;
        st.bytes -= info.requested;
        Ok(info)
    }

    /// It has not ended after all.
    fn put_back(&self, info: AllocInfo) {
        let mut st = self.lock();
        st.frees -= 1;
        st.bytes += info.requested;
        st.live.insert(info.base, info);
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

    /// The peak is what there is now.
    pub(super) fn reset_peak(&self) {
        let mut st = self.lock();
        st.peak = st.bytes;
    }

    pub(super) fn stats(&self) -> PoolStats {
        let st = self.lock();
        PoolStats {
            requested: st.bytes,
            live: st.bytes,
            peak_live: st.peak,
            mapped: st.bytes,
            peak_mapped: st.peak,
            allocations: st.live.len() as u64,
            mallocs: st.next_id,
            frees: st.frees,
            unknown_pointers: st.unknown,
            ..PoolStats::default()
        }
    }
}

//! The allocator as linked programs use it, the device it runs on, and figures about both.

use super::measure::Clock;
use super::report::{Calls, Measurement, Report};
use crate::session::{self, Backend};
use gpumem::base::{DeviceId, Result, StreamHandle};
use gpumem::context::{Context, Request};

/// Workloads leave one part in this many of the device's memory to rounding and other users.
const HEADROOM: u64 = 16;

/// Allocates as `gpumem_malloc_async` does once C's pointers are checked.
#[inline]
pub fn malloc(bytes: u64, stream: StreamHandle) -> Result<u64> {
    Context::global()?.malloc(&Request { size: bytes, stream, ..Request::default() })
}

/// Frees as `gpumem_free_async` does.
#[inline]
pub fn free(ptr: u64, stream: StreamHandle) -> Result<()> {
    Context::global()?.free_async(ptr, stream)
}

/// The device under test.
pub struct Target {
    ctx: &'static Context,
    device: DeviceId,
    /// Bytes in use on the device before the pool was made.
    used_before: u64,
    /// Most bytes a workload may have allocated at once.
    budget: u64,
    streams: Vec<StreamHandle>,
}

impl Target {
    /// Opens the device and makes two streams. The pool is not made yet.
    pub fn open(backend: Option<Backend>, ordinal: u32) -> Result<Target> {
        let ctx = session::open(session::config(backend)?)?;
        let device = session::device(ctx, ordinal)?;
        let mut target = Target { ctx, device, used_before: 0, budget: 0, streams: Vec::new() };
        // Streams come first, so that the driver's memory for them is not counted as the pool's.
        target.new_stream()?;
        target.new_stream()?;
        let info = ctx.driver().mem_info(device)?;
        let budget = ctx.config().limit.of(info.total).min(info.free);
        target.used_before = info.total - info.free;
        target.budget = budget - budget / HEADROOM;
        Ok(target)
    }

    pub fn ctx(&self) -> &'static Context {
        self.ctx
    }

    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Most bytes a workload may have allocated at once.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// The stream that a workload on one stream uses.
    pub fn stream(&self) -> StreamHandle {
        self.streams.first().copied().unwrap_or_default()
    }

    /// A second stream.
    pub fn other_stream(&self) -> StreamHandle {
        self.streams.get(1).copied().unwrap_or_default()
    }

    /// Makes one more stream, destroyed with the target.
    pub fn new_stream(&mut self) -> Result<StreamHandle> {
        let stream = self.ctx.driver().stream_create(self.device)?;
        self.streams.push(stream);
        Ok(stream)
    }

    /// Driver calls so far.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        self.ctx.driver_calls()
    }

    /// Driver calls since `before`.
    pub fn calls_since(&self, before: &[(&'static str, u64)]) -> Calls {
        let now = self.calls();
        // Both lists name every call, in the same order.
        let differences = now.iter().zip(before).map(|(&(name, now), &(_, before))| (name.to_string(), now - before));
        differences.filter(|&(_, n)| n > 0).collect()
    }

    /// Device memory in use above what was in use before the pool was made, bytes.
    pub fn used(&self) -> Result<u64> {
        let info = self.ctx.driver().mem_info(self.device)?;
        Ok((info.total - info.free).saturating_sub(self.used_before))
    }

    /// Forgets the largest footprint so far.
    pub fn reset_peak(&self) -> Result<()> {
        if self.ctx.config().pool {
            self.ctx.reset_peaks(self.device)?;
        }
        Ok(())
    }

    /// The most device memory in use since [`Self::reset_peak`], bytes; without a pool, the memory
    /// in use now.
    pub fn peak_used(&self) -> Result<u64> {
        let peak = if self.ctx.config().pool { self.ctx.stats(self.device)?.peak_mapped } else { 0 };
        Ok(self.used()?.max(peak))
    }

    /// The results, with facts about the device.
    pub fn report(&self, clock: &Clock, measurements: Vec<Measurement>, scaled: Vec<String>) -> Result<Report> {
        let props = self.ctx.driver().device_props(self.device)?;
        Ok(Report {
            version: env!("CARGO_PKG_VERSION").to_string(),
            backend: self.ctx.driver().backend().to_string(),
            device: self.device.0,
            device_name: props.name,
            device_bytes: props.total_bytes,
            clock_ns: clock.cost_ns,
            scaled,
            measurements,
            failed: Vec::new(),
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for &stream in &self.streams {
            // The process ends here; a stream that cannot be destroyed ends with it.
            let _ = self.ctx.driver().stream_destroy(self.device, stream);
        }
    }
}

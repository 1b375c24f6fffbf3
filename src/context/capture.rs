//! Captures of one process: begun by the user, by PyTorch's hooks, or automatically.

use super::captures::TorchPoolId;
use super::config::CaptureDetection;
use super::Context;
use crate::arena::capture::{Capture, CaptureOptions, CaptureStats};
use crate::base::sync::lock;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::Driver;
use crate::observe::{Event, Kind};
use crate::pool::{Filter, Pool};

impl Context {
    /// Lets the pool begin captures automatically.
    pub(super) fn detect_captures(&self, pool: &Pool) {
        let (captures, driver) = (self.captures.clone(), self.driver.clone());
        pool.on_unclaimed(Box::new(move |pool, stream| match captures.detect(&driver, pool, stream) {
            // The capture has been invalidated already: nothing of it will run. Or graphs cannot
            // tell of their end here: then nothing can be kept for them.
            Err(e) if matches!(e.status, Status::Capturing | Status::Unsupported) => Ok(()),
            done => done,
        }));
    }

    /// Releases the captures of graphs that are gone.
    #[inline]
    pub fn collect_graphs(&self) {
        if self.config.capture == CaptureDetection::Auto {
            self.collect();
        }
    }

    #[cold]
    fn collect(&self) {
        for token in self.driver.graphs_gone() {
            let capture = lock(&self.captures.by_graph).remove(&token);
            if let Some(c) = capture {
                let released = self.pool(c.device()).and_then(|pool| c.release(pool));
                debug_assert!(released.is_ok());
            }
        }
    }

    /// Lets `stream` allocate from a capture until the capture ends: a new one, or as `options`
    /// say.
    pub fn capture_begin(&self, stream: StreamHandle, options: CaptureOptions<'_>) -> Result<Capture> {
        let stream = stream.canonical();
        let dev = self.device_of(None, stream)?;
        let pool = self.pool_for_captures(dev)?;
        let begin = || Capture::begin(pool, stream, options);
        let event = |c: &Capture| event_of(c, Kind::CaptureBegin, 0);
        self.timed(event, || match (self.tiers.get(), options.bytes_ahead(pool)?) {
            (Some(tiers), ahead @ 1..) => tiers.manager().make_uncounted(tiers.gpu(dev)?, ahead, begin),
            _ => self.or_from_quarantine(begin),
        })
    }

    fn pool_for_captures(&self, dev: DeviceId) -> Result<&Pool> {
        self.want_pool("captures need")?;
        self.pool(dev)
    }

    /// The stream's allocations are ordinary again.
    pub fn capture_end(&self, c: &Capture) -> Result<()> {
        self.timed(
            |()| event_of(c, Kind::CaptureEnd, 0),
            || {
                c.end(self.pool(c.device())?);
                Ok(())
            },
        )
    }

    /// Ends the capture, frees all its live memory, and drops every reference.
    pub fn capture_abort(&self, c: &Capture) -> Result<()> {
        let pool = self.pool(c.device())?;
        self.abort_capture_watched(|began| event_of(c, Kind::CaptureRelease, began), || c.abort(pool));
        Ok(())
    }

    /// Drops one reference. Returns whether it was the last.
    pub fn capture_release(&self, c: &Capture) -> Result<bool> {
        self.timed(|_| event_of(c, Kind::CaptureRelease, 0), || c.release(self.pool(c.device())?))
    }

    /// Lays out what was recorded. Returns the length of the layout and the most that was live,
    /// bytes.
    pub fn capture_plan(&self, c: &Capture) -> Result<(u64, u64)> {
        c.plan(self.pool(c.device())?)
    }

    /// The counters of a capture's memory.
    pub fn capture_stats(&self, c: &Capture) -> Result<CaptureStats> {
        Ok(c.stats(self.pool(c.device())?))
    }

    /// PyTorch: allocations on the streams that the filter accepts come from its pool `id` from now
    /// on, which has one reference more.
    pub fn torch_begin(&self, dev: DeviceId, id: TorchPoolId, filter: Filter) -> Result<()> {
        let pool = self.pool_for_captures(dev)?;
        let mut all = lock(&self.captures.of_torch);
        let share = all.get(&(dev, id)).and_then(|begun| begun.last());
        let capture = Capture::begin_filtered(pool, filter, share)?;
        all.entry((dev, id)).or_default().push(capture);
        Ok(())
    }

    /// PyTorch: ends the latest begin for the pool that has not ended.
    pub fn torch_end(&self, dev: DeviceId, id: TorchPoolId) -> Result<()> {
        let pool = self.pool_for_captures(dev)?;
        let all = lock(&self.captures.of_torch);
        let begun = all.get(&(dev, id)).and_then(|begun| begun.iter().rev().find(|c| !c.is_over()));
        let begun =
            begun.ok_or_else(|| Error::invalid(format!("no allocation to pool {id:?} of torch's has begun")))?;
        begun.end(pool);
        Ok(())
    }

    /// PyTorch: drops one reference to the pool. A pool that gpumem does not know is left alone:
    /// torch also releases pools from which nothing was allocated.
    pub fn torch_release(&self, dev: DeviceId, id: TorchPoolId) -> Result<()> {
        let pool = self.pool_for_captures(dev)?;
        let released = {
            let mut all = lock(&self.captures.of_torch);
            let Some(begun) = all.get_mut(&(dev, id)) else { return Ok(()) };
            // One that goes on allocating stays to the last.
            let at = begun.iter().position(Capture::is_over).unwrap_or(0);
            let capture = (at < begun.len()).then(|| begun.remove(at));
            if begun.is_empty() {
                all.remove(&(dev, id));
            }
            capture
        };
        released.map_or(Ok(()), |c| c.release(pool).map(|_| ()))
    }
}

/// An event about a capture.
fn event_of(c: &Capture, kind: Kind, time: u64) -> Event {
    let stream = c.stream().map_or(0, |s| s.0 as u64);
    Event { stream, device: c.device().0 as u8, ..Event::new(kind, time) }
}

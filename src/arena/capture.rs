//! Captures: memory for CUDA graphs.
//!
//! A [`Capture`] lets a stream allocate from an arena, from its begin to its end. Graphs that were
//! captured meanwhile use the arena's addresses, so these stay what they are until the last
//! reference to the last capture of the arena is released. Several captures may share one arena:
//! then their graphs must never run at the same time.

use super::dry_run;
use crate::base::sync::{lock, Mutex};
use crate::base::StreamHandle;
use crate::base::{DeviceId, Error, Result};
use crate::pool::{Filter, GraphArena, GraphArenaOptions, GraphArenaStats, Pool, Route, Span, WhichStreams};
use std::sync::Arc;

/// How to set a capture up.
#[derive(Clone, Copy, Default)]
pub struct CaptureOptions<'a> {
    /// Options of its arena, if it makes a new one.
    pub arena: GraphArenaOptions,
    /// Bytes to map ahead.
    pub bytes: u64,
    /// The capture whose arena to share.
    pub share: Option<&'a Capture>,
    /// The capture whose record to lay out; large allocations go where that layout has them.
    pub layout: Option<&'a Capture>,
}

impl CaptureOptions<'_> {
    /// Bytes that are mapped when it begins.
    pub fn bytes_ahead(&self, pool: &Pool) -> Result<u64> {
        let layout = self.layout.map(|c| c.laid_out(pool)).transpose()?;
        Ok(self.bytes.saturating_add(layout.map_or(0, |span| span.bytes)))
    }
}

/// One capture's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Counters of its arena.
    pub arena: GraphArenaStats,
    /// How many references all captures of the arena have.
    pub references: u64,
}

/// An arena and how many references its captures have together.
struct Shared {
    device: DeviceId,
    arena: Arc<GraphArena>,
    references: Mutex<u64>,
}

/// One capture, and the references to the memory it has allocated.
pub struct Capture {
    shared: Arc<Shared>,
    route: Arc<Route>,
    /// The stream named at its begin; `None` if a filter was given.
    stream: Option<StreamHandle>,
    /// 0 once the capture is gone.
    references: Mutex<u64>,
    /// A layout of what the arena has recorded, made when it is first asked for.
    planned: Mutex<Option<Arc<Span>>>,
}

impl Capture {
    /// Lets `stream`, and any stream forked into its capture, allocate from the capture's arena.
    /// The caller has one reference. On failure nothing is left behind.
    pub fn begin(pool: &Pool, stream: StreamHandle, options: CaptureOptions<'_>) -> Result<Capture> {
        let layout = options.layout.map(|c| c.laid_out(pool)).transpose()?;
        if options.layout.is_some() && options.arena.monotone {
            return Err(Error::invalid("a monotone capture reuses nothing, so it cannot follow a layout; choose one"));
        }
        Capture::start(pool, WhichStreams::Handle(stream), options, layout.as_ref())
    }

    /// Like [`Self::begin`], for the streams of the capture that `stream` is part of at present.
    pub fn begin_in_progress(pool: &Pool, stream: StreamHandle) -> Result<Capture> {
        Capture::start(pool, WhichStreams::CaptureOf(stream), CaptureOptions::default(), None)
    }

    /// Like [`Self::begin`] for streams that a filter accepts.
    pub fn begin_filtered(pool: &Pool, filter: Filter, share: Option<&Capture>) -> Result<Capture> {
        let options = CaptureOptions { share, ..CaptureOptions::default() };
        Capture::start(pool, WhichStreams::Filter(filter), options, None)
    }

    fn start(
        pool: &Pool,
        which: WhichStreams,
        options: CaptureOptions<'_>,
        span: Option<&Arc<Span>>,
    ) -> Result<Capture> {
        let stream = match which {
            WhichStreams::Handle(stream) | WhichStreams::CaptureOf(stream) => Some(stream),
            WhichStreams::Filter(_) => None,
        };
        let shared = match options.share {
            Some(other) => other.shared_for(pool, options.arena)?,
            None => Arc::new(Shared {
                device: pool.device(),
                arena: pool.open_arena(options.arena),
                references: Mutex::new(1),
            }),
        };
        match pool.begin_route(&shared.arena, which, options.bytes, span) {
            Ok(route) => Ok(Capture { shared, route, stream, references: Mutex::new(1), planned: Mutex::new(None) }),
            Err(e) => {
                shared.give_up(pool, 1);
                Err(e)
            }
        }
    }

    /// The arena, with one reference more, for a capture that shares it.
    fn shared_for(&self, pool: &Pool, options: GraphArenaOptions) -> Result<Arc<Shared>> {
        if options != GraphArenaOptions::default() {
            return Err(Error::invalid(
                "a capture that shares another's memory has its flags and its reserve; leave them 0",
            ));
        }
        self.of_this_device(pool)?;
        let mine = lock(&self.references);
        if *mine == 0 {
            return Err(gone());
        }
        *lock(&self.shared.references) += 1;
        Ok(self.shared.clone())
    }

    fn of_this_device(&self, pool: &Pool) -> Result<()> {
        match self.shared.device == pool.device() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "the capture belongs to device {}, the stream to device {}",
                self.shared.device,
                pool.device()
            ))),
        }
    }

    /// The device whose memory it is.
    pub fn device(&self) -> DeviceId {
        self.shared.device
    }

    /// The stream named at its begin; `None` if a filter says which streams it has.
    pub fn stream(&self) -> Option<StreamHandle> {
        self.stream
    }

    /// Ends the capture for good: its streams' allocations are ordinary again.
    pub fn end(&self, pool: &Pool) {
        pool.end_route(&self.route);
    }

    /// Ends the capture, frees its live allocations and drops all its references. Returns the
    /// addresses it has freed.
    pub fn abort(&self, pool: &Pool) -> Vec<u64> {
        let mine = std::mem::take(&mut *lock(&self.references));
        if mine == 0 {
            return Vec::new();
        }
        let freed = pool.abort_route(&self.route);
        self.shared.give_up(pool, mine);
        freed
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.route.is_over()
    }

    /// Takes one more reference.
    pub fn retain(&self) -> Result<()> {
        let mut mine = lock(&self.references);
        if *mine == 0 {
            return Err(gone());
        }
        *mine += 1;
        *lock(&self.shared.references) += 1;
        Ok(())
    }

    /// Drops a reference. Returns whether it was the last, which also ends a capture in progress.
    pub fn release(&self, pool: &Pool) -> Result<bool> {
        let mut mine = lock(&self.references);
        *mine = mine.checked_sub(1).ok_or_else(gone)?;
        let last = *mine == 0;
        drop(mine);
        if last {
            pool.end_route(&self.route);
        }
        self.shared.give_up(pool, 1);
        Ok(last)
    }

    /// Its arena's counters.
    pub fn stats(&self, pool: &Pool) -> CaptureStats {
        CaptureStats { arena: pool.arena_stats(&self.shared.arena), references: *lock(&self.shared.references) }
    }

    /// Lays out what its arena's first stream has recorded. Returns the length of the layout and
    /// the most that was live at one time, both in bytes.
    pub fn plan(&self, pool: &Pool) -> Result<(u64, u64)> {
        *lock(&self.planned) = None;
        let span = self.laid_out(pool)?;
        let peak = pool.arena_lives(&self.shared.arena).first().and_then(Option::as_deref).map_or(0, dry_run::peak);
        Ok((span.bytes, peak))
    }

    fn laid_out(&self, pool: &Pool) -> Result<Arc<Span>> {
        self.of_this_device(pool)?;
        if let Some(span) = &*lock(&self.planned) {
            return Ok(span.clone());
        }
        let lives = pool.arena_lives(&self.shared.arena);
        let Some(first) = lives.into_iter().next().flatten() else {
            return Err(Error::invalid(
                "the capture has recorded nothing: begin it with GPUMEM_CAPTURE_RECORD, and solve before it is released",
            ));
        };
        let span = Arc::new(dry_run::lay_out(&first)?);
        *lock(&self.planned) = Some(span.clone());
        Ok(span)
    }
}

impl Shared {
    /// Drops `count` references. Dropping the last makes the arena's memory ordinary.
    fn give_up(&self, pool: &Pool, count: u64) {
        let mut references = lock(&self.references);
        *references = references.saturating_sub(count);
        let last = *references == 0;
        drop(references);
        if last {
            pool.release_arena(&self.arena);
        }
    }
}

fn gone() -> Error {
    Error::invalid("the capture has been released")
}

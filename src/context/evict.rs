//! Evictable allocations, as callers see them: allocating, holding, moving.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::{Context, Request};
use crate::base::{Error, Result, StreamHandle};
use crate::observe::{Event, Kind};
use crate::pool::{AllocFlags, AllocRequest};
use crate::tier::evict::{Goal, Location, Moved, Progress};
use crate::tier::SpaceId;

/// What is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The allocation that starts here.
    One(u64),
    /// All evictable allocations with this tag.
    Tag(u64),
}

impl Context {
    /// Allocates memory that can be moved elsewhere and back to its addresses.
    pub(super) fn malloc_evictable(&self, req: &Request) -> Result<u64> {
        if req.arena.is_some() {
            return Err(Error::invalid(
                "evictable memory belongs to no arena and lives until it is freed; leave out the arena, or the EVICTABLE flag",
            ));
        }
        self.want_pool("evictable memory needs")?;
        let stream = req.stream.canonical();
        let device = self.device_of(req.device, stream)?;
        let pool = self.pool(device)?;
        let Request { size, align, flags, tag, reservation, .. } = *req;
        let request = AllocRequest { size, align, stream, flags, tag, ..AllocRequest::default() };
        let tiers = self.tiers()?;
        self.collect_graphs();
        pool.meet(stream)?;
        tiers.evictor().malloc(pool, &request, reservation)
    }

    /// Whether a request asks for evictable memory.
    #[inline]
    pub(super) fn is_evictable(req: &Request) -> bool {
        req.flags.has(AllocFlags::EVICTABLE)
    }

    /// Keeps an evictable allocation in its device until it is unheld as often, bringing it back if
    /// need be. Work submitted to any stream after this returns may use it.
    pub fn hold(&self, ptr: u64) -> Result<()> {
        self.collect_graphs();
        self.tiers()?.evictor().hold(ptr)
    }

    /// Ends one hold: all use of the allocation so far has been submitted to `stream`, or is
    /// ordered before it.
    pub fn unhold(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        let tiers = self.tiers()?;
        let stream = match self.pools.len() {
            1 => stream.canonical(),
            _ => self.stream_after(self.owner(ptr, "unhold")?, stream)?,
        };
        tiers.evictor().unhold(ptr, stream)
    }

    /// Moves evictable allocations, and returns when they are there. All use of them so far has
    /// been submitted to `by`, or is ordered before it. `None` means the streams that were named
    /// when they were unheld, or the stream of their allocation. If the progress callback panics,
    /// what has not arrived stays where it was.
    pub fn shift(&self, what: What, goal: Goal, by: Option<StreamHandle>, progress: Option<Progress>) -> Result<Moved> {
        let evictor = self.tiers()?.evictor();
        self.collect_graphs();
        let by = by.map(StreamHandle::canonical).map(|s| Ok((self.home_of(s)?, s))).transpose()?;
        let kind = match goal {
            Goal::Device | Goal::Nearer(_) => Kind::Restore,
            Goal::Lower | Goal::Away(_) => Kind::Evict,
        };
        let event = |moved: &Moved| {
            let (address, tag, device) = match what {
                What::One(ptr) => (ptr, 0, self.info(ptr).map_or(0, |i| i.device.0 as u8)),
                What::Tag(tag) => (0, tag, 0),
            };
            Event { address, tag, device, bytes: moved.bytes, ..Event::new(kind, 0) }
        };
        self.timed(event, || match what {
            What::One(ptr) => evictor.shift(ptr, &goal, by, progress),
            What::Tag(tag) => evictor.shift_tag(tag, &goal, by, progress),
        })
    }

    /// Where an evictable allocation is.
    pub fn location(&self, ptr: u64) -> Result<Location> {
        self.tiers()?.evictor().location(ptr)
    }

    /// Moves what may move automatically out of a space, oldest use first, until it has freed as
    /// many bytes. Returns how many.
    pub fn make_room(&self, space: SpaceId, bytes: u64) -> Result<u64> {
        self.tiers()?.evictor().make_room(space, bytes)
    }
}

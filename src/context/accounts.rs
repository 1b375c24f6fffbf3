//! While the tiers are in use, allocations count in their device's space and draw from
//! reservations.
//!
//! Nothing is counted, and allocating costs nothing more, until a call asks for a space or a
//! reservation. From then on each allocation is drawn first: from the reservation that it names,
//! else from that of its stream, else of its thread, else from outside any. The pool keeps the
//! receipt and drops it when the allocation ends. There are no hits then.
//!
//! Reservations are attached to a stream by its handle, and CUDA gives the handle of a destroyed
//! stream to the next one. The pool notices that when the new stream is first named, and detaches
//! what was attached to the old one. So the pool must know a stream before anything is attached to
//! it or drawn for it. It then knows, too, whether the stream is captured: making room must not end
//! a capture.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::tiers::Tiers;
use super::{Context, Request};
use crate::base::{Error, Result, Status, StreamHandle};
use crate::pool::{AllocRequest, Pool, Resized, Scope, Slip};
use crate::tier::{DrawFrom, Drawn, Reservation};
use std::sync::Arc;

/// A receipt for the pool.
fn slip(drawn: Drawn) -> Slip {
    Slip::new(Box::new(drawn))
}

/// The number that stands for a stream.
fn number(stream: StreamHandle) -> u64 {
    stream.0 as u64
}

impl Context {
    /// Lets allocations on the stream, on the reservation's device, draw from it until it is
    /// released, the stream is detached or its handle is found to stand for another stream. One
    /// handle stands for every thread's own stream (`StreamHandle::PER_THREAD`), as for the legacy
    /// one.
    pub fn attach_stream(&self, reservation: &Reservation, stream: StreamHandle) -> Result<()> {
        let tiers = self.tiers()?;
        let stream = stream.canonical();
        if let Some(device) = tiers.device_of(reservation.in_space()) {
            let pool = self.pool(device)?;
            pool.meet(self.stream_of(pool, stream)?)?;
        }
        reservation.attach_stream(number(stream))
    }

    /// Like `malloc_search_of`, for a request on a device of the pool's, counted.
    pub(super) fn malloc_counted(
        &self,
        tiers: &Tiers,
        pool: &Pool,
        req: &Request,
        scope: Option<&Arc<Scope>>,
    ) -> Result<u64> {
        let Request { size, align, flags, tag, reservation, .. } = *req;
        let stream = req.stream.canonical();
        pool.meet(stream)?;
        let space = tiers.gpu(pool.device())?;
        let bytes = pool.counted_bytes(size, flags);
        let made = tiers.manager().allocate_with(space, reservation, bytes, number(stream), |drawn, spared| {
            let slip = slip(drawn);
            let req = AllocRequest { size, align, stream, flags, tag, scope, slip: Some(&slip), spared };
            pool.malloc_search(&req)
        });
        tiers.evictor().nudge();
        made
    }

    /// Like [`Context::realloc`], counted: in place or not, it draws from the reservation that it
    /// was drawn from while that lives. What moves draws all of its new size: until its copy has
    /// been submitted there are two of it.
    pub(super) fn realloc_counted(
        &self,
        tiers: &Tiers,
        pool: &Pool,
        ptr: u64,
        size: u64,
        stream: StreamHandle,
    ) -> Result<u64> {
        let moving = match pool.realloc_here(ptr, size, stream)? {
            Resized::Here => return Ok(ptr),
            Resized::Not(moving) => moving,
        };
        pool.meet(stream)?;
        let space = tiers.gpu(pool.device())?;
        let bytes = pool.counted_bytes(size, moving.flags);
        let source = moving.source.as_ref().and_then(|source| source.downcast_ref());
        let draw = |from| {
            tiers.manager().allocate_with(space, from, bytes, number(stream), |drawn, spared| {
                let slip = slip(drawn);
                pool.realloc_moving(ptr, size, stream, &moving, (Some(&slip), spared))
            })
        };
        let made = match source.map(|source| draw(DrawFrom::Successor(source))) {
            // What shrinks must not fail because its reservation is full.
            Some(Err(e)) if e.status == Status::OutOfMemory && size <= moving.usable => draw(DrawFrom::Attached),
            Some(made) => made,
            None => draw(DrawFrom::Attached),
        };
        tiers.evictor().nudge();
        made
    }

    /// Refuses a reservation in a request that is not counted: this context has made none.
    pub(super) fn no_reservation(&self, req: &Request) -> Result<()> {
        match req.reservation {
            None => Ok(()),
            Some(r) => Err(Error::invalid(format!(
                "reservation {} of {} is of no space here: nothing is counted yet",
                r.id(),
                r.space()
            ))),
        }
    }

    /// Checks the tiers, and that each device's space counts as used what its pool has counted.
    pub(super) fn validate_accounts(&self) -> Result<()> {
        let Some(tiers) = self.tiers.get() else { return Ok(()) };
        tiers.validate()?;
        self.pools().try_for_each(|pool| {
            let still = pool.hold_still();
            let (counted, used) = (still.counted()?, tiers.gpu(pool.device())?.usage().now());
            match counted <= used {
                true => Ok(()),
                false => Err(Error::internal(format!(
                    "device {}: {counted} bytes are counted and {used} used in its space",
                    pool.device()
                ))),
            }
        })
    }
}

//! The detector of late uses of what arenas have freed, over the process's pools.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::{Context, Request};
use crate::arena::Detector;
use crate::base::{Error, Result, Status};
use crate::driver::Driver;
use crate::pool::AllocFlags;
use std::sync::Arc;

impl Context {
    /// The detector, if there is one.
    #[inline]
    pub fn detector(&self) -> Option<&Arc<Detector>> {
        self.arenas.detector()
    }

    /// Tells the detector that an allocation was made or has grown: what was at its addresses
    /// before no longer matters.
    #[inline]
    pub(super) fn handed_out(&self, ptr: u64) {
        if self.detector().is_some() {
            self.tell_handed_out(ptr);
        }
    }

    #[cold]
    fn tell_handed_out(&self, ptr: u64) {
        if let (Some(detector), Ok(i)) = (self.detector(), self.info(ptr)) {
            detector.handed_out(i.base, i.usable);
        }
    }

    /// Gives up the quarantine: what is kept of what arenas have freed. Returns whether there was
    /// anything.
    pub(super) fn empty_quarantine(&self) -> bool {
        self.detector().is_some_and(|d| d.empty(&self.pools))
    }

    /// Runs `f`, and once more if it found no memory and there was some in quarantine.
    pub(super) fn or_from_quarantine<T>(&self, f: impl Fn() -> Result<T>) -> Result<T> {
        match f() {
            Err(e) if e.status == Status::OutOfMemory && self.empty_quarantine() => f(),
            done => done,
        }
    }

    /// The flags of a request that joins an arena or none: they say whether it needs memory of its
    /// own. While its stream is being captured, or allocates from a capture, it does not get any:
    /// memory that a graph holds must not be unmapped.
    pub(super) fn flags_in(&self, req: &Request, in_arena: bool) -> AllocFlags {
        if !in_arena || !self.detector().is_some_and(|d| d.wants_separate()) {
            return req.flags;
        }
        let stream = req.stream.canonical();
        let captured = self
            .device_of(req.device, stream)
            .and_then(|d| Ok(self.pool(d)?.is_claimed(stream)? || self.driver.stream_is_capturing(d, stream)?));
        match captured {
            Ok(false) => AllocFlags(req.flags.0 | AllocFlags::SEPARATE.0),
            _ => req.flags,
        }
    }

    /// Checks all that is in quarantine now. See [`Detector::verify`].
    pub fn arena_verify(&self) -> Result<()> {
        self.detector().map_or(Ok(()), |d| d.verify(&self.pools))
    }

    /// An error when `ptr` is in memory that an arena's end has freed. See [`Detector::check`].
    pub fn check(&self, ptr: u64, op: &str, operand: &str) -> Result<()> {
        self.detector().map_or(Ok(()), |d| d.check(ptr, op, operand))
    }

    /// An error when the live allocation that contains `ptr` is not the one with this id. NULL is
    /// nothing that could be used. See [`Detector::check_id`].
    pub fn check_id(&self, ptr: u64, id: u64, op: &str, operand: &str) -> Result<()> {
        if ptr == 0 {
            return Ok(());
        }
        let live = || self.pools().find(|p| p.owns(ptr))?.info_containing(ptr).ok().map(|i| i.id);
        self.detector().map_or(Ok(()), |d| d.check_id(ptr, id, live(), op, operand))
    }

    /// What to say about a device error from using unmapped memory. See [`Detector::fault_hint`].
    pub fn fault_hint(&self, e: &Error) -> Option<String> {
        self.detector().filter(|_| self.config.log >= 1)?.fault_hint(e)
    }

    /// An error when an arena's end unmapped a part of the ranges. The driver cannot find that out:
    /// CUDA takes an address where nothing is mapped for a host address, and reads there.
    pub fn check_mapped(&self, ranges: &[(u64, u64)]) -> Result<()> {
        let Some(detector) = self.detector().filter(|d| d.wants_separate()) else { return Ok(()) };
        let found = ranges.iter().find_map(|&(base, bytes)| Some((base, bytes, detector.reclaimed(base, bytes)?)));
        match found {
            None => Ok(()),
            Some((base, bytes, how)) => {
                let text = format!("{bytes} bytes at {base:#x} are not mapped: {base:#x} is in memory {how}");
                Err(Error::new(Status::UseAfterFree, text))
            }
        }
    }

    /// An error about some ranges of memory, with what is known of those that an arena's end freed.
    pub fn explain(&self, mut e: Error, ranges: &[(u64, u64)]) -> Error {
        let Some(detector) = self.detector() else { return e };
        for &(base, bytes) in ranges {
            if let Some(how) = detector.reclaimed(base, bytes) {
                e.message = format!("{} ({base:#x} is in memory {how})", e.message);
            }
        }
        e
    }
}

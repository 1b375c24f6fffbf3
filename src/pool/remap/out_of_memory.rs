//! Requests that no memory is found for: which captures a last wait for it may end, and what the
//! error says.

use crate::base::size::human;
use crate::base::{Error, Status};
use crate::driver::nvtx;
use crate::pool::heap::{Heap, SMALL_MAX};
use crate::pool::order::KnownCapture;
use crate::pool::state::{Pool, Route, WhichStreams};
use crate::pool::streams::capture_key;
use crate::pool::types::AllocRequest;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

impl Pool {
    /// The text for a request that found no memory.
    pub(crate) fn out_of_memory(&self, requested: u64) -> Error {
        nvtx::mark(c"out of memory", requested);
        let (mapped, live, limit) = (self.mapped_now(), self.live_now(), self.limit.load(Relaxed));
        let limits = match limit {
            u64::MAX => "no limit is set".to_string(),
            l => format!("the limit is {}", human(l)),
        };
        let (total, device) = match self.driver.mem_info(self.dev) {
            Ok(m) => (m.total, format!("{} of {} free", human(m.free), human(m.total))),
            Err(e) => (u64::MAX, format!("memory not known ({})", e.message)),
        };
        let least = requested.checked_next_multiple_of(self.page).unwrap_or(u64::MAX);
        let seems_to_fit = requested <= limit.saturating_sub(live) && !self.as_much_is_free(requested);
        let pieces = match self.page > total || seems_to_fit && least > limit.saturating_sub(mapped) {
            true => format!(", and memory is mapped in pieces of {}", human(self.page)),
            false => String::new(),
        };
        // Advises only what would help.
        let advice = match limit {
            _ if requested > total => "It is more than the whole device has: ask for less at a time",
            _ if self.page > total => "Set GPUMEM_PAGE_SIZE to less than the device has",
            l if least > l => "Raise the limit (GPUMEM_LIMIT or the program's own), or ask for less at a time",
            u64::MAX => "Free memory, or ask for less at a time",
            _ => "Free memory, raise the limit (GPUMEM_LIMIT or the program's own), or ask for less at a time",
        };
        let [asked, mapped, live] = [requested, mapped, live].map(human);
        let why = format!(
            "{requested} bytes ({asked}) were requested on device {}; the pool has {mapped} mapped, {live} of it live; \
             {limits}{pieces}; the device has {device}. {advice}",
            self.dev
        );
        Error::new(Status::OutOfMemory, why)
    }

    /// The error for a request that no memory was found for, even by giving free memory back:
    /// `needed` bytes, in `heap`, or dedicated ones.
    pub(crate) fn refusal(&self, heap: Option<&Heap>, requested: u64, needed: u64) -> Error {
        let mut error = self.out_of_memory(requested);
        let of_captures = heap.is_some_and(|h| h.of_captures);
        let hindered = of_captures || self.order.captures.known();
        if let Some(why) = heap.and_then(|_| self.core.lock().no_place.take()) {
            error.message += &format!(". It could not be mapped: {}", why.message);
            return error;
        }
        error.message += match self.as_much_is_free(needed) {
            true if hindered && self.has_unsettled() => {
                ". As much is free, but the device may be using it, and a capture stands in the way of asking: call \
                 gpumem_device_sync, or gpumem_stream_sync for the streams that used it, before the capture or after it"
            }
            true if heap.is_some() && needed <= SMALL_MAX => {
                ". As much is free, but between small allocations, of smaller sizes or on other streams"
            }
            // A capture may not use all that is free.
            true if !of_captures && !self.options.finer && self.unmapped().is_ok_and(|left| left < needed) => {
                ". As much is free, but partly in extents that are in use: GPUMEM_SLACK=tight makes smaller ones"
            }
            _ => "",
        };
        error
    }

    /// Whether as much is free as was requested. After everything that can move was moved and given
    /// back, it waits, or lies beside live blocks.
    pub(crate) fn as_much_is_free(&self, requested: u64) -> bool {
        let free = self.mapped_now().saturating_sub(self.live_now());
        // Less than a page cannot be mapped.
        let left = self.unmapped().unwrap_or(0) / self.page * self.page;
        free > 0 && free.saturating_add(left) >= requested
    }

    /// The captures that a wait for the device heeds before a request for `bytes` fails. All of
    /// them, if less than that is free, if the request is to spare them, or if one is open that
    /// `gpumem_capture_begin` or PyTorch has begun: a context marker would end it, and not even be
    /// recorded. Otherwise none: those that are known may be over since long ago, as their streams
    /// were neither named nor seen since.
    pub(crate) fn heeded(&self, req: &AllocRequest, bytes: u64) -> fn(&KnownCapture) -> bool {
        let routes = self.privates.routes.lock().clone();
        let open = |r: &Arc<Route>| match r.which {
            WhichStreams::Handle(_) => r.key != capture_key(req.stream),
            WhichStreams::Filter(_) => self.order.captures.any(KnownCapture::is_routed),
            // It ends only when its stream is named.
            WhichStreams::CaptureOf(_) => false,
        };
        if routes.iter().any(open) || !self.as_much_is_free(bytes) {
            return |_| true;
        }
        match req.spared {
            Some(spared) => {
                spared.set(self.order.captures.known());
                |_| true
            }
            None => |_| false,
        }
    }

    /// Whether free memory that captures could use is not known to be out of use.
    fn has_unsettled(&self) -> bool {
        self.all_heaps().map(Heap::lock).any(|st| {
            let unsettled = |r| !self.order.settled(st.regions.get(r).tag);
            st.private.is_none() && (st.waiting_bytes > 0 || st.regions.ready_from(self.page).any(unsettled))
        })
    }
}

//! Routes: which streams allocate from which capture arena at present.
//!
//! They are consulted on the way from a handle to a heap, and only while there are any. No thread
//! caches a stream that a route claims, and every cache is void once a route begins or ends.

use crate::base::sync::{AtomicBool, AtomicU64};
use crate::base::{Error, Result, Status, StreamHandle};
use crate::pool::heap::{Heap, Now, Span};
use crate::pool::state::{GraphArena, Pool, Route, Routed, Unclaimed, WhichStreams};
use crate::pool::streams::capture_key;
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

impl Pool {
    /// Lets the streams allocate from the arena from now on, and maps `bytes` for it ahead. With a
    /// layout, large allocations of a single stream go where it has them. On failure nothing has
    /// begun; memory that the arena has got stays its own.
    pub fn begin_route(
        &self,
        arena: &Arc<GraphArena>,
        which: WhichStreams,
        bytes: u64,
        span: Option<&Arc<Span>>,
    ) -> Result<Arc<Route>> {
        let (mut capture, mut key, mut began, mut own) = (0, 0, None, None);
        let captures = &self.order.captures;
        match which {
            WhichStreams::Filter(_) => self.settle_shells(None)?,
            WhichStreams::CaptureOf(stream) => {
                let info = self.driver.capture_info(self.dev, stream)?;
                let info = info.ok_or_else(|| Error::invalid(format!("stream {stream} is not being captured")))?;
                capture = info.id;
                key = capture_key(stream);
                captures.met(key, self.seen_captured(stream), true);
            }
            WhichStreams::Handle(stream) => {
                key = capture_key(stream);
                let now = self.now(stream)?;
                if self.route_of(stream)?.is_some() {
                    return Err(Error::invalid(format!(
                        "stream {stream} allocates from a capture already; end that one first"
                    )));
                }
                match now {
                    // Known before memory is mapped: what makes room for it waits for no context.
                    Now::Captured => _ = captures.met(key, self.seen_captured(stream), true),
                    Now::Idle(_) => {
                        captures.over(|| key);
                        // The capture may use what the stream has freed so far once the device has
                        // passed this.
                        if let Some(lane) = self.registered_lane(stream) {
                            self.order.mark(lane, stream)?;
                        }
                        self.settle_shells(Some(stream))?;
                    }
                }
                let part = self.part_for(arena, stream, now)?;
                self.begin_use(&part, stream, now)?;
                if bytes > 0 {
                    self.map_ahead(&part, stream, bytes)?;
                }
                match span {
                    Some(span) => self.lay_out(&part, stream, span)?,
                    None => part.notes.lock().plan = None,
                }
                (began, own) = (Some(now), Some(part));
            }
        }
        let (over, capture) = (AtomicBool::new(false), AtomicU64::new(capture));
        let number = self.privates.new_identity();
        let route = Arc::new(Route { arena: arena.clone(), which, key, began, over, capture, number });
        let mut routes = self.privates.routes.lock();
        routes.push(route.clone());
        self.privates.route_count.store(routes.len(), Release);
        drop(routes);
        // Only now: the end of the last route closes what was met before.
        let time = match route.which {
            WhichStreams::Filter(_) => 0,
            WhichStreams::Handle(_) if matches!(began, Some(Now::Idle(_))) => captures.announced(key),
            WhichStreams::Handle(stream) | WhichStreams::CaptureOf(stream) => {
                captures.met(key, self.seen_captured(stream), true)
            }
        };
        if let Some(part) = own {
            part.user.lock().met = time;
        }
        captures.forget_places();
        Ok(route)
    }

    /// Announces a capture that is about to begin on the stream: no context marker is recorded from
    /// now on. If it does not begin, pass the result to [`Self::no_capture`].
    pub fn expect_capture(&self, stream: StreamHandle) -> u64 {
        self.order.captures.announced(capture_key(stream))
    }

    /// Takes an announcement back, as that capture did not begin. Does nothing if one was met
    /// since.
    pub fn no_capture(&self, stream: StreamHandle, expected: u64) {
        self.order.captures.gone(capture_key(stream), expected);
    }

    /// The stream's capture has ended.
    pub fn capture_ended(&self, stream: StreamHandle) {
        self.order.captures.over(|| capture_key(stream));
    }

    /// Ends a route: its streams allocate ordinary memory again. Ending it twice is harmless.
    pub fn end_route(&self, route: &Route) {
        if route.over.swap(true, AcqRel) {
            return;
        }
        let captures = &self.order.captures;
        let now = captures.now();
        let mut routes = self.privates.routes.lock();
        routes.retain(|r| !std::ptr::eq(&**r, route));
        let left = routes.len();
        self.privates.route_count.store(left, Release);
        drop(routes);
        captures.forget_places();
        if let WhichStreams::Handle(_) = route.which {
            captures.no_more(route.key, route.capture.load(Acquire) != 0);
        }
        // Also of streams that were forked into a capture, or that a filter accepted. While there
        // is a route, its captures and those of others cannot be told apart.
        if left == 0 {
            captures.close(now);
        }
    }

    /// Ends a route and frees its live allocations. Returns their addresses.
    pub fn abort_route(&self, route: &Route) -> Vec<u64> {
        self.end_route(route);
        self.free_made(route)
    }

    pub(crate) fn end_routes(&self, arena: &GraphArena) {
        let all = self.privates.routes.lock().clone();
        all.iter().filter(|r| std::ptr::eq(&*r.arena, arena)).for_each(|r| self.end_route(r));
    }

    /// Sets the function to call with a captured stream that no route claims. Only the first one
    /// counts.
    pub fn on_unclaimed(&self, f: Unclaimed) {
        let _ = self.unclaimed.set(f);
    }

    /// The latest route that claims a stream, and what the handle stands for now.
    fn route_of(&self, stream: StreamHandle) -> Result<Option<(Arc<Route>, Now)>> {
        let all = self.privates.routes.lock().clone();
        for route in all.into_iter().rev() {
            if let Some(now) = self.claims(&route, stream)? {
                return Ok(Some((route, now)));
            }
        }
        Ok(None)
    }

    /// What a handle stands for now.
    pub(crate) fn now(&self, stream: StreamHandle) -> Result<Now> {
        match self.driver.stream_id(self.dev, stream) {
            Ok(id) => Ok(Now::Idle(id)),
            Err(e) if e.status == Status::Capturing => Ok(Now::Captured),
            Err(e) => Err(e),
        }
    }

    /// What a handle stands for now, if the route claims its stream.
    fn claims(&self, route: &Route, stream: StreamHandle) -> Result<Option<Now>> {
        let same = route.key == capture_key(stream);
        let first = match &route.which {
            WhichStreams::Filter(f) if f(stream) => return self.now(stream).map(Some),
            WhichStreams::Filter(_) => return Ok(None),
            WhichStreams::Handle(mine) => same && *mine == stream,
            WhichStreams::CaptureOf(_) => same,
        };
        let known = route.capture.load(Acquire);
        if !first && known == 0 {
            return Ok(None);
        }
        match self.now(stream)? {
            Now::Captured => Ok(self.is_part(route, stream, first, known)?.then_some(Now::Captured)),
            Now::Idle(_) if !first => Ok(None),
            now if route.began == Some(now) => Ok(Some(now)),
            Now::Idle(_) => {
                // Another stream has the handle by now, or the capture it began in is over.
                self.end_route(route);
                self.order.captures.over(|| route.key);
                Ok(None)
            }
        }
    }

    /// Whether a captured stream is part of the route's capture, whose number is `known`, if not 0.
    fn is_part(&self, route: &Route, stream: StreamHandle, first: bool, known: u64) -> Result<bool> {
        // An invalidated capture has no number any more, but goes on until it is ended.
        let id = match self.driver.capture_info(self.dev, stream) {
            Ok(info) => info.map_or(0, |i| i.id),
            Err(e) if e.status == Status::Capturing || e.status == Status::Unsupported => 0,
            Err(e) => return Err(e),
        };
        Ok(match &route.which {
            // The route's own stream always allocates by it, whichever capture it is in.
            WhichStreams::Handle(_) if first => {
                route.capture.store(id.max(known).max(1), Release);
                true
            }
            _ => known == id || (first && id == 0),
        })
    }

    /// Whether a route claims the stream.
    pub fn is_claimed(&self, stream: StreamHandle) -> Result<bool> {
        Ok(self.privates.route_count.load(Acquire) > 0 && self.route_of(stream)?.is_some())
    }

    /// The heap of a stream that allocates from an arena, and what lets it.
    #[inline]
    pub(crate) fn routed_heap(&self, stream: StreamHandle) -> Result<Option<(&Heap, Routed)>> {
        if self.privates.route_count.load(Acquire) == 0 {
            return Ok(None);
        }
        self.find_routed_heap(stream)
    }

    #[cold]
    fn find_routed_heap(&self, stream: StreamHandle) -> Result<Option<(&Heap, Routed)>> {
        let Some((route, now)) = self.route_of(stream)? else { return Ok(None) };
        match self.part_for(&route.arena, stream, now) {
            Ok(part) => {
                self.use_part(&part, stream, now)?;
                Ok(Some((self.part_heap(&part)?, Routed { route, part })))
            }
            // The arena was released meanwhile.
            Err(_) if route.is_over() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Reports a captured stream that no route claims. Returns its heap if one claims it now.
    pub(crate) fn report_unclaimed(&self, stream: StreamHandle) -> Result<Option<(&Heap, Routed)>> {
        let Some(f) = self.unclaimed.get() else { return Ok(None) };
        f(self, stream)?;
        self.routed_heap(stream)
    }
}

//! What a pool knows of capture arenas: their parts, their routes, and the heaps that released ones
//! left.

use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize};
use crate::base::StreamHandle;
use crate::pool::heap::{Counts, Now, StreamPart};
use crate::pool::types::{Rank, Ranked};
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

/// Identities of lanes that capture arenas use go down from here. No stream has them.
const IDENTITIES: u64 = u64::MAX - 1;

/// How an arena behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphArenaOptions {
    /// Whether nothing is handed out twice before the arena is released.
    pub monotone: bool,
    /// Whether to note how long each large allocation lives.
    pub record: bool,
    /// Addresses to keep for each stream to grow in, bytes; 0 for the usual.
    pub reserve: u64,
}

/// One arena's counters: bytes, unless they are called a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphArenaStats {
    /// Addresses: those mapped, and those kept to grow into.
    pub reserved: u64,
    /// Physical memory.
    pub mapped: u64,
    /// Live bytes, rounding included.
    pub live: u64,
    /// The most that `live` has been.
    pub peak_live: u64,
    /// Bytes handed out so far.
    pub total: u64,
    /// Allocations so far, a count.
    pub allocations: u64,
    /// Length of the layouts in use.
    pub planned: u64,
    /// Large allocations that were not where a layout had them, a count.
    pub deviations: u64,
    /// Streams that have allocated from it, a count.
    pub streams: u64,
}

/// Memory for graphs; made by [`Pool::open_arena`](crate::pool::Pool::open_arena), of no use to
/// another pool.
pub struct GraphArena {
    pub(crate) options: GraphArenaOptions,
    pub(crate) counts: Arc<Counts>,
    pub(crate) parts: Ranked<Vec<Arc<StreamPart>>, { Rank::Arena as u8 }>,
    pub(crate) released: AtomicBool,
}

/// What a pool knows of its arenas.
#[derive(Default)]
pub(crate) struct Privates {
    pub(crate) routes: Ranked<Vec<Arc<Route>>, { Rank::Leaf as u8 }>,
    /// How many there are, to be read without the lock.
    pub(crate) route_count: AtomicUsize,
    /// Heaps of arenas that were released.
    pub(crate) shells: Ranked<Vec<u32>, { Rank::Shells as u8 }>,
    /// Whether what released arenas left may lack a context marker.
    pub(crate) released: AtomicBool,
    /// How many identities its lanes have had.
    identities: AtomicU64,
}

impl Privates {
    /// An identity for a lane that a capture arena uses, or the number of a route: no stream has
    /// it, and nothing else of the pool.
    pub(crate) fn new_identity(&self) -> u64 {
        IDENTITIES - self.identities.fetch_add(1, Relaxed)
    }
}

/// Whether a route claims a stream. Called with no lock held, on the thread that allocates.
pub type Filter = Box<dyn Fn(StreamHandle) -> bool + Send + Sync>;

/// Which streams a route claims.
pub enum WhichStreams {
    /// This stream, captured or not. If the handle is the calling thread's own stream, only that
    /// thread's.
    Handle(StreamHandle),
    /// The streams of the capture that this one is part of.
    CaptureOf(StreamHandle),
    /// The streams the filter accepts.
    Filter(Filter),
}

/// An arena's claim to the allocations of some streams, from
/// [`Pool::begin_route`](crate::pool::Pool::begin_route) to
/// [`Pool::end_route`](crate::pool::Pool::end_route).
pub struct Route {
    pub(crate) arena: Arc<GraphArena>,
    pub(crate) which: WhichStreams,
    /// Tells the stream it began with, unless it has a filter, from others that share its handle.
    pub(crate) key: usize,
    /// If it claims a handle: what that stood for when the route began.
    pub(crate) began: Option<Now>,
    pub(crate) over: AtomicBool,
    /// The capture its stream was seen to be part of, 0 before. That capture's other streams are
    /// claimed, too.
    pub(crate) capture: AtomicU64,
    /// No other route of the pool has it.
    pub(crate) number: u64,
}

impl Route {
    /// Whether it has ended. It also ends without a call, once its handle stands for another
    /// stream, or once the capture it began in is over.
    pub fn is_over(&self) -> bool {
        self.over.load(Acquire)
    }
}

/// What lets a stream allocate from an arena: a route, and the stream's part of the arena. While a
/// thread holds it, no other arena gets the part's heaps, even if this one is released.
pub(crate) struct Routed {
    pub(crate) route: Arc<Route>,
    pub(crate) part: Arc<StreamPart>,
}

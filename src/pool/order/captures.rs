//! The captures the pool knows of.
//!
//! A context marker invalidates every capture in progress, so none is recorded while one is known,
//! except as a last resort. CUDA tells of a capture only for a stream that is named. So a capture
//! is known from the first call that names a stream being captured until a call finds it no longer
//! captured. One that is begun through gpumem is announced, and known from just before it begins.
//!
//! Where the driver shows which stream a handle names ([`Watch`]), nobody has to name it again: the
//! pool looks each time before it records a context marker. A stream that it sees alive and not
//! being captured stands in no marker's way. It is remembered all the same, as it may be captured
//! again. Of a stream that is gone nothing is seen: it may have been forked into a capture that
//! goes on without it.

use crate::base::sync::{Apart, AtomicU64, AtomicUsize};
use crate::base::StreamHandle;
use crate::driver::Watch;
use crate::pool::types::{Rank, Ranked};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// What is known of the capture of a stream.
#[derive(Clone, Copy)]
pub(crate) struct KnownCapture {
    /// When it was last met or announced, by [`Captures::met`].
    time: u64,
    /// The identity of the stream that was last met, if the watch shows it; the key is its handle
    /// then.
    identity: Option<u64>,
    /// Whether it was announced and is not known to be over: it, or another one of the same route,
    /// may be yet to begin.
    announced: bool,
    /// Whether the stream was being captured when it was last named.
    met: bool,
    /// Whether it was then named for a route.
    routed: bool,
    /// Whether all routes have ended since.
    closed: bool,
}

impl KnownCapture {
    /// Whether no call has said yet that the capture is over. A route's end says so, once no route
    /// is left.
    pub(crate) fn is_open(&self) -> bool {
        self.announced || !self.closed
    }

    /// Whether it is open, and was last named for a route.
    pub(crate) fn is_routed(&self) -> bool {
        self.routed && self.is_open()
    }
}

/// The most streams that are remembered although they are not being captured.
const REMEMBERED: usize = 64;

/// What is known of each stream, by a key the caller chooses.
pub(crate) type KnownCaptures = HashMap<usize, KnownCapture>;

/// The captures known.
#[derive(Default)]
pub(crate) struct Captures {
    /// How to see that a capture is over.
    watch: Watch,
    /// How many entries `keys` has, to be read without its lock.
    count: AtomicUsize,
    /// Counts changes that make threads ask anew which heap is a stream's.
    changes: AtomicU64,
    /// Streams that were being captured when they were last named, or whose capture was announced.
    /// While this is locked, nobody learns of a capture; a context marker is recorded under it.
    pub(super) keys: Apart<Ranked<KnownCaptures, { Rank::Captures as u8 }>>,
    /// The latest time in `keys`, counted from 1.
    clock: AtomicU64,
}

impl Captures {
    /// None so far; the ends of captures show by this watch.
    pub(crate) fn new(watch: Watch) -> Captures {
        Captures { watch, ..Captures::default() }
    }

    /// Notes that a context marker was recorded, after [`Self::any_of`] has found none that `heed`
    /// accepts. So no capture that is known is in progress. Those announced may begin later, and of
    /// the others, streams that are seen are remembered, unless there are many: each look costs
    /// microseconds.
    pub(crate) fn marked(&self, keys: &mut KnownCaptures, heed: fn(&KnownCapture) -> bool) {
        let many = keys.len() > REMEMBERED;
        let seen = |key, known: &KnownCapture| match heed(known) {
            true => known.identity.is_some(),
            false => self.is_idle(key, known).is_some(),
        };
        keys.retain(|&key, known| known.announced || (!many && seen(key, known)));
        self.count.store(keys.len(), Relaxed);
    }

    /// Notes that the host has waited for the device, which was refused if anything was being
    /// captured at `time`. Streams that are gone are in no capture then. The others may have begun
    /// another one since.
    pub(crate) fn waited(&self, time: u64) {
        let gone = |key, known: &KnownCapture| known.identity.is_some() && self.is_idle(key, known).is_none();
        self.change(|keys| keys.retain(|&key, known| known.announced || known.time > time || !gone(key, known)));
    }

    /// Notes that the stream with this `key` is being captured, and whether it is named for a
    /// route; with its identity, if the watch shows that and the capture. Until it is found not to
    /// be, context markers are recorded only as a last resort: they would fail, and take the
    /// capture with them. Returns the time, for [`Self::gone`].
    pub(crate) fn met(&self, key: usize, identity: Option<u64>, routed: bool) -> u64 {
        self.learn(key, false, identity, routed)
    }

    /// Like [`Self::met`], for a stream whose capture may begin at any moment from now on.
    pub(crate) fn announced(&self, key: usize) -> u64 {
        self.learn(key, true, None, true)
    }

    fn learn(&self, key: usize, announced: bool, identity: Option<u64>, routed: bool) -> u64 {
        let mut keys = self.keys.lock();
        let time = self.clock.fetch_add(1, Relaxed) + 1;
        let before = keys.get(&key).copied();
        let met = !announced || before.is_some_and(|k| k.met);
        let identity = if announced { before.and_then(|k| k.identity) } else { identity };
        let announced = announced || before.is_some_and(|k| k.announced);
        keys.insert(key, KnownCapture { time, identity, announced, met, routed, closed: false });
        if before.is_none() {
            self.forget_places();
        }
        self.count.store(keys.len(), Relaxed);
        time
    }

    /// Changes what is known.
    fn change(&self, change: impl FnOnce(&mut KnownCaptures)) {
        let mut keys = self.keys.lock();
        change(&mut keys);
        self.count.store(keys.len(), Relaxed);
    }

    /// Forgets the capture of the stream with this `key`, unless one was met or announced after
    /// `time`. What was captured there is gone; the stream may be captured all the same, as may any
    /// that no call names.
    pub(crate) fn gone(&self, key: usize, time: u64) {
        self.change(|keys| {
            if keys.get(&key).is_some_and(|known| known.time <= time) {
                keys.remove(&key);
            }
        });
    }

    /// Notes that no capture is to begin any more on the stream with this `key`; one that was met,
    /// or that the caller has `seen`, may be in progress.
    pub(crate) fn no_more(&self, key: usize, seen: bool) {
        self.change(|keys| match keys.get_mut(&key) {
            Some(known) if known.met || seen => known.announced = false,
            _ => drop(keys.remove(&key)),
        });
    }

    /// The time of the latest capture that was met or announced.
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// Notes that no route is left: what routes named up to `time` is no longer open. It may be in
    /// progress still, and stays known.
    pub(crate) fn close(&self, time: u64) {
        let mut keys = self.keys.lock();
        keys.values_mut().filter(|known| known.routed && known.time <= time).for_each(|known| known.closed = true);
    }

    /// Makes threads ask again for what they know of streams and their heaps.
    pub(crate) fn forget_places(&self) {
        self.changes.fetch_add(1, Relaxed);
    }

    /// How often a capture was met so far, or began or ended to have heaps of its own. What a
    /// thread learnt of a stream at an earlier number has to be asked again.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Whether a capture is known that may be in progress, or may begin.
    pub(crate) fn known(&self) -> bool {
        self.any(|_| true)
    }

    /// Whether a capture is known that `heed` accepts and that may be in progress, or may begin.
    pub(crate) fn any(&self, heed: fn(&KnownCapture) -> bool) -> bool {
        !self.is_empty() && self.any_of(&self.keys.lock(), heed)
    }

    /// Like [`Self::any`], under the lock of `keys`.
    pub(crate) fn any_of(&self, keys: &KnownCaptures, heed: fn(&KnownCapture) -> bool) -> bool {
        keys.iter().any(|(&key, known)| heed(known) && (known.announced || self.is_idle(key, known) != Some(true)))
    }

    /// Whether the stream that was met is not being captured; `None` unless it is seen to be alive.
    fn is_idle(&self, key: usize, known: &KnownCapture) -> Option<bool> {
        known.identity.and_then(|id| self.watch.idle(StreamHandle(key), id))
    }

    /// Whether no stream is remembered either.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Notes that the stream with this `key` is not being captured.
    #[inline]
    pub(crate) fn over(&self, key: impl FnOnce() -> usize) {
        if !self.is_empty() {
            self.gone(key(), u64::MAX);
        }
    }
}

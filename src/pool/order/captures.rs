//! Which captures the pool knows of.
//!
//! A context marker invalidates every capture in progress, so none is recorded while one is known,
//! but as a last resort. CUDA tells of a capture only for a stream that is named; so a capture is
//! known from the first call that names a stream being captured to the next that names it when it
//! is not; one that is begun through gpumem is announced, and known from just before it begins.

use crate::base::sync::{lock, Apart, AtomicU64, AtomicUsize};
use crate::pool::types::{Rank, Ranked, RankedGuard};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// What is known of the capture of a stream.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    /// The number of the time when it was last met or announced.
    time: u64,
    /// It was announced, and is not over as far as is known: it, or another one of the same route,
    /// may be yet to begin.
    announced: bool,
}

/// Of each stream, by a number of the caller's.
pub(crate) type KnownCaptures = HashMap<usize, Known>;

/// The captures known.
pub(crate) struct Captures {
    /// How many entries `keys` has, to be read without its lock.
    count: AtomicUsize,
    /// How often something changed that makes threads ask anew which heap is a stream's.
    changes: AtomicU64,
    /// Streams that were being captured when they were last named, or of which that was announced.
    keys: Apart<Ranked<KnownCaptures>>,
    /// Times that `keys` name so far, from 1.
    met: AtomicU64,
}

impl Default for Captures {
    fn default() -> Captures {
        Captures {
            count: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            keys: Apart(Ranked::new(Rank::Captures, HashMap::new())),
            met: AtomicU64::new(0),
        }
    }
}

impl Captures {
    /// Keeps others from learning of captures.
    pub(crate) fn lock(&self) -> RankedGuard<'_, KnownCaptures> {
        lock(&*self.keys)
    }

    /// The same, for a thread that takes everything: see [`Ranked::lock_among_others`].
    pub(crate) fn lock_among_others(&self) -> RankedGuard<'_, KnownCaptures> {
        self.keys.lock_among_others()
    }

    /// No capture is in progress. Those that have only been announced may begin later.
    pub(crate) fn none(&self, keys: &mut KnownCaptures) {
        keys.retain(|_, known| known.announced);
        self.count.store(keys.len(), Relaxed);
    }

    /// A stream, known to the caller as `key`, was found to be captured. No context marker is
    /// recorded, but as a last resort, until it is found not to be any more: the marker would fail,
    /// and take the capture with it. Returns the number of this time, for [`Self::gone`].
    pub(crate) fn met(&self, key: usize) -> u64 {
        self.learn(key, false)
    }

    /// The same for a stream whose capture may begin at any moment from now on.
    pub(crate) fn announced(&self, key: usize) -> u64 {
        self.learn(key, true)
    }

    fn learn(&self, key: usize, announced: bool) -> u64 {
        let mut keys = self.lock();
        let time = self.met.fetch_add(1, Relaxed) + 1;
        let before = keys.get(&key).copied();
        let announced = announced || before.is_some_and(|k| k.announced);
        keys.insert(key, Known { time, announced });
        if before.is_none() {
            self.forget_places();
        }
        self.count.store(keys.len(), Relaxed);
        time
    }

    /// What was captured on the stream known as `key` is gone, and no call has named it while it
    /// was being captured, or announced that, since the one that was given `time`. So it is not
    /// taken for one that is being captured any more. It may be, as may any stream that no call
    /// names.
    pub(crate) fn gone(&self, key: usize, time: u64) {
        let mut keys = self.lock();
        if keys.get(&key).is_some_and(|known| known.time <= time) {
            keys.remove(&key);
        }
        self.count.store(keys.len(), Relaxed);
    }

    /// No capture is to begin any more on the stream known as `key`; one may be in progress.
    pub(crate) fn no_more(&self, key: usize) {
        if let Some(known) = self.lock().get_mut(&key) {
            known.announced = false;
        }
    }

    /// What threads know of streams and their heaps has to be asked again.
    pub(crate) fn forget_places(&self) {
        self.changes.fetch_add(1, Relaxed);
    }

    /// How often a capture was met so far, or began or ended to have heaps of its own: what is
    /// known of a stream since an earlier number has to be asked again.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Whether a capture was met or announced whose end has not been seen.
    #[inline]
    pub(crate) fn known(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// The stream known as `key` is not being captured.
    #[inline]
    pub(crate) fn over(&self, key: impl FnOnce() -> usize) {
        if self.known() {
            let mut keys = self.lock();
            keys.remove(&key());
            self.count.store(keys.len(), Relaxed);
        }
    }
}

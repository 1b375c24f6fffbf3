//! A driver that counts the calls made through it, and refuses those of gpumem's own threads once
//! the process exits.

use super::exit;
use super::wrap::{Hook, Observer, Step, Wrap};
use super::{Call, Driver};
use crate::base::{DeviceId, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Threads are spread over this many stripes. Up to this many count without sharing a cache line.
const STRIPES: usize = 64;

/// One thread's share of the counters. The alignment keeps neighbours' stripes off each other's
/// lines, and off the line that the processor fetches along with its own.
#[repr(align(128))]
struct Stripe([AtomicU64; Call::COUNT]);

/// Counts calls, failed ones included, by kind.
pub struct Counter {
    stripes: Arc<[Stripe]>,
    observer: Arc<OnceLock<Arc<dyn Observer>>>,
    device: DeviceId,
}

/// A driver that counts the calls made through it, failed ones included.
pub type Counted = Wrap<Counter>;

fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let mine = MINE.get();
    if mine != usize::MAX {
        return mine;
    }
    let mine = NEXT.fetch_add(1, Relaxed) % STRIPES;
    MINE.set(mine);
    mine
}

impl Hook for Counter {
    #[inline]
    fn before(&self, call: Call) -> Result<()> {
        exit::check()?;
        if let Some(s) = self.stripes.get(stripe()) {
            s.0[call as usize].fetch_add(1, Relaxed);
        }
        Ok(())
    }

    #[inline]
    fn device(&self) -> DeviceId {
        self.device
    }

    #[inline]
    fn begins(&self) -> Option<Instant> {
        self.observer.get().filter(|o| o.is_on()).map(|_| Instant::now())
    }

    fn stepped(&self, step: &Step) {
        if let Some(observer) = self.observer.get() {
            observer.step(step);
        }
    }
}

impl Wrap<Counter> {
    /// Wraps `inner` and counts the calls made to it.
    pub fn new(inner: Arc<dyn Driver>) -> Counted {
        let stripes = (0..STRIPES).map(|_| Stripe([const { AtomicU64::new(0) }; Call::COUNT])).collect();
        Wrap::around(inner, Counter { stripes, observer: Arc::default(), device: DeviceId(0) })
    }

    /// The same driver, counter and observer, for a caller of one device: what it unmaps and
    /// releases, which names no device, is of that one.
    pub fn of_device(&self, device: DeviceId) -> Counted {
        let Counter { stripes, observer, .. } = &self.hook;
        let hook = Counter { stripes: stripes.clone(), observer: observer.clone(), device };
        Wrap::around(self.inner().clone(), hook)
    }

    /// Tells `observer` of each call that changes addresses or memory. Only the first observer is
    /// used.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.hook.observer.set(observer);
    }

    /// Calls of one kind so far.
    pub fn count(&self, call: Call) -> u64 {
        self.hook.stripes.iter().map(|s| s.0[call as usize].load(Relaxed)).sum()
    }

    /// Calls so far by name, for every kind, in the order of the trait. Calls in flight may be
    /// missing.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        Call::ALL.into_iter().map(|c| (c.name(), self.count(c))).collect()
    }

    /// Sets every count to 0. Calls made meanwhile may or may not stay counted.
    pub fn reset(&self) {
        self.hook.stripes.iter().flat_map(|s| &s.0).for_each(|n| n.store(0, Relaxed));
    }
}

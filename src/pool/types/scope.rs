//! A scope: allocations that are freed together, for the arenas of [`crate::arena`].
//!
//! The pool knows only which allocations belong to a scope. Each heap lists its own of them
//! (`heap/members.rs`) under its own lock, so joining and leaving cost no further lock. That lock,
//! which decides every free, also decides whether an allocation is freed by its owner, by a
//! finalizer or with its scope.

use crate::base::sync::{AtomicBool, AtomicU64};
use crate::pool::types::ranks::{Rank, Ranked};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;

/// A set of allocations, of any heaps, pools and streams.
#[derive(Debug)]
pub struct Scope {
    /// The number its owner gave it.
    number: u64,
    /// Where an allocation goes that would join this scope when it is closed.
    parent: Option<Arc<Scope>>,
    /// Whether its allocations look freed to users, and are only kept from being handed out again.
    reclaimed: bool,
    /// Set under the lock of `state`, and read under a heap's too: a walk of a heap's list after it
    /// was set finds everything that joined there before.
    closed: AtomicBool,
    /// Requested bytes of what is in it, and the most there have been.
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    state: Ranked<Inner, { Rank::Scope as u8 }>,
}

/// What a scope's lock guards. Only leaf locks come later.
#[derive(Debug, Default)]
struct Inner {
    /// Pool and heap of each list of this scope.
    heaps: Vec<(u64, u32)>,
    /// Pool, id and address of dedicated allocations.
    dedicated: BTreeSet<(u64, u64, u64)>,
    /// Of dedicated allocations, and of lists that are gone.
    past: ScopeCounts,
}

/// What happened in a scope so far, counts of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopeCounts {
    /// Allocations that joined.
    pub joined: u64,
    /// Allocations that left: freed one by one, or moved elsewhere.
    pub left: u64,
}

impl ScopeCounts {
    pub(crate) fn add(&mut self, other: ScopeCounts) {
        self.joined += other.joined;
        self.left += other.left;
    }
}

impl Scope {
    /// An empty scope with a number of its owner's. What would join it after it is closed joins the
    /// parent, if there is one and it is open, and so on.
    pub fn new(number: u64, parent: Option<Arc<Scope>>) -> Arc<Scope> {
        Scope::make(number, parent, false)
    }

    /// A scope for allocations that look freed to everyone while they are kept from being handed
    /// out.
    pub fn of_reclaimed() -> Arc<Scope> {
        Scope::make(0, None, true)
    }

    fn make(number: u64, parent: Option<Arc<Scope>>, reclaimed: bool) -> Arc<Scope> {
        Arc::new(Scope {
            number,
            parent,
            reclaimed,
            closed: AtomicBool::new(false),
            live_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            state: Ranked::default(),
        })
    }

    /// The number its owner gave it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where allocations go that would join when this is closed.
    pub fn parent(&self) -> Option<&Arc<Scope>> {
        self.parent.as_ref()
    }

    pub(crate) fn is_of_reclaimed(&self) -> bool {
        self.reclaimed
    }

    /// Lets nothing join any more. `Pool::free_scope` finds everything that joined before.
    pub fn close(&self) {
        let _st = self.state.lock();
        self.closed.store(true, Release);
    }

    /// Whether [`Self::close`] was called.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// Requested bytes of what is in it.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Relaxed)
    }

    /// The most that [`Self::live_bytes`] has been.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Relaxed)
    }

    /// Counts that are in no pool's lists (see `Pool::scope_counts`): of dedicated allocations, and
    /// of lists that are gone.
    pub fn past(&self) -> ScopeCounts {
        self.state.lock().past
    }

    #[inline]
    pub(crate) fn grow(&self, bytes: u64) {
        let live = self.live_bytes.fetch_add(bytes, Relaxed) + bytes;
        // Mostly false: the peak is far behind.
        if live > self.peak_bytes.load(Relaxed) {
            self.peak_bytes.fetch_max(live, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn shrink(&self, bytes: u64) {
        self.live_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Notes that a heap begins a list of its allocations of this scope. `false` when the scope is
    /// closed.
    pub(crate) fn add_heap(&self, pool: u64, heap: u32) -> bool {
        let mut st = self.state.lock();
        let open = !self.is_closed();
        if open {
            st.heaps.push((pool, heap));
        }
        open
    }

    /// Notes that a list from [`Self::add_heap`] is gone; what it had counted stays known.
    pub(crate) fn remove_heap(&self, pool: u64, heap: u32, counts: ScopeCounts) {
        let mut st = self.state.lock();
        st.heaps.retain(|&h| h != (pool, heap));
        st.past.add(counts);
    }

    /// Enters a dedicated allocation. `false` if the scope is closed.
    pub(crate) fn add_dedicated(&self, pool: u64, addr: u64, id: u64, bytes: u64) -> bool {
        let mut st = self.state.lock();
        if self.is_closed() {
            return false;
        }
        st.dedicated.insert((pool, id, addr));
        st.past.joined += 1;
        drop(st);
        self.grow(bytes);
        true
    }

    /// Removes a dedicated allocation.
    pub(crate) fn remove_dedicated(&self, pool: u64, addr: u64, id: u64, bytes: u64) {
        let mut st = self.state.lock();
        st.dedicated.remove(&(pool, id, addr));
        st.past.left += 1;
        drop(st);
        self.shrink(bytes);
    }

    /// The heaps of one pool that list allocations of this scope.
    pub(crate) fn heaps(&self, pool: u64) -> Vec<u32> {
        self.state.lock().heaps.iter().filter(|h| h.0 == pool).map(|h| h.1).collect()
    }

    /// The dedicated allocations of one pool that are in this scope: address and id.
    pub(crate) fn dedicated(&self, pool: u64) -> Vec<(u64, u64)> {
        let of_pool = (pool, 0, 0)..=(pool, u64::MAX, u64::MAX);
        self.state.lock().dedicated.range(of_pool).map(|d| (d.2, d.1)).collect()
    }
}

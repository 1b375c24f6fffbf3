//! The order in which a thread takes locks, checked in debug builds.

use crate::base::sync::{lock, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// What a lock guards. A thread that waits for a lock holds none of the same rank or a later one. A
/// lock that is only tried may be taken at any time, as that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Changes in several steps: shared by those who make them, or alone to look at everything.
    Changing,
    /// The parts of a capture arena.
    Arena,
    /// The user of a part.
    User,
    /// What the routes of an arena have allocated.
    Made,
    /// The heaps of a part or of an arena.
    PartHeaps,
    /// The registry of streams.
    Streams,
    /// The heaps that released arenas left.
    Shells,
    /// A heap.
    Heap,
    /// Addresses, and memory of no heap.
    Core,
    /// A lane's markers.
    Markers,
    /// The captures known.
    Captures,
    /// The context's markers.
    Context,
    /// Spare events.
    Spare,
    /// What is in a scope.
    Scope,
    /// No lock is taken under these.
    Leaf,
}

/// Records in debug builds that this thread has a lock, until dropped.
#[derive(Debug)]
pub(crate) struct RankHeld {
    #[cfg(all(debug_assertions, not(loom)))]
    rank: Rank,
}

#[cfg(all(debug_assertions, not(loom)))]
mod held {
    use super::Rank;
    use std::cell::Cell;

    const RANKS: usize = Rank::Leaf as usize + 1;

    thread_local! {
        /// How many locks of each rank the thread has.
        static HELD: Cell<[u16; RANKS]> = const { Cell::new([0; RANKS]) };
    }

    /// The latest rank that the thread has a lock of, if it is `rank` or later.
    pub(super) fn from(rank: Rank) -> Option<usize> {
        let held = HELD.try_with(Cell::get).unwrap_or([0; RANKS]);
        (rank as usize..RANKS).rev().find(|&r| held.get(r).is_some_and(|&n| n > 0))
    }

    /// Counts one more, or one less. Does nothing on a thread that is ending.
    pub(super) fn count(rank: Rank, more: bool) {
        let _ = HELD.try_with(|h| {
            let mut held = h.get();
            if let Some(n) = held.get_mut(rank as usize) {
                *n = if more { n.wrapping_add(1) } else { n.wrapping_sub(1) };
            }
            h.set(held);
        });
    }
}

impl Rank {
    /// All of them, each at its number.
    const ALL: [Rank; Rank::Leaf as usize + 1] = {
        use Rank::*;
        [
            Changing, Arena, User, Made, PartHeaps, Streams, Shells, Heap, Core, Markers, Captures, Context, Spare,
            Scope, Leaf,
        ]
    };

    /// Notes that the thread is about to wait for a lock of this rank.
    #[inline(always)]
    pub(crate) fn wait(self) -> RankHeld {
        #[cfg(all(debug_assertions, not(loom)))]
        if let Some(later) = held::from(self) {
            debug_assert!(std::thread::panicking(), "waits for {self:?} while it holds a lock of rank {later}");
        }
        self.taken()
    }

    /// Notes that the thread has taken a lock of this rank without waiting, or while all others are
    /// kept out.
    #[inline(always)]
    pub(crate) fn taken(self) -> RankHeld {
        #[cfg(all(debug_assertions, not(loom)))]
        held::count(self, true);
        RankHeld {
            #[cfg(all(debug_assertions, not(loom)))]
            rank: self,
        }
    }
}

const _: () = {
    let mut number = 0;
    while number < Rank::ALL.len() {
        assert!(Rank::ALL[number] as usize == number);
        number += 1;
    }
};

#[cfg(all(debug_assertions, not(loom)))]
impl Drop for RankHeld {
    fn drop(&mut self) {
        held::count(self.rank, false);
    }
}

/// A lock with a rank, given as a number.
#[derive(Debug, Default)]
pub(crate) struct Ranked<T, const RANK: u8>(Mutex<T>);

/// Access to what a lock with a rank guards: the guard of the lock itself, and a note of its rank.
#[derive(Debug)]
pub(crate) struct Guard<G> {
    pub(crate) guard: G,
    pub(crate) _held: RankHeld,
}

/// Access to what a [`Ranked`] guards.
pub(crate) type RankedGuard<'a, T> = Guard<MutexGuard<'a, T>>;

impl<T, const RANK: u8> Ranked<T, RANK> {
    const RANK: Rank = Rank::ALL[RANK as usize];

    pub(crate) fn new(value: T) -> Self {
        Ranked(Mutex::new(value))
    }

    /// Takes the lock.
    #[inline]
    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        let held = Self::RANK.wait();
        Guard { guard: lock(&self.0), _held: held }
    }

    /// Takes the lock, perhaps while holding others of its rank or a later one: for a thread that
    /// takes all of them, one after the other, when no other thread ever has two.
    pub(crate) fn lock_among_others(&self) -> RankedGuard<'_, T> {
        Guard { guard: lock(&self.0), _held: Self::RANK.taken() }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    #[inline(always)]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;

    type OfHeap = Ranked<u32, { Rank::Heap as u8 }>;
    type OfCore = Ranked<u32, { Rank::Core as u8 }>;

    #[test]
    fn locks_in_order_and_tried_ones_are_fine() {
        let (heap, core) = (OfHeap::new(1), OfCore::new(2));
        let one = heap.lock();
        let tried = Rank::Heap.taken();
        let two = core.lock();
        assert_eq!((*one, *two), (1, 2));
        drop((one, tried, two));
        drop(heap.lock());
    }

    #[test]
    #[should_panic(expected = "waits for Heap")]
    fn a_lock_out_of_order_is_caught() {
        let (heap, core) = (OfHeap::new(0), OfCore::new(0));
        let _core = core.lock();
        let _heap = heap.lock();
    }

    #[test]
    #[should_panic(expected = "waits for Core")]
    fn two_of_one_rank_are_caught() {
        let (a, b) = (OfCore::new(0), OfCore::new(0));
        let _a = a.lock();
        let _b = b.lock();
    }
}

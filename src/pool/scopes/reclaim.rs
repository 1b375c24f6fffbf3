//! Operations on a scope as a whole: freeing its allocations, or moving them to another scope.

use crate::base::{Error, Result, Status};
use crate::pool::heap::{Heap, HeapState, Known, Place};
use crate::pool::state::Pool;
use crate::pool::types::{AllocInfo, Scope, ScopeCounts};
use std::sync::Arc;

/// Allocations freed under one hold of a heap's lock, for which other threads wait some tens of
/// microseconds.
const AT_A_TIME: usize = 1024;

/// This many of them are looked at before the first one is freed.
const TOGETHER: usize = 16;

/// What has been freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Allocations.
    pub count: u64,
    /// Requested bytes.
    pub bytes: u64,
}

impl Pool {
    /// Frees all of a closed scope that is in this pool, each allocation in the order of the stream
    /// it was allocated on. An allocation that another thread frees meanwhile is freed once, by the
    /// first. It cannot fail half-way: a later call makes up for what is left undone.
    pub fn free_scope(&self, scope: &Scope) -> Reclaimed {
        let mut all = Reclaimed::default();
        for heap in self.heaps_with(scope) {
            while self.free_some(heap, scope, &mut all) {}
        }
        let dedicated = self.hold_scope(scope);
        self.free_held(&dedicated);
        all.count += dedicated.len() as u64;
        all.bytes += dedicated.iter().map(|d| d.0.requested).sum::<u64>();
        all
    }

    /// The heaps that list allocations of the scope.
    fn heaps_with(&self, scope: &Scope) -> impl Iterator<Item = &Heap> {
        scope.heaps(self.number).into_iter().filter_map(|n| self.heap(n))
    }

    /// Drops a heap's list of the scope, if it is empty.
    fn drop_list(&self, st: &mut HeapState, scope: &Scope) {
        if let Some(counts) = st.members.drop_list(scope) {
            scope.remove_heap(self.number, st.number, counts);
        }
    }

    /// Frees some of a scope's allocations in one heap. Returns whether there may be more.
    fn free_some(&self, heap: &Heap, scope: &Scope, all: &mut Reclaimed) -> bool {
        let mut st = heap.lock_quick();
        self.bring_up_to_date(&mut st);
        let mut users: Vec<u32> = Vec::new();
        let (mut more, mut size) = (true, 0);
        let mut places = [Place::Block { region: 0 }; TOGETHER];
        for _ in 0..AT_A_TIME / TOGETHER {
            // A pass before the frees, so that what they need is fetched from memory all at once,
            // not one after the other.
            let (n, bytes) = st.pop_members(scope, &mut places);
            all.count += n as u64;
            all.bytes += bytes;
            for &place in places.iter().take(n) {
                if let Some(bytes) = self.give_up_quickly(&mut st, place) {
                    size += bytes;
                    continue;
                }
                let freed = self.give_up(&mut st, place, None);
                size += freed.size;
                for user in freed.users {
                    if !users.contains(&user) {
                        users.push(user);
                    }
                }
            }
            if n < TOGETHER {
                self.drop_list(&mut st, scope);
                more = false;
                break;
            }
        }
        self.end_free(&mut st);
        drop(st);
        self.mark_users(&users);
        if self.options.trim_threshold > 0 {
            self.trim_above_threshold(heap, size, None);
        }
        more
    }

    /// Like [`Self::give_up`] in the order of the allocation's own stream, for nearly all: those
    /// that were not recorded on other streams, and whose heap is no capture's and still has the
    /// stream they were allocated on. Returns the bytes freed.
    #[inline]
    fn give_up_quickly(&self, st: &mut HeapState, place: Place) -> Option<u64> {
        if !st.users.is_empty() || st.private.is_some() {
            return None;
        }
        let Known { size, inherited, .. } = st.at(place);
        (!inherited && self.take_back_plain(st, place, true, None)).then_some(size)
    }

    /// Moves the pooled allocations of a closed scope to another one, and returns them, newest
    /// first. Dedicated ones stay, and without `captures` those in the memory of captures.
    pub fn move_scope(&self, scope: &Scope, to: &Arc<Scope>, captures: bool) -> Vec<AllocInfo> {
        let mut moved = Vec::new();
        for heap in self.heaps_with(scope) {
            let mut st = heap.lock_quick();
            if st.private.is_some() && !captures {
                continue;
            }
            while let Some((_, place)) = st.members.last_of(scope) {
                moved.push(st.info(place, self.dev, self.order.stream(heap.lane)));
                st.move_to(Some(to), place, self.number);
            }
            self.drop_list(&mut st, scope);
        }
        moved
    }

    /// Frees an allocation that [`Self::move_scope`] took out of use.
    pub fn free_reclaimed(&self, ptr: u64, id: u64) -> Result<()> {
        match self.look(ptr) {
            Ok(found) => self.free_found(found, None, Some(id)).map(drop),
            Err(_) => Err(Error::new(Status::UnknownPointer, format!("{ptr:#x} is not in use any more"))),
        }
    }

    /// What has happened to a scope in this pool so far, without what [`Scope::past`] counts.
    pub fn scope_counts(&self, scope: &Scope) -> ScopeCounts {
        let mut counts = ScopeCounts::default();
        for heap in self.heaps_with(scope) {
            counts.add(heap.lock_quick().members.counts(scope));
        }
        counts
    }
}

//! What is in a pool, piece by piece, for tools. Each heap is read at one moment, and handed on
//! with no lock held.

use crate::pool::heap::{Heap, Place, State};
use crate::pool::order::Tag;
use crate::pool::state::Pool;
use crate::pool::types::{AllocInfo, Scope};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// What a range of addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// A live allocation.
    Live,
    /// Small objects: bytes of each, how many are live, how many there is room for.
    Slab(u64, u32, u32),
    /// Free, and usable by the heap's own stream; `true` if also by every other.
    Free(bool),
    /// Freed on another stream, which has not passed the free yet.
    Waiting,
    /// Nothing is mapped.
    Hole,
    /// Old addresses of memory that has moved.
    Old,
    /// An allocation with physical memory of its own.
    Dedicated,
    /// An evictable allocation whose memory was given up.
    Evicted,
    /// A freed dedicated allocation that the device may still use.
    Leaving,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// What it is.
    pub is: Is,
    /// What else is known, for dumps.
    pub(crate) about: About,
}

/// What is known of a piece besides what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Nothing,
    /// When it was last used.
    Used(Tag),
    Block(AllocInfo),
    /// Physical bytes, there or elsewhere.
    Mapped(u64),
    Says(&'static str),
}

/// A live allocation, a small one too.
#[derive(Clone, Debug)]
pub struct Alive {
    /// Facts about it.
    pub info: AllocInfo,
    /// The scope it is in.
    pub scope: Option<Arc<Scope>>,
}

/// One heap at one moment, or what belongs to no heap.
#[derive(Clone, Debug, Default)]
pub struct HeapView {
    /// The heap's number. `None` for dedicated allocations and addresses of no heap.
    pub number: Option<u32>,
    /// The stream's handle as it was last named.
    pub stream: u64,
    /// In address order within a span.
    pub pieces: Vec<Piece>,
    /// Physical memory: address and bytes.
    pub extents: Vec<(u64, u64)>,
    /// The live allocations in it.
    pub alive: Vec<Alive>,
}

impl Pool {
    /// Calls `f` with each heap, and last with what belongs to no heap. Other threads go on, so
    /// each view is of one moment, but not all of the same one.
    pub fn walk(&self, f: &mut dyn FnMut(HeapView)) {
        for heap in self.all_heaps() {
            let stream = self.order.stream(heap.lane);
            let mut view = HeapView { number: Some(heap.number), stream: stream.0 as u64, ..HeapView::default() };
            // Room is made before the lock is taken: under it there is only copying.
            view.alive.reserve(4096);
            {
                let st = heap.lock();
                for (r, g) in st.regions.iter() {
                    let (is, about) = match g.state {
                        State::Live => (Is::Live, About::Block(st.info(Place::Block { region: r }, self.dev, stream))),
                        State::Ready | State::Quick => (Is::Free(self.order.settled(g.tag)), About::Used(g.tag)),
                        State::Waiting => (Is::Waiting, About::Used(g.tag)),
                        State::Slab | State::Vacant | State::Edge => continue,
                    };
                    view.pieces.push(Piece { address: g.addr, bytes: g.size, is, about });
                }
                for (_, s) in st.slabs.iter() {
                    let bytes = st.regions.try_get(s.region).map_or(0, |g| g.size);
                    let is = Is::Slab(s.size, s.used, s.capacity);
                    view.pieces.push(Piece { address: s.base, bytes, is, about: About::Nothing });
                }
                view.alive.extend(
                    st.live()
                        .filter(|&place| !st.is_reclaimed(place))
                        .map(|place| Alive { info: st.info(place, self.dev, stream), scope: st.scope_at(place) }),
                );
                view.extents.extend(st.extents.iter().map(|(a, e)| (a, e.size)));
                let (address, bytes) = (st.kept.0, st.kept.1 - st.kept.0);
                view.pieces.extend((bytes > 0).then_some(Piece {
                    address,
                    bytes,
                    is: Is::Hole,
                    about: About::Nothing,
                }));
            }
            view.pieces.sort_unstable_by_key(|p| p.address);
            f(view);
        }
        f(self.without_heap());
    }

    /// Each heap's number, stream, live and free bytes, as published: without its lock.
    pub fn heap_sizes(&self) -> Vec<(u32, u64, u64, u64)> {
        let sizes =
            |h: &Heap| (h.number, self.order.stream(h.lane).0 as u64, h.live.load(Relaxed), h.free.load(Relaxed));
        self.all_heaps().map(sizes).collect()
    }

    /// Whether there is a heap that all streams share (`remap/shared_heap.rs`).
    pub fn has_shared_heap(&self) -> bool {
        self.shared_heap().is_some()
    }

    fn without_heap(&self) -> HeapView {
        let mut view = HeapView::default();
        let core = self.core.lock();
        let mut add = |address, bytes, is, about| view.pieces.push(Piece { address, bytes, is, about });
        core.holes.iter().for_each(|(a, l)| add(a, l, Is::Hole, About::Nothing));
        core.aliases.iter().for_each(|(a, l, tag)| add(a, l, Is::Old, About::Used(tag)));
        core.zombies.iter().for_each(|&(a, l)| add(a, l, Is::Old, About::Says("never used")));
        let grave = |held| if held { "dedicated, freed, addresses kept" } else { "dedicated, freed" };
        core.graves.values().for_each(|g| add(g.va, g.reserved, Is::Leaving, About::Says(grave(g.held))));
        for d in core.dedicated.values() {
            let is = if d.handle.is_some() { Is::Dedicated } else { Is::Evicted };
            view.pieces.push(Piece { address: d.va, bytes: d.reserved, is, about: About::Mapped(d.mapped) });
            view.extents.extend(d.handle.map(|_| (d.va, d.mapped)));
            view.alive.push(Alive { info: d.info, scope: d.scope.clone() });
        }
        view.pieces.sort_unstable_by_key(|p| p.address);
        view
    }
}

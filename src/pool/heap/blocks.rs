//! Handing out and taking back a heap's blocks and objects, and the regions under its slabs.

use crate::pool::heap::members::{Place, NO_MEMBER};
use crate::pool::heap::region::{Block, State, GRANULE};
use crate::pool::heap::slab;
use crate::pool::heap::state::HeapState;
use crate::pool::heap::waiting::Item;
use crate::pool::memory::{Entry, Index, SLOT};
use crate::pool::order::{Order, Tag, CONTEXT};

impl HeapState {
    /// Makes a live region a block and gives it its place in the index.
    #[inline(always)]
    pub(crate) fn hand_out(&mut self, region: u32, block: Block, index: &Index) -> u64 {
        let number = self.number;
        let r = self.regions.get_mut(region);
        r.state = State::Live;
        let (addr, size) = (r.addr, r.size);
        *self.regions.block_mut(region) = block;
        self.note_handed_out(size, block.requested);
        index.block_begins(addr, size, Entry::Block { heap: number, region });
        addr
    }

    /// Counts the free of a live block, and removes it from its scope and the index. Returns the
    /// bytes that were requested.
    #[inline(always)]
    pub(crate) fn block_leaves(&mut self, region: u32, index: &Index) -> u64 {
        let r = self.regions.get(region);
        let (addr, size) = (r.addr, r.size);
        let Block { requested, member, .. } = *self.regions.block(region);
        self.note_freed(size, requested);
        if member != NO_MEMBER {
            self.members.leave(member, requested);
        }
        index.block_ends(addr, size);
        requested
    }

    /// Takes a small object, and returns its address, too; `None` when the class has no free one.
    #[inline(always)]
    pub(crate) fn take_object(&mut self, class: usize, requested: u64) -> Option<(Place, u64)> {
        let id = self.new_id();
        let taken = self.slabs.alloc(class, requested, id)?;
        self.note_handed_out(slab::class_size(class), requested);
        Some(taken)
    }

    /// Changes the requested bytes of an object that is large enough for them.
    pub(crate) fn resize_object(&mut self, slab: u32, number: u32, requested: u64) {
        let before = self.slabs.resize(slab, number, requested);
        self.members.resized(self.at(Place::Object { slab, number }).member, before, requested);
        self.requested_bytes = self.requested_bytes + requested - before;
    }

    /// Keeps the caller's tag of a small object.
    #[inline]
    pub(crate) fn note_tag(&mut self, addr: u64, tag: u64) {
        if tag != 0 {
            self.user_tags.insert(addr, tag);
        }
    }

    /// Frees the regions of all empty slabs.
    pub(crate) fn drop_empty_slabs(&mut self, order: &Order, index: &Index) {
        while let Some(slab) = self.slabs.find_empty() {
            self.drop_slab(slab, order, index);
        }
    }

    /// A live region for a slab of fewer objects than usual, as large as there is.
    pub(crate) fn cut_for_short_slab(&mut self, class: usize) -> Option<u32> {
        let least = slab::class_size(class).next_multiple_of(SLOT);
        let most = self.regions.largest_ready().min(slab::slab_size(class) - 1);
        (least / SLOT..=most / SLOT).rev().find_map(|slots| self.cut_for(slots * SLOT, SLOT))
    }

    /// Makes a slab over a live region that `cut_for` gave for it.
    pub(crate) fn add_slab(&mut self, class: usize, region: u32, index: &Index) {
        let (addr, size) = (self.regions.get(region).addr, self.regions.get(region).size);
        self.regions.get_mut(region).state = State::Slab;
        // The rest of a slot is not the slab's in the index, so no object may lie there.
        let slab = self.slabs.add(class, (addr, size / SLOT * SLOT), region);
        index.set_range(addr, size, Entry::Slab { heap: self.number, slab });
    }

    /// Frees an empty slab's region as of its last use. The heap's stream may have it at once, or
    /// if the heap has changed hands since, once the context has passed that use.
    pub(crate) fn drop_slab(&mut self, slab: u32, order: &Order, index: &Index) {
        let idle = self.slabs.try_get(slab).map_or(Tag::SETTLED, |s| s.idle);
        let region = self.slabs.remove(slab);
        let (addr, size) = (self.regions.get(region).addr, self.regions.get(region).size);
        index.set_range(addr, size, Entry::Empty);
        match idle.lane() {
            CONTEXT if !order.settled(idle) => self.wait_for(region, &[idle]),
            CONTEXT => _ = self.regions.make_ready(region, Tag::SETTLED),
            _ => _ = self.regions.make_ready(region, idle),
        }
    }

    /// Takes back a live block or object, which is free once every tag has settled.
    pub(crate) fn take_back(&mut self, place: Place, tags: &[Tag], order: &Order, index: &Index) {
        match place {
            Place::Block { region } => {
                self.block_leaves(region, index);
                self.wait_for(region, tags);
            }
            Place::Object { slab, number } => {
                if self.object_leaves(slab, number) {
                    self.slabs.free_later(slab, number, || order.tag(self.lane));
                    self.waiting.enqueue(Item::Object { slab, number }, tags);
                }
            }
        }
    }

    /// Takes back a live block or object that was used and freed in the order of the heap's own
    /// stream. It is free at once. `tag` gives a tag of that order, and is called for a block only.
    #[inline(always)]
    pub(crate) fn take_back_own(&mut self, place: Place, tag: impl FnOnce() -> Tag, order: &Order, index: &Index) {
        match place {
            Place::Block { region } => {
                let tag = tag();
                let requested = self.block_leaves(region, index);
                if let Some(old) = self.regions.make_quick(region, requested.max(SLOT).next_multiple_of(GRANULE), tag) {
                    self.regions.join(old);
                }
            }
            Place::Object { slab, number } => {
                if self.object_leaves(slab, number) && self.slabs.free(slab, number, || order.tag(self.lane)) {
                    self.drop_slab(slab, order, index);
                }
            }
        }
    }

    /// Counts the free of a live object, and removes it from its scope and from `user_tags`.
    /// `false` if there is no such slab.
    #[inline(always)]
    fn object_leaves(&mut self, slab: u32, number: u32) -> bool {
        let Some(s) = self.slabs.try_get(slab) else { return false };
        let (size, addr, object) = (s.size, s.addr_of(number), s.object(number));
        let requested = u64::from(object.requested);
        self.note_freed(size, requested);
        if !self.user_tags.is_empty() {
            self.user_tags.remove(&addr);
        }
        if object.member != NO_MEMBER {
            self.members.leave(object.member, requested);
        }
        true
    }
}

//! Large blocks: regions handed out and taken back.

use crate::pool::heap::members::NO_MEMBER;
use crate::pool::heap::region::{Block, State, GRANULE};
use crate::pool::heap::state::HeapState;
use crate::pool::memory::{Entry, Index, SLOT};
use crate::pool::order::Tag;

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
        index.set(addr, Entry::Block { heap: number, region });
        addr
    }

    /// Takes back a live block that was used and freed in the order of the heap's own stream: it is
    /// free at once. `tag` is that order's.
    #[inline(always)]
    pub(crate) fn take_back_own_block(&mut self, region: u32, tag: Tag, index: &Index) {
        let requested = self.block_leaves(region, index);
        if let Some(old) = self.regions.make_quick(region, requested.max(SLOT).next_multiple_of(GRANULE), tag) {
            self.regions.join(old);
        }
    }

    /// Counts the free of a live block, and forgets what is known about it beside its region;
    /// returns how many bytes were asked for.
    #[inline(always)]
    pub(crate) fn block_leaves(&mut self, region: u32, index: &Index) -> u64 {
        let r = self.regions.get(region);
        let (addr, size) = (r.addr, r.size);
        let Block { requested, member, .. } = *self.regions.block(region);
        self.note_freed(size, requested);
        if member != NO_MEMBER {
            self.members.leave(member, requested);
        }
        index.set(addr, Entry::Freed { offset: addr % SLOT });
        requested
    }
}

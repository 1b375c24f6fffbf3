//! Allocation from one locked heap: a small object or a block, from ready memory or by search.

use crate::base::{Error, Result, Status};
use crate::pool::heap::{block_size, slab, HeapState, Locked, GRANULE, SMALL_MAX};
use crate::pool::memory::SLOT;
use crate::pool::remap::others::Obtained;
use crate::pool::state::Pool;
use crate::pool::types::{too_large, AllocRequest, Want, SMALL_MIN};

impl Pool {
    /// Allocates from a locked heap of the request's stream.
    pub(crate) fn malloc_in(&self, mut st: Locked<'_>, req: &AllocRequest, align: u64) -> Result<u64> {
        if req.size <= SMALL_MAX && align <= SLOT {
            let class = match align {
                SMALL_MIN => slab::class_of(req.size),
                _ => slab::aligned_class(req.size, align).ok_or_else(|| too_large(req.size))?,
            };
            return match self.take_object(&mut st, class, req) {
                Some(addr) => Ok(addr),
                None => self.malloc_small_slow(st, class, req),
            };
        }
        let want = Want::new(block_size(req.size)?, align.max(GRANULE), (req.stream, st.lane));
        if let Some(r) = st.take_region(want.size, want.align) {
            return Ok(self.finish_block(&mut st, r, req, want.lane));
        }
        self.malloc_large_slow(st, want, req)
    }

    /// Takes a small object, if the class has a free one. Returns its address.
    #[inline]
    pub(crate) fn take_object(&self, st: &mut HeapState, class: usize, req: &AllocRequest) -> Option<u64> {
        let (place, addr) = st.take_object(class, req.size)?;
        st.note_tag(addr, req.tag);
        st.admit(req, place, self.number);
        Some(addr)
    }

    #[cold]
    fn malloc_small_slow(&self, mut st: Locked<'_>, class: usize, req: &AllocRequest) -> Result<u64> {
        st.regions.tidy();
        self.poll_and_settle(&mut st)?;
        let heap = st.heap();
        let want = Want::new(st.slabs.next_size(class), SLOT, (req.stream, st.lane));
        let want = Want { class: Some(class), ..want };
        match self.find_region(st, want, req) {
            Ok((mut st, Obtained::Region(region))) => {
                st.add_slab(class, region, &self.index);
                let taken = self.take_object(&mut st, class, req);
                taken.ok_or_else(|| Error::internal("a fresh slab has no free object"))
            }
            Ok((_, Obtained::Made(addr))) => Ok(addr),
            Err(e) if e.status == Status::OutOfMemory => {
                // Less than a slab may be left, and others lend blocks and objects, but no slabs.
                let want = Want { size: SLOT, align: req.align.max(GRANULE), ..want };
                self.malloc_large_slow(heap.lock(), want, req)
            }
            Err(e) => Err(e),
        }
    }

    #[cold]
    fn malloc_large_slow(&self, mut st: Locked<'_>, want: Want, req: &AllocRequest) -> Result<u64> {
        self.poll_and_settle(&mut st)?;
        match self.find_region(st, Want { for_block: true, ..want }, req)? {
            (mut st, Obtained::Region(r)) => Ok(self.finish_block(&mut st, r, req, want.lane)),
            (_, Obtained::Made(addr)) => Ok(addr),
        }
    }
}

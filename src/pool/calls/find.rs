//! Finding the live allocation that starts at a pointer, or contains it, and what is known about
//! it.

use crate::base::{Error, Result, Status};
use crate::pool::heap::{Known, Locked, Place, State};
use crate::pool::memory::{Entry, SLOT};
use crate::pool::state::{Core, Pool};
use crate::pool::types::{AllocInfo, RankedGuard};

/// A live allocation, with the lock that keeps it alive.
pub(crate) enum Found<'a> {
    Pooled { st: Locked<'a>, place: Place },
    Dedicated { core: RankedGuard<'a, Core>, info: AllocInfo },
}

/// Why no live allocation starts at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    Unknown,
    /// The latest one to start here was freed.
    Freed,
}

impl Found<'_> {
    pub(crate) fn is_reclaimed(&self) -> bool {
        match self {
            Found::Pooled { st, place } => st.is_reclaimed(*place),
            Found::Dedicated { .. } => false,
        }
    }
}

impl Pool {
    /// Finds a live allocation that starts at `ptr` and locks its heap.
    pub(crate) fn find(&self, ptr: u64, verb: &str) -> Result<Found<'_>> {
        let how = match self.look(ptr) {
            Ok(found) if !found.is_reclaimed() => return Ok(found),
            Ok(_) => Some("was freed by the exit of its arena"),
            Err(Lost::Freed) => Some("was freed already"),
            Err(Lost::Unknown) => None,
        };
        if let Some(how) = how {
            let text = format!("{verb}: {ptr:#x} {how} and has not been handed out since");
            return Err(Error::new(Status::DoubleFree, text));
        }
        let text = match self.info_containing(ptr) {
            Ok(AllocInfo { base, .. }) => {
                format!("{verb}: {ptr:#x} is {} bytes inside the allocation at {base:#x}; pass its start", ptr - base)
            }
            Err(_) => format!("{verb}: {ptr:#x} is not a live allocation of device {}", self.dev),
        };
        Err(Error::new(Status::UnknownPointer, text))
    }

    pub(crate) fn look(&self, ptr: u64) -> std::result::Result<Found<'_>, Lost> {
        // The index is read without a lock. Its answer is checked under the heap's lock, and read
        // again if it has changed.
        for _ in 0..64 {
            let entry = self.index.get(ptr);
            match entry {
                Entry::Block { heap, .. } | Entry::Slab { heap, .. } => {
                    let Some(heap) = self.heap(heap) else { break };
                    let st = heap.lock_quick();
                    if let Some((place, _)) = st.find(entry, ptr) {
                        return Ok(Found::Pooled { st, place });
                    }
                    if let Entry::Slab { slab, .. } = entry {
                        let starts = st.slabs.try_get(slab).is_some_and(|s| s.object_at(ptr).is_some());
                        if starts && self.index.get(ptr) == entry {
                            return Err(Lost::Freed);
                        }
                    }
                }
                Entry::Dedicated => {
                    let core = self.core.lock();
                    let info = core.dedicated.get(&ptr).map(|d| d.info);
                    return info.map(|info| Found::Dedicated { core, info }).ok_or(Lost::Unknown);
                }
                Entry::Freed { offset } if offset == ptr % SLOT => return Err(Lost::Freed),
                _ => break,
            }
            if self.index.get(ptr) == entry {
                break;
            }
        }
        Err(Lost::Unknown)
    }

    /// Facts about the allocation that starts at `ptr`.
    pub fn info(&self, ptr: u64) -> Result<AllocInfo> {
        Ok(self.info_of(&self.find(ptr, "look-up")?))
    }

    /// Facts about the live allocation that contains `ptr`.
    pub fn info_containing(&self, ptr: u64) -> Result<AllocInfo> {
        Ok(self.info_of(&self.around(ptr)?))
    }

    fn info_of(&self, found: &Found<'_>) -> AllocInfo {
        match found {
            Found::Pooled { st, place } => st.info(*place, self.dev, self.order.stream(st.lane)),
            Found::Dedicated { info, .. } => *info,
        }
    }

    /// The live allocation that contains `ptr`.
    pub(crate) fn around(&self, ptr: u64) -> Result<Found<'_>> {
        self.dedicated_around(ptr).or_else(|| self.pooled_around(ptr)).ok_or_else(|| {
            Error::new(Status::UnknownPointer, format!("{ptr:#x} is in no live allocation of device {}", self.dev))
        })
    }

    fn dedicated_around(&self, ptr: u64) -> Option<Found<'_>> {
        let core = self.core.lock();
        let info = core.dedicated.range(..=ptr).next_back()?.1.info;
        (ptr - info.base < info.usable).then_some(Found::Dedicated { core, info })
    }

    /// The live block or object around `ptr`, which may point into the middle of it.
    ///
    /// The index is read without a lock, and again under the lock of the heap it names. If both
    /// answers agree, the heap's regions match them. So a live allocation is found, whatever is
    /// freed and handed out beside it.
    fn pooled_around(&self, ptr: u64) -> Option<Found<'_>> {
        loop {
            let nearest = || self.index.find_back(ptr);
            let entry = nearest()?;
            let st = entry.heap().and_then(|n| self.heap(n))?.lock();
            if nearest() != Some(entry) {
                continue;
            }
            let place = match entry {
                Entry::Block { region, .. } => {
                    // The slot of `ptr` may hold the start of a later block, with free regions in
                    // front of it.
                    let mut at = region;
                    while st.regions.try_get(at).is_some_and(|r| r.addr > ptr && r.state != State::Edge) {
                        at = st.regions.get(at).prev;
                    }
                    st.regions.try_get(at).filter(|r| r.state == State::Live).map(|_| Place::Block { region: at })
                }
                Entry::Slab { slab, .. } => {
                    let s = st.slabs.try_get(slab).filter(|s| s.base <= ptr);
                    let number = s.and_then(|s| s.object_containing(ptr).filter(|&n| s.is_live(n)));
                    number.map(|number| Place::Object { slab, number })
                }
                _ => None,
            };
            let place = place.filter(|&p| !st.is_reclaimed(p))?;
            let Known { addr, size, .. } = st.at(place);
            return (addr <= ptr && ptr - addr < size).then_some(Found::Pooled { st, place });
        }
    }
}

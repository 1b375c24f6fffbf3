//! Free extents of heaps: what could move, and taking it out of its heap.

use crate::pool::heap::{HeapState, Locked};
use crate::pool::memory::{AliasId, Extent, Mapped};
use crate::pool::order::Tag;
use crate::pool::state::Pool;
use std::collections::BTreeMap;

/// Heaps whose locks are held while their extents move.
pub(crate) type Others<'a> = BTreeMap<u32, Locked<'a>>;

impl Pool {
    /// Wholly free extents of a heap, outside the anchor, in regions that `usable` accepts.
    pub(crate) fn sources(&self, st: &HeapState, anchor: Option<u32>, usable: impl Fn(Tag) -> bool) -> Vec<Source> {
        if st.private.is_some() {
            return Vec::new();
        }
        let mut all = Vec::new();
        for r in st.regions.ready_from(self.page).filter(|&r| Some(r) != anchor) {
            let region = st.regions.get(r);
            if !region.barren.get() && usable(region.tag) {
                let others = all.len();
                all.extend(sources_in(st, r));
                region.barren.set(all.len() == others);
            }
        }
        all
    }

    /// Moves the free extents that tile `[start, end)` of a region from their heap to another one,
    /// where they are: nothing is mapped or unmapped. They are ready there.
    pub(crate) fn hand_on(&self, from: &mut HeapState, to: &mut HeapState, region: u32, (start, end): (u64, u64)) {
        let tag = from.regions.get(region).tag;
        let extents: Vec<(u64, Mapped)> = from.extents.within(start, end).collect();
        take_out(from, region, (start, end));
        from.note_taken();
        let r = to.regions.add(start, end - start);
        to.extents.insert_all(start, end, extents);
        to.regions.make_ready(r, if self.order.settled(tag) { Tag::SETTLED } else { tag });
    }

    /// Moves all extents that lie wholly in a free region to another heap, as [`Self::hand_on`].
    pub(crate) fn hand_on_all(&self, from: &mut HeapState, to: &mut HeapState, region: u32) {
        let g = from.regions.get(region);
        if let Some(tiled) = from.extents.tiled(g.addr, g.end()) {
            self.hand_on(from, to, region, tiled);
        }
    }
}

/// The extents that lie wholly in a free region, by address.
pub(crate) fn sources_in(st: &HeapState, region: u32) -> impl Iterator<Item = Source> + '_ {
    let g = st.regions.get(region);
    let neighbours = [g.prev, g.next].map(|r| i32::from(!st.regions.is_edge(r))).iter().sum();
    st.extents.within(g.addr, g.end()).map(move |(addr, Mapped { extent, place })| Source {
        heap: st.number,
        region,
        region_size: g.size,
        neighbours,
        addr,
        extent,
        place,
        tag: g.tag,
    })
}

/// Their bytes together.
pub(crate) fn bytes_of<'a>(sources: impl IntoIterator<Item = &'a Source>) -> u64 {
    sources.into_iter().map(|s| s.extent.size).sum()
}

/// Takes the extents that tile `[start, end)` of a free region out of their heap, and that part of
/// the region. The caller tells the table of aliases, and the heap that memory was taken.
#[inline]
pub(crate) fn take_out(from: &mut HeapState, region: u32, (start, end): (u64, u64)) {
    from.extents.remove_all(start, end);
    from.regions.take_out(region, start, end);
}

/// A wholly free extent that could move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The heap it is in.
    pub(crate) heap: u32,
    /// The free region around it, and that region's size.
    pub(crate) region: u32,
    pub(crate) region_size: u64,
    /// On how many sides that region has another one next to it, which may join it one day.
    pub(crate) neighbours: i32,
    pub(crate) addr: u64,
    pub(crate) extent: Extent,
    /// Its place in the table of aliases.
    pub(crate) place: AliasId,
    /// When the region was last used.
    pub(crate) tag: Tag,
}

impl Source {
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.extent.size
    }
}

//! The stock: physical memory that the pool holds, with no address but dormant aliases.
//!
//! A heap that has run low and starts afresh (`remap/fresh_start.rs`) puts its free extents here.
//! What it needs next is made up from them in the sizes in which it would be created, chosen for
//! the requests that come.

use crate::pool::memory::extent::{ladder, Extent};
use crate::pool::order::{Order, Tag};
use std::collections::BTreeMap;

/// How many entries of extents that have gone the lists may have, however short they are.
const SPARE: usize = 64;

/// Extents without an address, and when they were last used.
///
/// Invariants: `bytes` is the sum of the sizes of those that are here, `len` their number; each of
/// them has exactly one entry in the class of its size, with its stamp; `entries` counts those of
/// all classes, at most twice `len` and a few.
#[derive(Default)]
pub(crate) struct Stock {
    /// By the extent's number.
    slots: Vec<Option<Slot>>,
    /// Size → its extents, by number and stamp, the latest last. An extent that is taken leaves its
    /// entry behind.
    classes: BTreeMap<u64, Vec<(u32, u64)>>,
    entries: usize,
    bytes: u64,
    len: usize,
    stamp: u64,
    /// The least that `bytes` has been since [`Self::take_unused`].
    least: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    extent: Extent,
    tag: Tag,
    stamp: u64,
}

/// What a run is made of besides moved extents: extents out of the stock with their last use, and
/// sizes to create.
#[derive(Debug, Default)]
pub(crate) struct Supply {
    pub(crate) stocked: Vec<(Extent, Tag)>,
    pub(crate) create: Vec<u64>,
}

impl Stock {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn put(&mut self, extent: Extent, tag: Tag) {
        self.forget_gone();
        let i = extent.id as usize;
        self.stamp += 1;
        if self.slots.len() <= i {
            self.slots.resize(i + 1, None);
        }
        self.slots[i] = Some(Slot { extent, tag, stamp: self.stamp });
        self.classes.entry(extent.size).or_default().push((extent.id, self.stamp));
        self.entries += 1;
        self.bytes += extent.size;
        self.len += 1;
    }

    fn slot(&self, number: u32) -> Option<&Slot> {
        self.slots.get(number as usize)?.as_ref()
    }

    /// When an extent here was last used.
    pub(crate) fn tag(&self, extent: Extent) -> Option<Tag> {
        // Numbers are reused: another extent may have this one by now.
        self.slot(extent.id).filter(|s| s.extent == extent).map(|s| s.tag)
    }

    /// Takes this extent, if it is here.
    pub(crate) fn take_this(&mut self, extent: Extent) -> Option<(Extent, Tag)> {
        let tag = self.tag(extent)?;
        self.slots[extent.id as usize] = None;
        self.len -= 1;
        self.bytes -= extent.size;
        self.least = self.least.min(self.bytes);
        Some((extent, tag))
    }

    /// The extent of an entry, if it has been here ever since.
    fn current(&self, &(number, stamp): &(u32, u64)) -> Option<&Slot> {
        self.slot(number).filter(|s| s.stamp == stamp)
    }

    /// Forgets the entries of extents that have gone, once there are many.
    fn forget_gone(&mut self) {
        if self.entries <= 2 * self.len + SPARE {
            return;
        }
        let mut classes = std::mem::take(&mut self.classes);
        classes.values_mut().for_each(|entries| entries.retain(|e| self.current(e).is_some()));
        self.entries = classes.values().map(Vec::len).sum();
        self.classes = classes;
    }

    /// The latest extent of a size whose tag `usable` accepts.
    fn find(&self, size: u64, usable: &impl Fn(Tag) -> bool) -> Option<Extent> {
        let entries = self.classes.get(&size)?;
        entries.iter().rev().filter_map(|e| self.current(e)).find(|s| usable(s.tag)).map(|s| s.extent)
    }

    /// Makes up the planned `sizes` for `lane`: extents of just these sizes, then any that fit into
    /// what is left, then the smallest that covers the rest, and only then new ones. What a
    /// captured lane finds of its own is from earlier captures of its handle, as what is ready in
    /// its heap may be; no private heap puts anything here.
    pub(crate) fn supply(&mut self, sizes: &[u64], page: u64, largest: u64, lane: u32, order: &Order) -> Supply {
        let mut supply = Supply::default();
        if self.len == 0 {
            supply.create = sizes.to_vec();
            return supply;
        }
        self.forget_gone();
        let usable = |t: Tag| order.settled(t) || order.own(t, lane);
        let mut left = 0;
        for &size in sizes {
            match self.find(size, &usable).and_then(|e| self.take_this(e)) {
                Some(found) => supply.stocked.push(found),
                None => left += size,
            }
        }
        while left > 0 && self.len > 0 {
            let fits = self.classes.range(..=left).rev().find_map(|(&size, _)| self.find(size, &usable));
            let covers = || self.classes.range(left..).find_map(|(&size, _)| self.find(size, &usable));
            let Some(found) = fits.or_else(covers).and_then(|e| self.take_this(e)) else { break };
            left = left.saturating_sub(found.0.size);
            supply.stocked.push(found);
        }
        supply.create = ladder(left, page, largest);
        supply
    }

    /// Bytes that have been here all the time since the last call of this.
    pub(crate) fn take_unused(&mut self) -> u64 {
        std::mem::replace(&mut self.least, self.bytes)
    }

    /// Every extent in stock.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Extent, Tag)> + '_ {
        self.slots.iter().flatten().map(|s| (s.extent, s.tag))
    }

    /// Lanes whose progress decides when extents here become usable by everyone.
    pub(crate) fn lanes(&self, order: &Order) -> std::collections::BTreeSet<u32> {
        self.iter().filter(|x| !order.settled(x.1)).map(|x| x.1.lane()).collect()
    }

    /// Checks the invariants written above.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let bytes: u64 = self.iter().map(|x| x.0.size).sum();
        let listed = |e: Extent| {
            let entries = self.classes.get(&e.size).into_iter().flatten();
            entries.filter(|x| x.0 == e.id && self.current(x).is_some()).count()
        };
        ensure!(self.iter().all(|(e, _)| listed(e) == 1), "an extent in stock is not listed once by its size");
        let entries: usize = self.classes.values().map(Vec::len).sum();
        ensure!(entries == self.entries, "the stock has {entries} entries, {} counted", self.entries);
        let right = (bytes, self.iter().count()) == (self.bytes, self.len);
        ensure!(right, "the stock has {bytes} bytes, {} recorded", self.bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::{DeviceId, StreamHandle};
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::{PhysHandle, Watch};
    use proptest::prelude::*;

    const P: u64 = 2 << 20;

    fn order() -> Order {
        Order::new(HostDriver::new(HostOptions::default()).unwrap(), DeviceId(0), 4, Watch::Ask)
    }

    fn stock(pages: &[u64]) -> Stock {
        let mut s = Stock::default();
        for (i, &n) in pages.iter().enumerate() {
            s.put(Extent { handle: PhysHandle(i as u64), size: n * P, id: i as u32 }, Tag::SETTLED);
        }
        s
    }

    fn go(have: &[u64], want: &[u64]) -> (Vec<u64>, Vec<u64>, u64) {
        let mut s = stock(have);
        let sizes: Vec<u64> = want.iter().map(|n| n * P).collect();
        let supply = s.supply(&sizes, P, 64 * P, 1, &order());
        let taken = supply.stocked.iter().map(|x| x.0.size / P).collect();
        s.validate().unwrap();
        (taken, supply.create.iter().map(|c| c / P).collect(), s.bytes() / P)
    }

    #[test]
    fn exact_sizes_first_then_what_fits_then_what_covers_then_new() {
        assert_eq!(go(&[8, 4, 2, 1], &[4, 1]), (vec![4, 1], vec![], 10));
        assert_eq!(go(&[8, 2, 1], &[4]), (vec![2, 1, 8], vec![], 0));
        assert_eq!(go(&[8, 2, 2], &[4]), (vec![2, 2], vec![], 8));
        assert_eq!(go(&[2], &[8, 1]), (vec![2], vec![4, 2, 1], 0));
        assert_eq!(go(&[], &[4, 1]), (vec![], vec![4, 1], 0));
    }

    proptest! {
        /// Against a map by number: two lanes put extents in and take them.
        #[test]
        fn is_a_map(ops in prop::collection::vec((0u8..8, 0u32..90, 1u32..80), 1..200)) {
            let order = order();
            let lanes = [1, 2].map(|id| order.add_lane(false, StreamHandle(id), id as u64).unwrap());
            let (mut s, mut map, mut epoch) = (Stock::default(), BTreeMap::<u32, (Extent, Tag)>::new(), 1000);
            let extent = |id: u32| Extent { handle: PhysHandle(id.into()), size: (1 + u64::from(id % 3)) * P, id };
            for (op, id, len) in ops {
                epoch += 1;
                let row = id..id + len;
                match op {
                    // In rows, so that there are some to take.
                    0..=3 => for id in row.clone().filter(|id| !map.contains_key(id)).collect::<Vec<_>>() {
                        let tag = match op {
                            0 => Tag::SETTLED,
                            1 if len > 40 => Tag::new(lanes[1], epoch),
                            _ => Tag::new(lanes[0], epoch),
                        };
                        s.put(extent(id), tag);
                        map.insert(id, (extent(id), tag));
                    },
                    _ => prop_assert_eq!(s.take_this(extent(id)), map.remove(&id)),
                }
                s.validate().map_err(TestCaseError::fail)?;
                prop_assert_eq!((s.len(), s.bytes()), (map.len(), map.values().map(|x| x.0.size).sum()));
                prop_assert_eq!(s.tag(extent(id)), map.get(&id).map(|x| x.1));
                prop_assert!(s.iter().eq(map.values().copied()));
            }
        }
    }
}

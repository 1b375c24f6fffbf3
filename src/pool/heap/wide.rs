//! The wide regions of a heap: those that are ready and have at least a page, so that extents may lie in them.
//!
//! A flip asks for each of a few parts in which of them it lies. They are few, so they stand close together in a list, in no
//! order, and are looked through one after the other: a list in order would cost more to keep than that.

/// One of them.
struct WideRegion {
    addr: u64,
    size: u64,
    region: u32,
}

/// The list. It knows regions by number: [`crate::pool::heap::region`] says what they are.
///
/// Invariant: no two of them overlap.
#[derive(Default)]
pub(crate) struct Wide(Vec<WideRegion>);

impl Wide {
    /// Adds a region and returns its place, which is its own until [`Self::remove`] moves it.
    #[inline]
    pub(crate) fn add(&mut self, addr: u64, size: u64, region: u32) -> u32 {
        self.0.push(WideRegion { addr, size, region });
        (self.0.len() - 1) as u32
    }

    /// Removes the region at a place; returns the one that has the place now, if there is one.
    #[inline]
    pub(crate) fn remove(&mut self, place: u32) -> Option<u32> {
        self.0.swap_remove(place as usize);
        self.0.get(place as usize).map(|e| e.region)
    }

    /// The region in which `[addr, end)` lies.
    pub(crate) fn around(&self, addr: u64, end: u64) -> Option<u32> {
        // One comparison for each, as all but one of them fail; from the end, where what has just been freed is.
        let found = self.0.iter().rev().find(|e| addr.wrapping_sub(e.addr) < e.size)?;
        (end <= found.addr + found.size).then_some(found.region)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the region is at this place, with these bytes.
    pub(crate) fn has(&self, place: u32, addr: u64, size: u64, region: u32) -> bool {
        self.0.get(place as usize).is_some_and(|e| (e.addr, e.size, e.region) == (addr, size, region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_around() {
        let mut wide = Wide::default();
        assert_eq!((wide.add(100, 50, 7), wide.add(300, 20, 8), wide.add(200, 10, 9)), (0, 1, 2));
        for (addr, end, found) in [
            (100, 150, Some(7)),
            (149, 150, Some(7)),
            (140, 151, None),
            (99, 120, None),
            (300, 301, Some(8)),
            (320, 321, None),
            (200, 210, Some(9)),
        ] {
            assert_eq!(wide.around(addr, end), found, "{addr} to {end}");
        }
        assert_eq!(wide.remove(0), Some(9), "the last one takes its place");
        assert!(wide.has(0, 200, 10, 9) && !wide.has(0, 200, 10, 8) && !wide.has(2, 200, 10, 9));
        assert_eq!((wide.remove(1), wide.len(), wide.around(300, 310)), (None, 1, None));
    }
}

//! The live bytes of each section as ranges are added. Adding to a range and finding its largest
//! sum take O(log n) each.

/// Sums by section. It is a tree whose nodes hold the bytes added to all sections below, and the
/// largest sum below.
pub(super) struct Loads {
    leaves: u32,
    /// Bytes added to every section below.
    added: Vec<u64>,
    /// The largest sum below, of bytes added at this node and below it.
    most: Vec<u64>,
}

impl Loads {
    pub(super) fn new(sections: usize) -> Loads {
        let leaves = sections.next_power_of_two();
        Loads { leaves: leaves as u32, added: vec![0; 2 * leaves], most: vec![0; 2 * leaves] }
    }

    /// Takes everything away.
    pub(super) fn clear(&mut self) {
        self.added.fill(0);
        self.most.fill(0);
    }

    /// Adds `bytes` to the sections `[from, to)`. Sums saturate.
    pub(super) fn add(&mut self, from: u32, to: u32, bytes: u64) {
        self.add_below(1, 0, self.leaves, (from, to), bytes);
    }

    /// The largest sum of the sections `[from, to)`.
    pub(super) fn most(&self, from: u32, to: u32) -> u64 {
        self.most_below(1, 0, self.leaves, (from, to))
    }

    /// Adds below node `k`, which covers `[first, end)`. It recurses as deep as the tree, 32 levels
    /// at most.
    fn add_below(&mut self, k: usize, first: u32, end: u32, range: (u32, u32), bytes: u64) {
        if range.1 <= first || end <= range.0 {
            return;
        }
        if range.0 <= first && end <= range.1 {
            self.added[k] = self.added[k].saturating_add(bytes);
            self.most[k] = self.most[k].saturating_add(bytes);
            return;
        }
        let middle = first.midpoint(end);
        self.add_below(2 * k, first, middle, range, bytes);
        self.add_below(2 * k + 1, middle, end, range, bytes);
        self.most[k] = self.most[2 * k].max(self.most[2 * k + 1]).saturating_add(self.added[k]);
    }

    fn most_below(&self, k: usize, first: u32, end: u32, range: (u32, u32)) -> u64 {
        if range.1 <= first || end <= range.0 {
            return 0;
        }
        if range.0 <= first && end <= range.1 {
            return self.most[k];
        }
        let middle = first.midpoint(end);
        let below = self.most_below(2 * k, first, middle, range).max(self.most_below(2 * k + 1, middle, end, range));
        below.saturating_add(self.added[k])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn sums_are_those_of_a_plain_list() {
        let rng = &mut Rng::with_seed(5);
        for sections in [1, 2, 7, 64, 100] {
            let mut loads = Loads::new(sections as usize);
            loads.add(0, sections as u32, 9);
            loads.clear();
            let mut plain = vec![0u64; sections as usize];
            for _ in 0..500 {
                let from = rng.u64(..sections);
                let to = rng.u64(from + 1..=sections);
                let bytes = rng.u64(..1000);
                let range = from as usize..to as usize;
                let (from, to) = (from as u32, to as u32);
                assert_eq!(loads.most(from, to), plain[range.clone()].iter().copied().max().unwrap_or(0));
                loads.add(from, to, bytes);
                plain[range].iter_mut().for_each(|sum| *sum += bytes);
            }
            assert_eq!(loads.most(0, sections as u32), plain.iter().copied().max().unwrap_or(0));
        }
        let mut loads = Loads::new(2);
        loads.add(0, 2, u64::MAX);
        loads.add(0, 1, 7);
        assert_eq!(loads.most(0, 2), u64::MAX);
    }
}

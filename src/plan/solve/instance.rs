//! A problem as the solver sees it: items over sections.
//!
//! Only steps matter at which some buffer has been born since the last death: what is live at any other step is part of
//! what is live at one of those. They are the *sections*, numbered from 0, so that empty and repeated steps cost
//! nothing. Sizes and offsets are divided by their greatest common divisor, the *grain*.

use std::ops::Range;

/// One buffer, or one range of an obstacle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// First section covered.
    pub(super) from: u32,
    /// First section after it.
    pub(super) to: u32,
    /// Grains, guard included.
    pub(super) size: u64,
    /// The offset is a multiple of this, in grains.
    pub(super) align: u64,
}

/// Items that have to do with one another.
#[derive(Clone, Debug, Default)]
pub(super) struct Instance {
    pub(super) items: Vec<Item>,
    /// Per section, the sum of the sizes of what covers it, grains.
    pub(super) totals: Vec<u64>,
}

impl Instance {
    /// The largest sum of sizes that cover one section: no layout is smaller.
    pub(super) fn bound(&self) -> u64 {
        self.totals.iter().copied().max().unwrap_or(0)
    }

    /// Per item, the largest total of the sections it covers.
    pub(super) fn pressure(&self) -> Vec<u64> {
        let peaks = RangeMax::new(&self.totals);
        self.items.iter().map(|i| peaks.max(i.from as usize..i.to as usize)).collect()
    }
}

/// Largest value of a range in constant time: maxima of all ranges whose length is a power of two.
pub(super) struct RangeMax {
    levels: Vec<Vec<u64>>,
}

impl RangeMax {
    pub(super) fn new(values: &[u64]) -> RangeMax {
        let mut levels = vec![values.to_vec()];
        let mut half = 1;
        while 2 * half <= values.len() {
            let below = &levels[levels.len() - 1];
            let level = (0..=values.len() - 2 * half).map(|i| below[i].max(below[i + half])).collect();
            levels.push(level);
            half *= 2;
        }
        RangeMax { levels }
    }

    /// The largest value in `range`, which is not empty.
    pub(super) fn max(&self, range: Range<usize>) -> u64 {
        let level = range.len().ilog2() as usize;
        let row = &self.levels[level];
        row[range.start].max(row[range.end - (1 << level)])
    }
}

/// Maps ranges of steps to ranges of sections.
pub(super) struct Sections {
    /// The steps at which something is born or dies, sorted.
    steps: Vec<u64>,
    /// For each of them, how many sections lie before it.
    before: Vec<u32>,
}

impl Sections {
    /// Finds the sections of these live ranges, none of them empty.
    pub(super) fn new(ranges: impl Iterator<Item = (u64, u64)> + Clone) -> Sections {
        let mut events: Vec<u64> = ranges.clone().flat_map(|(a, b)| [a, b]).collect();
        events.sort_unstable();
        events.dedup();
        let index = |step: u64| events.binary_search(&step).unwrap_or_else(|i| i);
        let mut born = vec![false; events.len()];
        let mut dies = vec![false; events.len()];
        for (a, b) in ranges {
            born[index(a)] = true;
            dies[index(b)] = true;
        }
        // A section ends at a death that follows a birth.
        let mut before = Vec::with_capacity(events.len());
        let mut count = 0;
        let mut growing = false;
        for i in 0..events.len() {
            if dies[i] && growing {
                count += 1;
                growing = false;
            }
            before.push(count);
            growing |= born[i];
        }
        Sections { steps: events, before }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.before.last().map_or(0, |&n| n as usize)
    }

    /// The sections in a range that was among those given.
    pub(super) fn of(&self, from: u64, to: u64) -> (u32, u32) {
        let at = |step: u64| {
            let i = self.steps.binary_search(&step).unwrap_or_else(|i| i);
            self.before.get(i).copied().unwrap_or(self.len() as u32)
        };
        (at(from), at(to))
    }
}

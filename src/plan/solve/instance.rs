//! A problem as the solver sees it: items over sections.
//!
//! Only the last step before a death that follows a birth matters: buffers live at any other step
//! are all live at one of these. These are the *sections*, numbered from 0, so that empty and
//! repeated steps cost nothing. Sizes and offsets are divided by their greatest common divisor, the
//! *grain*.

use super::blocks::{Blocks, Obstacle};
use super::in_time::{self, PIECE};
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

/// Items to lay out together, around obstacles.
#[derive(Clone, Debug, Default)]
pub(super) struct Instance {
    pub(super) items: Vec<Item>,
    /// Per section, the sum of the sizes of the items that cover it, grains.
    pub(super) totals: Vec<u64>,
    /// Per section, the height below which nothing can be placed, grains.
    pub(super) floors: Vec<u64>,
    /// Ranges of heights that items must avoid.
    pub(super) obstacles: Vec<Obstacle>,
    /// By item, the heights within which it must lie; empty if all items may lie anywhere.
    pub(super) bands: Vec<(u64, u64)>,
}

impl Instance {
    /// An instance of these items, whose `from` and `to` may be any steps. It computes the
    /// sections.
    pub(super) fn from_ranges(items: Vec<Item>) -> Instance {
        Instance::from_ranges_in_time(items, &mut || false).unwrap_or_default()
    }

    /// As [`Instance::from_ranges`], for many items; `None` if it became `late`.
    pub(super) fn from_ranges_in_time(mut items: Vec<Item>, late: &mut dyn FnMut() -> bool) -> Option<Instance> {
        let steps: Vec<_> = items.iter().map(|i| (u64::from(i.from), u64::from(i.to))).collect();
        let (ranges, count) = sections(steps, late)?;
        for (item, range) in items.iter_mut().zip(ranges) {
            (item.from, item.to) = range;
        }
        Some(Instance::around(items, Vec::new(), count))
    }

    /// An instance of items around obstacles, over `sections` sections.
    pub(super) fn around(items: Vec<Item>, obstacles: Vec<Obstacle>, sections: usize) -> Instance {
        let totals = totals(items.iter().map(|i| (i.from, i.to, i.size)), sections);
        Instance { items, totals, floors: vec![0; sections], obstacles, bands: Vec::new() }
    }

    /// The end of the highest item at these offsets.
    pub(super) fn top(&self, offsets: &[u64]) -> u64 {
        self.items.iter().zip(offsets).map(|(item, at)| at + item.size).max().unwrap_or(0)
    }

    /// An instance of only the items `free`, above the items for which `placed` gives an offset.
    pub(super) fn above(&self, free: &[u32], placed: impl Fn(u32) -> Option<u64>) -> Instance {
        let mut items: Vec<Item> = free.iter().map(|&i| self.items[i as usize]).collect();
        // Every boundary counts here, because sections covered by the same items may have different
        // floors.
        let mut bounds: Vec<u32> = items.iter().flat_map(|i| [i.from, i.to]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let at = |section: u32| bounds.partition_point(|&b| b < section) as u32;
        let mut heights = Heights::new(bounds.len().saturating_sub(1));
        for (k, &floor) in self.floors.iter().enumerate().filter(|(_, &floor)| floor > 0) {
            let from = bounds.partition_point(|&b| b as usize <= k).saturating_sub(1);
            heights.raise(from..at(k as u32 + 1) as usize, floor);
        }
        for (i, item) in self.items.iter().enumerate() {
            if let Some(offset) = placed(i as u32) {
                // A section covered in part counts as covered.
                let from = bounds.partition_point(|&b| b <= item.from).saturating_sub(1);
                heights.raise(from..at(item.to) as usize, offset + item.size);
            }
        }
        // An obstacle covers all of a section that it meets: whatever is live there is live with
        // it.
        let moved = |o: &Obstacle| {
            let from = bounds.partition_point(|&b| b <= o.from).saturating_sub(1) as u32;
            let to = at(o.to).min(bounds.len().saturating_sub(1) as u32);
            (from < to).then_some(Obstacle { from, to, ..*o })
        };
        let obstacles: Vec<Obstacle> = self.obstacles.iter().filter_map(moved).collect();
        let floors = heights.finish();
        for item in &mut items {
            (item.from, item.to) = (at(item.from), at(item.to));
        }
        let totals = totals(items.iter().map(|i| (i.from, i.to, i.size)), floors.len());
        let bands = if self.bands.is_empty() { &[] } else { free };
        Instance { items, totals, floors, obstacles, bands: bands.iter().map(|&i| self.bands[i as usize]).collect() }
    }

    /// The blocks of each section, and the floors below them.
    pub(super) fn blocks(&self) -> (Blocks, Vec<u64>) {
        let mut floors = self.floors.clone();
        (Blocks::new(&self.obstacles, &mut floors), floors)
    }

    /// A lower bound on the arena's size: the largest sum of a floor and the sizes that cover its
    /// section, or the highest end of an obstacle.
    pub(super) fn bound(&self) -> u64 {
        let sums = self.totals.iter().zip(&self.floors).map(|(total, floor)| total + floor);
        // Obstacles count towards the arena's size.
        sums.chain(self.obstacles.iter().map(|o| o.end)).max().unwrap_or(0)
    }

    /// The sum, over items, of the number of sections covered.
    pub(super) fn covered(&self) -> u64 {
        self.items.iter().map(|i| u64::from(i.to - i.from)).sum()
    }

    /// The sum, over obstacles, of the number of sections covered.
    pub(super) fn blocked(&self) -> u64 {
        self.obstacles.iter().map(|o| u64::from(o.to - o.from)).sum()
    }

    /// Per item, the largest total of the sections it covers.
    pub(super) fn pressure(&self) -> Vec<u64> {
        self.pressure_in_time(&mut || false).unwrap_or_default()
    }

    /// As [`Instance::pressure`], for many items; `None` if it became `late`.
    pub(super) fn pressure_in_time(&self, late: &mut dyn FnMut() -> bool) -> Option<Vec<u64>> {
        let peaks = RangeMax::new(&self.totals);
        let mut pressure = Vec::with_capacity(self.items.len());
        for items in self.items.chunks(PIECE) {
            if !pressure.is_empty() && late() {
                return None;
            }
            pressure.extend(items.iter().map(|i| peaks.max(i.from as usize..i.to as usize)));
        }
        Some(pressure)
    }
}

/// Per section, the sum of the sizes of the `ranges` that cover it. Each range is (first section,
/// first after it, size).
pub(super) fn totals(ranges: impl Iterator<Item = (u32, u32, u64)>, sections: usize) -> Vec<u64> {
    // Differences from section to section. They may be negative; their running sums are not.
    let mut totals = vec![0u64; sections + 1];
    for (from, to, size) in ranges {
        let (from, to) = (from as usize, to as usize);
        totals[from] = totals[from].wrapping_add(size);
        totals[to] = totals[to].wrapping_sub(size);
    }
    let mut sum = 0u64;
    for total in &mut totals {
        sum = sum.wrapping_add(*total);
        *total = sum;
    }
    totals.truncate(sections);
    totals
}

/// The largest value in any range, from the maximum of each run of 2^n blocks and a scan of both
/// ends.
pub(super) struct RangeMax<'a> {
    values: &'a [u64],
    levels: Vec<Vec<u64>>,
}

/// Values in a block of [`RangeMax`].
const BLOCK: usize = 16;

impl RangeMax<'_> {
    pub(super) fn new(values: &[u64]) -> RangeMax<'_> {
        let most = |block: &[u64]| block.iter().copied().max().unwrap_or(0);
        let mut levels = vec![values.chunks(BLOCK).map(most).collect::<Vec<u64>>()];
        let (blocks, mut half) = (levels[0].len(), 1);
        while 2 * half <= blocks {
            let below = &levels[levels.len() - 1];
            let level = (0..=blocks - 2 * half).map(|i| below[i].max(below[i + half])).collect();
            levels.push(level);
            half *= 2;
        }
        RangeMax { values, levels }
    }

    /// The largest value in `range`.
    pub(super) fn max(&self, range: Range<usize>) -> u64 {
        let most = |range: Range<usize>| self.values[range].iter().copied().max().unwrap_or(0);
        let (first, last) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
        if first >= last {
            return most(range);
        }
        let level = (last - first).ilog2() as usize;
        let blocks = self.levels[level][first].max(self.levels[level][last - (1 << level)]);
        blocks.max(most(range.start..first * BLOCK)).max(most(last * BLOCK..range.end))
    }
}

/// The largest value given for each index by values for ranges: a tree whose nodes hold values for
/// all indices below them.
pub(super) struct Heights {
    len: usize,
    leaves: usize,
    nodes: Vec<u64>,
}

impl Heights {
    pub(super) fn new(len: usize) -> Heights {
        let leaves = len.next_power_of_two();
        Heights { len, leaves, nodes: vec![0; 2 * leaves] }
    }

    /// Makes every value in `range`, as far as it exists, at least `height`.
    pub(super) fn raise(&mut self, range: Range<usize>, height: u64) {
        let (mut from, mut to) = (range.start + self.leaves, range.end.min(self.len) + self.leaves);
        while from < to {
            if from % 2 == 1 {
                self.nodes[from] = self.nodes[from].max(height);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                self.nodes[to] = self.nodes[to].max(height);
            }
            from /= 2;
            to /= 2;
        }
    }

    pub(super) fn finish(mut self) -> Vec<u64> {
        for k in 2..self.nodes.len() {
            self.nodes[k] = self.nodes[k].max(self.nodes[k / 2]);
        }
        self.nodes[self.leaves..self.leaves + self.len].to_vec()
    }
}

/// Converts non-empty ranges of steps to ranges of sections, and counts the sections. `None` if it
/// became `late`, which only many ranges check.
pub(super) fn sections(ranges: Vec<(u64, u64)>, late: &mut dyn FnMut() -> bool) -> Option<(Vec<(u32, u32)>, usize)> {
    // At equal steps, deaths sort before births.
    const BIRTH: u64 = 1 << 63;
    let mut events = Vec::with_capacity(2 * ranges.len());
    let mut of = vec![(0, 0); ranges.len()];
    for (i, (from, to)) in (0u64..).zip(ranges) {
        if i as usize % PIECE == PIECE - 1 && late() {
            return None;
        }
        events.extend([(from, i | BIRTH), (to, i)]);
    }
    if !in_time::sort(&mut events, |event| event.0, Ord::cmp, late) {
        return None;
    }
    // A section ends at a death that follows a birth.
    let (mut count, mut growing) = (0, false);
    for (k, (_, event)) in events.into_iter().enumerate() {
        if k % PIECE == PIECE - 1 && late() {
            return None;
        }
        let range = &mut of[(event & !BIRTH) as usize];
        if event & BIRTH != 0 {
            range.0 = count;
            growing = true;
        } else {
            count += u32::from(std::mem::take(&mut growing));
            range.1 = count;
        }
    }
    Some((of, count as usize))
}

/// The items sorted by `section`; ties stay in order. `None` if it became `late`, which only many
/// items check.
pub(super) fn in_order(
    items: &[Item],
    section: impl Fn(&Item) -> u32,
    late: &mut dyn FnMut() -> bool,
) -> Option<Vec<u32>> {
    let mut look = |done: u32| done as usize % PIECE == PIECE - 1 && late();
    let sections = items.iter().map(|i| i.to as usize + 1).max().unwrap_or(0);
    let mut next = vec![0u32; sections + 1];
    for (i, item) in (0u32..).zip(items) {
        if look(i) {
            return None;
        }
        next[section(item) as usize + 1] += 1;
    }
    for k in 0..sections {
        next[k + 1] += next[k];
    }
    let mut order = vec![0; items.len()];
    for (i, item) in (0u32..).zip(items) {
        if look(i) {
            return None;
        }
        let at = &mut next[section(item) as usize];
        order[*at as usize] = i;
        *at += 1;
    }
    Some(order)
}

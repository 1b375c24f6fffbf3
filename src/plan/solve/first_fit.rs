//! Greedy layout in a fixed order, each item at the lowest offset at which it fits, around
//! obstacles.
//!
//! Most planners work like this: TensorFlow Lite and XLA's heap simulator place by size and add
//! other orders. The layouts are rarely the best, but the method copes with any problem: fixed
//! offsets, gaps in live ranges, and reserved ranges are obstacles like any other item.

use super::budget::Budget;
use super::instance::Instance;

/// Something to place, with its live ranges in [`Shapes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes, or grains, guard included.
    pub(super) size: u64,
    /// The offset is a multiple of this.
    pub(super) align: u64,
    /// First section, and the first after the last.
    pub(super) span: (u32, u32),
    /// Its live ranges are `ranges[first..last]`. If that is empty, as for nearly all shapes, the
    /// span is its only range.
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Shape {
    /// Whether it is live in one range.
    pub(super) fn is_whole(&self) -> bool {
        self.first == self.last
    }
}

/// Shapes and their live ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct Shapes {
    pub(super) shapes: Vec<Shape>,
    pub(super) ranges: Vec<(u32, u32)>,
}

impl Shapes {
    /// The items of an instance, then its obstacles; and the obstacles as (shape, offset).
    pub(super) fn of(instance: &Instance) -> (Shapes, Vec<(u32, u64)>) {
        let mut shapes = Shapes::default();
        for item in &instance.items {
            shapes.push(item.size, item.align, std::iter::once((item.from, item.to)));
        }
        let mut obstacles = Vec::new();
        for o in &instance.obstacles {
            obstacles.push((shapes.shapes.len() as u32, o.bottom));
            shapes.push(o.end - o.bottom, 1, std::iter::once((o.from, o.to)));
        }
        (shapes, obstacles)
    }

    /// Adds a shape that is live in `ranges`, in order and not empty.
    pub(super) fn push(&mut self, size: u64, align: u64, ranges: impl Iterator<Item = (u32, u32)>) {
        let first = self.ranges.len();
        self.ranges.extend(ranges);
        let span = match self.ranges[first..] {
            [] => (0, 0),
            [only] => {
                self.ranges.truncate(first);
                only
            }
            [(from, _), .., (_, to)] => (from, to),
        };
        let (first, last) = (first as u32, self.ranges.len() as u32);
        self.shapes.push(Shape { size, align, span, first, last });
    }

    /// Gives each shape its ranges, which are its `first..last` in `all`.
    pub(super) fn set_ranges(&mut self, all: Vec<(u32, u32)>) {
        self.ranges.clear();
        for shape in &mut self.shapes {
            let mine = &all[shape.first as usize..shape.last as usize];
            shape.span = (mine[0].0, mine[mine.len() - 1].1);
            shape.first = self.ranges.len() as u32;
            if mine.len() > 1 {
                self.ranges.extend(mine);
            }
            shape.last = self.ranges.len() as u32;
        }
    }

    pub(super) fn ranges(&self, i: usize) -> &[(u32, u32)] {
        let shape = &self.shapes[i];
        match shape.is_whole() {
            true => std::slice::from_ref(&shape.span),
            false => &self.ranges[shape.first as usize..shape.last as usize],
        }
    }

    /// Whether both are live in some section.
    fn meet(&self, i: usize, j: usize) -> bool {
        let (a, b) = (&self.shapes[i], &self.shapes[j]);
        if a.is_whole() && b.is_whole() {
            return a.span.0 < b.span.1 && b.span.0 < a.span.1;
        }
        let (x, y) = (self.ranges(i), self.ranges(j));
        // One may have very many.
        let (few, mut many) = if x.len() <= y.len() { (x, y) } else { (y, x) };
        few.iter().any(|a| {
            many = &many[many.partition_point(|b| b.1 <= a.0)..];
            many.first().is_some_and(|b| b.0 < a.1)
        })
    }
}

/// Which of the places where it fits an item gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest.
    First,
    /// The smallest hole between two items, the lowest if several tie; above everything if there is
    /// none.
    Best,
}

/// Most shapes worth placing by first fit. With more, one order takes a million steps even in
/// strips, and the lists take a hundred bytes a shape.
pub(super) const MOST_SHAPES: usize = 333_000;
/// Most shapes where skyline can place them instead, in a twentieth of the time. With fewer shapes,
/// first fit is better when holes are scarce.
pub(super) const MOST_BEFORE_SKYLINE: usize = 1 << 16;

/// Entries of a block: a power of two, so that the loop over them has no remainder.
const BLOCK: usize = 64;

/// Number of strips. With fewer than `FEWEST_IN_STRIPS` shapes, there are none.
const STRIPS: u32 = 32;
const FEWEST_IN_STRIPS: usize = 1_024;

/// Lays shapes out one after the other.
///
/// Placed shapes are in blocks in order of offset. A branch-free loop scans them for shapes live
/// together with the one to place: less than a nanosecond each, up to the place found. Short-lived
/// shapes scan only a strip of sections around them.
pub(super) struct FirstFit<'a> {
    shapes: &'a Shapes,
    /// List 0 has all placed shapes; list `s`, from 1, those that meet strip `s`, which spans two
    /// widths from `s - 1` widths on. Strips overlap, so a shape of at most one width lies within
    /// one.
    lists: Vec<Vec<Block>>,
    /// Half the length of a strip, in sections.
    width: u32,
    /// The offset of each placed shape.
    at: Vec<u64>,
    placed: usize,
    /// How many of them are obstacles.
    obstacles: u64,
}

/// Up to [`BLOCK`] placed shapes, by offset and then shape.
#[derive(Clone)]
struct Block {
    len: usize,
    /// An upper bound on the ends of its shapes.
    end: u64,
    /// First section of each shape, and the first after it. Unused entries cover no section.
    from: [u32; BLOCK],
    to: [u32; BLOCK],
    /// Offset, and shape.
    entries: [(u64, u32); BLOCK],
}

impl Block {
    fn new() -> Block {
        Block { len: 0, end: 0, from: [u32::MAX; BLOCK], to: [0; BLOCK], entries: [(u64::MAX, u32::MAX); BLOCK] }
    }

    fn insert(&mut self, k: usize, entry: (u64, u32), shape: &Shape) {
        self.from.copy_within(k..self.len, k + 1);
        self.to.copy_within(k..self.len, k + 1);
        self.entries.copy_within(k..self.len, k + 1);
        (self.from[k], self.to[k], self.entries[k]) = (shape.span.0, shape.span.1, entry);
        self.len += 1;
        self.end = self.end.max(entry.0 + shape.size);
    }

    /// Takes the upper half away.
    fn split(&mut self) -> Block {
        let mut upper = Block::new();
        let half = BLOCK / 2;
        upper.len = self.len - half;
        // Both keep the end of the whole: it may be too high, never too low.
        upper.end = self.end;
        upper.from[..half].copy_from_slice(&self.from[half..]);
        upper.to[..half].copy_from_slice(&self.to[half..]);
        upper.entries[..half].copy_from_slice(&self.entries[half..]);
        self.len = half;
        self.from[half..].fill(u32::MAX);
        self.to[half..].fill(0);
        upper
    }
}

/// Puts an entry into a list.
fn insert(list: &mut Vec<Block>, entry: (u64, u32), shape: &Shape) {
    let mut b = list.partition_point(|b| b.entries[0] <= entry).saturating_sub(1);
    if list.is_empty() {
        list.push(Block::new());
    }
    if list[b].len == BLOCK {
        let upper = list[b].split();
        let first = upper.entries[0];
        list.insert(b + 1, upper);
        b += usize::from(first <= entry);
    }
    let block = &mut list[b];
    let k = block.entries[..block.len].partition_point(|e| *e < entry);
    block.insert(k, entry, shape);
}

/// Takes an entry out of a list; returns whether it was there.
fn remove(list: &mut Vec<Block>, entry: (u64, u32)) -> bool {
    let b = list.partition_point(|b| b.entries[0] <= entry).saturating_sub(1);
    let Some(block) = list.get_mut(b) else { return false };
    let Ok(k) = block.entries[..block.len].binary_search(&entry) else { return false };
    block.from.copy_within(k + 1.., k);
    block.to.copy_within(k + 1.., k);
    block.entries.copy_within(k + 1.., k);
    block.len -= 1;
    (block.from[block.len], block.to[block.len]) = (u32::MAX, 0);
    if block.len == 0 {
        list.remove(b);
    }
    true
}

impl<'a> FirstFit<'a> {
    pub(super) fn new(shapes: &'a Shapes) -> FirstFit<'a> {
        let sections = shapes.shapes.iter().map(|s| s.span.1).max().unwrap_or(0);
        let strips = if shapes.shapes.len() < FEWEST_IN_STRIPS { 1 } else { STRIPS.min(sections.max(1)) };
        let width = sections.div_ceil(strips).max(1);
        let count = if strips == 1 { 0 } else { sections.div_ceil(width) + 1 };
        let lists = vec![Vec::new(); 1 + count as usize];
        FirstFit { shapes, lists, width, at: vec![0; shapes.shapes.len()], placed: 0, obstacles: 0 }
    }

    /// The shortest list that has every placed shape that can meet `shape`.
    fn list_for(&self, shape: &Shape) -> &[Block] {
        let strip = 1 + (shape.span.0 / self.width) as usize;
        let narrow = shape.span.1 - shape.span.0 <= self.width;
        self.lists.get(if narrow { strip } else { 0 }).unwrap_or(&self.lists[0])
    }

    /// The lists that a shape is in: the first, and a range of strips.
    fn lists_of(&mut self, shape: &Shape) -> impl Iterator<Item = &mut Vec<Block>> {
        let first = (shape.span.0 / self.width).max(1) as usize;
        let last = (1 + shape.span.1.saturating_sub(1) / self.width) as usize;
        let count = self.lists.len();
        let (all, strips) = self.lists.split_at_mut(1);
        let strips = strips.get_mut(first.min(count) - 1..last.min(count - 1)).into_iter().flatten();
        all.iter_mut().chain(strips)
    }

    /// The number of placed shapes.
    pub(super) fn len(&self) -> usize {
        self.placed
    }

    /// Starts again with these obstacles: (shape, offset).
    pub(super) fn restart(&mut self, obstacles: &[(u32, u64)]) {
        self.lists.iter_mut().for_each(Vec::clear);
        (self.placed, self.obstacles) = (0, obstacles.len() as u64);
        for &(i, at) in obstacles {
            self.put(i, at);
        }
    }

    /// The offset for shape `i` among the placed shapes, and how many of these were in its way.
    pub(super) fn offset_for(&self, i: u32, fit: Fit) -> (u64, u64) {
        let shape = &self.shapes.shapes[i as usize];
        let (mut at, mut met) = (0u64, 0);
        let mut best = (u64::MAX, 0);
        self.neighbours(i, 0, |_, offset, end, low| {
            met += 1;
            if end > at {
                if offset >= at && offset - at >= shape.size {
                    best = best.min((offset - at, at));
                    if fit == Fit::First {
                        return false;
                    }
                }
                at = at.max(end.next_multiple_of(shape.align));
                *low = at;
            }
            true
        });
        (if best.0 == u64::MAX { at } else { best.1 }, met)
    }

    /// Calls `each` with the shape, offset and end of each placed shape that is live together with
    /// shape `i` and ends above `low`, by rising offset, until it returns `false`. It may raise
    /// `low`.
    fn neighbours(&self, i: u32, mut low: u64, mut each: impl FnMut(u32, u64, u64, &mut u64) -> bool) {
        let shape = &self.shapes.shapes[i as usize];
        let (from, to) = shape.span;
        for block in self.list_for(shape) {
            if block.end <= low {
                continue;
            }
            let mut hits = [0u8; BLOCK];
            for (hit, (f, t)) in hits.iter_mut().zip(block.from.iter().zip(&block.to)) {
                *hit = u8::from(*f < to) & u8::from(*t > from);
            }
            for (hits, entries) in hits.chunks_exact(8).zip(block.entries.chunks_exact(8)) {
                let mut set = hits.iter().rev().fold(0u64, |set, &hit| set << 8 | u64::from(hit));
                while set != 0 {
                    let (offset, other) = entries[set.trailing_zeros() as usize / 8];
                    set &= set - 1;
                    let end = offset + self.shapes.shapes[other as usize].size;
                    if end > low && self.shapes.meet(i as usize, other as usize) && !each(other, offset, end, &mut low)
                    {
                        return;
                    }
                }
            }
        }
    }

    /// Puts shape `i` at `offset`.
    pub(super) fn put(&mut self, i: u32, offset: u64) {
        let shape = self.shapes.shapes[i as usize];
        self.at[i as usize] = offset;
        self.placed += 1;
        self.lists_of(&shape).for_each(|list| insert(list, (offset, i), &shape));
    }

    /// Removes shape `i` from where it was put.
    pub(super) fn take(&mut self, i: u32) {
        let shape = self.shapes.shapes[i as usize];
        let entry = (self.at[i as usize], i);
        // The shape is in the first list if it was placed at all.
        let gone = self.lists_of(&shape).filter_map(|list| remove(list, entry).then_some(())).count();
        self.placed -= gone.min(1);
    }

    /// Whether shape `i` at `offset` would meet no shape but itself.
    pub(super) fn is_free(&self, i: u32, offset: u64) -> bool {
        let until = offset + self.shapes.shapes[i as usize].size;
        let mut free = true;
        self.neighbours(i, offset, |other, at, _, _| {
            free = other == i || at >= until;
            free && at < until
        });
        free
    }

    /// Places everything in `order` around the placed shapes, writes `offsets`, and returns the
    /// highest end. `None` when the budget runs out or the size would exceed `limit`.
    pub(super) fn place(
        &mut self,
        order: impl Iterator<Item = u32>,
        fit: Fit,
        limit: u64,
        offsets: &mut [u64],
        budget: &mut Budget<'_>,
    ) -> Option<u64> {
        let mut size = 0;
        for i in order {
            let (offset, met) = self.offset_for(i, fit);
            let end = offset + self.shapes.shapes[i as usize].size;
            // A step of the budget is about a microsecond: one or two thousand comparisons, some
            // hundred shapes in the way, or a hundred obstacles, many of which are low and meet it.
            let looked_at = self.list_for(&self.shapes.shapes[i as usize]).len() * BLOCK;
            if end > limit || !budget.take(1 + looked_at as u64 / 3072 + (self.obstacles / 96).max(met / 384)) {
                return None;
            }
            offsets[i as usize] = offset;
            self.put(i, offset);
            size = size.max(end);
        }
        Some(size)
    }
}

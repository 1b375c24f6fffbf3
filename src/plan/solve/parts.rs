//! Splits an arena into independent parts, and lays them out one by one.
//!
//! Gaps in live ranges are filled, which leaves items over sections, around obstacles. Most
//! problems lose nothing by this; [`super::general`] goes on with the others.

use super::arena::{Arena, Placed, Task};
use super::best::Best;
use super::blocks::Obstacle;
use super::budget::{Budget, FIRST_STEPS};
use super::first_fit::Shape;
use super::in_time::PIECE;
use super::instance::{in_order, Instance, Item};
use super::numbers::gcd;
use super::options::Effort;
use super::{online, part};
use crate::plan::problem::MAX_BYTES;

/// An arena's movable shapes as items, in grains.
struct Whole {
    items: Vec<Item>,
    obstacles: Vec<Obstacle>,
    /// Bytes per grain.
    grain: u64,
    /// Every offset is a multiple of this many bytes, and sizes were rounded up to it.
    step: u64,
    /// Whether every shape is live in one range.
    exact: bool,
}

/// Lays out the movable shapes of `arena`.
///
/// If alignments differ, the problem with all of them raised to the largest is solved first. It is
/// stricter, but nothing is padded and the search is exact, so its layouts are often smaller.
pub(super) fn lay_out(arena: &Arena<'_>, task: Task, budget: &mut Budget<'_>) -> Placed {
    let shapes = &arena.shapes.shapes[..arena.movable()];
    let largest = shapes.iter().map(|s| s.align).max().unwrap_or(1);
    let differ = shapes.iter().any(|s| s.align != largest);
    // Sums must stay within the largest offset.
    let bytes = shapes.iter().try_fold(0u64, |sum, s| sum.checked_add(s.size.checked_next_multiple_of(largest)?));
    let raises = differ
        && task.effort != Effort::Fast
        && shapes.iter().all(|s| largest.is_multiple_of(s.align))
        && bytes.is_some_and(|sum| sum <= MAX_BYTES);
    if !raises {
        return lay_out_aligned(arena, 1, task, budget);
    }
    let mut half = budget.part(2);
    let mut placed = lay_out_aligned(arena, largest, task, &mut half);
    budget.join_part(&half);
    if placed.size > task.goal.max(arena.bound) {
        let other = lay_out_aligned(arena, 1, task, budget);
        placed.take_smaller(other.size, other.offsets);
    }
    placed.optimal = false;
    placed
}

/// Lays out the movable shapes of `arena` with alignments of at least `least`.
fn lay_out_aligned(arena: &Arena<'_>, least: u64, task: Task, budget: &mut Budget<'_>) -> Placed {
    // Each of these takes a tenth of a second for millions of shapes.
    let whole = Whole::new(arena, least, &mut || arena.is_late(budget));
    let split = whole.and_then(|whole| Some((whole.split(arena.sections, &mut || arena.is_late(budget))?, whole)));
    let Some((groups, mut whole)) = split.filter(|_| !arena.is_late(budget)) else { return arena.none() };
    let mut first = budget.after(FIRST_STEPS);
    let obstacles = whole.obstacles_of(&groups);
    let only = groups.len() == 1;
    let many = arena.movable() as u64 > FIRST_STEPS;
    let mut clock = budget.without_count();
    let parts: Option<Vec<(Vec<u32>, Instance, Best)>> = groups
        .into_iter()
        .zip(obstacles)
        .map(|(ids, obstacles)| {
            let items = whole.items_of(&ids, &mut || clock.is_late())?;
            if only {
                whole.items = Vec::new();
            }
            let instance = whole.instance(items, obstacles, &mut || clock.is_late())?;
            let mut best = Best::none(&instance);
            if many && !clock.is_late() {
                let floor = instance.obstacles.iter().map(|o| o.end).max().unwrap_or(0);
                online::improve(&instance.items, floor, &mut best, &mut clock);
            }
            Some((ids, instance, best))
        })
        .collect();
    let Some(mut parts) = parts else {
        budget.join(0, true);
        return arena.none();
    };
    let count = parts.len() as u32;
    for ((ids, instance, best), done) in parts.iter_mut().zip(0..) {
        let mut share = budget.part(count - done);
        part::greedy(instance, earlier(arena, ids, whole.grain), task.effort, best, &mut first, &mut share);
        budget.join_part(&share);
    }
    if parts.iter().any(|(_, _, best)| best.size == u64::MAX) {
        return arena.none();
    }
    for goal in task.goals().filter(|_| task.effort != Effort::Fast) {
        // The largest part determines the size; once it is small enough, the next largest does.
        parts.sort_by_key(|(ids, _, best)| (std::cmp::Reverse(best.size), ids.first().copied()));
        let mut small_enough = goal.max(arena.bound) / whole.grain;
        for (_, instance, best) in &mut parts {
            part::improve(instance, small_enough, best, task.threads, budget);
            small_enough = small_enough.max(best.size);
        }
    }
    let mut offsets = vec![0; arena.movable()];
    // Rounded sizes may hide a layout that is smaller by less than a step, so only a bound in bytes
    // is a proof.
    let mut optimal = whole.step == 1 && whole.exact;
    let top = parts.iter().map(|(_, _, best)| best.size).max().unwrap_or(0);
    for (ids, instance, best) in parts {
        optimal &= best.size < top || best.size <= best.bound;
        for (&i, &at) in ids.iter().zip(&best.offsets) {
            offsets[i as usize] = at * whole.grain;
        }
        drop(instance);
    }
    // For millions of buffers, this is quicker than a look at each.
    let size = if whole.step == 1 { (top * whole.grain).max(arena.obstructed) } else { arena.size(&offsets) };
    let mut placed = Placed { size, offsets, optimal };
    whole.turn_over(arena, top, &mut placed);
    placed
}

/// The offsets of an earlier layout for these items, in grains.
fn earlier(arena: &Arena<'_>, ids: &[u32], grain: u64) -> Option<Vec<u64>> {
    let earlier = arena.earlier.as_ref()?;
    Some(ids.iter().map(|&i| earlier[i as usize] / grain).collect())
}

impl Whole {
    /// Makes items with alignments of at least `least`. `None` if it became `late`, which only many
    /// shapes check.
    fn new(arena: &Arena<'_>, least: u64, late: &mut dyn FnMut() -> bool) -> Option<Whole> {
        let raised = |s: &Shape| s.align.max(least);
        let shapes = &arena.shapes.shapes[..arena.movable()];
        let step = shapes.iter().fold(0, |g, s| gcd(g, raised(s))).max(1);
        let rounded = |bytes: u64| bytes.next_multiple_of(step);
        let mut obstacles = Vec::new();
        for &(i, at) in &arena.obstacles {
            // Widen obstacles to whole steps, so that rounded items stay clear of them.
            let (bottom, end) = (at - at % step, rounded(at + arena.shapes.shapes[i as usize].size));
            let ranges = arena.shapes.ranges(i as usize).iter();
            obstacles.extend(ranges.map(|&(from, to)| Obstacle { from, to, bottom, end }));
        }
        let sizes = shapes.iter().fold(0, |g, s| gcd(g, rounded(s.size)));
        let strides = shapes.iter().map(raised).filter(|&align| align > 1).fold(sizes, gcd);
        let grain = obstacles.iter().fold(strides, |g, o| gcd(gcd(g, o.bottom), o.end)).max(1);
        obstacles.iter_mut().for_each(|o| (o.bottom, o.end) = (o.bottom / grain, o.end / grain));
        let item = |s: &Shape| Item {
            from: s.span.0,
            to: s.span.1,
            size: rounded(s.size) / grain,
            align: (raised(s) / grain).max(1),
        };
        let mut items = Vec::with_capacity(shapes.len());
        for shapes in shapes.chunks(PIECE) {
            if shapes.len() == PIECE && late() {
                return None;
            }
            items.extend(shapes.iter().map(item));
        }
        Some(Whole { items, obstacles, grain, step, exact: arena.is_whole() })
    }

    /// Groups of items such that no two groups cover the same section, sorted by section and then
    /// by item; `None` if it became `late`. A single group of many items is sorted by first
    /// section: later passes go through them in that order, and random access would be slow.
    fn split(&self, sections: usize, late: &mut dyn FnMut() -> bool) -> Option<Vec<Vec<u32>>> {
        // By section, the number of items that cover both it and the one before.
        let mut across = vec![0u32; sections + 1];
        for (i, item) in self.items.iter().enumerate() {
            if i % PIECE == PIECE - 1 && late() {
                return None;
            }
            across[item.from as usize + 1] = across[item.from as usize + 1].wrapping_add(1);
            across[item.to as usize] = across[item.to as usize].wrapping_sub(1);
        }
        let (mut many, mut count) = (0u32, 0);
        for section in across.iter_mut().take(sections) {
            many = many.wrapping_add(*section);
            count += u32::from(many == 0);
            *section = count - 1;
        }
        if count == 1 {
            return match self.items.len() {
                0..=PIECE => Some(vec![(0..self.items.len() as u32).collect()]),
                _ => Some(vec![in_order(&self.items, |item| item.from, late)?]),
            };
        }
        let mut groups: Vec<Vec<u32>> = vec![Vec::new(); count as usize];
        for (i, item) in (0u32..).zip(&self.items) {
            groups[across[item.from as usize] as usize].push(i);
        }
        groups.retain(|group| !group.is_empty());
        Some(groups)
    }

    /// The sections that a group covers.
    fn span(&self, ids: &[u32]) -> (u32, u32) {
        let items = || ids.iter().map(|&i| &self.items[i as usize]);
        (items().map(|i| i.from).min().unwrap_or(0), items().map(|i| i.to).max().unwrap_or(0))
    }

    /// The obstacles of each group, in the group's own sections. `groups` are in order of sections.
    fn obstacles_of(&self, groups: &[Vec<u32>]) -> Vec<Vec<Obstacle>> {
        let mut of = vec![Vec::new(); groups.len()];
        if self.obstacles.is_empty() {
            return of;
        }
        let spans: Vec<(u32, u32)> = groups.iter().map(|ids| self.span(ids)).collect();
        for o in &self.obstacles {
            let first = spans.partition_point(|s| s.1 <= o.from);
            for (span, mine) in spans.iter().zip(&mut of).skip(first).take_while(|(s, _)| s.0 < o.to) {
                mine.push(Obstacle { from: o.from.max(span.0) - span.0, to: o.to.min(span.1) - span.0, ..*o });
            }
        }
        of
    }

    /// The items `ids`; `None` if it became `late`.
    fn items_of(&self, ids: &[u32], late: &mut dyn FnMut() -> bool) -> Option<Vec<Item>> {
        let mut items = Vec::with_capacity(ids.len());
        for ids in ids.chunks(PIECE) {
            if !items.is_empty() && late() {
                return None;
            }
            items.extend(ids.iter().map(|&i| self.items[i as usize]));
        }
        Some(items)
    }

    /// The items of one group as a separate instance; `None` if it became `late`.
    fn instance(
        &self,
        mut items: Vec<Item>,
        obstacles: Vec<Obstacle>,
        late: &mut dyn FnMut() -> bool,
    ) -> Option<Instance> {
        // Filled gaps may leave sections that are no longer needed.
        if obstacles.is_empty() && !self.exact {
            return Instance::from_ranges_in_time(items, late);
        }
        let from = items.iter().map(|i| i.from).min().unwrap_or(0);
        let to = items.iter().map(|i| i.to).max().unwrap_or(0);
        items.iter_mut().for_each(|i| (i.from, i.to) = (i.from - from, i.to - from));
        Some(Instance::around(items, obstacles, (to - from) as usize))
    }

    /// Turns a layout of rounded sizes upside down if that is smaller: padding at the top then
    /// costs nothing.
    fn turn_over(&self, arena: &Arena<'_>, top: u64, placed: &mut Placed) {
        let shapes = &arena.shapes.shapes[..arena.movable()];
        let even = shapes.iter().all(|s| self.step.is_multiple_of(s.align));
        if self.step == 1 || !even || !arena.obstacles.is_empty() {
            return;
        }
        let turned: Vec<u64> = (placed.offsets.iter().zip(shapes))
            .map(|(&at, s)| top * self.grain - s.size.next_multiple_of(self.step) - at)
            .collect();
        let size = arena.size(&turned);
        if size < placed.size {
            placed.size = size;
            placed.offsets = turned;
        }
    }
}

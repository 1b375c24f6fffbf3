//! Immovable memory as the searches see it: obstacles over sections, and the heights they take in
//! each section.

/// A range of heights that nothing else may use in some sections. An obstacle of height 0 is a
/// border: nothing lies across it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// First section covered.
    pub(super) from: u32,
    /// First section after it.
    pub(super) to: u32,
    /// Grains.
    pub(super) bottom: u64,
    /// First grain above it.
    pub(super) end: u64,
}

/// Heights `[bottom, end)` that are taken in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) bottom: u64,
    pub(super) end: u64,
}

/// The blocks above the floor of each section, in rising order and not touching.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// The index in `all` of each section's first block, then the end of `all`. Empty when there
    /// are no obstacles.
    first: Vec<u32>,
    all: Vec<Block>,
}

impl Blocks {
    /// The blocks above `floors`. An obstacle that reaches below a floor raises it.
    pub(super) fn new(obstacles: &[Obstacle], floors: &mut [u64]) -> Blocks {
        if obstacles.is_empty() {
            return Blocks::default();
        }
        let mut of: Vec<Vec<Block>> = vec![Vec::new(); floors.len()];
        for o in obstacles {
            for blocks in &mut of[o.from as usize..o.to as usize] {
                blocks.push(Block { bottom: o.bottom, end: o.end });
            }
        }
        let mut blocks = Blocks::default();
        for (floor, mut mine) in floors.iter_mut().zip(of) {
            blocks.first.push(blocks.all.len() as u32);
            let first = blocks.all.len();
            mine.sort_unstable_by_key(|b| (b.bottom, b.end));
            for block in mine {
                // Touching blocks merge, borders included.
                match blocks.all[first..].last_mut() {
                    _ if block.bottom <= *floor => *floor = block.end.max(*floor),
                    Some(below) if block.bottom <= below.end => below.end = block.end.max(below.end),
                    _ => blocks.all.push(block),
                }
            }
        }
        blocks.first.push(blocks.all.len() as u32);
        blocks
    }

    /// How many there are, of all sections.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The number of the lowest block of section `k`.
    pub(super) fn lowest(&self, k: usize) -> u32 {
        self.first.get(k).copied().unwrap_or(0)
    }

    /// The blocks of section `k` from number `next` on.
    #[inline]
    pub(super) fn from(&self, k: usize, next: u32) -> &[Block] {
        match self.first.get(k + 1) {
            Some(&end) => &self.all[next as usize..end as usize],
            None => &[],
        }
    }

    /// The total height of the blocks of section `k` from number `next` on.
    pub(super) fn bytes(&self, k: usize, next: u32) -> u64 {
        self.from(k, next).iter().map(|b| b.end - b.bottom).sum()
    }

    /// Fills section `k`, or leaves it empty, up to `height`. Returns the new floor above all
    /// blocks reached, the next block, and the total height of the blocks passed.
    #[inline]
    pub(super) fn climb(&self, k: usize, next: u32, height: u64) -> (u64, u32, u64) {
        let (mut floor, mut at, mut taken) = (height, next, 0);
        for block in self.from(k, next) {
            if block.bottom > floor {
                break;
            }
            taken += block.end - block.bottom;
            floor = floor.max(block.end);
            at += 1;
        }
        (floor, at, taken)
    }
}

/// Finds the lowest obstacle above a stretch of sections, for [`super::skyline`]. Between restarts,
/// the heights asked for may only rise.
///
/// An obstacle above a stretch either begins in it or covers its first section. The ends of
/// obstacles divide the sections into parts, and a tree over the parts finds both kinds: each node
/// has the obstacles that begin below it, and those that cover all of it but not all of its parent.
pub(super) struct Ceilings<'a> {
    obstacles: &'a [Obstacle],
    /// The sections at which parts begin, except the first part.
    ends: Vec<u32>,
    leaves: usize,
    begin: Rising,
    cover: Rising,
}

/// By node of a tree, obstacles by rising bottom, and a cursor past those too low to matter.
struct Rising {
    /// By node, the index in `all` of its first obstacle; then the end of `all`.
    first: Vec<u32>,
    all: Vec<u32>,
    /// By node, the index in `all` of the first obstacle that still matters.
    next: Vec<u32>,
}

impl Rising {
    /// `entries` calls its argument with each (node, obstacle), lowest obstacles first.
    fn new(nodes: usize, entries: impl Fn(&mut dyn FnMut(usize, u32))) -> Rising {
        let mut first = vec![0; nodes + 1];
        entries(&mut |k, _| first[k + 1] += 1);
        for k in 0..nodes {
            first[k + 1] += first[k];
        }
        let mut next = first.clone();
        let mut all = vec![0; first[nodes] as usize];
        entries(&mut |k, o| {
            all[next[k] as usize] = o;
            next[k] += 1;
        });
        next.copy_from_slice(&first);
        Rising { first, all, next }
    }

    fn lowest(&mut self, k: usize, obstacles: &[Obstacle], height: u64) -> Option<u32> {
        while self.next[k] < self.first[k + 1] {
            let o = self.all[self.next[k] as usize];
            // When two obstacles overlap, passing the lower one may lead above the bottom of the
            // upper one.
            if obstacles[o as usize].end > height {
                return Some(o);
            }
            self.next[k] += 1;
        }
        None
    }
}

impl<'a> Ceilings<'a> {
    pub(super) fn new(obstacles: &'a [Obstacle]) -> Ceilings<'a> {
        let mut ends: Vec<u32> = obstacles.iter().flat_map(|o| [o.from, o.to]).collect();
        ends.sort_unstable();
        ends.dedup();
        let leaves = if obstacles.is_empty() { 0 } else { (ends.len() + 1).next_power_of_two() };
        let mut order: Vec<u32> = (0..obstacles.len() as u32).collect();
        order.sort_by_key(|&o| (obstacles[o as usize].bottom, o));
        let begin = Rising::new(2 * leaves, |each| {
            for &o in &order {
                let mut k = leaves + part_of(&ends, obstacles[o as usize].from) as usize;
                while k > 0 {
                    each(k, o);
                    k /= 2;
                }
            }
        });
        let cover = Rising::new(2 * leaves, |each| {
            for &o in &order {
                let Obstacle { from, to, .. } = obstacles[o as usize];
                each_node(leaves, part_of(&ends, from), part_of(&ends, to), |k| each(k, o));
            }
        });
        Ceilings { obstacles, ends, leaves, begin, cover }
    }

    /// Starts again at the bottom.
    pub(super) fn restart(&mut self) {
        for rising in [&mut self.begin, &mut self.cover] {
            rising.next.copy_from_slice(&rising.first);
        }
    }

    /// The lowest obstacle above `height` that covers some of `[from, to)`, which is not empty.
    pub(super) fn lowest(&mut self, from: u32, to: u32, height: u64) -> Option<Obstacle> {
        if self.leaves == 0 {
            return None;
        }
        let (from, to) = (part_of(&self.ends, from), part_of(&self.ends, to - 1) + 1);
        let (obstacles, mut best) = (self.obstacles, None::<u32>);
        let mut offer = |o: Option<u32>| {
            let key = |o: u32| (obstacles[o as usize].bottom, o);
            if let Some(o) = o.filter(|&o| best.is_none_or(|b| key(o) < key(b))) {
                best = Some(o);
            }
        };
        let begin = &mut self.begin;
        each_node(self.leaves, from, to, |k| offer(begin.lowest(k, obstacles, height)));
        let mut k = self.leaves + from as usize;
        while k > 0 {
            offer(self.cover.lowest(k, obstacles, height));
            k /= 2;
        }
        best.map(|o| obstacles[o as usize])
    }
}

/// The part that contains a section.
fn part_of(ends: &[u32], section: u32) -> u32 {
    ends.partition_point(|&end| end <= section) as u32
}

/// Calls `each` with the nodes that together cover `[from, to)` in a tree of `leaves` leaves.
fn each_node(leaves: usize, from: u32, to: u32, mut each: impl FnMut(usize)) {
    let (mut from, mut to) = (from as usize + leaves, to as usize + leaves);
    while from < to {
        if from % 2 == 1 {
            each(from);
            from += 1;
        }
        if to % 2 == 1 {
            to -= 1;
            each(to);
        }
        from /= 2;
        to /= 2;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::budget::Budget;
    use super::super::instance::{Instance, Item};
    use super::super::niche::{Limits, Niche, Outcome};
    use super::super::order::{rank, By, Rule};
    use super::super::skyline::Skyline;
    use super::*;
    use fastrand::Rng;

    /// A few items around obstacles and borders, some of them bound to a band between two borders.
    fn any(rng: &mut Rng) -> Instance {
        let sections = rng.u32(1..7);
        let most = [3, 6, 12][rng.usize(..3)];
        let item = |rng: &mut Rng| {
            let from = rng.u32(..sections);
            Item { from, to: rng.u32(from + 1..=sections), size: rng.u64(1..=most), align: 1 }
        };
        let items: Vec<Item> = (0..rng.usize(1..7)).map(|_| item(rng)).collect();
        let mut obstacles: Vec<Obstacle> = Vec::new();
        for _ in 0..rng.usize(..4) {
            let Item { from, to, size, .. } = item(rng);
            let bottom = rng.u64(..2 * most);
            obstacles.push(Obstacle { from, to, bottom, end: bottom + size });
        }
        let mut bands = Vec::new();
        if rng.bool() {
            let border = rng.u64(most..4 * most);
            obstacles.push(Obstacle { from: 0, to: sections, bottom: border, end: border });
            if rng.bool() {
                let any = [(0, u64::MAX), (0, border), (border, u64::MAX)];
                bands = items.iter().map(|_| any[rng.usize(..3)]).collect();
            }
        }
        Instance { bands, ..Instance::around(items, obstacles, sections as usize) }
    }

    fn is_free(instance: &Instance, i: usize, at: u64, placed: &[(usize, u64)]) -> bool {
        let item = &instance.items[i];
        let meets = |from: u32, to: u32| item.from < to && from < item.to;
        let (low, high) = instance.bands.get(i).copied().unwrap_or((0, u64::MAX));
        let clear = |o: &Obstacle| !meets(o.from, o.to) || at >= o.end || at + item.size <= o.bottom;
        let apart = |&(j, other): &(usize, u64)| {
            let b = &instance.items[j];
            !meets(b.from, b.to) || at >= other + b.size || at + item.size <= other
        };
        low <= at && at + item.size <= high && instance.obstacles.iter().all(clear) && placed.iter().all(apart)
    }

    /// The smallest top over all orders, with each item at the lowest free offset.
    fn smallest(instance: &Instance, placed: &mut Vec<(usize, u64)>) -> u64 {
        let mut best = u64::MAX;
        let mut all = true;
        for i in 0..instance.items.len() {
            if placed.iter().any(|p| p.0 == i) {
                continue;
            }
            all = false;
            let Some(at) = (0..300).find(|&at| is_free(instance, i, at, placed)) else { return u64::MAX };
            placed.push((i, at));
            best = best.min(smallest(instance, placed));
            placed.pop();
        }
        if all {
            best = placed.iter().map(|&(i, at)| at + instance.items[i].size).max().unwrap_or(0);
        }
        best
    }

    fn assert_right(seed: u64, instance: &Instance, offsets: &[u64]) {
        let all: Vec<(usize, u64)> = offsets.iter().copied().enumerate().collect();
        for &(i, at) in &all {
            let others: Vec<_> = all.iter().copied().filter(|o| o.0 != i).collect();
            assert!(is_free(instance, i, at, &others), "seed {seed}: item {i} at {at} of {instance:?}: {offsets:?}");
        }
    }

    /// The search finds a layout in every capacity from the smallest on, and proves that there is
    /// none below.
    #[test]
    fn the_search_around_obstacles_agrees_with_all_orders() {
        let mut proved = 0;
        for seed in 0..2_500 {
            let instance = any(&mut Rng::with_seed(seed));
            let optimum = smallest(&instance, &mut Vec::new());
            let ends = instance.obstacles.iter().map(|o| o.end).max().unwrap_or(0);
            let mut ranks = Vec::new();
            let rule = Rule::of_round(seed % 40);
            rank(&instance.items, &instance.pressure(), rule, &mut ranks);
            for capacity in [optimum.min(200).saturating_sub(1), optimum.min(200), optimum.min(200) + 2] {
                if capacity < ends {
                    continue;
                }
                let mut niche = Niche::new(&instance);
                niche.set_capacity(capacity);
                let mut budget = Budget::new(u64::MAX, None, None);
                match niche.run(&instance, rule, &ranks, Limits::steps(u64::MAX), &mut budget) {
                    Outcome::Found => {
                        assert!(capacity >= optimum, "seed {seed}: {capacity} is below {optimum}");
                        assert!(instance.top(niche.offsets()) <= capacity, "seed {seed}");
                        assert_right(seed, &instance, niche.offsets());
                    }
                    outcome => {
                        assert_eq!(outcome, Outcome::Impossible, "seed {seed}");
                        assert!(capacity < optimum, "seed {seed}: no layout in {capacity} of {optimum}: {instance:?}");
                        proved += 1;
                    }
                }
            }
        }
        assert!(proved > 200, "{proved}");
    }

    #[test]
    fn the_greedy_layout_keeps_clear_of_obstacles() {
        for seed in 0..4_000 {
            let mut instance = any(&mut Rng::with_seed(seed));
            instance.bands.clear();
            instance.items.iter_mut().for_each(|i| i.align = 1 << (seed % 3));
            let mut ranks = Vec::new();
            for by in [By::Size, By::Pressure] {
                rank(&instance.items, &instance.pressure(), Rule::greedy(by), &mut ranks);
                let mut offsets = vec![0; instance.items.len()];
                let mut budget = Budget::new(u64::MAX, None, None);
                let size =
                    Skyline::new(&instance, &mut || false).unwrap().place(&ranks, u64::MAX, &mut offsets, &mut budget);
                assert_eq!(size, Some(instance.top(&offsets)), "seed {seed}");
                assert_right(seed, &instance, &offsets);
                assert!(offsets.iter().zip(&instance.items).all(|(at, i)| at.is_multiple_of(i.align)), "seed {seed}");
            }
        }
    }
}

//! Guesses which items belong together, and glues them into one.
//!
//! Where one item ends and another of the same size starts, a tight layout often has them side by
//! side. The same goes for two stacks of equal height, each of items with one live range. A search
//! over fewer, larger items is far quicker. It may miss layouts, so it alternates with searches
//! over the original items.
//!
//! Obstacles are glued like items, and hold in place what they are glued to.

use super::blocks::Obstacle;
use super::instance::{Instance, Item};
use super::numbers::mix;

/// Most items of one live range for which all stacks are tried.
const MOST_ALIKE: usize = 24;
/// Most items of a stack.
const HIGHEST: usize = 3;

/// An instance of glued items, and what they are made of.
pub(super) struct Glued {
    pub(super) instance: Instance,
    /// The parts of each piece, with their heights in it. The pieces are the original items, then
    /// its obstacles, then glued ones.
    pieces: Vec<Vec<(u32, u64)>>,
    /// The piece of each item of `instance`.
    roots: Vec<u32>,
    /// Pieces that cannot move, and their offsets.
    held: Vec<(u32, u64)>,
}

/// The share that glues everything: eight in eight.
pub(super) const ALL: u64 = 8;

/// How much to glue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Glue {
    /// Items side by side, and two items beside one.
    Triples,
    /// As for triples, and stacks of up to three items beside one another.
    Stacks,
}

impl Glued {
    /// Glues `share` in [`ALL`] of the pieces that fit together in only one way. The seed decides
    /// which.
    pub(super) fn new(instance: &Instance, glue: Glue, share: u64, seed: u64) -> Glued {
        // Glued obstacles hold much in place, for better or worse: half of all attempts leave them
        // alone.
        let holds = if seed == 0 { glue != Glue::Triples } else { seed & 2 == 0 };
        let mut items = instance.items.clone();
        items.extend(instance.obstacles.iter().map(|o| Item {
            from: o.from,
            to: o.to,
            size: o.end - o.bottom,
            align: 1,
        }));
        let mut held = vec![None; instance.items.len()];
        held.extend(instance.obstacles.iter().map(|o| Some(o.bottom)));
        let mut work = Work {
            pieces: vec![Vec::new(); items.len()],
            alive: vec![true; items.len()],
            items,
            held,
            holds,
            share,
            seed,
        };
        while work.glue_pairs() || work.glue_stacks(glue) {}
        let (fixed, roots): (Vec<u32>, Vec<u32>) = work.alive().partition(|&i| work.held[i as usize].is_some());
        let items: Vec<Item> = roots.iter().map(|&i| work.items[i as usize]).collect();
        let held: Vec<(u32, u64)> =
            fixed.into_iter().filter_map(|i| work.held[i as usize].map(|bottom| (i, bottom))).collect();
        let instance = if held.is_empty() {
            Instance::from_ranges(items)
        } else {
            let obstacle = |&(i, bottom): &(u32, u64)| {
                let Item { from, to, size, .. } = work.items[i as usize];
                Obstacle { from, to, bottom, end: bottom + size }
            };
            Instance::around(items, held.iter().map(obstacle).collect(), instance.totals.len())
        };
        Glued { instance, pieces: work.pieces, roots, held }
    }

    /// Whether anything was glued.
    pub(super) fn is_different(&self) -> bool {
        self.pieces.iter().any(|parts| !parts.is_empty())
    }

    /// The offsets of the original items, given those of the glued ones.
    pub(super) fn expand(&self, glued: &[u64], offsets: &mut [u64]) {
        let mut stack: Vec<(u32, u64)> = self.roots.iter().copied().zip(glued.iter().copied()).collect();
        stack.extend(&self.held);
        while let Some((piece, at)) = stack.pop() {
            let parts = &self.pieces[piece as usize];
            if parts.is_empty() {
                if let Some(offset) = offsets.get_mut(piece as usize) {
                    *offset = at;
                }
            }
            stack.extend(parts.iter().map(|&(part, up)| (part, at + up)));
        }
    }
}

struct Work {
    items: Vec<Item>,
    pieces: Vec<Vec<(u32, u64)>>,
    alive: Vec<bool>,
    /// The offset of each piece that cannot move.
    held: Vec<Option<u64>>,
    /// Whether pieces that cannot move are glued.
    holds: bool,
    share: u64,
    seed: u64,
}

impl Work {
    fn alive(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.items.len() as u32).filter(|&i| self.alive[i as usize])
    }

    /// Whether an item can be glued. Borders cannot, nor can immovable pieces unless `holds` is
    /// set.
    fn is_usable(&self, i: u32) -> bool {
        let item = &self.items[i as usize];
        item.size > 0 && (self.holds || self.held[i as usize].is_none())
    }

    /// Whether the seed selects the pair or stack that starts with item `i`.
    fn wanted(&self, i: u32) -> bool {
        mix(self.seed ^ u64::from(i)) % ALL < self.share
    }

    /// Makes one piece of `parts`, unless alignments or immovable pieces forbid it.
    fn join(&mut self, from: u32, to: u32, size: u64, parts: Vec<(u32, u64)>) {
        let mut held = parts.iter().filter_map(|&(part, up)| self.held[part as usize].map(|at| at.checked_sub(up)));
        let bottom = held.next();
        if bottom.is_some_and(|at| at.is_none() || held.any(|other| other != at)) {
            return;
        }
        let bottom = bottom.flatten();
        // Each part must be aligned wherever the piece may lie.
        let align = parts.iter().map(|&(part, _)| self.items[part as usize].align).max().unwrap_or(1);
        let is_aligned = |&(part, up): &(u32, u64)| {
            let needed = self.items[part as usize].align;
            (bottom.unwrap_or(0) + up).is_multiple_of(needed) && (bottom.is_some() || align.is_multiple_of(needed))
        };
        if !parts.iter().all(is_aligned) {
            return;
        }
        let is_part = |i: u32| parts.iter().any(|&(part, _)| part == i);
        let in_the_way = |i: u32, bottom: u64| {
            let (item, at) = (&self.items[i as usize], self.held[i as usize]);
            let meets = item.from < to && from < item.to && !is_part(i);
            meets && at.is_some_and(|at| at < bottom + size && bottom < at + item.size)
        };
        if bottom.is_some_and(|bottom| self.alive().any(|i| in_the_way(i, bottom))) {
            return;
        }
        self.held.push(bottom);
        for (part, _) in &parts {
            self.alive[*part as usize] = false;
        }
        self.items.push(Item { from, to, size, align: if bottom.is_some() { 1 } else { align } });
        self.pieces.push(parts);
        self.alive.push(true);
    }

    /// The items sorted by (boundary, size), where the boundary is their end or start.
    fn edges(&self, boundary: impl Fn(&Item) -> u32) -> Vec<(u32, u64, u32)> {
        let usable = self.alive().filter(|&i| self.is_usable(i));
        let mut edges: Vec<_> =
            usable.map(|i| (boundary(&self.items[i as usize]), self.items[i as usize].size, i)).collect();
        edges.sort_unstable();
        edges
    }

    /// Glues two items of equal size side by side if they are the only pair of that size at a
    /// boundary.
    fn glue_pairs(&mut self) -> bool {
        let ends = self.edges(|i| i.to);
        let starts = self.edges(|i| i.from);
        let before = self.items.len();
        for &(at, size, left) in &ends {
            let (Some(l), Some(right)) = (only(&ends, at, size), only(&starts, at, size)) else { continue };
            if l == left && self.alive[left as usize] && self.alive[right as usize] && self.wanted(left) {
                let (from, to) = (self.items[left as usize].from, self.items[right as usize].to);
                self.join(from, to, size, vec![(left, 0), (right, 0)]);
            }
        }
        self.items.len() > before
    }

    /// Glues two stacks of equal height where one ends and the other starts, if both are the only
    /// ones.
    fn glue_stacks(&mut self, glue: Glue) -> bool {
        let highest = match glue {
            Glue::Triples => 2,
            Glue::Stacks => HIGHEST,
        };
        let before = self.items.len();
        let mut ending = self.stacks(highest, |item| item.to);
        let mut starting = self.stacks(highest, |item| item.from);
        let order = |s: &Stack| (s.boundary, s.size);
        ending.sort_by_key(order);
        starting.sort_by_key(order);
        let mut right = starting.chunk_by(|a, b| order(a) == order(b)).peekable();
        for left in ending.chunk_by(|a, b| order(a) == order(b)) {
            while right.next_if(|r| order(&r[0]) < order(&left[0])).is_some() {}
            let Some(right) = right.peek().filter(|r| order(&r[0]) == order(&left[0])) else { continue };
            let ([left], [right]) = (left, *right) else { continue };
            let many = left.items.len() + right.items.len();
            if many == 2 || (glue == Glue::Triples && many > 3) {
                continue;
            }
            let all = || left.items.iter().chain(&right.items);
            if all().all(|&i| self.alive[i as usize]) && self.wanted(left.items[0]) {
                let mut parts = self.piled(&left.items);
                parts.extend(self.piled(&right.items));
                self.join(left.other, right.other, left.size, parts);
            }
        }
        self.items.len() > before
    }

    /// All stacks of up to `highest` items of one live range, by the boundary on the given side.
    fn stacks(&self, highest: usize, boundary: impl Fn(&Item) -> u32) -> Vec<Stack> {
        let item = |i: u32| &self.items[i as usize];
        let range = |i: u32| (item(i).from, item(i).to);
        let mut usable: Vec<u32> = self.alive().filter(|&i| self.is_usable(i)).collect();
        usable.sort_by_key(|&i| (range(i), i));
        let mut stacks: Vec<Stack> = Vec::new();
        for group in usable.chunk_by(|&a, &b| range(a) == range(b)) {
            let (from, to) = range(group[0]);
            let at = boundary(item(group[0]));
            let other = if at == from { to } else { from };
            let stack = |items: Vec<u32>, size| Stack { boundary: at, other, size, items };
            let first = stacks.len();
            for &i in group {
                // Put it on top of every stack of earlier items that has room for one more.
                let until = if group.len() <= MOST_ALIKE { stacks.len() } else { first };
                for below in first..until {
                    if stacks[below].items.len() < highest {
                        let mut items = stacks[below].items.clone();
                        items.push(i);
                        stacks.push(stack(items, stacks[below].size + item(i).size));
                    }
                }
                stacks.push(stack(vec![i], item(i).size));
            }
        }
        stacks
    }

    /// Stacks items, those of large alignment at the bottom: each item and its height in the stack.
    fn piled(&self, items: &[u32]) -> Vec<(u32, u64)> {
        let mut order = items.to_vec();
        order.sort_by_key(|&i| std::cmp::Reverse(self.items[i as usize].align));
        let mut height = 0;
        order
            .into_iter()
            .map(|i| {
                let at = height;
                height += self.items[i as usize].size;
                (i, at)
            })
            .collect()
    }
}

/// Items of one live range on top of one another.
struct Stack {
    /// Where the live range meets that of the stack beside it.
    boundary: u32,
    /// Its other end.
    other: u32,
    size: u64,
    items: Vec<u32>,
}

/// The item with this boundary and size, if there is exactly one.
fn only(edges: &[(u32, u64, u32)], boundary: u32, size: u64) -> Option<u32> {
    let first = edges.partition_point(|e| (e.0, e.1) < (boundary, size));
    let matches = |e: &&(u32, u64, u32)| (e.0, e.1) == (boundary, size);
    let (one, next) = (edges.get(first).filter(matches), edges.get(first + 1).filter(matches));
    match (one, next) {
        (Some(e), None) => Some(e.2),
        _ => None,
    }
}

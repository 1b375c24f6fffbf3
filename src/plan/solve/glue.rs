//! Guesses which items belong together, and makes one of them.
//!
//! Where one item ends and another of the same size starts, a tight layout often has them side by side; likewise an item
//! and two others, stacked, that have one live range and together its size. A search over fewer, larger items is far
//! quicker. It may miss layouts, so it runs in turn with searches over the items as they are.

use super::instance::{Instance, Item};
use super::niche::mix;

/// Most items of one live range whose pairs are looked at.
const MOST_ALIKE: usize = 32;

/// An instance of glued items, and what they are made of.
pub(super) struct Glued {
    pub(super) instance: Instance,
    /// Items of the original, then glued ones: each its two or three parts, and how high they lie in it.
    pieces: Vec<[Option<(u32, u64)>; 3]>,
    /// The piece of each item of `instance`.
    roots: Vec<u32>,
}

/// How much to glue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Glue {
    /// Items side by side.
    Pairs,
    /// Those, and pairs of items beside one.
    Triples,
}

impl Glued {
    /// Glues what fits together in only one way; with a `seed`, about three in four of those.
    pub(super) fn new(instance: &Instance, glue: Glue, seed: u64) -> Glued {
        let mut work = Work {
            items: instance.items.clone(),
            pieces: vec![[None; 3]; instance.items.len()],
            alive: vec![true; instance.items.len()],
            seed,
        };
        while work.glue_pairs() || (glue == Glue::Triples && work.glue_triples()) {}
        let roots: Vec<u32> = (0..work.items.len() as u32).filter(|&i| work.alive[i as usize]).collect();
        let items: Vec<Item> = roots.iter().map(|&i| work.items[i as usize]).collect();
        Glued { instance: Instance::from_ranges(items), pieces: work.pieces, roots }
    }

    /// Whether anything was glued.
    pub(super) fn is_different(&self) -> bool {
        self.pieces.len() > self.roots.len()
    }

    /// The offsets of the original items, given those of the glued ones.
    pub(super) fn expand(&self, glued: &[u64], offsets: &mut [u64]) {
        let mut stack: Vec<(u32, u64)> = self.roots.iter().copied().zip(glued.iter().copied()).collect();
        while let Some((piece, at)) = stack.pop() {
            let parts = &self.pieces[piece as usize];
            if parts[0].is_none() {
                if let Some(offset) = offsets.get_mut(piece as usize) {
                    *offset = at;
                }
            }
            stack.extend(parts.iter().flatten().map(|&(part, up)| (part, at + up)));
        }
    }
}

struct Work {
    items: Vec<Item>,
    pieces: Vec<[Option<(u32, u64)>; 3]>,
    alive: Vec<bool>,
    seed: u64,
}

impl Work {
    fn alive(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.items.len() as u32).filter(|&i| self.alive[i as usize])
    }

    /// Whether the seed wants what starts with item `i` glued.
    fn wanted(&self, i: u32) -> bool {
        self.seed == 0 || mix(self.seed ^ u64::from(i)) & 3 != 0
    }

    fn join(&mut self, from: u32, to: u32, size: u64, parts: [Option<(u32, u64)>; 3]) {
        for (part, _) in parts.iter().flatten() {
            self.alive[*part as usize] = false;
        }
        self.items.push(Item { from, to, size, align: 1 });
        self.pieces.push(parts);
        self.alive.push(true);
    }

    /// The items by (boundary, size), where boundary is where they end or start.
    fn edges(&self, boundary: impl Fn(&Item) -> u32) -> Vec<(u32, u64, u32)> {
        let usable = self.alive().filter(|&i| self.items[i as usize].align == 1);
        let mut edges: Vec<_> =
            usable.map(|i| (boundary(&self.items[i as usize]), self.items[i as usize].size, i)).collect();
        edges.sort_unstable();
        edges
    }

    /// Glues items of equal size side by side where there is one pair of that size at a boundary.
    fn glue_pairs(&mut self) -> bool {
        let ends = self.edges(|i| i.to);
        let starts = self.edges(|i| i.from);
        let before = self.items.len();
        for &(at, size, left) in &ends {
            let (Some(l), Some(right)) = (only(&ends, at, size), only(&starts, at, size)) else { continue };
            if l == left && self.alive[left as usize] && self.alive[right as usize] && self.wanted(left) {
                let (from, to) = (self.items[left as usize].from, self.items[right as usize].to);
                self.join(from, to, size, [Some((left, 0)), Some((right, 0)), None]);
            }
        }
        self.items.len() > before
    }

    /// Glues two items of one live range to one of their size beside them, where both are the only ones.
    fn glue_triples(&mut self) -> bool {
        let ends = self.edges(|i| i.to);
        let starts = self.edges(|i| i.from);
        let mut alike: Vec<u32> = self.alive().filter(|&i| self.items[i as usize].align == 1).collect();
        let range = |i: u32| (self.items[i as usize].from, self.items[i as usize].to);
        alike.sort_by_key(|&i| (range(i), i));
        let groups: Vec<Vec<u32>> = alike.chunk_by(|&a, &b| range(a) == range(b)).map(<[u32]>::to_vec).collect();
        let before = self.items.len();
        for group in groups.iter().filter(|g| (2..=MOST_ALIKE).contains(&g.len())) {
            let (from, to) = (self.items[group[0] as usize].from, self.items[group[0] as usize].to);
            let mut sums = Vec::new();
            for (n, &upper) in group.iter().enumerate() {
                for &lower in &group[..n] {
                    sums.push((self.items[lower as usize].size + self.items[upper as usize].size, lower, upper));
                }
            }
            sums.sort_unstable();
            for same in sums.chunk_by(|a, b| a.0 == b.0).filter(|c| c.len() == 1) {
                let (size, lower, upper) = same[0];
                let left = only(&ends, from, size).filter(|&i| self.alive[i as usize]);
                let right = only(&starts, to, size).filter(|&i| self.alive[i as usize]);
                let Some(beside) = left.or(right) else { continue };
                if !self.alive[lower as usize] || !self.alive[upper as usize] || !self.wanted(lower) {
                    continue;
                }
                let up = self.items[lower as usize].size;
                let parts = [Some((beside, 0)), Some((lower, 0)), Some((upper, up))];
                let range = &self.items[beside as usize];
                self.join(from.min(range.from), to.max(range.to), size, parts);
            }
        }
        self.items.len() > before
    }
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

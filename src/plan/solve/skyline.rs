//! Greedy layout from the bottom up: the best-ranked item that fits goes into the lowest niche.
//!
//! The skyline is a list of *flats*, runs of sections filled up to the same height. The lowest flat
//! takes the best-ranked item that fits between its ends, or rises to its lower neighbour if none
//! does. To find that item, there is one tree for each power of two of widths, over items in order
//! of their first section. n items take O(n log² n) steps on most inputs.
//!
//! Source: the best-fit skyline heuristic for strip packing (Burke, Kendall and Whitwell 2004) with
//! a fixed order instead of best fit, because an item's sections are given here.

use super::blocks::{Ceilings, Obstacle};
use super::budget::Budget;
use super::in_time::PIECE;
use super::instance::{in_order, Instance, Item};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most entries in the table of sections of a class with few items; and items per entry in one with
/// many.
const FEW_TABLED: usize = 1 << 14;
const ITEMS_AN_ENTRY: usize = 4;
/// Items below a leaf of a class's tree, scanned one by one: a node for each would take more memory
/// than the problem, and save no time.
const LEAF: usize = 8;
/// No item.
const NONE: u32 = u32::MAX;

/// Data shared by all orders, and the state of the current one.
pub(super) struct Skyline<'a> {
    items: &'a [Item],
    ceilings: Ceilings<'a>,
    sections: usize,
    /// Items by width: one class for each power of two.
    classes: Vec<Class<'a>>,
    /// The class for each logarithm of the width.
    class_of: [u8; u32::BITS as usize],
    /// The position of each item in its class.
    position: Vec<u32>,
    flats: Vec<Flat>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// The end of the highest item placed so far.
    size: u64,
}

/// A run of sections of equal height, kept at the index of its first section.
#[derive(Clone, Copy, Default)]
struct Flat {
    height: u64,
    end: u32,
    /// First section of the flat on the left.
    left: u32,
}

/// The height of a flat that was merged into another.
const GONE: u64 = u64::MAX;

impl<'a> Skyline<'a> {
    /// `None` if it became `late`, which only many items check.
    pub(super) fn new(instance: &'a Instance, late: &mut dyn FnMut() -> bool) -> Option<Skyline<'a>> {
        let items = &instance.items[..];
        let sections = instance.totals.len();
        let mut by_class: Vec<Vec<u32>> = vec![Vec::new(); u32::BITS as usize];
        for (at, i) in in_order(items, |item| item.from, late)?.into_iter().enumerate() {
            if at % PIECE == PIECE - 1 && late() {
                return None;
            }
            let item = &items[i as usize];
            by_class[(item.to - item.from).ilog2() as usize].push(i);
        }
        let mut position = vec![0; items.len()];
        let mut class_of = [0; u32::BITS as usize];
        let mut classes = Vec::new();
        for (width, members) in by_class.into_iter().enumerate().filter(|(_, m)| !m.is_empty()) {
            if members.len() > PIECE && late() {
                return None;
            }
            class_of[width] = classes.len() as u8;
            for (at, &i) in members.iter().enumerate() {
                position[i as usize] = at as u32;
            }
            classes.push(Class::new(items, sections, members, !instance.obstacles.is_empty()));
        }
        if items.len() > PIECE && late() {
            return None;
        }
        let flats = vec![Flat::default(); sections + 1];
        Some(Skyline {
            items,
            ceilings: Ceilings::new(&instance.obstacles),
            sections,
            classes,
            class_of,
            position,
            flats,
            heap: BinaryHeap::new(),
            size: 0,
        })
    }

    /// Lays all items out, preferring low `rank`, writes `offsets`, and returns the size. `None`
    /// when the budget runs out or the size would exceed `limit`.
    pub(super) fn place(
        &mut self,
        rank: &[u32],
        limit: u64,
        offsets: &mut [u64],
        budget: &mut Budget<'_>,
    ) -> Option<u64> {
        let mut item_of = vec![0; rank.len()];
        for (i, &r) in rank.iter().enumerate() {
            if i % PIECE == PIECE - 1 && budget.is_late() {
                return None;
            }
            item_of[r as usize] = i as u32;
        }
        for class in &mut self.classes {
            if !class.tree.fill(rank, &mut || budget.is_late()) {
                return None;
            }
        }
        self.flats.fill(Flat::default());
        self.heap.clear();
        self.ceilings.restart();
        self.flats[0] = Flat { height: 0, end: self.sections as u32, left: 0 };
        self.heap.push(Reverse((0, 0)));
        self.size = 0;
        let mut placed = 0;
        while placed < self.items.len() {
            let Reverse((height, from)) = self.heap.pop()?;
            let flat = self.flats[from as usize];
            if flat.height != height {
                continue;
            }
            let above = self.ceilings.lowest(from, flat.end, height);
            let room = above.map_or(u64::MAX, |o| o.bottom.saturating_sub(height));
            let mut best = NONE;
            for class in self.classes.iter().rev() {
                class.better(from, flat.end, room, &mut best);
            }
            if best == NONE {
                match above {
                    Some(obstacle) => self.pass(from, obstacle),
                    None => self.rise(from),
                }
                continue;
            }
            let i = item_of[best as usize] as usize;
            let offset = height.next_multiple_of(self.items[i].align);
            let top = offset + self.items[i].size;
            if top > limit || !budget.take(1) {
                return None;
            }
            offsets[i] = offset;
            self.size = self.size.max(top);
            placed += 1;
            let class = self.class_of[(self.items[i].to - self.items[i].from).ilog2() as usize];
            self.classes[class as usize].tree.remove(self.position[i] as usize);
            self.cover(from, self.items[i].from, self.items[i].to, top);
        }
        Some(self.size)
    }

    /// Raises a flat to its lower neighbour, and joins it with neighbours of that height.
    fn rise(&mut self, from: u32) {
        self.flats[from as usize].height = self.wall(from);
        self.join(from);
    }

    /// The height of the lower neighbour of a flat.
    fn wall(&self, from: u32) -> u64 {
        let flat = self.flats[from as usize];
        let left = if from > 0 { self.flats[flat.left as usize].height } else { u64::MAX };
        let right = if (flat.end as usize) < self.sections { self.flats[flat.end as usize].height } else { u64::MAX };
        left.min(right)
    }

    /// Goes on above the part of an obstacle over a flat when nothing more fits below it: larger
    /// items may fit beside it. If a neighbour is no higher than the obstacle's bottom, raises the
    /// flat to it, where more may fit.
    fn pass(&mut self, start: u32, obstacle: Obstacle) {
        let flat = self.flats[start as usize];
        if self.wall(start) <= obstacle.bottom {
            self.rise(start);
        } else {
            self.cover(start, obstacle.from.max(start), obstacle.to.min(flat.end), obstacle.end);
        }
    }

    /// Makes `[from, to)` of the flat at `start` as high as `top`.
    fn cover(&mut self, start: u32, from: u32, to: u32, top: u64) {
        let flat = self.flats[start as usize];
        if to < flat.end {
            self.flats[to as usize] = Flat { left: from, ..flat };
            self.set_left(flat.end, to);
            self.heap.push(Reverse((flat.height, to)));
        } else {
            self.set_left(to, from);
        }
        let mut left = flat.left;
        if from > start {
            self.flats[start as usize].end = from;
            self.heap.push(Reverse((flat.height, start)));
            left = start;
        }
        self.flats[from as usize] = Flat { height: top, end: to, left };
        self.join(from);
    }

    /// Joins a flat with neighbours of the same height, and queues it.
    fn join(&mut self, from: u32) {
        let mut from = from;
        let height = self.flats[from as usize].height;
        if from > 0 {
            let left = self.flats[from as usize].left;
            if self.flats[left as usize].height == height {
                self.flats[left as usize].end = self.flats[from as usize].end;
                self.flats[from as usize].height = GONE;
                from = left;
            }
        }
        let mut end = self.flats[from as usize].end;
        if (end as usize) < self.sections && self.flats[end as usize].height == height {
            self.flats[end as usize].height = GONE;
            end = self.flats[end as usize].end;
            self.flats[from as usize].end = end;
        }
        self.set_left(end, from);
        self.heap.push(Reverse((height, from)));
    }

    fn set_left(&mut self, flat: u32, left: u32) {
        if (flat as usize) < self.sections {
            self.flats[flat as usize].left = left;
        }
    }
}

/// Items of similar width: from one power of two to the next.
///
/// Classes make it quick to find an item that fits: all items of a class that start early enough
/// fit, whatever their width. Only the few that start close to the flat's end need their ends
/// checked.
struct Class<'a> {
    /// The first section of each item, by place in the tree.
    starts: Vec<u32>,
    /// Per boundary of a stretch of 2^`stretch` sections, the number of items that start before it.
    before: Vec<u32>,
    stretch: u32,
    /// Smallest and largest width.
    narrowest: u32,
    widest: u32,
    tree: Tree<'a>,
}

impl<'a> Class<'a> {
    /// `members` are in order of their first sections.
    fn new(items: &'a [Item], sections: usize, members: Vec<u32>, sized: bool) -> Class<'a> {
        let entries = (members.len() / ITEMS_AN_ENTRY).max(FEW_TABLED);
        let stretch = usize::BITS - (sections / (entries + 1)).leading_zeros();
        let mut before = vec![0; (sections >> stretch) + 2];
        for &i in &members {
            before[(items[i as usize].from as usize >> stretch) + 1] += 1;
        }
        for k in 1..before.len() {
            before[k] += before[k - 1];
        }
        let widths = members.iter().map(|&i| items[i as usize].to - items[i as usize].from);
        Class {
            before,
            stretch,
            starts: members.iter().map(|&i| items[i as usize].from).collect(),
            narrowest: widths.clone().min().unwrap_or(0),
            widest: widths.max().unwrap_or(0),
            tree: Tree::new(items, members, sized),
        }
    }

    /// Lowers `best` to the best rank of the unplaced items that fit into `[from, end)` and `room`
    /// grains.
    fn better(&self, from: u32, end: u32, room: u64, best: &mut u32) {
        if self.tree.nodes[1].best >= *best || end - from < self.narrowest {
            return;
        }
        // Items before place `sure` all fit `[from, end)`; those at `never` or later do not.
        let before = |section: u32| {
            let k = (section >> self.stretch) as usize;
            let first = self.before[k];
            if self.stretch == 0 {
                return first;
            }
            let starts = &self.starts[first as usize..self.before[k + 1] as usize];
            first + starts.partition_point(|&s| s < section) as u32
        };
        let first = before(from);
        let sure = before((end + 1).saturating_sub(self.widest)).max(first);
        let never = before(end + 1 - self.narrowest);
        self.tree.best(first..sure, u32::MAX, room, best);
        self.tree.best(sure..never, end, room, best);
    }
}

/// A tree over items in order of their first section, for the best rank among those that end early
/// enough.
struct Tree<'a> {
    items: &'a [Item],
    /// By place, the item; its rank, [`NONE`] once it is placed; and the first section after it.
    members: Vec<u32>,
    ranks: Vec<u32>,
    ends: Vec<u32>,
    /// Number of leaves, a power of two; each covers [`LEAF`] places.
    leaves: usize,
    /// The nodes up to the last item; nodes beyond are empty.
    nodes: Vec<Node>,
    /// By node, the smallest and largest size below, alignment included; empty if there are no
    /// obstacles.
    sizes: Vec<(u64, u64)>,
}

#[derive(Clone, Copy)]
struct Node {
    /// Best rank of the unplaced items below.
    best: u32,
    /// First and last end of those items.
    first_end: u32,
    last_end: u32,
}

/// The sizes of no item.
const NO_SIZES: (u64, u64) = (u64::MAX, 0);

const EMPTY: Node = Node { best: NONE, first_end: u32::MAX, last_end: 0 };

impl Node {
    fn join(a: Node, b: Node) -> Node {
        Node { best: a.best.min(b.best), first_end: a.first_end.min(b.first_end), last_end: a.last_end.max(b.last_end) }
    }
}

impl<'a> Tree<'a> {
    fn new(items: &'a [Item], members: Vec<u32>, sized: bool) -> Tree<'a> {
        let n = members.len();
        let leaves = n.div_ceil(LEAF).next_power_of_two();
        let nodes = leaves + n.div_ceil(LEAF);
        Tree {
            items,
            ranks: vec![NONE; n],
            ends: members.iter().map(|&i| items[i as usize].to).collect(),
            members,
            leaves,
            nodes: vec![EMPTY; nodes],
            sizes: if sized { vec![NO_SIZES; nodes] } else { Vec::new() },
        }
    }

    /// Starts again with all items, ranked by `rank`; `false` if it became `late`.
    fn fill(&mut self, rank: &[u32], late: &mut dyn FnMut() -> bool) -> bool {
        for (at, &i) in self.members.iter().enumerate() {
            if at % PIECE == PIECE - 1 && late() {
                return false;
            }
            self.ranks[at] = rank[i as usize];
        }
        (self.leaves..self.nodes.len()).for_each(|k| self.sum_up(k));
        (1..self.leaves).rev().for_each(|k| self.join(k));
        true
    }

    /// The most height that the item at a place can need, padding included.
    fn size(&self, at: usize) -> u64 {
        let item = &self.items[self.members[at] as usize];
        item.size + item.align - 1
    }

    /// Computes leaf `k` from the unplaced items below it.
    fn sum_up(&mut self, k: usize) {
        let first = (k - self.leaves) * LEAF;
        let unplaced = (first..self.ranks.len().min(first + LEAF)).filter(|&at| self.ranks[at] != NONE);
        self.nodes[k] = unplaced.clone().fold(EMPTY, |node, at| {
            Node::join(node, Node { best: self.ranks[at], first_end: self.ends[at], last_end: self.ends[at] })
        });
        if !self.sizes.is_empty() {
            self.sizes[k] = unplaced.map(|at| self.size(at)).fold(NO_SIZES, |(a, b), s| (a.min(s), b.max(s)));
        }
    }

    /// Computes node `k` from those below it.
    fn join(&mut self, k: usize) {
        self.nodes[k] = match *self.nodes.get(2 * k..).unwrap_or_default() {
            [a, b, ..] => Node::join(a, b),
            [a] => a,
            [] => EMPTY,
        };
        if !self.sizes.is_empty() {
            let of = |k: usize| self.sizes.get(k).copied().unwrap_or(NO_SIZES);
            let (a, b) = (of(2 * k), of(2 * k + 1));
            self.sizes[k] = (a.0.min(b.0), a.1.max(b.1));
        }
    }

    fn remove(&mut self, at: usize) {
        self.ranks[at] = NONE;
        let mut k = self.leaves + at / LEAF;
        self.sum_up(k);
        while k > 1 {
            k /= 2;
            self.join(k);
        }
    }

    /// Lowers `best` to the best rank of the items at places `among` that end by `end` and fit into
    /// `room`.
    fn best(&self, among: std::ops::Range<u32>, end: u32, room: u64, best: &mut u32) {
        if !among.is_empty() {
            self.search(1, 0..(self.leaves * LEAF) as u32, &among, (end, room), best);
        }
    }

    /// Searches below node `k`, which covers `span`. It recurses as deep as the tree, 29 levels at
    /// most.
    fn search(
        &self,
        k: usize,
        span: std::ops::Range<u32>,
        among: &std::ops::Range<u32>,
        (end, room): (u32, u64),
        best: &mut u32,
    ) {
        let node = self.nodes.get(k).copied().unwrap_or(EMPTY);
        let apart = span.end <= among.start || among.end <= span.start;
        let (smallest, largest) = self.sizes.get(k).copied().unwrap_or((0, 0));
        if apart || node.best >= *best || node.first_end > end || smallest > room {
            return;
        }
        if among.start <= span.start && span.end <= among.end && node.last_end <= end && largest <= room {
            *best = node.best;
            return;
        }
        if k >= self.leaves {
            for at in span.start.max(among.start) as usize..span.end.min(among.end) as usize {
                let fits = self.ranks[at] < *best && self.ends[at] <= end;
                if fits && (self.sizes.is_empty() || self.size(at) <= room) {
                    *best = self.ranks[at];
                }
            }
            return;
        }
        let middle = span.start.midpoint(span.end);
        self.search(2 * k, span.start..middle, among, (end, room), best);
        self.search(2 * k + 1, middle..span.end, among, (end, room), best);
    }
}

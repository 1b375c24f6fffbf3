//! The union of live reserved ranges of one arena.

use crate::plan::problem::Reserved;

/// Ranges of bytes that come and go and may overlap. It tells how many bytes they cover, and
/// whether a given range meets one.
///
/// It is a segment tree over the ends of all ranges that may come. A node stands for the bytes
/// `[ends[low], ends[high])`, and its children for the two halves of that index range. Each
/// operation takes O(log ranges).
#[derive(Default)]
pub struct Cover {
    /// Distinct starts and ends of ranges, in order.
    ends: Vec<u64>,
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Default)]
struct Node {
    /// Number of ranges that contain all of this node but not all of its parent.
    whole: u32,
    /// Bytes of this node covered by ranges, apart from those that contain its parent.
    covered: u64,
}

impl Cover {
    /// Takes the ranges that may come; none is there yet.
    pub fn new<'a>(ranges: impl Iterator<Item = &'a Reserved>) -> Cover {
        let mut ends: Vec<u64> = ranges.flat_map(|r| [r.offset, r.offset.saturating_add(r.size)]).collect();
        ends.sort_unstable();
        ends.dedup();
        let nodes = vec![Node::default(); 2 * ends.len().next_power_of_two()];
        Cover { ends, nodes }
    }

    /// The number of bytes covered.
    pub fn covered(&self) -> u64 {
        self.nodes.get(1).map_or(0, |root| root.covered)
    }

    /// Adds or removes the range `[start, end)`, one of those given to [`Cover::new`].
    pub fn change(&mut self, start: u64, end: u64, comes: bool) {
        if let (Ok(low), Ok(high)) = (self.ends.binary_search(&start), self.ends.binary_search(&end)) {
            self.change_in(1, (0, self.ends.len() - 1), (low, high), comes);
        }
    }

    fn change_in(&mut self, node: usize, (low, high): (usize, usize), range: (usize, usize), comes: bool) {
        if range.0 <= low && high <= range.1 {
            let whole = &mut self.nodes[node].whole;
            *whole = if comes { *whole + 1 } else { whole.saturating_sub(1) };
        } else {
            let middle = low.midpoint(high);
            if range.0 < middle {
                self.change_in(2 * node, (low, middle), range, comes);
            }
            if middle < range.1 {
                self.change_in(2 * node + 1, (middle, high), range, comes);
            }
        }
        self.nodes[node].covered = if self.nodes[node].whole > 0 {
            self.ends[high] - self.ends[low]
        } else if high - low == 1 {
            0
        } else {
            self.nodes[2 * node].covered + self.nodes[2 * node + 1].covered
        };
    }

    /// Whether `[start, end)` contains a covered byte.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.covered() > 0 && self.touches_in(1, (0, self.ends.len() - 1), start, end)
    }

    fn touches_in(&self, node: usize, (low, high): (usize, usize), start: u64, end: u64) -> bool {
        let (from, to) = (self.ends[low], self.ends[high]);
        if end <= from || to <= start || self.nodes[node].covered == 0 {
            return false;
        }
        if self.nodes[node].whole > 0 || (start <= from && to <= end) {
            return true;
        }
        let middle = low.midpoint(high);
        self.touches_in(2 * node, (low, middle), start, end)
            || self.touches_in(2 * node + 1, (middle, high), start, end)
    }
}

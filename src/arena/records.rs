//! Addresses and ids of allocations that arenas have freed, and that must not be used any more.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::pool::AllocInfo;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How an arena ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Exit,
    Abort,
}

/// The end of one arena.
#[derive(Debug)]
pub(super) struct End {
    pub(super) arena: u64,
    pub(super) name: String,
    pub(super) depth: u32,
    pub(super) how: How,
}

/// One allocation that went with its arena.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) base: u64,
    /// Bytes from `base` that could be used.
    pub(super) usable: u64,
    pub(super) requested: u64,
    pub(super) id: u64,
    pub(super) tag: u64,
    pub(super) end: Arc<End>,
}

impl Record {
    pub(super) fn new(info: &AllocInfo, end: &Arc<End>) -> Record {
        let AllocInfo { base, usable, requested, id, tag, .. } = *info;
        Record { base, usable: usable.max(1), requested, id, tag, end: end.clone() }
    }

    fn range(&self) -> Range<u64> {
        self.base..self.base.saturating_add(self.usable)
    }

    /// `reclaimed by arena_exit at depth 0 (arena 7 "step", allocation 123 of 4096 bytes)`.
    pub(super) fn reclaimed(&self) -> String {
        let tag = match self.tag {
            0 => String::new(),
            tag => format!(", tag {tag}"),
        };
        let End { depth, how, .. } = *self.end;
        format!(
            "reclaimed by {how} at depth {depth} ({}, allocation {} of {} bytes{tag})",
            self.end, self.id, self.requested
        )
    }

    /// `by arena_exit at depth 0`.
    pub(super) fn by(&self) -> String {
        format!("by {} at depth {}", self.end.how, self.end.depth)
    }
}

/// `allocation 123 (4096 bytes, tag 5) of arena 7 "step"`.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocation {} ({} bytes", self.id, self.requested)?;
        if self.tag != 0 {
            write!(f, ", tag {}", self.tag)?;
        }
        write!(f, ") of {}", self.end)
    }
}

/// `arena 7 "step"`.
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "arena {}", self.arena),
            name => write!(f, "arena {} {name:?}", self.arena),
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            How::Exit => "arena_exit",
            How::Abort => "arena_abort",
        })
    }
}

/// The table of records. Its size is limited: the oldest records go.
///
/// Invariants: `order` has the ids of `by_id`, oldest first, each once; pieces are disjoint, and
/// each lies in the range of its record, which is in `by_id`. There are at most `most` records and
/// `2 * most` pieces.
#[derive(Debug)]
pub(super) struct Records {
    most: usize,
    by_id: HashMap<u64, Arc<Record>>,
    order: VecDeque<u64>,
    /// Parts of the records' ranges that have not been handed out again: start → end and record.
    pieces: BTreeMap<u64, (u64, Arc<Record>)>,
}

impl Records {
    pub(super) fn new(most: usize) -> Records {
        Records { most, by_id: HashMap::new(), order: VecDeque::new(), pieces: BTreeMap::new() }
    }

    /// Enters an allocation.
    pub(super) fn add(&mut self, record: Arc<Record>) {
        let (id, range) = (record.id, record.range());
        self.cut(range.clone());
        if self.by_id.insert(id, record.clone()).is_none() {
            self.order.push_back(id);
        }
        self.pieces.insert(range.start, (range.end, record));
        self.shrink();
    }

    /// Cuts out a range that has been handed out again.
    pub(super) fn cut(&mut self, range: Range<u64>) {
        while let Some((start, end, record)) = self.last_in(&range) {
            self.pieces.remove(&start);
            if start < range.start {
                self.pieces.insert(start, (range.start, record.clone()));
            }
            if range.end < end {
                self.pieces.insert(range.end, (end, record));
            }
        }
        self.shrink();
    }

    fn last_in(&self, range: &Range<u64>) -> Option<(u64, u64, Arc<Record>)> {
        let (&start, (end, record)) = self.pieces.range(..range.end).next_back()?;
        (*end > range.start).then(|| (start, *end, record.clone()))
    }

    fn shrink(&mut self) {
        while self.by_id.len() > self.most || self.pieces.len() > 2 * self.most {
            let Some(record) = self.order.pop_front().and_then(|id| self.by_id.remove(&id)) else { return };
            let of_it = self.pieces.range(record.range()).filter(|(_, (_, r))| r.id == record.id);
            for start in of_it.map(|(&start, _)| start).collect::<Vec<_>>() {
                self.pieces.remove(&start);
            }
        }
    }

    /// The record of the memory at an address.
    pub(super) fn at(&self, addr: u64) -> Option<&Arc<Record>> {
        let (_, (end, record)) = self.pieces.range(..=addr).next_back()?;
        (addr < *end).then_some(record)
    }

    /// A record of memory in a range.
    pub(super) fn inside(&self, range: &Range<u64>) -> Option<Arc<Record>> {
        self.last_in(range).map(|(_, _, record)| record)
    }

    /// The record of an allocation, also when its address has been handed out again.
    pub(super) fn of(&self, id: u64) -> Option<&Arc<Record>> {
        self.by_id.get(&id)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> Arc<End> {
        Arc::new(End { arena: 7, name: "step".into(), depth: 2, how: How::Exit })
    }

    fn record(id: u64, base: u64, usable: u64) -> Arc<Record> {
        Arc::new(make(id, base, usable))
    }

    fn make(id: u64, base: u64, usable: u64) -> Record {
        Record { base, usable, requested: usable, id, tag: 0, end: end() }
    }

    fn validate(r: &Records) {
        assert_eq!(r.order.len(), r.by_id.len());
        assert!(r.order.iter().all(|id| r.by_id.contains_key(id)));
        assert!(r.by_id.len() <= r.most && r.pieces.len() <= 2 * r.most);
        let mut last = 0;
        for (&start, (end, record)) in &r.pieces {
            assert!(last <= start && start < *end, "{start}..{end} behind {last}");
            assert!(record.base <= start && *end <= record.base + record.usable);
            assert!(r.by_id.contains_key(&record.id));
            last = *end;
        }
    }

    #[test]
    fn what_is_handed_out_again_is_cut_out_and_no_more() {
        let mut r = Records::new(100);
        r.add(record(1, 1000, 100));
        r.add(record(2, 1100, 100));
        r.cut(1050..1110);
        validate(&r);
        let at = |r: &Records, addr| r.at(addr).map(|x| x.id);
        assert_eq!([999, 1000, 1049, 1050, 1109, 1110, 1199, 1200].map(|a| at(&r, a)), {
            [None, Some(1), Some(1), None, None, Some(2), Some(2), None]
        });
        r.cut(1020..1030);
        validate(&r);
        assert_eq!([1019, 1020, 1029, 1030].map(|a| at(&r, a)), [Some(1), None, None, Some(1)]);
        assert!(r.inside(&(1020..1030)).is_none() && r.inside(&(1010..1030)).is_some());
        // Freed again as a part of another: the later one counts.
        r.add(record(3, 1010, 15));
        validate(&r);
        assert_eq!([1009, 1010, 1024, 1025, 1030].map(|a| at(&r, a)), [Some(1), Some(3), Some(3), None, Some(1)]);
        r.cut(0..u64::MAX);
        validate(&r);
        assert_eq!((r.pieces.len(), r.len(), r.of(2).map(|x| x.base)), (0, 3, Some(1100)));
    }

    #[test]
    fn the_oldest_go_first_and_the_table_stays_bounded() {
        let mut r = Records::new(4);
        for id in 1..=6 {
            r.add(record(id, id * 100, 100));
            validate(&r);
        }
        assert!(r.of(1).is_none() && r.of(2).is_none() && r.at(250).is_none());
        assert_eq!(r.at(350).map(|x| x.id), Some(3));
        for i in 0..40 {
            r.cut(300 + i * 10..301 + i * 10);
            validate(&r);
        }
        // The pieces of newer records pushed the oldest out.
        assert!(r.of(3).is_none() && r.at(309).is_none());
    }

    #[test]
    fn texts_name_the_allocation_and_the_arena() {
        let r = Record { tag: 5, ..make(123, 4096, 512) };
        assert_eq!(
            r.reclaimed(),
            "reclaimed by arena_exit at depth 2 (arena 7 \"step\", allocation 123 of 512 bytes, tag 5)"
        );
        assert_eq!(r.to_string(), "allocation 123 (512 bytes, tag 5) of arena 7 \"step\"");
        let end = Arc::new(End { arena: 9, name: String::new(), depth: 0, how: How::Abort });
        let r = Record { end, ..make(1, 0, 8) };
        assert_eq!(r.reclaimed(), "reclaimed by arena_abort at depth 0 (arena 9, allocation 1 of 8 bytes)");
        assert_eq!(r.by(), "by arena_abort at depth 0");
    }
}

//! The race checker: the last accesses to each physical byte.
//!
//! For every range of physical bytes ("segment") it keeps the last write and the reads since. A
//! running operation is compared with them: any access that the vector clocks do not order before
//! it races with it if one of the two writes. Keeping only each lane's last access is enough, as in
//! FastTrack: an operation ordered after it is ordered after the lane's earlier ones, and an
//! operation ordered after a write is ordered after everything before that write.

#![deny(unsafe_code)]

use super::clock::Clock;
use super::op::OpInfo;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Segments are thinned out when their number has doubled since the last time, but not below this.
const THIN_AT: usize = 4096;

#[derive(Clone, Default)]
struct Segment {
    end: u64,
    write: Option<Arc<OpInfo>>,
    /// Reads since `write`, at most one per lane.
    reads: Vec<Arc<OpInfo>>,
}

/// Last accesses by key of physical bytes (see `physical.rs`).
pub(super) struct Shadow {
    segments: BTreeMap<u64, Segment>,
    thin_at: usize,
}

/// An earlier operation that the later one races with, and the physical bytes.
pub(super) struct Conflict {
    pub(super) earlier: Arc<OpInfo>,
    pub(super) earlier_writes: bool,
    pub(super) keys: Range<u64>,
}

impl Shadow {
    pub(super) fn new() -> Shadow {
        Shadow { segments: BTreeMap::new(), thin_at: THIN_AT }
    }

    /// Splits the segment that spans `at` there.
    fn split(&mut self, at: u64) {
        let Some((_, seg)) = self.segments.range_mut(..at).next_back().filter(|(_, s)| s.end > at) else { return };
        let right = seg.clone();
        seg.end = at;
        self.segments.insert(at, right);
    }

    /// Records a write of `keys` by `op` with clock `clock`; adds conflicts to `found`.
    pub(super) fn write(&mut self, keys: &Range<u64>, op: &Arc<OpInfo>, clock: &Clock, found: &mut Vec<Conflict>) {
        self.split(keys.start);
        self.split(keys.end);
        let inside: Vec<u64> = self.segments.range(keys.clone()).map(|(k, _)| *k).collect();
        for start in inside {
            let Some(seg) = self.segments.remove(&start) else { continue };
            for (a, writes) in seg.write.iter().map(|w| (w, true)).chain(seg.reads.iter().map(|r| (r, false))) {
                if !a.before(op.lane, clock) {
                    found.push(Conflict { earlier: a.clone(), earlier_writes: writes, keys: start..seg.end });
                }
            }
        }
        self.segments.insert(keys.start, Segment { end: keys.end, write: Some(op.clone()), reads: Vec::new() });
    }

    /// Records a read of `keys` by `op` with clock `clock`; adds conflicts to `found`.
    pub(super) fn read(&mut self, keys: &Range<u64>, op: &Arc<OpInfo>, clock: &Clock, found: &mut Vec<Conflict>) {
        self.split(keys.start);
        self.split(keys.end);
        let mut at = keys.start;
        let mut gaps = Vec::new();
        for (start, seg) in self.segments.range_mut(keys.clone()) {
            if *start > at {
                gaps.push(at..*start);
            }
            at = seg.end;
            if let Some(w) = seg.write.as_ref().filter(|w| !w.before(op.lane, clock)) {
                found.push(Conflict { earlier: w.clone(), earlier_writes: true, keys: *start..seg.end });
            }
            // What comes after this read comes after the reads before it.
            seg.reads.retain(|r| !r.before(op.lane, clock));
            seg.reads.push(op.clone());
        }
        if at < keys.end {
            gaps.push(at..keys.end);
        }
        for gap in gaps {
            self.segments.insert(gap.start, Segment { end: gap.end, write: None, reads: vec![op.clone()] });
        }
    }

    /// Forgets physical bytes that are gone.
    pub(super) fn forget(&mut self, keys: &Range<u64>) {
        self.split(keys.start);
        self.split(keys.end);
        let inside: Vec<u64> = self.segments.range(keys.clone()).map(|(k, _)| *k).collect();
        for start in inside {
            self.segments.remove(&start);
        }
    }

    /// Whether it is time for [`Shadow::thin`].
    pub(super) fn crowded(&self) -> bool {
        self.segments.len() >= self.thin_at
    }

    /// Forgets accesses that everything still to run is ordered after: those that `floor` covers.
    pub(super) fn thin(&mut self, floor: &Clock) {
        self.segments.retain(|_, s| {
            s.write = s.write.take().filter(|w| !floor.covers(w.lane, w.seq));
            s.reads.retain(|r| !floor.covers(r.lane, r.seq));
            s.write.is_some() || !s.reads.is_empty()
        });
        self.thin_at = THIN_AT.max(self.segments.len() * 2);
    }

    /// How many segments there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.segments.len()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::base::{DeviceId, StreamHandle};

    fn op(lane: usize, seq: u64) -> Arc<OpInfo> {
        let named = (StreamHandle::LEGACY, DeviceId(0));
        Arc::new(OpInfo { label: "op".into(), lane, seq, stream: lane as u64, named, at: None })
    }

    fn conflicts(f: impl FnOnce(&mut Vec<Conflict>)) -> Vec<(usize, u64, bool, Range<u64>)> {
        let mut found = Vec::new();
        f(&mut found);
        found.into_iter().map(|c| (c.earlier.lane, c.earlier.seq, c.earlier_writes, c.keys)).collect()
    }

    #[test]
    fn unordered_write_after_write_is_found_byte_exactly() {
        let mut s = Shadow::new();
        let none = Clock::default();
        assert!(conflicts(|f| s.write(&(100..200), &op(0, 1), &none, f)).is_empty());
        assert!(conflicts(|f| s.write(&(200..300), &op(1, 1), &none, f)).is_empty());
        assert_eq!(
            conflicts(|f| s.write(&(199..201), &op(2, 1), &none, f)),
            [(0, 1, true, 199..200), (1, 1, true, 200..201)]
        );
    }

    #[test]
    fn clocks_order_accesses() {
        let mut s = Shadow::new();
        let none = Clock::default();
        let mut after = Clock::default();
        after.advance(0, 1);
        conflicts(|f| s.write(&(0..10), &op(0, 1), &none, f));
        assert!(conflicts(|f| s.read(&(0..10), &op(1, 1), &after, f)).is_empty());
        assert!(conflicts(|f| s.read(&(5..20), &op(2, 1), &after, f)).is_empty(), "reads do not race with each other");
        let both = conflicts(|f| s.write(&(0..10), &op(3, 1), &after, f));
        assert_eq!(both, [(1, 1, false, 0..5), (1, 1, false, 5..10), (2, 1, false, 5..10)]);
    }

    #[test]
    fn thinning_keeps_what_can_still_race() {
        let mut s = Shadow::new();
        let none = Clock::default();
        s.write(&(0..10), &op(0, 1), &none, &mut Vec::new());
        s.write(&(20..30), &op(0, 2), &none, &mut Vec::new());
        let mut floor = Clock::default();
        floor.advance(0, 1);
        s.thin(&floor);
        assert_eq!(s.len(), 1);
        assert_eq!(conflicts(|f| s.write(&(0..30), &op(1, 1), &none, f)), [(0, 2, true, 20..30)]);
    }
}

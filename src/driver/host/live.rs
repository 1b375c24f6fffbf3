//! Which address ranges the harness says are live: the oracle's view of an allocator under test.

#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

/// Live ranges, disjoint, by first address.
#[derive(Default)]
pub(super) struct Live {
    ranges: BTreeMap<u64, (u64, String)>,
    /// Nothing is checked before the first range is declared.
    pub(super) on: bool,
}

impl Live {
    /// A live range that `r` overlaps, with its label.
    pub(super) fn overlapped(&self, r: &Range<u64>) -> Option<(String, Range<u64>)> {
        let (start, (end, label)) = self.ranges.range(..r.end).next_back().filter(|(_, (end, _))| *end > r.start)?;
        Some((label.clone(), *start..*end))
    }

    /// Declares a range live.
    pub(super) fn add(&mut self, r: Range<u64>, label: String) {
        self.on = true;
        self.ranges.insert(r.start, (r.end, label));
    }

    /// Ends the life of the range that starts at `start`; says whether there was one.
    pub(super) fn remove(&mut self, start: u64) -> bool {
        self.ranges.remove(&start).is_some()
    }

    /// Why `r` may not be used: `None` when one live range contains it.
    pub(super) fn objection(&self, r: &Range<u64>) -> Option<String> {
        match self.ranges.range(..=r.start).next_back() {
            Some((_, (end, _))) if r.end <= *end => None,
            Some((start, (end, label))) if r.start < *end => {
                Some(format!("runs {} bytes over the end of {label:?} [{start:#x}, {end:#x})", r.end - end))
            }
            _ => Some("is not in any live range".into()),
        }
    }
}

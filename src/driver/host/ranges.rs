//! Ranges of addresses.

#![deny(unsafe_code)]

use std::ops::Range;

/// Whether two ranges have a byte in common.
pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// An address range for people.
pub(super) fn span(r: &Range<u64>) -> String {
    format!("[{:#x}, {:#x})", r.start, r.end)
}

//! Numbers that several rooms share.

/// The number of nothing: regions, slabs and extents are named by their positions in lists.
pub(crate) const NONE: u32 = u32::MAX;

/// Smallest object and least alignment, bytes.
pub(crate) const SMALL_MIN: u64 = 256;

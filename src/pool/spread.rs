//! Where a number goes in a table.

#![deny(unsafe_code, clippy::unwrap_used)]

/// The slot that a number should be in, of 2^(64 - `shift`): the upper bits of its product with 2^64 divided by the golden ratio,
/// which spreads neighbours as evenly as can be (Knuth, The Art of Computer Programming 3, 6.4).
#[inline]
pub(super) fn slot_of(number: u64, shift: u32) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
}

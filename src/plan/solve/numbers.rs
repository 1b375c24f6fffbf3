//! Arithmetic that several files need.

/// The greatest common divisor; that of 0 and a number is the number.
pub(super) fn gcd(a: u64, b: u64) -> u64 {
    match (a, b) {
        (1, _) | (_, 0) => a,
        _ => gcd(b, a % b),
    }
}

/// A well-mixed 64-bit value (Stafford's variant 13 of the murmur finaliser).
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

//! How much random tests and sweeps do.

/// Percent of what they do by default, from `GPUMEM_TEST_EFFORT`: 1000 before a release, never less
/// than 100, as some count what they have met.
fn effort() -> u64 {
    std::env::var("GPUMEM_TEST_EFFORT").ok().and_then(|e| e.parse().ok()).unwrap_or(100).max(100)
}

/// So many rounds at an effort of 100 percent.
pub fn rounds(by_default: u64) -> u64 {
    by_default * effort() / 100
}

/// Every how many-th case a sweep takes: all of them where the effort allows.
pub fn stride(by_default: u64) -> usize {
    (by_default * 100 / effort()).max(1) as usize
}

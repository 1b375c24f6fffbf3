//! Fetching memory before it is used, where it is known what will be.

#![deny(clippy::unwrap_used)]

/// Asks the processor to bring the cache line of `x` near. A hint: on processors other than x86-64 nothing happens.
#[inline(always)]
pub(super) fn fetch<T>(x: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch reads nothing that a program could see and faults on no address; `x` is a reference besides.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(x).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}

/// The same for a list, of which the first `LINES` cache lines are asked for.
#[inline]
pub(super) fn fetch_all<T>(list: &[T]) {
    /// What a run that is put together again has at most, mostly.
    const LINES: usize = 8;
    let step = (LINE / size_of::<T>().max(1)).max(1);
    list.iter().step_by(step).take(LINES).for_each(fetch);
}

/// Bytes of a cache line.
const LINE: usize = 64;

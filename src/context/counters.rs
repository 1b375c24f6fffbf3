//! The names of a pool's counters, once: what shows them all takes this list.

/// Hands the names to a macro. A counter of the pool that the list lacks does not compile.
macro_rules! counters {
    ($take:ident!($($with:tt)*)) => {
        $take! {
            ($($with)*)
            reserved, mapped, peak_mapped, requested, live, peak_live, free, waiting, stock, holes, zombies,
            largest_without_growth, largest_free, allocations, mallocs, frees, extents, moved, stitches,
            growths, streams, double_frees, unknown_pointers, late_frees, out_of_memory, limit
        }
    };
}
pub(crate) use counters;

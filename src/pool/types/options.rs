//! The settings of one pool.

use crate::base::size;

/// The lanes of a pool by default: the context's, and one for each stream that it can tell apart.
pub(crate) const MAX_LANES: usize = if cfg!(loom) { 4 } else { 1 << 16 };

/// Settings of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Addresses reserved at a time, bytes.
    pub va_size: u64,
    /// Smallest extent, bytes; 0 means the device's granularity.
    pub page_size: u64,
    /// Most bytes to map; 0 means no limit but the device's.
    pub limit: u64,
    /// Bytes to map at the start.
    pub prealloc: u64,
    /// Whether a stream may be made to wait on the device for memory that another stream freed.
    pub wait: bool,
    /// Free mapped bytes of one heap beyond which a free into it gives memory back; 0 means never.
    pub trim_threshold: u64,
    /// Share of a heap's peak live bytes that it may map beyond them to save moves, in 1/1000.
    pub slack_permille: u32,
    /// The least it may map beyond them, bytes; more in a small heap that runs short. 0: nothing.
    pub slack_floor: u64,
    /// Share of its peak that a heap may map besides, rather than move memory, in 1/1000, unearned.
    pub bought_permille: u32,
    /// The most of that share, in 1/1000, that a heap may have earned by moving memory
    /// (`remap/economy.rs`). The larger of the two counts.
    pub earned_permille: u32,
    /// How many lanes there may be, the context's included, and how many heaps: from 2 to 2^16.
    pub max_lanes: usize,
    /// Largest extent to create as long as none of a heap's memory is stranded, bytes, a power of
    /// two; twice that in a heap of 1,024 times as much or more.
    pub max_extent: u64,
    /// Whether extents become finer where memory is stranded although the device has memory left.
    pub finer: bool,
    /// Largest extent to create for a request that finds nothing mapped at all, bytes.
    pub first_extent: u64,
    /// About the most extents a request is made of.
    pub extents_per_request: u64,
    /// Most old addresses of moved extents to keep mapped, a count of aliases, so that the extents
    /// can move back for nothing.
    pub max_aliases: usize,
    /// How often to ask the device about memory that has a marker before anything is mapped
    /// instead.
    pub patience: u32,
    /// Whether the driver's structures may be read to see which stream a handle is; otherwise it is
    /// asked each time.
    pub watch: bool,
    /// Whether to say on stderr what the slow path decides: growths, stitches, fresh starts.
    pub log_decisions: bool,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            va_size: 8 * size::TIB,
            page_size: 0,
            limit: 0,
            prealloc: 0,
            wait: false,
            trim_threshold: 0,
            slack_permille: 12,
            slack_floor: 32 * size::MIB,
            bought_permille: 0,
            earned_permille: 230,
            max_lanes: MAX_LANES,
            max_extent: 32 * size::MIB,
            finer: false,
            first_extent: size::GIB,
            extents_per_request: 48,
            max_aliases: 128 << 10,
            patience: 24,
            watch: true,
            log_decisions: false,
        }
    }
}

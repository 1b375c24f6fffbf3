//! One device's memory: a stream-ordered pool over virtual memory that remaps instead of
//! fragmenting.
//!
//! # Rooms
//!
//! Each folder uses only the folders above it in this list, and no files form a circle
//! (`tests/rules/layers.rs`). A room offers those below it what its `mod.rs` re-exports.
//!
//! | room | holds |
//! |---|---|
//! | `types` | what callers ask for, and the options |
//! | `order` | stream order: which frees the device has passed |
//! | `memory` | addresses and physical memory: holes, extents, aliases, stock, the index of pointers |
//! | `heap` | the memory of one stream, without a driver call |
//! | `state` | what a pool consists of |
//! | `streams` | which heap is a stream's |
//! | `remap` | mapping, moving and giving back memory |
//! | `graph` | the memory of capture arenas |
//! | `calls` | malloc, free and their kin |
//! | `scopes` | what is done to the allocations of a scope together |
//! | `look` | statistics, dumps and checks |
//!
//! # Words
//!
//! `docs/spec/pool.md` (section 2) defines all of them; these are the files that do so in the code.
//!
//! - *reservation*, *root*: addresses taken from the driver; *hole*: addresses with nothing mapped
//!   (`memory/holes.rs`).
//! - *extent*: physical memory, one driver handle, mapped whole (`memory/extent.rs`).
//! - *span*: a longest run of mapped addresses in one heap; *region*: a piece of a span, live or
//!   free (`heap/region.rs`).
//! - *slab*: a region cut into equal small objects (`heap/slab.rs`, `heap/blocks.rs`).
//! - *heap*: memory of one stream (`heap/state.rs`); *quick list*: blocks freed last, for requests
//!   of just their sizes (`heap/quick_list.rs`); *annex*: a second heap of a stream, for its small
//!   requests or its large ones (`streams/annex.rs`).
//! - *lane*, *epoch*, *marker*, *settled*: stream order (`order/lanes.rs`); *tag*: a lane and an
//!   epoch, when memory was last used (`order/tag.rs`); *relay*: a stream of the pool's own, which
//!   waits for other devices (`streams/other_devices.rs`).
//! - *stitch*: to map free extents at neighbouring addresses (`remap/plan.rs` decides what,
//!   `remap/anchor.rs` where, `remap/growth.rs` how much may be new, `remap/stitch.rs` does it);
//!   *grain*: how large new extents are (`remap/grain.rs`).
//! - *alias*: an address at which an extent is mapped; *dormant*: not where it is now, an *old
//!   address* (`memory/aliases.rs`, `remap/old_addresses.rs`).
//! - *zombie*: addresses that were never handed out and that the driver would not unmap
//!   (`remap/mapping.rs`). The statistic of that name counts dormant aliases as well.
//! - *flip*: to take dormant aliases back with no driver call (`remap/flip.rs`); *memo*: what to
//!   take back (`heap/memo.rs`).
//! - *stock*: physical memory without an address (`memory/stock.rs`).
//! - *scope*: allocations that go together (`types/scope.rs`); *member*: an allocation of a heap
//!   that is in a scope (`heap/members.rs`).
//! - *capture arena*: memory for CUDA graphs, in heaps that no other heap takes from
//!   (`graph/arena.rs`); *part*: what one stream has of it (`heap/part.rs`); *route*: which streams
//!   allocate there (`graph/routes.rs`); *kept addresses*: those that a private heap grows in
//!   (`graph/parts.rs`); *shell*: a heap that a released arena left (`graph/shells.rs`).
//! - *shared heap*: the heap of no stream, which meets large requests of all
//!   (`remap/shared_heap.rs`).
//! - *rent*, *buy*: moving memory, or mapping more of it instead (`remap/economy.rs`).
//! - *dedicated*: an allocation with an extent of its own, never moved (`calls/dedicated.rs`);
//!   *evictable*: one whose memory may be given up for a while (`calls/evictable.rs`); *grave*: a
//!   freed one that the device may still use.
//!
//! # Locks
//!
//! Locks are taken in this order: `changing`, the capture arenas' locks, the stream registry's
//! lock, that of the shells, a heap's (`base/spin_lock.rs`), the core's, the order's, a scope's; no
//! lock is taken under one of rank `Leaf` (`types/ranks.rs`). A thread that holds one heap's lock
//! only tries another's, unless it holds `changing` alone and so keeps everybody out
//! (`look/still.rs`). Driver calls that wait for the device are made with no lock held but
//! `changing`, shared. Those that do not wait, such as mapping and creating, may be made under the
//! lock of the heap they are for.
//!
//! # Invariant of the whole
//!
//! `reserved == spans + holes + kept addresses + dormant aliases + zombies + dedicated + graves`
//! (addresses) and `mapped == extents + stock + dedicated + graves` (physical bytes);
//! [`Pool::validate`] checks both, and those of every part.

#![deny(unsafe_code, clippy::unwrap_used)]

/// Returns an error that says which invariant fails, unless it holds.
macro_rules! ensure {
    ($holds:expr, $($says:tt)+) => {
        if !$holds {
            return Err(format!($($says)+));
        }
    };
}

mod calls;
mod graph;
mod heap;
mod look;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod order;
mod remap;
mod scopes;
mod state;
mod streams;
mod types;

pub use calls::{By, Moving, Relocation, Resized, ScopeChange, Waited};
pub use heap::{Life, Placed, Span};
pub(crate) use look::asked;
pub use look::{add_to, Alive, HeapView, Is, Piece, PoolStats, Still, Sums};
pub use memory::Guest;
pub use scopes::{HeldAddresses, Reclaimed};
pub use state::{Filter, GraphArena, GraphArenaOptions, GraphArenaStats, Pool, Route, Unclaimed, WhichStreams};
pub(crate) use types::checked_alignment;
pub use types::{AllocFlags, AllocInfo, AllocRequest, Counter, PoolOptions, Receipt, Scope, ScopeCounts, Slip};

//! Spaces of memory in tiers, and promises of their bytes.
//!
//! # Words
//!
//! - *space* ([`promise::space`]): one place that memory can be in: a device, a NUMA node of the
//!   host, a disk's mount. Of its *capacity* (bytes there are), the *limit* may be promised or
//!   used. From the *trigger* on, data should be moved out, down to the *stop*
//!   ([`promise::thresholds`]).
//! - *reservation* ([`promise::reservation`]): a promise of bytes of one space, its *size*.
//!   *Drawn*: bytes of it that live allocations use. A [`Drawn`] is the receipt of one allocation
//!   (`promise::drawn`).
//! - *unreserved*: bytes that live allocations use outside of any live reservation: those made
//!   outside, those that outlive theirs, and what a policy ([`promise::policy`]) let go beyond one.
//! - *committed*: what is promised or used. *Beyond*: how far that is above the limit, by leave of
//!   a policy, because the limit was lowered, or because more was live when counting began.
//! - *manager* ([`promise::manager`]): all spaces. A request to it for a reservation
//!   ([`promise::request`]) may wait in its *queue* (`promise::queue`).
//! - *host* ([`host`]): pinned memory in blocks.
//! - *disk* ([`disk`]): the store of the disk tier: slots in checksummed files under a mount; its
//!   spaces are in [`disk::space`].
//! - *lack* ([`promise::Lack`]): what an allocation that was not counted, or found no memory, would
//!   be helped by. *Relief*: what makes room for it ([`Manager::set_relief`]).
//! - *item* ([`evict`]): an evictable allocation. *Claim*: the right of one thread to move it.
//!   *Shelf*: the items of one space that move *automatically*, oldest use first. *Shift*: items on
//!   their way. It borrows a *lane*, a stream with its events; a *flow* is the copies in flight on
//!   it.
//!
//! # Equations
//!
//! [`Manager::validate`] checks them for each space:
//!
//! - `promised == sum of the sizes of live reservations`, and `drawn <= size` of each
//! - `committed == promised + unreserved <= limit + beyond`
//! - `used == sum of drawn + unreserved`, and `peak >= used`
//! - nobody waits for what is available
//!
//! # Locks
//!
//! One mutex for requests, releases and the queue (`promise::hub`). Allocations within a
//! reservation or outside of any, and their ends, do without it, unless somebody waits for what
//! they give back. It may be taken under any lock of the library; under it only those of a
//! reservation's policies are taken.

#![deny(unsafe_code, clippy::unwrap_used)]

pub mod disk;
pub mod evict;
pub mod host;
#[cfg(all(test, loom))]
mod models;
pub mod promise;
pub mod stream_pool;

pub use disk::{Disks, Mount};
pub use host::{HostMemory, HostTier};
pub use promise::{
    Amount, Cancel, Decision, DrawFrom, Drawn, Factor, Fraction, LimitPolicy, LiveCounter, Manager, OutOfMemoryPolicy,
    Overdraw, Released, Request, Reservation, Shortage, Source, Space, SpaceId, SpaceOptions, SpaceUsage, Strategy,
    Thresholds, Tier, Turn, Usage, Wait,
};
pub use stream_pool::{Borrowed, Exhausted, StreamPool, Streams};

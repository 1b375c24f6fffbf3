//! Spaces of memory in tiers, and promises of their bytes.
//!
//! # Words
//!
//! - *space* ([`space`]): one place that memory can be in: a device, a NUMA node of the host, a disk's mount. Of its
//!   *capacity* (bytes there are), the *limit* may be promised or used. From the *trigger* on, data should be moved out,
//!   down to the *stop* ([`thresholds`]).
//! - *reservation* ([`reservation`]): a promise of bytes of one space, its *size*. *Drawn*: bytes of it that live
//!   allocations use. A [`Drawn`] is the receipt of one allocation ([`account`]).
//! - *unreserved*: bytes that live allocations use outside of any live reservation: those made outside, those that outlive
//!   theirs, and what a policy ([`policy`]) let go beyond one.
//! - *committed*: what is promised or used. *Beyond*: how far that is above the limit, by leave of a policy, or because the
//!   limit was lowered.
//! - *manager* ([`manager`]): all spaces; who asks it for a reservation ([`request`]) may wait in its *queue* ([`queue`]).
//! - *host* ([`host`]): pinned memory in blocks.
//! - *disk* ([`disk`]): the store of the disk tier: slots in checksummed files under a mount; its spaces are in
//!   [`disk_space`].
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
//! One mutex for requests, releases and the queue ([`hub`]). Allocations within a reservation, outside of any and their
//! ends do without it, unless somebody waits for what they give back. It may be taken under any lock of the library; under it
//! only those of a reservation's policies are.

#![deny(unsafe_code, clippy::unwrap_used)]

mod account;
mod attach;
pub mod disk;
pub mod disk_space;
mod draw;
pub mod evict;
pub mod host;
mod hub;
pub mod manager;
#[cfg(all(test, loom))]
mod models;
pub mod policy;
mod queue;
pub mod request;
pub mod reservation;
mod source;
pub mod space;
pub mod stream_pool;
pub mod thresholds;
pub mod usage;

pub use account::Drawn;
pub use disk_space::{Disks, Mount};
pub use host::{HostMemory, HostTier};
pub use hub::Cancel;
pub use manager::Manager;
pub use policy::{Decision, Factor, LimitPolicy, OutOfMemoryPolicy, Overdraw, Shortage};
pub use request::{Amount, Request, Strategy, Wait};
pub use reservation::{Released, Reservation, Turn};
pub use source::{LiveCounter, Source};
pub use space::{Space, SpaceId, SpaceOptions, SpaceUsage, Tier};
pub use stream_pool::{Borrowed, Exhausted, StreamPool, Streams};
pub use thresholds::{Fraction, Thresholds};
pub use usage::Usage;

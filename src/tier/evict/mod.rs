//! Moving the bytes of evictable allocations between tiers, and back to where they were.
//!
//! # Words
//!
//! - *evict*: to copy an allocation's bytes to a lower tier and give up its device memory. Its
//!   addresses stay its own. *Restore*: to map memory there again and copy them back.
//! - *item* ([`item`]): one evictable allocation; *place*: where its bytes are; *claim*: the right
//!   to move them.
//! - *hold*: to keep an item in device memory, restoring it if need be. An item that has been
//!   unheld at least once moves *automatically*, or *by itself*: when its space is too full, or
//!   when there is no memory for something else. Any other is moved only when asked for.
//! - *register* ([`register`]): all items, and a *shelf* for each space: those there that move
//!   automatically, by their last use. Held ones may be missing from it.
//! - *lane* ([`lanes`]): a stream that one move at a time copies on, with its events; *flow*: the
//!   copies in flight there.
//! - *relief* ([`room`]): making room for an allocation by what helps against its *lack*.
//! - *shift* ([`shift`]): one or several items on their way; *mover* ([`mover`]): the thread that
//!   empties spaces that are too full.
//!
//! # Order
//!
//! A move out waits on the device for the item's uses, and gives the memory up when its copies are
//! known to be over. A move in is over when it returns, so all work submitted after it sees the
//! bytes. No lock is held while anything is copied.
//!
//! # What survives
//!
//! Bytes leave a place only when they are known to be whole in another. Until then a failed,
//! cancelled or abandoned move leaves them where they were.

#![deny(unsafe_code, clippy::unwrap_used)]

mod bell;
mod evictor;
mod filed;
mod inside;
mod item;
mod lanes;
mod mover;
mod pending;
mod register;
mod room;
mod shared;
mod shift;

pub use evictor::{Evictor, Location};
pub use lanes::Progress;
pub use mover::MoverOptions;
pub use shared::{Parts, Unasked};
pub use shift::{Goal, Moved, To};

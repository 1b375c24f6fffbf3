//! What the pool promises, one theme a file, on the host device with every access checked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod annex;
mod away;
mod dedicated;
mod devices;
mod economy;
mod footprint;
mod fresh_start;
mod handover;
mod order;
mod phases;
mod pointers;
mod quick_list;
mod resize;
mod resting;
mod scarce;
mod shared;
mod sizes;
mod spread;
mod stitching;

//! Spaces, reservations, moving memory out of the device and back.

pub mod evict;
pub mod host;
pub mod policy;
pub(super) mod reservations;
pub mod reserve;
pub mod space;
pub mod token;

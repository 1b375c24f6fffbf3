//! What is done to the allocations of a scope together.

mod quarantine;
mod reclaim;

pub use quarantine::HeldAddresses;
pub use reclaim::Reclaimed;

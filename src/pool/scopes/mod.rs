//! What is done to the allocations of a scope together.

mod quarantine;
mod reclaim;

pub use quarantine::Held;
pub use reclaim::Reclaimed;

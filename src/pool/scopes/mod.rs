//! What is done to the allocations of a scope together.

pub(crate) mod quarantine;
pub(crate) mod reclaim;

//! Counters, recordings, snapshots.

pub mod record;
pub mod stats;

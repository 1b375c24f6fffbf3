//! Looking at a pool: statistics, dumps, checks.

pub(crate) mod counting;
pub(crate) mod dump;
pub(crate) mod stats;
pub(crate) mod still;
pub(crate) mod walk;

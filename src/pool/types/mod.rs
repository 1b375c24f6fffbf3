//! What callers ask the pool for, and what the rooms below say to each other.

pub(crate) mod allocation;
pub(crate) mod options;
pub(crate) mod ranks;
pub(crate) mod receipts;
pub(crate) mod scope;
pub(crate) mod units;

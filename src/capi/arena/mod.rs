//! Allocations that end together, and the finder of late uses.

pub mod check;
pub mod scope;

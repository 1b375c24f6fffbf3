//! Allocating with options, and sharing the result.

pub mod ipc;
pub mod malloc_with;

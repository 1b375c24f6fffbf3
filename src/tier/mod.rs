//! Spaces of memory in tiers, and promises of their bytes.

#![deny(unsafe_code, clippy::unwrap_used)]

pub mod disk;

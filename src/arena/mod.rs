//! Arenas: scopes of allocations that end together.
//!
//! - An *arena* ([`registry`]) is entered and exited like a block of a program. Everything its threads allocate meanwhile
//!   belongs to it, and its exit frees all of that, reachable or not, but for what is to be kept.
//! - Which allocation is in which arena the pool knows (its scopes); here is what entering, leaving, nesting and sharing
//!   among threads mean, and what each thread's current arena is ([`thread`]).
//!
//! The semantics are in `docs/spec/arenas.md`.

#![deny(unsafe_code, clippy::unwrap_used)]

#[cfg(all(test, loom))]
mod models;
pub mod registry;
mod thread;

pub use registry::{Arena, ArenaStats, ExitReport, Registry};

//! Arenas: scopes of allocations that end together.
//!
//! - An *arena* ([`registry`]) is entered and exited like a block of a program. Everything its
//!   threads allocate meanwhile belongs to it. Its exit frees all of that, reachable or not, except
//!   what the caller keeps.
//! - The pool knows which allocation is in which arena (its scopes). This folder knows what
//!   entering, leaving, nesting and sharing among threads mean, and each thread's current arena
//!   ([`thread`]).
//! - The *detector* ([`detector`]) remembers what arenas have freed, to find late uses of it. It is
//!   off by default.
//! - A *capture arena* ([`capture`]) is memory for CUDA graphs. Its addresses stay as long as a
//!   graph needs them. A *dry run* ([`dry_run`]) lays it out beforehand.
//!
//! The semantics are in `docs/spec/arenas.md`, the detector's in `docs/spec/arena-detector.md`,
//! captures' in `docs/spec/capture.md`.

#![deny(unsafe_code, clippy::unwrap_used)]

pub mod capture;
pub mod detector;
pub mod dry_run;
#[cfg(all(test, loom))]
mod models;
mod open;
mod pools;
mod quarantine;
mod records;
pub mod registry;
mod thread;

pub use detector::{DebugMode, Detector, DetectorOptions, DetectorStats};
pub use open::Arena;
pub use pools::Pools;
pub use registry::{ArenaStats, ExitReport, Registry};

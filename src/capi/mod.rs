//! The C ABI: check, convert, one core call.
//!
//! One file per noun. Every entry point runs inside [`guard`], which turns a panic into `GPUMEM_ERROR_INTERNAL`, keeps
//! the text of the failure for `gpumem_last_error`, and returns what C gets. The doc comments here are the text of
//! `include/gpumem.h`, so they speak to C readers; `tests/capi/header.rs` writes that file and fails when it is stale.

// The header is the contract: what a pointer must be is said there, for C readers, per parameter.
#![allow(clippy::missing_safety_doc)]

pub mod alloc;
pub mod arena;
pub mod capture;
pub mod check;
pub mod context;
mod context_apply;
pub mod device;
pub mod error;
pub mod evict;
mod exit;
pub mod graph;
mod guard;
mod handles;
pub mod host;
pub mod ipc;
pub mod malloc;
pub mod memory;
mod options;
pub mod plan;
pub mod plan_graph;
pub mod plan_memory;
pub mod plan_report;
pub mod plan_solve;
mod plan_state;
pub mod policy;
pub mod record;
pub mod reserve;
pub mod space;
pub mod stats;
pub mod stream;
pub mod streams;
mod text;
pub mod token;
pub mod torch;
mod types;
pub mod version;

pub use types::{gpumem_arena, gpumem_arena_st, gpumem_reservation, gpumem_reservation_st, gpumem_stream, CUstream_st};

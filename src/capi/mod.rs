//! The C ABI: check, convert, one core call.
//!
//! One folder per noun. Every entry point runs inside [`call::guard`], which turns a panic into
//! `GPUMEM_ERROR_INTERNAL`, keeps the text of the failure for `gpumem_last_error`, and returns what
//! C gets. The doc comments here are the text of `include/gpumem.h`, so they speak to C readers;
//! `tests/capi/header.rs` writes that file and fails when it is stale.

// The header is the contract: what a pointer must be is said there, for C readers, per parameter.
#![allow(clippy::missing_safety_doc)]
// `bases[a]` is C there, no link.
#![allow(rustdoc::broken_intra_doc_links)]

pub mod alloc;
pub mod arena;
pub mod call;
pub mod capture;
pub mod device;
pub mod everyday;
pub mod observe;
pub mod plan;
pub mod settings;
pub mod tiers;
pub mod torch;

pub use call::types::{
    gpumem_arena, gpumem_arena_st, gpumem_reservation, gpumem_reservation_st, gpumem_stream, CUstream_st,
};

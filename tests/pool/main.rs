//! The pool on the host device, with every access checked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod background_trim;
mod behaviour;
mod capture;
mod capture_streams;
mod faults;
mod heaps;
mod hits;
mod model;
mod order;
mod pool_support;
mod private;
mod receipts;
mod threads;
mod vpmm;

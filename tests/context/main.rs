//! What a context adds to its parts: recordings, and streams of several devices; and what every
//! language has, in Rust.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod conformance;
mod multi_device;
mod record;
mod streams_across;

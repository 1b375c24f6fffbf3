//! Arenas: memory whose end of life is decided for many allocations at once.
//!
//! | file | holds |
//! |---|---|
//! | [`capture`] | memory for CUDA graphs: what begin, end, abort, retain and release mean |
//! | [`dry_run`] | from a recorded run to a layout for the next |

#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod capture;
pub mod dry_run;

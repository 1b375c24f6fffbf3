//! The rules of the repository that a compiler does not check.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod layers;
mod prose;
mod settings;
mod test_summary;

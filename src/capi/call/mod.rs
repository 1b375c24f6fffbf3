//! The parts that every entry point needs: check, convert, report.

pub(super) mod arguments;
pub mod error;
pub(super) mod guard;
pub(super) mod handles;
mod last_error;
pub(super) mod options;
pub(super) mod text;
pub(super) mod types;

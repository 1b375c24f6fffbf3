//! The everyday calls, and what runs at exit.

mod exit;
pub mod malloc;
pub mod version;

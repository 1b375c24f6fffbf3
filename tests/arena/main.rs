//! Arenas: what they own, how they end, what they find, and what a capture keeps in one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod arena;
mod arena_support;
mod capture;
mod captures;
mod detector;
mod quarantine;
mod threads;

//! The operations users call, each defined once.

mod belong;
mod dedicated;
mod evictable;
mod find;
mod free;
mod malloc;
mod markers;
mod open;
mod realloc;
mod record;
mod resolve;
mod sync;

pub use belong::Kept;
pub use evictable::{By, Moving, Waited};
pub use realloc::{Relocation, Resized};

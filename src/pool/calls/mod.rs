//! The operations users call, each defined once.

mod change_scope;
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

pub use change_scope::ScopeChange;
pub use evictable::{By, Moving, Waited};
pub use realloc::{Relocation, Resized};

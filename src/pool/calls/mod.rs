//! What users call, each operation once.

pub(crate) mod belong;
pub(crate) mod dedicated;
pub(crate) mod evictable;
pub(crate) mod find;
pub(crate) mod free;
pub(crate) mod malloc;
pub(crate) mod markers;
pub(crate) mod open;
pub(crate) mod realloc;
pub(crate) mod record;
pub(crate) mod resolve;
pub(crate) mod sync;

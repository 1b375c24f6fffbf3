//! The memory of capture arenas.

pub(crate) mod arena;
pub(crate) mod claims;
pub(crate) mod parts;
pub(crate) mod planned;
pub(crate) mod routes;
pub(crate) mod shells;

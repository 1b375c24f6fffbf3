//! Which lane and which heaps are a stream's.

pub(crate) mod afar;
pub(crate) mod cache;
pub(crate) mod registry;

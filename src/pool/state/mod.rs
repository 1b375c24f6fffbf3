//! What a pool consists of.

pub(crate) mod afar;
pub(crate) mod arenas;
pub(crate) mod pool;
pub(crate) mod streams;

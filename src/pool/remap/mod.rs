//! Mapping, moving and giving back memory: everything that a request needs when its heap has no room for it.

pub(crate) mod afresh;
pub(crate) mod anchor;
pub(crate) mod economy;
pub(crate) mod extend;
pub(crate) mod flip;
pub(crate) mod from_heap;
pub(crate) mod grain;
pub(crate) mod graves;
pub(crate) mod mapping;
pub(crate) mod others;
pub(crate) mod search;
pub(crate) mod sources;
pub(crate) mod stitch;
pub(crate) mod trim;

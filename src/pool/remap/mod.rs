//! Mapping, moving and giving back memory: everything that a request needs when its heap has no
//! room for it.

mod anchor;
mod economy;
mod exchange;
mod flip;
mod fresh_start;
mod from_heap;
mod grain;
mod grow_block;
mod growth;
mod mapping;
mod old_addresses;
mod others;
mod out_of_memory;
mod plan;
mod progress;
mod search;
mod shared_heap;
mod sources;
mod stitch;
mod trim;

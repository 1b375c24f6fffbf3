//! The memory of capture arenas.

mod arena;
mod claims;
mod parts;
mod planned;
mod routes;
mod shells;

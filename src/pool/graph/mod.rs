//! The memory of capture arenas.

mod arena;
mod parts;
mod routes;
mod shells;
mod users;

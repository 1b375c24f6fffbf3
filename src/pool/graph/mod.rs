//! The memory of capture arenas.

mod arena;
mod parts;
mod planned;
mod routes;
mod shells;
mod users;

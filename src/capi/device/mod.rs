//! Devices, streams, copies.

pub mod devices;
pub mod memory;
pub mod stream;
pub mod stream_pool;

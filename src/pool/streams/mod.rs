//! Which lane and which heaps are a stream's.

mod annex;
mod cache;
mod other_devices;
mod registry;

pub(crate) use cache::{capture_key, slot, CachedStream, Check, CACHE};
pub(crate) use registry::CAPTURED_ID;

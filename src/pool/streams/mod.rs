//! Which lane and which heaps are a stream's.

mod afar;
mod cache;
mod registry;

pub(crate) use cache::{capture_key, slot, CachedStream, Check, CACHE};
pub(crate) use registry::CAPTURED_ID;

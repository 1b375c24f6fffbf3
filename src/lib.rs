//! gpumem: a GPU memory allocator behind a C ABI.
//!
//! # Layers
//!
//! A folder may use folders of a lower number, and nothing else (`tests/layers.rs` enforces it):
//!
//! | level | folder | holds |
//! |---|---|---|
//! | 0 | [`base`] | errors, sizes, identifiers |
//! | 1 | [`driver`] | the boundary to CUDA and the operating system: real, host-made and failing devices |
//! | 2 | [`pool`] | one device's memory: regions, extents, stream order, stitching |
//! | 4 | [`context`] | configuration, and one of everything per device |
//! | 5 | [`capi`] | the C ABI: check, convert, one core call |

pub mod base;
pub mod capi;
pub mod context;
pub mod driver;
pub mod pool;

//! Plain types every layer uses: errors, sizes and identifiers. No `unsafe`, no I/O, no state.

pub mod error;
pub mod id;
pub mod size;

pub use error::{Error, Result, Status};
pub use id::{DeviceId, StreamHandle};

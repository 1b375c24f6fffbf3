//! Plain types every layer uses: errors, sizes and identifiers. No `unsafe`, no I/O, no state.

pub mod error;
pub mod id;
pub mod interest;
pub mod later;
pub mod size;
pub mod spin_lock;
#[doc(hidden)]
pub mod sync;

pub use error::{Error, Result, Status};
pub use id::{DeviceId, StreamHandle};
pub use interest::Interest;

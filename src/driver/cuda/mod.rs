//! A real GPU through the CUDA driver, loaded at run time.
//!
//! - [`load`] finds the library and fills the table of entry points, [`api`]; [`error`] turns codes
//!   into statuses and texts; [`device`] holds per-device state and the guards; [`props`] reads
//!   facts; [`driver`] has what all calls share, and [`calls`] is the [`Driver`](super::Driver)
//!   itself.
//! - Everything happens in primary contexts, which the CUDA runtime and the frameworks use too.
//!   CUDA refuses (`InvalidStream`) to order streams of contexts made with `cuCtxCreate` against
//!   ours.
//! - Once CUDA reports that it is shut down (`CUDA_ERROR_DEINITIALIZED`, from the process's exit
//!   handlers on), no further call is made. Nothing is ever released from a destructor.

mod api;
mod calls;
mod code;
mod device;
mod driver;
mod error;
mod graph;
mod graphs;
mod handles;
mod library;
mod load;
mod pinned;
mod props;
mod registered;
mod watch;

pub use driver::CudaDriver;
pub use library::{look_up_with, LookUp};
pub use load::{missing, LIBRARY_NAMES};

use crate::base::Result;
use std::sync::Arc;

/// Loads and initialises the CUDA driver. No context is made yet.
///
/// `NoDevice` when there is no driver or no device, `Unsupported` when the driver is too old or
/// incomplete (the text names both versions, or what is missing), `Driver` when it fails to
/// initialise.
pub fn open() -> Result<Arc<CudaDriver>> {
    CudaDriver::open_from(&LIBRARY_NAMES)
}

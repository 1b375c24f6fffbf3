//! The real driver, loaded at run time.

use crate::base::{Error, Result, Status};
use std::sync::Arc;

/// The CUDA driver.
pub struct CudaDriver {}

impl CudaDriver {
    /// Loads the driver.
    pub fn open() -> Result<Arc<CudaDriver>> {
        Err(Error::new(Status::NoDevice, "not built yet"))
    }
}

//! The table of host memory that is registered with the driver.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of each registered block, by address.
#[derive(Default)]
pub(super) struct Registered(Mutex<BTreeMap<u64, u64>>);

impl Registered {
    pub(super) fn table(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

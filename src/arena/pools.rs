//! What arenas need from the owner of the pools.

use crate::base::sync::OnceLock;
use crate::pool::Pool;
use std::sync::Arc;

/// The pools whose memory arenas may hold.
pub trait Pools {
    /// Calls `f` with each of them.
    fn each(&self, f: &mut dyn FnMut(&Pool));
}

/// A process's pools, by device. One that is not made yet holds nothing.
impl Pools for Arc<[OnceLock<Pool>]> {
    fn each(&self, f: &mut dyn FnMut(&Pool)) {
        self.iter().filter_map(OnceLock::get).for_each(f);
    }
}

//! What arenas ask of the owner of the pools.

use crate::base::sync::OnceLock;
use crate::pool::Pool;
use std::sync::Arc;

/// The pools whose memory arenas may hold.
pub trait Pools {
    /// Each of them.
    fn each(&self, f: &mut dyn FnMut(&Pool));
}

/// A process's, by device; those that are not made yet hold nothing.
impl Pools for Arc<[OnceLock<Pool>]> {
    fn each(&self, f: &mut dyn FnMut(&Pool)) {
        self.iter().filter_map(OnceLock::get).for_each(f);
    }
}

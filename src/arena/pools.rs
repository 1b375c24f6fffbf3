//! What arenas ask of the owner of the pools.

use crate::pool::Pool;

/// The pools whose memory arenas may hold.
pub trait Pools {
    /// Each of them.
    fn each(&self, f: &mut dyn FnMut(&Pool));
}

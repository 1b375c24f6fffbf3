//! Captures without a handle: graphs hold them, or PyTorch's pools do.

use crate::arena::capture::Capture;
use crate::base::sync::{lock, AtomicU64, Mutex};
use crate::base::{DeviceId, Result, StreamHandle};
use crate::driver::{Counted, Driver};
use crate::pool::Pool;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// How PyTorch names a memory pool.
pub type TorchPoolId = (u64, u64);

/// Captures without a handle.
#[derive(Default)]
pub(super) struct Captures {
    /// By the token that their graph holds.
    pub(super) by_graph: Mutex<HashMap<u64, Capture>>,
    /// By device and PyTorch's pool: one for each begin that was not released, the oldest first.
    pub(super) of_torch: Mutex<HashMap<(DeviceId, TorchPoolId), Vec<Capture>>>,
    /// Tokens given out so far.
    pub(super) tokens: AtomicU64,
}

impl Captures {
    /// Automatically begins a capture for a stream that is being captured: its graph holds the only
    /// reference.
    pub(super) fn detect(&self, driver: &Counted, pool: &Pool, stream: StreamHandle) -> Result<()> {
        let dev = pool.device();
        let Some(info) = driver.capture_info(dev, stream)? else { return Ok(()) };
        let capture = Capture::begin_in_progress(pool, stream)?;
        let token = self.tokens.fetch_add(1, Relaxed) + 1;
        // The graph may be gone the moment that it holds the token.
        lock(&self.by_graph).insert(token, capture);
        let held = driver.graph_retain(dev, info.graph, token);
        if held.is_err() {
            // Not aborted: other threads may have allocated by it meanwhile.
            let capture = lock(&self.by_graph).remove(&token);
            capture.map(|c| c.release(pool)).transpose()?;
        }
        held
    }
}

//! The driver layer's types for stream captures and graphs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The threads to which a capture forbids unsafe calls, such as waiting for or querying streams.
/// Calls on the capturing stream itself are treated alike in every mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Unsafe calls on every thread fail and invalidate the capture.
    Global,
    /// Unsafe calls on the thread that began the capture fail and invalidate it.
    ThreadLocal,
    /// No thread is forbidden anything. Any thread may end the capture.
    Relaxed,
}

/// A captured graph, instantiated and ready to be launched. Handles are not reused within a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphHandle(pub u64);

/// A capture in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CaptureInfo {
    /// The capture's identity, never reused within the process.
    pub id: u64,
    /// The graph being captured (a `CUgraph`), for `Driver::graph_retain`; meaningless once the
    /// capture has ended.
    pub graph: u64,
}

/// The nodes of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphNodes {
    /// All nodes.
    pub total: u64,
    /// Nodes that allocate or free memory when the graph runs.
    pub memory: u64,
}

/// Tokens of graphs that are gone. The thread that adds one makes no driver call and holds nothing
/// that `take` waits for, so a driver's own threads may.
#[derive(Default)]
pub(super) struct Gone {
    /// The length of `tokens`, now or a moment ago.
    waiting: AtomicUsize,
    tokens: Mutex<Vec<u64>>,
}

impl Gone {
    /// Adds tokens.
    pub fn add(&self, new: &[u64]) {
        if new.is_empty() {
            return;
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.extend_from_slice(new);
        // Release: a thread that sees the count sees everything that happened before the graph was
        // gone.
        self.waiting.store(tokens.len(), Ordering::Release);
    }

    /// Takes the tokens added since the last call, in order.
    #[inline]
    pub fn take(&self) -> Vec<u64> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.store(0, Ordering::Relaxed);
        std::mem::take(&mut tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_taken_once() {
        let gone = Gone::default();
        assert_eq!(gone.take(), [0_u64; 0]);
        std::thread::scope(|scope| {
            let gone = &gone;
            for t in 0..4 {
                scope.spawn(move || (0..1000).for_each(|i| gone.add(&[t * 1000 + i])));
            }
            let mut all = Vec::new();
            while all.len() < 4000 {
                all.extend(gone.take());
                std::thread::yield_now();
            }
            all.sort_unstable();
            assert_eq!(all, (0..4000).collect::<Vec<_>>());
        });
        assert_eq!(gone.take(), [0_u64; 0]);
    }
}

//! What a pool knows of streams: its own, in the registry, and those of other devices
//! (`streams/other_devices.rs` says what for).

use crate::base::sync::{AtomicU64, OnceLock};
use crate::base::{DeviceId, StreamHandle};
use crate::pool::types::{Rank, Ranked};
use std::collections::HashMap;

/// The registry's key for a stream: its handle, or its identity if many streams share one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Handle(usize),
    PerThread(u64),
    /// A captured stream, by `capture_key`: it cannot be asked for its identity, so captures have
    /// heaps of their own.
    Captured(usize),
}

/// What the registry has for a stream.
pub(crate) struct StreamHeaps {
    pub(crate) lane: u32,
    /// Heap numbers; never empty.
    pub(crate) heaps: Vec<u32>,
    /// The annexes of these heaps.
    pub(crate) annexes: Vec<u32>,
    /// The position of the heap for the next thread that wants another one, when no more are made.
    pub(crate) next: usize,
}

/// Identities of a pool's per-thread streams whose threads have ended. Threads reach it, too.
pub(crate) type SpareStreams = std::sync::Mutex<Vec<u64>>;

/// A stream of another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteStream {
    pub(crate) dev: DeviceId,
    pub(crate) stream: StreamHandle,
    pub(crate) identity: u64,
}

/// What one pool knows of streams of other devices.
#[derive(Default)]
pub(crate) struct OtherDevices {
    /// Made when first needed, and kept.
    pub(crate) relay: OnceLock<StreamHandle>,
    /// Start of a live allocation → the streams it was recorded on.
    pub(crate) announced: Ranked<HashMap<u64, Vec<RemoteStream>>, { Rank::Leaf as u8 }>,
    /// How many entries `announced` has, so that nearly all frees look no further.
    pub(crate) count: AtomicU64,
}

//! Maps a stream's handle to its identity, without a lock.

#![deny(unsafe_code)]

use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

const CHUNK: usize = 1024;
const CHUNKS: usize = 64;
/// Handles are `BASE + slot * STEP`: far from any mapped address, so dereferencing one by mistake
/// faults.
const BASE: usize = 0x7357_0000_0000_0000;
const STEP: usize = 64;
const ID_BITS: u32 = 48;

/// Set in a word while the stream is being captured.
const CAPTURED: u64 = 1 << 63;

/// Handle → identity and device, readable without a lock: every allocation looks here. A word holds
/// `device << 48 | id`, and [`CAPTURED`]; 0 means that no stream has the handle.
pub struct Identities {
    chunks: [OnceLock<Box<[AtomicU64]>>; CHUNKS],
}

impl Identities {
    pub(super) fn new() -> Identities {
        Identities { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// The identity of a live created stream that is not being captured.
    #[inline]
    pub(in crate::driver) fn idle(&self, s: StreamHandle) -> Option<u64> {
        self.see(s).and_then(|(idle, id)| idle.then_some(id))
    }

    /// The identity of a live created stream that is being captured.
    pub(in crate::driver) fn captured(&self, s: StreamHandle) -> Option<u64> {
        self.see(s).and_then(|(idle, id)| (!idle).then_some(id))
    }

    /// Whether a live created stream is not being captured, and its identity.
    #[inline]
    pub(in crate::driver) fn see(&self, s: StreamHandle) -> Option<(bool, u64)> {
        let word = self.word(Self::slot(s)?)?.load(Ordering::Acquire);
        (word != 0).then_some((word & CAPTURED == 0, word & ((1 << ID_BITS) - 1)))
    }

    /// Notes that the capture of a stream has begun or ended.
    pub(super) fn set_captured(&self, s: StreamHandle, captured: bool) {
        if let Some(word) = Self::slot(s).and_then(|slot| self.word(slot)) {
            match captured {
                true => word.fetch_or(CAPTURED, Ordering::Release),
                false => word.fetch_and(!CAPTURED, Ordering::Release),
            };
        }
    }

    /// Names slot `slot`; `None` when there are more streams than the table holds.
    pub(super) fn set(&self, slot: usize, dev: DeviceId, id: u64) -> Option<StreamHandle> {
        let chunk = self.chunks.get(slot / CHUNK)?;
        let words = chunk.get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        // Release: a thread that learns the handle from the creator sees the word, too.
        words.get(slot % CHUNK)?.store(u64::from(dev.0) << ID_BITS | id, Ordering::Release);
        Some(StreamHandle(BASE + slot * STEP))
    }

    pub(super) fn clear(&self, slot: usize) {
        if let Some(w) = self.word(slot) {
            w.store(0, Ordering::Release);
        }
    }

    #[inline]
    fn word(&self, slot: usize) -> Option<&AtomicU64> {
        self.chunks.get(slot / CHUNK)?.get()?.get(slot % CHUNK)
    }

    /// The slot that a handle names, alive or not.
    #[inline]
    pub(super) fn slot(s: StreamHandle) -> Option<usize> {
        let offset = s.0.checked_sub(BASE)?;
        (offset % STEP == 0).then_some(offset / STEP)
    }

    /// Device and identity of a live stream that was created.
    #[inline]
    pub(super) fn lookup(&self, s: StreamHandle) -> Result<(DeviceId, u64)> {
        let word = Self::slot(s).and_then(|slot| self.word(slot)).map_or(0, |w| w.load(Ordering::Acquire));
        if word == 0 {
            return Err(Error::new(
                Status::InvalidStream,
                format!("stream {s} does not exist: it was destroyed, or is no handle of this device's"),
            ));
        }
        Ok((DeviceId(((word & !CAPTURED) >> ID_BITS) as u32), word & ((1 << ID_BITS) - 1)))
    }
}

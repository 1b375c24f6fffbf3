//! Whether a stream is still the one it was, seen without a driver call.
//!
//! A handle does not tell: CUDA gives the handle of a destroyed stream to the next one. Asking the
//! driver costs two calls on every allocation (whether the stream is being captured, and its id; 30
//! ns). A [`Watch`] reads the answer where the driver keeps it. The driver does not promise that
//! place, so a watch is used only once it has been proved in this process (`cuda/watch.rs`), and is
//! compared with the driver's own answer whenever a stream is met for the first time.
//! `GPUMEM_STREAM_CHECK=driver` turns it off; then the driver is asked each time.

use super::host::Identities;
use crate::base::StreamHandle;
use std::sync::Arc;

/// How to look at a created stream. See the module text.
#[derive(Clone, Default)]
pub enum Watch {
    /// Not at all: ask the driver.
    #[default]
    Ask,
    /// CUDA's layout: the handle is the address of a pointer to the stream's structure.
    Fields(Fields),
    /// The host device's table.
    Host(Arc<Identities>),
}

/// Places in the structure of a stream, bytes from its start; multiples of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The stream's identity.
    pub id: usize,
    /// A word that is 0 exactly while the stream is not being captured.
    pub capture: usize,
    /// Whether `capture` is also known to be right for streams that synchronise with the legacy
    /// stream.
    pub blocking: bool,
}

impl Watch {
    /// The identity of a live created stream that is not being captured; `None` when it is, or
    /// cannot be seen. The default streams have no structure of their own: the answer for them is
    /// always `None`.
    #[inline]
    pub fn look(&self, s: StreamHandle) -> Option<u64> {
        match self {
            Watch::Ask => None,
            Watch::Fields(f) => f.look(s),
            Watch::Host(identities) => identities.idle(s),
        }
    }

    /// Whether it shows captures of streams that synchronise with the legacy stream; for the others
    /// it always does.
    pub fn shows_blocking(&self) -> bool {
        match self {
            Watch::Fields(f) => f.blocking,
            Watch::Ask | Watch::Host(_) => true,
        }
    }
}

/// Handles below are names of default streams, not addresses.
const LOWEST_ADDRESS: usize = 4096;

impl Fields {
    #[inline]
    fn look(self, s: StreamHandle) -> Option<u64> {
        if s.0 < LOWEST_ADDRESS {
            return None;
        }
        // SAFETY: the caller vouches for a live created stream (rule of the module `driver`), and
        // the proof made when the watch was found showed that such a handle is the address of a
        // pointer to a structure that has aligned words at both places. They are the driver's and
        // may change under us, hence volatile; a stream's identity never does, and the thread that
        // begins a capture on a stream that another thread allocates on has to order the two.
        unsafe {
            let structure = (s.0 as *const *const u8).read_volatile();
            let capture = structure.add(self.capture).cast::<u64>().read_volatile();
            (capture == 0).then(|| structure.add(self.id).cast::<u64>().read_volatile())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_through_the_handle() {
        let mut structure = [0u64; 8];
        structure[3] = 42;
        let pointer = structure.as_ptr();
        let s = StreamHandle(std::ptr::from_ref(&pointer) as usize);
        let watch = Watch::Fields(Fields { id: 24, capture: 40, blocking: true });
        assert_eq!(watch.look(s), Some(42));
        structure[5] = 0x5555;
        assert_eq!(watch.look(s), None, "being captured");
        assert_eq!(watch.look(StreamHandle::LEGACY), None);
        assert_eq!(watch.look(StreamHandle::PER_THREAD), None);
        assert_eq!(Watch::Ask.look(s), None);
        std::hint::black_box(&structure);
    }
}

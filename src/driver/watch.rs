//! Whether a stream is still the one it was, seen without a driver call.
//!
//! A handle does not tell: CUDA gives the handle of a destroyed stream to the next one. Asking the
//! driver costs two calls on every allocation (whether the stream is being captured, and its id; 30
//! ns). A [`Watch`] reads the answer where the driver keeps it. The driver does not promise that
//! place, so a watch is used only once it has been proved in this process (`cuda/watch.rs`), and is
//! compared with the driver's own answer whenever a stream is met for the first time.
//! `GPUMEM_STREAM_CHECK=driver` turns it off; then the driver is asked each time.
//!
//! A watch also tells whether a stream that may be gone is there and not being captured. The driver
//! cannot be asked that.

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

    /// The identity of a live created stream that is being captured; `None` when it is not, or
    /// cannot be seen.
    pub fn look_captured(&self, s: StreamHandle) -> Option<u64> {
        match self {
            Watch::Ask => None,
            Watch::Fields(f) => f.see(s).and_then(|(idle, id)| (!idle).then_some(id)),
            Watch::Host(identities) => identities.captured(s),
        }
    }

    /// Whether the created stream of this identity is not being captured; `None` unless it is seen
    /// to be alive. Its handle may be no stream's any more, or another one's.
    pub fn idle(&self, s: StreamHandle, id: u64) -> Option<bool> {
        let seen = match self {
            Watch::Ask => None,
            Watch::Fields(f) => f.see_from_afar(s),
            Watch::Host(identities) => identities.see(s),
        };
        seen.filter(|seen| seen.1 == id).map(|seen| seen.0)
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
        self.see(s).and_then(|(idle, id)| idle.then_some(id))
    }

    /// Whether a live created stream is not being captured, and its identity.
    #[inline]
    fn see(self, s: StreamHandle) -> Option<(bool, u64)> {
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
            Some((capture == 0, structure.add(self.id).cast::<u64>().read_volatile()))
        }
    }

    /// Like [`Self::see`], for a stream that may be gone: then it shows anything or nothing.
    fn see_from_afar(self, s: StreamHandle) -> Option<(bool, u64)> {
        let structure = read_word(s.0)? as usize;
        let capture = read_word(structure.wrapping_add(self.capture))?;
        Some((capture == 0, read_word(structure.wrapping_add(self.id))?))
    }
}

/// Reads up to `bytes` (a multiple of 8) from an address, as far as they are readable. The system
/// copies them, so an invalid address ends the read and not the process; one call, as it is made
/// during captures.
pub(super) fn read(address: usize, bytes: usize) -> Vec<u64> {
    let mut words = vec![0u64; bytes / 8];
    let done = read_into(&mut words, address);
    words.truncate(done);
    words
}

/// Like [`read`], one word.
fn read_word(address: usize) -> Option<u64> {
    let mut word = [0];
    (read_into(&mut word, address) == 1).then_some(word[0])
}

/// Like [`read`], into `words`. Returns how many were read.
fn read_into(words: &mut [u64], address: usize) -> usize {
    let mut want = size_of_val(words);
    loop {
        let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: want };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: want };
        // SAFETY: `local` is within `words`; the remote range is this process's own and is checked
        // by the kernel.
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        match usize::try_from(n) {
            Ok(n) => return n / 8,
            // Some systems refuse a range that is readable only in part.
            Err(_) if want > 8 => want /= 2,
            Err(_) => return 0,
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
        assert_eq!((watch.look(s), watch.look_captured(s)), (Some(42), None));
        assert_eq!((watch.idle(s, 42), watch.idle(s, 41)), (Some(true), None));
        structure[5] = 0x5555;
        assert_eq!((watch.look(s), watch.look_captured(s)), (None, Some(42)), "being captured");
        assert_eq!(watch.idle(s, 42), Some(false));
        assert_eq!(watch.look(StreamHandle::LEGACY), None);
        assert_eq!(watch.look(StreamHandle::PER_THREAD), None);
        assert_eq!(Watch::Ask.look(s), None);
        std::hint::black_box(&structure);
    }

    #[test]
    fn a_stream_that_is_gone_shows_nothing() {
        let watch = Watch::Fields(Fields { id: 24, capture: 40, blocking: true });
        // No address, and the address of no address.
        assert_eq!(watch.idle(StreamHandle(8), 42), None);
        for pointer in [0, 8, usize::MAX - 7] {
            assert_eq!(watch.idle(StreamHandle(std::ptr::from_ref(&pointer) as usize), 42), None);
        }
    }

    #[test]
    fn reading_ends_where_nothing_is_mapped() {
        let words = [1u64, 2, 3];
        assert_eq!(read(words.as_ptr() as usize, 24), [1, 2, 3]);
        assert!(read(8, 64).is_empty());
        assert!(read(usize::MAX - 7, 64).is_empty());
    }
}

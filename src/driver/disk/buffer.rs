//! Memory that files are read into and written from.

use crate::base::{size, Error, Result, Status};
use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

/// The alignment of addresses, lengths and file offsets for direct I/O, bytes.
pub const ALIGN: u64 = 4096;

/// Memory for I/O, aligned to [`ALIGN`]: its own, or foreign memory that it keeps alive.
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

enum Owner {
    Own(Layout),
    /// Foreign memory. The keeper keeps it alive, and is dropped with the buffer.
    Other {
        _keeper: Box<dyn Any + Send>,
    },
}

// SAFETY: the memory belongs to this value alone, as `new` allocated it and `foreign` demands it;
// the keeper is `Send`.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Allocates zeroed memory, a multiple of [`ALIGN`] bytes and not 0.
    pub fn new(bytes: u64) -> Result<Buffer> {
        let (len, layout) = usize::try_from(bytes)
            .ok()
            .filter(|_| bytes > 0 && bytes.is_multiple_of(ALIGN))
            .and_then(|len| Some((len, Layout::from_size_align(len, ALIGN as usize).ok()?)))
            .ok_or_else(|| Error::invalid(format!("a buffer of {bytes} B: it must be a multiple of {ALIGN}, not 0")))?;
        // SAFETY: the layout's size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(|| {
            let message = format!("no memory for a buffer of {}; use fewer or smaller ones", size::human(bytes));
            Error::new(Status::OutOfMemory, message)
        })?;
        Ok(Buffer { start, bytes: len, owner: Owner::Own(layout) })
    }

    /// Wraps foreign memory, such as page-locked memory of [`crate::driver::Driver::host_alloc`].
    /// `addr` and `bytes` are multiples of [`ALIGN`] and not 0. The caller promises, as for every
    /// address passed to a driver, that the memory exists until the keeper is dropped and that only
    /// this buffer uses it. The caller also waits for device copies to and from it.
    pub fn foreign(addr: u64, bytes: u64, keeper: Box<dyn Any + Send>) -> Result<Buffer> {
        let fits =
            |n: u64| n > 0 && n.is_multiple_of(ALIGN) && usize::try_from(n).is_ok_and(|n| n <= isize::MAX as usize);
        let start =
            NonNull::new(addr as *mut u8).filter(|_| fits(addr) && fits(bytes) && addr.checked_add(bytes).is_some());
        let Some(start) = start else {
            return Err(Error::invalid(format!(
                "{bytes} B at {addr:#x} as a buffer: address and length must be multiples of {ALIGN}, not 0"
            )));
        };
        Ok(Buffer { start, bytes: bytes as usize, owner: Owner::Other { _keeper: keeper } })
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes as u64
    }

    /// Always `false`.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address of the memory, for copies by a device.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The contents.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` bytes from `start` on are allocated, initialised (zeroed by `new`; a
        // foreign owner's promise) and this value's alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The contents, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the value is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// The address and length of `range`, if it is within the buffer.
    pub(super) fn part(&self, range: &Range<usize>) -> Option<(*mut u8, u32)> {
        if range.end > self.bytes {
            return None;
        }
        let len = u32::try_from(range.end.checked_sub(range.start)?).ok()?;
        // SAFETY: `start <= end <= bytes`, so the result is within the memory or just behind it.
        Some((unsafe { self.start.as_ptr().add(range.start) }, len))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Owner::Own(layout) = self.owner {
            // SAFETY: `new` allocated it with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} at {:p})", size::human(self.len()), self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::Arc;

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for bytes in [0, 1, ALIGN - 1, ALIGN + 1, u64::MAX, !(ALIGN - 1)] {
            assert!(Buffer::new(bytes).is_err(), "{bytes}");
        }
        for (addr, bytes) in [(0, ALIGN), (1, ALIGN), (ALIGN, 0), (ALIGN, 1), (!(ALIGN - 1), ALIGN)] {
            assert!(Buffer::foreign(addr, bytes, Box::new(())).is_err(), "{addr} {bytes}");
        }
        let buffer = Buffer::new(3 * ALIGN);
        assert!(buffer.is_ok_and(|b| b.addr().is_multiple_of(ALIGN) && b.bytes().iter().all(|&x| x == 0)));
    }

    #[test]
    fn a_keeper_lives_as_long_as_its_buffer() {
        struct Keeper(Buffer, Arc<AtomicBool>);
        impl Drop for Keeper {
            fn drop(&mut self) {
                self.1.store(self.0.bytes()[5] == 9, Relaxed);
            }
        }
        let gone = Arc::new(AtomicBool::new(false));
        let Ok(memory) = Buffer::new(ALIGN) else { unreachable!() };
        let addr = memory.addr();
        let Ok(mut buffer) = Buffer::foreign(addr, ALIGN, Box::new(Keeper(memory, gone.clone()))) else {
            unreachable!()
        };
        buffer.bytes_mut()[5] = 9;
        assert!(!gone.load(Relaxed));
        drop(buffer);
        assert!(gone.load(Relaxed));
    }
}

//! Structures that grow: the first field is the size of the caller's version.
//!
//! Reading: fields that the caller's version lacks are zero, the default; fields that this version
//! lacks must be zero, as this library cannot give what they ask for. Writing: as much as fits.

use super::types::not_null;
use crate::base::{Error, Result};
use std::mem::{size_of, MaybeUninit};

/// The largest size accepted. Anything above is an uninitialised field, not a future structure.
const MAX_BYTES: usize = 4096;

/// A structure whose first field is its `u32` size.
///
/// # Safety
/// The type is `repr(C)` with a `u32` first, has no padding, and every pattern of bits is a value
/// of it.
pub(in crate::capi) unsafe trait Extensible: Copy {
    /// Its C name.
    const NAME: &'static str;
    /// Its size in bytes when it was first released; no version is smaller.
    const FIRST_BYTES: usize;
}

/// Makes a structure [`Extensible`]: its name, [`Extensible::FIRST_BYTES`], and the sum of its
/// fields' sizes, which equals its own where there is no padding. The comment above each use says
/// why the trait's other promises hold.
macro_rules! extensible {
    ($name:ident, $first_bytes:expr, $fields:expr) => {
        // SAFETY: no padding by the assertion below; the rest is said where the macro is used.
        unsafe impl $crate::capi::call::options::Extensible for $name {
            const NAME: &'static str = stringify!($name);
            const FIRST_BYTES: usize = $first_bytes;
        }
        const _: () = assert!(size_of::<$name>() == $fields);
    };
}
pub(in crate::capi) use extensible;

/// Reads the caller's options.
///
/// # Safety
/// `ptr` is null, or readable for four bytes and for as many bytes as the `u32` there says, up to
/// 4096.
pub(in crate::capi) unsafe fn read<T: Extensible>(ptr: *const T) -> Result<T> {
    // SAFETY: passed on from the caller.
    let size = unsafe { checked_size(ptr) }?;
    let known = size.min(size_of::<T>());
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's structure is `size` bytes and ours at least `known`; copying bytes needs
    // no alignment. Zeros and any bytes are a value of `T`.
    let value = unsafe {
        std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known);
        value.assume_init()
    };
    for i in known..size {
        // SAFETY: `i < size`, the size of the caller's structure.
        if unsafe { ptr.cast::<u8>().add(i).read() } != 0 {
            return Err(Error::invalid(format!(
                "{}: byte {i} is not zero, and gpumem {} knows only the first {known} bytes; \
                 leave fields of newer versions zero, or use a newer library",
                T::NAME,
                env!("CARGO_PKG_VERSION"),
            )));
        }
    }
    Ok(value)
}

/// Reads the caller's options like [`read`]; `None` for null.
///
/// # Safety
/// As for [`read`].
pub(in crate::capi) unsafe fn read_if_any<T: Extensible>(ptr: *const T) -> Result<Option<T>> {
    match ptr.is_null() {
        true => Ok(None),
        // SAFETY: passed on from the caller.
        false => unsafe { read(ptr) }.map(Some),
    }
}

/// Checks that the caller's structure can be written to, before the work that fills it.
///
/// # Safety
/// As for [`read`].
pub(in crate::capi) unsafe fn check_output<T: Extensible>(ptr: *const T) -> Result<()> {
    // SAFETY: passed on from the caller.
    unsafe { checked_size(ptr) }.map(|_| ())
}

/// Writes as much of `value` as the caller's structure holds, zeros where it is larger, and into
/// its first field how many bytes were filled.
///
/// # Safety
/// As for [`read`], and writable.
pub(in crate::capi) unsafe fn write<T: Extensible>(ptr: *mut T, value: &T) -> Result<()> {
    // SAFETY: passed on from the caller.
    let size = unsafe { checked_size(ptr) }?;
    let known = size.min(size_of::<T>());
    let bytes = ptr.cast::<u8>();
    // SAFETY: the caller's structure is `size` bytes, ours is at least `known`, and they do not
    // overlap (ours is on this side of the boundary). `T` has no padding, so all of its bytes are
    // initialised.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), bytes, known);
        std::ptr::write_bytes(bytes.add(known), 0, size - known);
        bytes.cast::<u32>().write_unaligned(known as u32);
    }
    Ok(())
}

/// # Safety
/// `ptr` is null or readable for four bytes.
unsafe fn checked_size<T: Extensible>(ptr: *const T) -> Result<usize> {
    not_null(ptr, T::NAME)?;
    // SAFETY: not null, so readable for four bytes.
    let size = unsafe { ptr.cast::<u32>().read_unaligned() } as usize;
    if !(T::FIRST_BYTES..=MAX_BYTES).contains(&size) {
        return Err(Error::invalid(format!(
            "{0}.size is {size}; zero the structure and set size to sizeof({0}), as GPUMEM_INIT does",
            T::NAME
        )));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::base::Status;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct V2 {
        size: u32,
        a: u32,
        b: u64,
    }
    // SAFETY: repr(C), u32 first, no padding, integers.
    unsafe impl Extensible for V2 {
        const NAME: &'static str = "v2";
        const FIRST_BYTES: usize = 8;
    }

    fn read_words(words: &[u32]) -> Result<V2> {
        // SAFETY: every test's first word is at most the bytes it passes, or refused before more is
        // read.
        unsafe { read(words.as_ptr().cast::<V2>()) }
    }

    #[test]
    fn older_callers_get_defaults_and_newer_ones_are_refused_what_is_unknown() {
        assert_eq!(read_words(&[8, 7]).unwrap(), V2 { size: 8, a: 7, b: 0 });
        assert_eq!(read_words(&[12, 7, 5]).unwrap(), V2 { size: 12, a: 7, b: 5 });
        assert_eq!(read_words(&[16, 7, 5, 1]).unwrap().b, (1 << 32) + 5);
        assert_eq!(read_words(&[24, 7, 5, 1, 0, 0]).unwrap().a, 7);
        let e = read_words(&[24, 7, 5, 1, 0, 256]).unwrap_err();
        assert_eq!(e.status, Status::Invalid);
        assert!(e.message.contains("byte 21"), "{}", e.message);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for size in [0, 4, 7, 4097, u32::MAX] {
            assert_eq!(read_words(&[size, 0, 0, 0]).unwrap_err().status, Status::Invalid, "{size}");
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { read::<V2>(std::ptr::null()) }.unwrap_err().status, Status::Invalid);
    }

    #[test]
    fn outputs_fill_what_the_caller_has() {
        let full = V2 { size: 0, a: 1, b: 0x0000_0003_0000_0002 };
        for (size, want) in [
            (8, [8, 1, 9, 9, 9, 9]),
            (12, [12, 1, 2, 9, 9, 9]),
            (16, [16, 1, 2, 3, 9, 9]),
            (20, [16, 1, 2, 3, 0, 9]),
            (24, [16, 1, 2, 3, 0, 0]),
        ] {
            let mut words = [size, 9, 9, 9, 9, 9];
            // SAFETY: `size` is at most the array's bytes.
            unsafe { write(words.as_mut_ptr().cast::<V2>(), &full) }.unwrap();
            assert_eq!(words, want, "{size}");
        }
    }
}

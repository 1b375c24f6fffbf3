//! Text going out to C: NUL-terminated, never beyond the caller's buffer, never half a character.

use std::ffi::c_char;

/// Copies `text` and a NUL into `buf` as far as they fit and returns the length of `text` in bytes,
/// NUL not counted. Whatever the return value, a buffer of at least one byte holds a terminated
/// string afterwards.
///
/// # Safety
/// `buf` is null or `cap` writable bytes.
pub(in crate::capi) unsafe fn copy_out(text: &[u8], buf: *mut c_char, cap: usize) -> usize {
    if !buf.is_null() && cap > 0 {
        let fits = match std::str::from_utf8(text) {
            Ok(s) => floor_char_boundary(s, cap - 1),
            Err(_) => text.len().min(cap - 1),
        };
        // SAFETY: `fits < cap` and `fits <= text.len()`; the caller's buffer is not ours, so they
        // do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), fits);
            buf.add(fits).write(0);
        }
    }
    text.len()
}

/// Fills a fixed array of a C structure; cut to fit, always terminated.
pub(in crate::capi) fn fill<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    let fits = floor_char_boundary(text, N.saturating_sub(1));
    for (to, from) in out.iter_mut().zip(text.as_bytes().iter().take(fits)) {
        *to = *from as c_char;
    }
    out
}

/// The largest length up to `max` at which `text` can be cut.
pub(in crate::capi) fn floor_char_boundary(text: &str, max: usize) -> usize {
    let mut cut = text.len().min(max);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(text: &str, cap: usize) -> (usize, Vec<u8>) {
        let mut buf = vec![0x7f_u8; 16];
        // SAFETY: cap is at most the buffer's length.
        let n = unsafe { copy_out(text.as_bytes(), buf.as_mut_ptr().cast(), cap.min(16)) };
        (n, buf)
    }

    #[test]
    fn copies_are_terminated_and_bounded() {
        assert_eq!(copy("abc", 0), (3, vec![0x7f; 16]));
        assert_eq!(copy("abc", 1).1.get(..2), Some(&[0, 0x7f][..]));
        assert_eq!(copy("abc", 3).1.get(..4), Some(&[b'a', b'b', 0, 0x7f][..]));
        assert_eq!(copy("abc", 4).1.get(..5), Some(&[b'a', b'b', b'c', 0, 0x7f][..]));
        assert_eq!(copy("aé", 3).1.get(..3), Some(&[b'a', 0, 0x7f][..]));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { copy_out(b"abc", std::ptr::null_mut(), 9) }, 3);
    }

    #[test]
    fn arrays_are_terminated() {
        assert_eq!(fill::<4>("abcdef").map(|c| c as u8), *b"abc\0");
        assert_eq!(fill::<4>("é§x").map(|c| c as u8), [0xc3, 0xa9, 0, 0]);
        assert_eq!(fill::<1>("x"), [0]);
    }
}

//! The last failure of each thread: its status and its text.

use super::text;
use crate::base::{Error, Status};
use std::cell::RefCell;
use std::ffi::c_char;

/// Longest text kept, bytes; longer ones are cut at a character boundary.
const TEXT_BYTES: usize = 1000;

/// This thread's last failure. Plain bytes with a constant initial value, so that the thread-local
/// needs neither lazy initialisation nor a destructor: it can be used from other libraries' exit
/// handlers.
struct LastError {
    status: Status,
    len: usize,
    text: [u8; TEXT_BYTES],
}

thread_local! {
    static LAST: RefCell<LastError> =
        const { RefCell::new(LastError { status: Status::Ok, len: 0, text: [0; TEXT_BYTES] }) };
}

/// Keeps a failure as the last one of this thread.
pub(in crate::capi) fn remember(e: &Error) {
    let cut = text::floor_char_boundary(&e.message, TEXT_BYTES);
    // Neither can fail: there is no destructor and no re-entry. If one did, only a text would be
    // lost.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.status = e.status;
            last.len = cut;
            for (to, from) in last.text.iter_mut().zip(e.message.as_bytes().iter().take(cut)) {
                *to = *from;
            }
        }
    });
}

/// The status of this thread's last failure, `Ok` when there was none.
pub(in crate::capi) fn last_status() -> Status {
    LAST.try_with(|last| last.try_borrow().map_or(Status::Ok, |last| last.status)).unwrap_or(Status::Ok)
}

/// Copies the text of this thread's last failure out; see [`text::copy_out`].
///
/// # Safety
/// `buf` is null or `cap` writable bytes.
pub(in crate::capi) unsafe fn last_text(buf: *mut c_char, cap: usize) -> usize {
    LAST.try_with(|last| match last.try_borrow() {
        // SAFETY: passed on from the caller.
        Ok(last) => unsafe { text::copy_out(last.text.get(..last.len).unwrap_or_default(), buf, cap) },
        Err(_) => 0,
    })
    .unwrap_or(0)
}

/// The text of this thread's last failure, for tests.
#[cfg(test)]
pub(in crate::capi) fn text() -> String {
    let mut buf = [0u8; 2048];
    // SAFETY: a buffer of that many bytes.
    let n = unsafe { last_text(buf.as_mut_ptr().cast(), buf.len()) };
    String::from_utf8_lossy(&buf[..n]).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn errors_stay_on_their_thread() {
        remember(&Error::invalid("mine"));
        let other = std::thread::spawn(|| (last_status(), text())).join().unwrap();
        assert_eq!(other, (Status::Ok, String::new()));
        assert_eq!((last_status(), text()), (Status::Invalid, "mine".into()));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        remember(&Error::invalid("é".repeat(TEXT_BYTES)));
        assert_eq!(text(), "é".repeat(TEXT_BYTES / 2));
        remember(&Error::invalid("aé".repeat(TEXT_BYTES)));
        assert!(text().len() >= TEXT_BYTES - 2);
    }
}

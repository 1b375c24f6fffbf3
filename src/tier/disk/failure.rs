//! What the operating system's errors mean to the caller.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::{Error, Status};
use std::io;
use std::path::Path;

/// Whether an error says that there is no room: no space, no more quota, or a limit of a file's
/// length.
pub(super) fn is_full(e: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(e.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// What to do where there is no room.
pub(super) const FULL: &str = "free space there, raise the quota or ulimit -f, or use another directory";

/// `what` failed on `path`.
pub(super) fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    use io::ErrorKind::*;
    let path = path.display();
    let status = if is_full(e) { Status::OutOfMemory } else { Status::Io };
    let advice = match e.kind() {
        _ if is_full(e) => FULL,
        _ if e.raw_os_error() == Some(libc::EMFILE) => "close some, or raise ulimit -n",
        PermissionDenied | ReadOnlyFilesystem => "let this user write there, or use another directory",
        NotFound | NotADirectory => {
            "was it removed, or its file system unmounted? Mount it again, or use another directory"
        }
        _ => "look at the system's log; the data is where it was before this call",
    };
    Error::new(status, format!("{what} {path}: {e}; {advice}"))
}

/// An error of a write or read of `bytes` at `at`.
pub(super) fn transfer(what: &str, bytes: u64, at: u64, path: &Path, e: &io::Error) -> Error {
    failed(&format!("{what} {bytes} B at byte {at} of"), path, e)
}

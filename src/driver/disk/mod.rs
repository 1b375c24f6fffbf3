//! The boundary to the operating system for files: the calls that the disk tier is built from.
//!
//! [`OsDisk`] makes them; [`FaultDisk`] wraps another one and fails chosen calls. Calls block
//! unless they say otherwise, and any thread may make them. Errors are the system's own
//! ([`io::Error`]): the caller adds what it asked for.
//!
//! Data is read and written through a [`Lane`], where several requests can be in flight at once. A
//! request in flight owns its [`Buffer`], so that nothing can free or change it; the completion
//! gives it back.

mod buffer;
mod fault;
pub mod identity;
mod os;
mod threads;

pub use buffer::{Buffer, ALIGN};
pub use fault::{DiskCall, DiskRule, Effect, FaultDisk};
pub use os::OsDisk;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file system's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// All bytes.
    pub total: u64,
    /// Bytes that this process may still use.
    pub free: u64,
}

/// The file system calls.
pub trait Disk: Send + Sync {
    /// How data is read and written, for people: `4 threads`.
    fn engine(&self) -> String;
    /// Bytes of the file system that `path` is on.
    fn space(&self, path: &Path) -> io::Result<DiskSpace>;
    /// Makes a directory that only this user can enter. `AlreadyExists` if the path exists.
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    /// The entries of a directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    /// Creates a file that only this user can read and write. `AlreadyExists` if the path exists.
    /// `direct` bypasses the page cache (`O_DIRECT`): offsets, lengths and addresses of data are
    /// then multiples of [`ALIGN`], and `InvalidInput` means that the file system does not support
    /// it.
    fn create(&self, path: &Path, direct: bool) -> io::Result<File>;
    /// Opens an existing file for reading, but not a symbolic link.
    fn open(&self, path: &Path, direct: bool) -> io::Result<File>;
    /// Opens a file for locking, creating it if necessary, but not a symbolic link.
    fn open_lock(&self, path: &Path) -> io::Result<File>;
    /// Takes a file's one lock, for as long as the file is open anywhere. If it is taken already,
    /// returns `false`. Whether processes on other machines count depends on the file system.
    fn lock(&self, file: &File) -> io::Result<bool>;
    /// Releases a file's lock, also for a forked child that has the file open.
    fn unlock(&self, file: &File);
    /// Makes the file `bytes` long and allocates its blocks, so later writes cannot run out of
    /// space. A failure writes nothing. `Unsupported` where the file system has no such call.
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()>;
    /// Waits until the file's data is on the device.
    fn sync(&self, file: &File) -> io::Result<()>;
    /// Waits until a directory's names are on the device.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Gives a file another name in its directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file, or a link itself. Its bytes are free once no process has it open.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Closes a file. If its name is gone and nothing else has it open, its blocks are freed now,
    /// which may take a long time.
    fn close(&self, file: File);
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a lane for reads and writes, for one user at a time.
    fn lane(&self) -> io::Result<Box<dyn Lane>>;
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file into the buffer.
    Read,
    /// From the buffer into the file.
    Write,
}

/// One read or write.
#[derive(Debug)]
pub struct IoRequest {
    /// Which way the data goes.
    pub direction: Direction,
    /// The file.
    pub file: Arc<File>,
    /// The offset in the file, bytes.
    pub at: u64,
    /// The memory.
    pub buffer: Buffer,
    /// The part of the buffer to use.
    pub range: Range<usize>,
    /// For the submitter's own use.
    pub tag: u64,
}

/// A completed request.
#[derive(Debug)]
pub struct Completion {
    /// The request, with its buffer.
    pub request: IoRequest,
    /// Bytes that were read or written, possibly fewer than asked; 0 at the end of the file.
    pub result: io::Result<usize>,
}

/// Reads and writes in flight. Dropping one waits for them.
pub trait Lane: Send {
    /// The most requests that can be in flight.
    fn capacity(&self) -> usize;
    /// How many requests are in flight.
    fn in_flight(&self) -> usize;
    /// Starts a request; does not wait for it. A request outside its buffer's bounds or beyond the
    /// capacity comes back at once.
    fn submit(&mut self, request: IoRequest) -> Result<(), Box<Completion>>;
    /// Waits until another request completes (if any is in flight), and appends all completed ones
    /// to `done`. After an error, requests in flight may stay so for ever.
    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;
}

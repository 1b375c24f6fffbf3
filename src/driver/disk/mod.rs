//! The boundary to the operating system for files: the calls that the disk tier is built from.
//!
//! [`OsDisk`] makes them; [`FaultDisk`] wraps another one and fails chosen calls. Calls block
//! unless they say otherwise, and any thread may make them. Errors are the system's own
//! ([`io::Error`]): who calls knows what was asked and says so.
//!
//! Data is read and written through a [`Lane`], where any number of requests are in flight at once.
//! A request in flight owns its [`Buffer`], so that nothing can free or change it; the completion
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
    /// All there is.
    pub total: u64,
    /// What this process may still use.
    pub free: u64,
}

/// The calls.
pub trait Disk: Send + Sync {
    /// How data is read and written, for people: `4 threads`.
    fn engine(&self) -> String;
    /// Bytes of the file system that `path` is on.
    fn space(&self, path: &Path) -> io::Result<DiskSpace>;
    /// Makes a directory that only this user can enter. `AlreadyExists` when there is something.
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    /// What is in a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    /// A new file to read and write, which only this user can. `AlreadyExists` when there is
    /// something. `direct`: past the page cache (`O_DIRECT`); then offsets, lengths and addresses
    /// of data are multiples of [`ALIGN`], and `InvalidInput` says that this file system cannot.
    fn create(&self, path: &Path, direct: bool) -> io::Result<File>;
    /// An existing file, to read. Not a symbolic link.
    fn open(&self, path: &Path, direct: bool) -> io::Result<File>;
    /// A file to lock, made when it is not there. Not a symbolic link.
    fn open_lock(&self, path: &Path) -> io::Result<File>;
    /// Takes the one lock that a file has, for as long as the file is open anywhere. `false` when
    /// another holds it; with `wait`, waits for that one. Processes on other machines count where
    /// the file system says so.
    fn lock(&self, file: &File, wait: bool) -> io::Result<bool>;
    /// Gives a file's lock up, also for a forked child that has the file open.
    fn unlock(&self, file: &File);
    /// Makes the file `bytes` long and its blocks its own: later writes cannot run out of space.
    /// Nothing is written when it fails. `Unsupported` where the file system has no such call.
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()>;
    /// Waits until the file's data is on the device.
    fn sync(&self, file: &File) -> io::Result<()>;
    /// Waits until a directory's names are on the device.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Gives a file another name in its directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file, or a link itself. Its bytes are free once no process has it open.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Closes a file. If its name is gone and nothing else has it open, its blocks are given back
    /// now, which may take long.
    fn close(&self, file: File);
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// A way for reads and writes, for one user at a time. Made or taken from those that others
    /// have dropped.
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
    /// Which way.
    pub direction: Direction,
    /// The file.
    pub file: Arc<File>,
    /// Where in the file, bytes.
    pub at: u64,
    /// The memory.
    pub buffer: Buffer,
    /// What part of the memory.
    pub range: Range<usize>,
    /// The submitter's own.
    pub tag: u64,
}

/// A request that is over.
#[derive(Debug)]
pub struct Completion {
    /// The request, with its buffer.
    pub request: IoRequest,
    /// Bytes that were read or written, possibly fewer than asked; 0 at the end of the file.
    pub result: io::Result<usize>,
}

/// Reads and writes in flight. Dropping one waits for them.
pub trait Lane: Send {
    /// Most requests to have in flight.
    fn capacity(&self) -> usize;
    /// How many are.
    fn in_flight(&self) -> usize;
    /// Starts a request; does not wait for it. A request out of its buffer's bounds, and one beyond
    /// the capacity, come back at once.
    fn submit(&mut self, request: IoRequest) -> Result<(), Box<Completion>>;
    /// Waits until one more request is over (if any is in flight), and appends all that are to
    /// `done`. After an error the requests in flight may be so for ever.
    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;
}

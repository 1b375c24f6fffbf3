//! The disk tier: data in files under a mount.
//!
//! - A *store* ([`store`]) is one process's place under one mount: a directory of its own
//!   ([`claim`]), removed with it or, if the process dies first, by the next store.
//! - A *slot* is data in one file of it: written once, as a whole ([`writer`]), read any number of
//!   times ([`reader`]), removed.
//! - A *chunk* is what one request reads or writes and one checksum covers. Writing and reading are
//!   pipelines: the caller lends each chunk a buffer, and any number are in flight. [`copy`] has
//!   the loops for it.
//! - A removed file is *pending* until the file system has its blocks back ([`reaper`]); only
//!   requests that need them wait for that.
//! - A file is *whole* if everything in it is as it was written ([`format`](mod@format)). Only such
//!   files are ever taken for data.
//!
//! Equations, which [`Store::validate`] checks: `slots` and `data` are the number and the lengths
//! of the slots; `used` is the sum of the lengths of their files and of those of writes in
//! progress; `peak >= used`. All are 0 when every slot is removed.
//!
//! Locks: of a store's books, of what it could not remove, and of its reaper's queue and thread.
//! None is held for a call to the file system, none is taken under another of them, and each may be
//! taken under any other.
//!
//! The semantics are in `docs/spec/tiers.md`, the measurements in `docs/adr/disk-io.md`.

mod books;
mod claim;
mod copy;
mod failure;
mod format;
mod options;
mod probe;
mod pump;
mod reader;
mod reaper;
mod room;
pub mod space;
mod store;
mod writer;

pub use books::Slot;
pub use copy::{inspect, ReadAhead, Sink};
pub use format::file_bytes;
pub use options::{After, Reclaimed, StoreCapacity, StoreOptions, StoreUsage};
pub use reader::{Arrived, Reader};
pub use space::{Disks, Mount};
pub use store::Store;
pub use writer::{Chunk, Refused, Writer};

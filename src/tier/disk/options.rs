//! What a store is opened with, and what it says about itself.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::format;
use crate::base::size::{human, GIB, KIB};
use crate::base::{Error, Result};
use crate::driver::disk::ALIGN;

/// How a store works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Bytes of data that one checksum stands for and one request reads or writes: a multiple of 4
    /// KiB, up to 1 GiB. Data that was written keeps its own. Small, so that a few buffers stay in
    /// the processor's cache: docs/adr/disk-io.md.
    pub chunk_bytes: u64,
    /// Most bytes of files; `None`: as many as the file system has.
    pub limit: Option<u64>,
    /// Whether to bypass the page cache (`O_DIRECT`) where the file system can.
    pub direct: bool,
    /// Whether a finished write is on the device, not only in its cache. Otherwise a loss of power
    /// may take data with it, which a read then notices.
    pub sync: bool,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { chunk_bytes: 512 * KIB, limit: None, direct: true, sync: false }
    }
}

impl StoreOptions {
    pub(super) fn check(&self) -> Result<()> {
        let chunk = self.chunk_bytes;
        if chunk == 0 || !chunk.is_multiple_of(ALIGN) || chunk > GIB {
            return Err(Error::invalid(format!("chunks have {chunk} B; use a multiple of {ALIGN}, up to 1 GiB")));
        }
        let least = format::BLOCK * 3;
        if self.limit.is_some_and(|limit| limit < least) {
            let limit = human(self.limit.unwrap_or(0));
            return Err(Error::invalid(format!("a limit of {limit}: the smallest file has {}", human(least))));
        }
        Ok(())
    }
}

/// What becomes of data that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It stays, to be read again.
    Keep,
    /// Its file is removed.
    Remove,
}

/// What a store holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Slots: finished writes that have not been removed.
    pub slots: u64,
    /// Bytes of data in them.
    pub data: u64,
    /// Bytes of files: those of slots, and of writes in progress. Data, rounded up to 4 KiB, with a
    /// header and a footer.
    pub used: u64,
    /// The most bytes of files there were.
    pub peak: u64,
    /// Writes in progress.
    pub writing: u64,
    /// Reads in progress.
    pub reading: u64,
}

/// Bytes a store may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreCapacity {
    /// The file system's bytes, or the limit if that is less.
    pub capacity: u64,
    /// How much of it new files may use.
    pub available: u64,
}

/// What dead processes had left, and was removed when the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Their directories.
    pub stores: u64,
    /// Their files.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
}

//! The books of a store, which its writers and readers share with it: which slots there are, and
//! what they take.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::claim::{Claim, SLOT};
use super::failure::failed;
use super::format::Content;
use super::options::{Reclaimed, StoreOptions, StoreUsage};
use super::probe::Abilities;
use super::reaper::{unlink, Reaper};
use crate::base::size::human;
use crate::base::sync::lock;
use crate::base::{Error, Result, Status};
use crate::driver::disk::{Disk, Lane};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Names data in a store until it is removed. Never reused, and unknown to other stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    pub(super) store: u64,
    pub(super) number: u64,
}

/// What is known of a slot besides what its file says.
#[derive(Debug)]
pub(super) struct Record {
    pub content: Content,
    /// A checksum for each chunk.
    pub sums: Vec<u64>,
    /// How many reads of it are in progress; it cannot be removed meanwhile.
    pub readers: u64,
}

/// What a store, its writers and its readers share.
pub(super) struct Shared {
    pub disk: Arc<dyn Disk>,
    pub options: StoreOptions,
    pub abilities: Abilities,
    pub claim: Claim,
    pub reclaimed: Reclaimed,
    /// Part of every generation: no other store has it.
    pub number: u64,
    pub books: Mutex<Books>,
    pub reaper: Reaper,
    /// Whether the process is exiting, and its files are gone.
    pub left: AtomicBool,
}

#[derive(Default)]
pub(super) struct Books {
    pub slots: HashMap<u64, Record>,
    pub next: u64,
    pub usage: StoreUsage,
    /// Slots that are being removed: only `usage` still counts them.
    pub removing: u64,
}

/// The error of a call that names data which is not there.
pub(super) fn unknown(slot: Slot) -> Error {
    Error::invalid(format!("there is no slot {} in this store; it was removed, or is another store's", slot.number))
}

impl Shared {
    pub fn known(&self, slot: Slot) -> Result<u64> {
        if slot.store == self.number {
            Ok(slot.number)
        } else {
            Err(unknown(slot))
        }
    }

    /// Whether files may be made and read.
    pub fn check_there(&self) -> Result<()> {
        match self.left.load(SeqCst) {
            true => Err(Error::new(
                Status::ShuttingDown,
                format!("the process is exiting; its files in {} are gone", self.claim.dir.display()),
            )),
            false => Ok(()),
        }
    }

    pub fn slot(&self, number: u64) -> Slot {
        Slot { store: self.number, number }
    }

    pub fn lane(&self) -> Result<Box<dyn Lane>> {
        self.disk.lane().map_err(|e| failed("starting I/O in", &self.claim.dir, &e))
    }

    /// Counts a write that begins.
    pub fn admit(&self, bytes: u64) -> Result<(u64, Content)> {
        let mut books = lock(&self.books);
        let number = books.next;
        let content = Content::new((self.number, number), bytes, self.options.chunk_bytes)?;
        let file = content.file_bytes();
        let used = books.usage.used;
        let limit = self.options.limit.unwrap_or(u64::MAX);
        if used.checked_add(file).is_none_or(|sum| sum > limit) {
            return Err(Error::new(
                Status::OutOfMemory,
                format!(
                    "{} of data need a file of {}, and {} of the {} that {} may have are in use; remove slots, or raise the limit",
                    human(bytes),
                    human(file),
                    human(used),
                    human(limit),
                    self.claim.dir.display()
                ),
            ));
        }
        books.next += 1;
        books.usage.used += file;
        books.usage.peak = books.usage.peak.max(books.usage.used);
        books.usage.writing += 1;
        Ok((number, content))
    }

    /// Uncounts a write that came to nothing.
    pub fn forget_write(&self, content: Content) {
        let mut books = lock(&self.books);
        books.usage.writing -= 1;
        books.usage.used -= content.file_bytes();
    }

    /// Counts a write that is whole.
    pub fn add_slot(&self, number: u64, content: Content, sums: Vec<u64>) {
        let mut books = lock(&self.books);
        books.usage.writing -= 1;
        books.usage.slots += 1;
        books.usage.data += content.length;
        books.slots.insert(number, Record { content, sums, readers: 0 });
    }

    pub fn end_read(&self, number: u64) {
        let mut books = lock(&self.books);
        books.usage.reading -= 1;
        if let Some(record) = books.slots.get_mut(&number) {
            record.readers -= 1;
        }
    }

    pub fn remove(&self, number: u64) -> Result<()> {
        // Out of the books first, so that no thread begins to read it while its file goes.
        let record = {
            let mut books = lock(&self.books);
            let readers = books.slots.get(&number).ok_or_else(|| unknown(self.slot(number)))?.readers;
            if readers > 0 {
                return Err(Error::invalid(format!("slot {number} is being read by {readers}; finish that first")));
            }
            let record = books.slots.remove(&number).ok_or_else(|| unknown(self.slot(number)))?;
            books.removing += 1;
            record
        };
        let path = self.claim.file(number, SLOT);
        let result = match unlink(&*self.disk, &path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other,
        };
        let result = result.map(|file| self.close_removed(file, record.content));
        let mut books = lock(&self.books);
        books.removing -= 1;
        if let Err(e) = result {
            books.slots.insert(number, record);
            return Err(failed("removing", &path, &e));
        }
        books.usage.slots -= 1;
        books.usage.data -= record.content.length;
        books.usage.used -= record.content.file_bytes();
        Ok(())
    }

    /// Has an unlinked file closed later, which frees its blocks. Called before its bytes leave the
    /// counters, so that `available` does not drop in between.
    pub fn close_removed(&self, file: Option<File>, content: Content) {
        if let Some(file) = file {
            self.reaper.close(file, content.file_bytes());
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Some file systems keep the directory as long as one of its files is open.
        self.reaper.end();
        self.claim.release(&*self.disk);
    }
}

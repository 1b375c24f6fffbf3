//! A store: slots of data in files of one mount.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::books::{unknown, Books, Record, Shared, Slot};
use super::claim::{claim, PART, SLOT};
use super::failure::failed;
use super::options::{Reclaimed, StoreCapacity, StoreOptions, StoreUsage};
use super::probe::probe;
use super::reader::Reader;
use super::reaper::Reaper;
use super::writer::Writer;
use crate::base::size::human;
use crate::base::sync::lock;
use crate::base::{Error, Result};
use crate::driver::disk::identity::unlikely_twice;
use crate::driver::disk::{Disk, OsDisk};
use crate::tier::promise::Drawn;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Data in files under one mount. Any thread may use it; closing it, or dropping the last of it,
/// its writers and its readers, removes all of its files.
pub struct Store {
    shared: Arc<Shared>,
    /// Slots that could not be removed, with their receipts.
    left: Mutex<VecDeque<(Slot, Drawn)>>,
}

impl Store {
    /// Opens a store under `mount`, a directory that this process may write to. Removes first what
    /// dead processes of this user left there. `Io` when the directory is not there or not to be
    /// written to; `OutOfMemory` when it is full.
    pub fn open(mount: &Path, options: &StoreOptions) -> Result<Store> {
        Store::open_on(Arc::new(OsDisk::default()), mount, options)
    }

    /// Like [`Self::open`], with calls to the file system made by `disk`.
    pub fn open_on(disk: Arc<dyn Disk>, mount: &Path, options: &StoreOptions) -> Result<Store> {
        options.check()?;
        let (mut claim, reclaimed) = claim(&*disk, mount)?;
        let abilities = match probe(&*disk, &claim, options) {
            Ok(abilities) => abilities,
            Err(e) => {
                claim.release(&*disk);
                return Err(e);
            }
        };
        let books = Mutex::new(Books::default());
        let (options, number, reaper) = (options.clone(), unlikely_twice(), Reaper::new(disk.clone()));
        let left = AtomicBool::new(false);
        let shared = Shared { disk, options, abilities, claim, reclaimed, number, books, reaper, left };
        Ok(Store { shared: Arc::new(shared), left: Mutex::default() })
    }

    /// How it works here, in a sentence: the directory, direct or not and why not, what reads and
    /// writes.
    pub fn describe(&self) -> String {
        let Shared { claim, abilities, disk, options, .. } = &*self.shared;
        let live = if claim.locked { "" } else { "; files cannot be locked: names tell which stores live" };
        let chunk = human(options.chunk_bytes);
        format!("{}: {abilities}, {}, chunks of {chunk}{live}", claim.dir.display(), disk.engine())
    }

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        self.shared.claim.dir.clone()
    }

    /// Whether reads and writes go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.shared.abilities.is_direct()
    }

    /// Bytes of the chunks it is written and read in.
    pub fn chunk_bytes(&self) -> u64 {
        self.shared.options.chunk_bytes
    }

    /// What was removed when it was opened.
    pub fn reclaimed(&self) -> Reclaimed {
        self.shared.reclaimed
    }

    /// What it holds now.
    pub fn usage(&self) -> StoreUsage {
        lock(&self.shared.books).usage
    }

    /// How much it can hold. Blocks that the file system is just getting back are available: a
    /// write waits for them if need be.
    pub fn capacity(&self) -> Result<StoreCapacity> {
        let dir = &self.shared.claim.dir;
        // Asked first, so that blocks given back meanwhile count twice for a moment, and not less.
        let pending = self.shared.reaper.pending_bytes();
        let space = self.shared.disk.space(dir).map_err(|e| failed("asking for the space of", dir, &e))?;
        let limit = self.shared.options.limit.unwrap_or(u64::MAX);
        let left = limit.saturating_sub(self.usage().used);
        let free = space.free.saturating_add(pending).min(space.total);
        Ok(StoreCapacity { capacity: space.total.min(limit), available: free.min(left) })
    }

    /// Waits until the file system has the blocks back of all that has been removed so far.
    pub fn settle(&self) {
        let mut pending = self.shared.reaper.pending();
        while self.shared.reaper.wait_for_one(&mut pending) {}
    }

    /// Starts writing `bytes` of data: makes a file and reserves its space, so that it cannot run
    /// out later. `OutOfMemory` when there is not enough, `Invalid` for 0; nothing has been written
    /// then. Waits for the blocks of what was removed before if there is not enough without them.
    pub fn begin_write(&self, bytes: u64) -> Result<Writer> {
        let shared = &self.shared;
        shared.check_there()?;
        let (number, content) = shared.admit(bytes)?;
        let path = shared.claim.file(number, PART);
        let opened = shared.make_file(&path, content).and_then(|file| Ok((file, shared.lane()?)));
        match opened {
            Ok((file, lane)) => Ok(Writer::new(shared.clone(), number, content, file, lane)),
            Err(e) => {
                let _ = shared.disk.remove(&path);
                shared.forget_write(content);
                Err(e)
            }
        }
    }

    /// Starts reading a slot: checks that its file is the one that was written, except for the
    /// data, which is checked as it is read. The slot cannot be removed meanwhile. `Corrupt` when
    /// the file is truncated or altered, `Invalid` when there is no such slot.
    pub fn begin_read(&self, slot: Slot) -> Result<Reader> {
        let shared = &self.shared;
        shared.check_there()?;
        let (content, sums) = {
            let mut books = lock(&shared.books);
            let record = books.slots.get_mut(&shared.known(slot)?).ok_or_else(|| unknown(slot))?;
            record.readers += 1;
            let found = (record.content, record.sums.clone());
            books.usage.reading += 1;
            found
        };
        let path = shared.claim.file(slot.number, SLOT);
        let opened = shared.disk.open(&path, shared.abilities.is_direct()).map_err(|e| failed("opening", &path, &e));
        match opened.and_then(|file| Ok((file, shared.lane()?))) {
            Ok((file, lane)) => Reader::new(shared.clone(), slot.number, content, sums, file, lane),
            Err(e) => {
                shared.end_read(slot.number);
                Err(e)
            }
        }
    }

    /// Removes a slot and its file. A file that is gone already counts as removed. `Invalid` when
    /// there is no such slot, or somebody is reading it; after any error it is as it was. Does not
    /// wait for the file system to give the blocks back, unless it is behind with many.
    pub fn remove(&self, slot: Slot) -> Result<()> {
        self.shared.remove(self.shared.known(slot)?)
    }

    /// Removes a slot that nobody needs, and gives back what was drawn for it. If its file cannot
    /// be removed just now, it stays counted until [`Self::discard_left`] finds that it can.
    pub fn discard(&self, slot: Slot, drawn: Drawn) {
        if self.remove(slot).is_err() {
            lock(&self.left).push_back((slot, drawn));
        }
    }

    /// Removes what could not be removed before, up to the first that still cannot be: that one
    /// comes last the next time.
    pub fn discard_left(&self) {
        let next = || lock(&self.left).pop_front();
        while let Some((slot, drawn)) = next() {
            if self.remove(slot).is_err() {
                lock(&self.left).push_back((slot, drawn));
                return;
            }
        }
    }

    /// Removes the directory with all files, used or not, as the process exits. Waits for no lock,
    /// as other threads may have stopped anywhere. From then on nothing can be written or read:
    /// `ShuttingDown`.
    pub fn leave(&self) {
        self.shared.left.store(true, SeqCst);
        self.shared.claim.clear(&*self.shared.disk);
    }

    /// Bytes of data in a slot.
    pub fn length(&self, slot: Slot) -> Result<u64> {
        let number = self.shared.known(slot)?;
        lock(&self.shared.books).slots.get(&number).map(|r| r.content.length).ok_or_else(|| unknown(slot))
    }

    /// The slots there are, in no order.
    pub fn slots(&self) -> Vec<Slot> {
        lock(&self.shared.books).slots.keys().map(|&number| Slot { store: self.shared.number, number }).collect()
    }

    /// Checks that the counters are what the slots add up to.
    pub fn validate(&self) -> Result<()> {
        let books = lock(&self.shared.books);
        let sum = |of: fn(&Record) -> u64| books.slots.values().map(of).fold(0u64, u64::saturating_add);
        let (data, files) = (sum(|r| r.content.length), sum(|r| r.content.file_bytes()));
        let (usage, removing) = (books.usage, books.removing);
        let fits = usage.slots == books.slots.len() as u64 + removing
            && (if removing == 0 { usage.data == data } else { usage.data > data })
            && usage.reading == sum(|r| r.readers)
            && (if usage.writing + removing == 0 { usage.used == files } else { usage.used > files })
            && usage.peak >= usage.used;
        if fits {
            return Ok(());
        }
        Err(Error::internal(format!("{usage:?}, but the slots have {data} B of data in files of {files} B")))
    }
}

//! The disk tier's spaces: mounts, each with a store that is opened when it is first used.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::format::file_bytes;
use super::options::StoreOptions;
use super::store::Store;
use crate::base::sync::lock;
use crate::base::{Error, Result, Status};
use crate::driver::disk::{Disk, OsDisk};
use crate::tier::promise::space::MAX_BYTES;
use crate::tier::promise::{DrawFrom, Drawn, Manager, Space, SpaceId, SpaceOptions, Thresholds, Tier, NO_STREAM};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

/// The mounts, in the order in which they were added; the first is space `DISK 0`.
pub struct Disks {
    manager: Arc<Manager>,
    options: StoreOptions,
    thresholds: Thresholds,
    disk: Mutex<Option<Arc<dyn Disk>>>,
    mounts: Mutex<Vec<Arc<Mount>>>,
}

/// A directory that data may be moved to.
pub struct Mount {
    space: Arc<Space>,
    path: PathBuf,
    /// The file system's number (`st_dev`).
    file_system: u64,
    disk: Arc<dyn Disk>,
    manager: Arc<Manager>,
    options: StoreOptions,
    store: OnceLock<Arc<Store>>,
    /// Locked while the store is opened. Why it could not be, and when, if finding that out has
    /// taken long: whoever needs the store within [`REFUSED_FOR`] gets the same answer at once.
    refused: Mutex<Option<(Instant, Error)>>,
}

/// A try to open a store that fails after at least this long has kept its caller waiting.
const LONG: Duration = Duration::from_secs(1);

/// How long nobody tries again after that: a request may need the store for each of many items.
const REFUSED_FOR: Duration = Duration::from_secs(30);

impl Disks {
    /// No mounts yet. Stores are opened with `options`, without a limit: the space has that.
    pub fn new(manager: Arc<Manager>, options: StoreOptions, thresholds: Thresholds) -> Disks {
        let options = StoreOptions { limit: None, ..options };
        Disks { manager, options, thresholds, disk: Mutex::new(None), mounts: Mutex::new(Vec::new()) }
    }

    /// Like [`Self::new`], with calls to the file system made by `disk`.
    pub fn new_on(disk: Arc<dyn Disk>, manager: Arc<Manager>, options: StoreOptions, thresholds: Thresholds) -> Disks {
        Disks { disk: Mutex::new(Some(disk)), ..Disks::new(manager, options, thresholds) }
    }

    /// Adds a space for a directory, of at most `limit` bytes of files, and returns its number. Its
    /// capacity is that of the file system, or the limit if that is less; without a limit as much
    /// may be used as the file system has left now. Nothing is written yet. `Io` when the directory
    /// is not there.
    pub fn add_mount(&self, path: &Path, limit: Option<u64>) -> Result<u32> {
        if limit == Some(0) {
            return Err(Error::invalid(format!("the limit of {} is 0 bytes; leave the directory out", path.display())));
        }
        if path.as_os_str().is_empty() {
            return Err(Error::new(Status::Io, "the directory's name is empty; name one that there is"));
        }
        let disk = self.disk();
        // The working directory may change before the store is opened.
        let path = std::fs::canonicalize(path).map_err(|e| at("looking for", path, &e))?;
        let found = std::fs::metadata(&path).map_err(|e| at("looking at", &path, &e))?;
        if !found.is_dir() {
            return Err(Error::new(Status::Io, format!("{} is not a directory; give one", path.display())));
        }
        // Files removed elsewhere on the same file system count as space that it has left.
        let file_system = found.dev();
        self.mounts().iter().filter(|m| m.file_system == file_system).for_each(|m| m.settle());
        let bytes = disk.space(&path).map_err(|e| at("asking for the space of", &path, &e))?;
        let mut mounts = lock(&self.mounts);
        if let Some(known) = mounts.iter().find(|m| m.path == path) {
            return Err(Error::invalid(format!("{} is {} already", path.display(), known.space.id())));
        }
        let id = mounts.len() as u32;
        let capacity = bytes.total.min(limit.unwrap_or(u64::MAX)).min(MAX_BYTES);
        let left = limit.map_or(bytes.free, |_| u64::MAX);
        let space = SpaceOptions {
            limit: Some(capacity.min(left)),
            thresholds: self.thresholds,
            per_stream: false,
            ..SpaceOptions::new(capacity)
        };
        let space = self.manager.add_space(SpaceId::new(Tier::Disk, id), &space)?;
        let (manager, options) = (self.manager.clone(), self.options.clone());
        let (store, refused) = (OnceLock::new(), Mutex::new(None));
        mounts.push(Arc::new(Mount { space, path, file_system, disk, manager, options, store, refused }));
        Ok(id)
    }

    /// A mount by its number.
    pub fn mount(&self, id: u32) -> Result<Arc<Mount>> {
        let mounts = lock(&self.mounts);
        mounts.get(id as usize).cloned().ok_or_else(|| {
            let text = match mounts.len() {
                0 => "no directory has been given to move data to; add one, or set GPUMEM_DISK".to_string(),
                n => format!("there is no space DISK {id}; the last is {}", n - 1),
            };
            Error::invalid(text)
        })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        lock(&self.mounts).is_empty()
    }

    /// All of them, in the order of their numbers.
    pub fn mounts(&self) -> Vec<Arc<Mount>> {
        lock(&self.mounts).clone()
    }

    /// Checks the counters of every store that is open.
    pub fn validate(&self) -> Result<()> {
        self.mounts().iter().filter_map(|mount| mount.opened().cloned()).try_for_each(|store| store.validate())
    }

    /// Removes the files of all stores, as the process exits. Waits for no lock: while another
    /// thread has the list of mounts, files are left to the next stores there.
    pub fn leave(&self) {
        for mount in try_lock(&self.mounts).iter().flat_map(|mounts| mounts.iter()) {
            mount.opened().into_iter().for_each(|store| store.leave());
        }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        lock(&self.disk).get_or_insert_with(|| Arc::new(OsDisk::default())).clone()
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn at(what: &str, path: &Path, e: &std::io::Error) -> Error {
    let text = format!("{what} {}: {e}; give a directory that this process may write to", path.display());
    Error::new(Status::Io, text)
}

impl Mount {
    /// Its space.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The store there, opened if need be, which removes what dead processes left. Fails with `Io`
    /// if the directory is gone or not writable; the next call tries again, but for a while after a
    /// failure that has taken long.
    pub fn store(&self) -> Result<Arc<Store>> {
        if let Some(store) = self.opened() {
            return Ok(store.clone());
        }
        let mut refused = lock(&self.refused);
        if let Some((_, e)) = refused.as_ref().filter(|(at, _)| at.elapsed() < REFUSED_FOR) {
            return Err(e.clone());
        }
        if let Some(store) = self.opened() {
            return Ok(store.clone());
        }
        let begun = Instant::now();
        let opened = Store::open_on(self.disk.clone(), &self.path, &self.options);
        let opened = opened.map_err(|e| e.context(format!("opening {}", self.space.id())));
        *refused = opened.as_ref().err().filter(|_| begun.elapsed() >= LONG).map(|e| (Instant::now(), e.clone()));
        opened.map(|store| self.store.get_or_init(|| Arc::new(store)).clone())
    }

    /// Waits until the file system has the blocks back of all that has been removed here so far.
    fn settle(&self) {
        if let Some(store) = self.opened() {
            store.settle();
        }
    }

    /// The store, if it has been opened.
    fn opened(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// Whether the store has been opened.
    pub fn is_open(&self) -> bool {
        self.opened().is_some()
    }

    /// Counts what a slot of `bytes` of data takes of the space: the whole file. Keep it as long as
    /// the slot, and say when that has been [made](Drawn::made). Of attached reservations, only the
    /// thread's counts. Removes first what could not be removed before. If the space has too
    /// little, the out-of-memory policy may make room. Call it with no lock held: policies may call
    /// back.
    pub fn draw<'a>(&self, bytes: u64, from: impl Into<DrawFrom<'a>>) -> Result<Drawn> {
        let bytes = file_bytes(bytes, self.options.chunk_bytes)?;
        if let Some(store) = self.opened() {
            store.discard_left();
        }
        self.manager.allocate_with(&self.space, from, bytes, NO_STREAM, |drawn, _| Ok(drawn))
    }
}

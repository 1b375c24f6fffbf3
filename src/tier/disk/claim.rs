//! A store's own directory, and those that dead processes left.
//!
//! ```text
//! MOUNT/gpumem-UID/guard                 locked while somebody makes a directory, or looks
//!                                        for dead ones
//! MOUNT/gpumem-UID/PID-START-PLACE-R/    one store's; R is a random number
//!                                 lock   locked while the store lives
//!                                 N.part a write in progress
//!                                 N.slot a finished one
//! ```
//!
//! A directory is dead if its lock can be taken. The kernel drops a lock with the last process that
//! has it, however that ended, even in another container, whose process numbers mean nothing here.
//! Where files cannot be locked, it is dead if the process in its name is of this machine, this
//! boot and this space of numbers, and not running.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::failure::failed;
use super::options::Reclaimed;
use crate::base::{Error, Result, Status};
use crate::driver::disk::identity::{self, Identity};
use crate::driver::disk::Disk;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The end of the name of a write in progress.
pub(super) const PART: &str = "part";
/// The end of the name of a finished one.
pub(super) const SLOT: &str = "slot";
const LOCK: &str = "lock";
/// How often to look for files to remove.
const LOOKS: usize = 3;
/// How long to wait for the guard. A process has it for as long as it takes to look at a few files,
/// unless it is stopped meanwhile or its file system hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to leave the guard alone between two tries.
const PAUSE: Duration = Duration::from_millis(1);

/// A store's own directory.
#[derive(Debug)]
pub(super) struct Claim {
    /// The directory with all of this user's.
    root: PathBuf,
    pub dir: PathBuf,
    /// Whether a lock shows that it is in use.
    pub locked: bool,
    /// The process that made it. A forked child leaves it alone.
    pid: u32,
    /// Open, and so locked, as long as the directory is in use.
    lock: Option<File>,
}

/// Makes a directory under `mount`, and removes dead ones.
pub(super) fn claim(disk: &dyn Disk, mount: &Path) -> Result<(Claim, Reclaimed)> {
    // The working directory may change later.
    let mount = fs::canonicalize(mount).map_err(|e| failed("looking for", mount, &e))?;
    let root = mount.join(format!("gpumem-{}", identity::user()));
    make_root(disk, &root)?;
    let path = root.join("guard");
    let guard = open_lock(disk, &path)?;
    let locks = take_guard(disk, &guard, &path)?;
    let made = make_own(disk, &root, locks).and_then(|mut claim| match find_dead(disk, &claim, locks) {
        Ok(dead) => Ok((claim, dead)),
        Err(e) => {
            claim.release(disk);
            Err(e)
        }
    });
    // Others may go on: each dead directory is held by its own lock, and removing it may take a
    // while.
    // Closing the file is not enough: a child that was forked meanwhile has it open, too.
    disk.unlock(&guard);
    drop(guard);
    let (claim, dead) = made?;
    let mut reclaimed = Reclaimed::default();
    for (dir, _lock) in dead {
        // What cannot be removed now stays for the next store.
        let _ = clear(disk, &dir, &mut reclaimed);
    }
    Ok((claim, reclaimed))
}

fn make_root(disk: &dyn Disk, root: &Path) -> Result<()> {
    match disk.make_dir(root) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(failed("making the directory", root, &e)),
    }
    let found = fs::symlink_metadata(root).map_err(|e| failed("looking at", root, &e))?;
    if !found.is_dir() || found.uid() != identity::user() || found.mode() & 0o022 != 0 {
        return Err(Error::new(
            Status::Io,
            format!(
                "{} is not a directory of user {} that others cannot write to; remove it, or use another mount",
                root.display(),
                identity::user()
            ),
        ));
    }
    Ok(())
}

fn open_lock(disk: &dyn Disk, path: &Path) -> Result<File> {
    disk.open_lock(path).map_err(|e| failed("opening the lock", path, &e))
}

/// Takes the guard's lock, or waits for it. `false` if there are no locks here.
fn take_guard(disk: &dyn Disk, guard: &File, path: &Path) -> Result<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        match lock(disk, guard, path)? {
            None => return Ok(false),
            Some(true) => return Ok(true),
            Some(false) if Instant::now() < end => std::thread::sleep(PAUSE),
            Some(false) => {
                let text = format!(
                    "{} is locked by another process, which has stopped or hangs (fuser shows it); end that, or use another \
                     mount",
                    path.display()
                );
                return Err(Error::new(Status::Io, text));
            }
        }
    }
}

/// Whether the lock was taken; `None` if there are no locks here.
fn lock(disk: &dyn Disk, file: &File, path: &Path) -> Result<Option<bool>> {
    match disk.lock(file) {
        Ok(taken) => Ok(Some(taken)),
        // ENOLCK and EOPNOTSUPP, of network file systems.
        Err(e) if e.kind() == io::ErrorKind::Unsupported || e.raw_os_error() == Some(libc::ENOLCK) => Ok(None),
        Err(e) => Err(failed("locking in", path, &e)),
    }
}

fn make_own(disk: &dyn Disk, root: &Path, locks: bool) -> Result<Claim> {
    let dir = root.join(format!("{}-{:016x}", Identity::own(), identity::unlikely_twice()));
    disk.make_dir(&dir).map_err(|e| failed("making the directory", &dir, &e))?;
    let mut claim = Claim { root: root.to_path_buf(), dir, locked: locks, pid: std::process::id(), lock: None };
    let path = claim.dir.join(LOCK);
    let made = open_lock(disk, &path).and_then(|file| {
        if locks && lock(disk, &file, &path)? != Some(true) {
            return Err(Error::new(Status::Io, format!("{} is new and locked by another", path.display())));
        }
        Ok(file)
    });
    match made {
        Ok(file) => claim.lock = Some(file),
        Err(e) => {
            claim.release(disk);
            return Err(e);
        }
    }
    Ok(claim)
}

/// Dead directories, with their locks. Called with the guard held, if there are locks, so that
/// every live directory has its lock by now.
fn find_dead(disk: &dyn Disk, own: &Claim, locks: bool) -> Result<Vec<(PathBuf, Option<File>)>> {
    let mut dead = Vec::new();
    let entries = disk.list(&own.root).map_err(|e| failed("listing", &own.root, &e))?;
    for dir in entries.into_iter().filter(|dir| *dir != own.dir) {
        let Some(owner) = owner(&dir) else { continue };
        if !fs::symlink_metadata(&dir).is_ok_and(|m| m.is_dir()) {
            continue;
        }
        if !locks {
            if owner.is_dead() {
                dead.push((dir, None));
            }
            continue;
        }
        // What cannot be opened or locked for another reason is left alone.
        let Ok(file) = disk.open_lock(&dir.join(LOCK)) else { continue };
        if disk.lock(&file).is_ok_and(|taken| taken) {
            dead.push((dir, Some(file)));
        }
    }
    Ok(dead)
}

/// Whose directory this is, by its name.
fn owner(dir: &Path) -> Option<Identity> {
    let (identity, random) = dir.file_name()?.to_str()?.rsplit_once('-')?;
    u64::from_str_radix(random, 16).ok()?;
    Identity::parse(identity)
}

/// Removes a directory and the files in it that a store makes; others stay, and the directory with
/// them.
fn clear(disk: &dyn Disk, dir: &Path, reclaimed: &mut Reclaimed) -> io::Result<()> {
    // Another thread of this process may still rename and remove files. One that is gone counts as
    // removed, one with a new name is found by the next look, and one that cannot be removed does
    // not keep the others.
    let mut left = Ok(());
    for _ in 0..LOOKS {
        let mut files = disk.list(dir)?;
        files.retain(|path| path.extension().is_some_and(|e| e == PART || e == SLOT));
        if files.is_empty() {
            break;
        }
        left = Ok(());
        for path in files {
            let bytes = fs::symlink_metadata(&path).map(|m| m.len()).unwrap_or(0);
            match disk.remove(&path) {
                Ok(()) => {
                    reclaimed.files += 1;
                    reclaimed.bytes = reclaimed.bytes.saturating_add(bytes);
                }
                failed => left = left.and(gone(failed)),
            }
        }
    }
    left?;
    // Last: without it, another process would take the directory for dead.
    gone(disk.remove(&dir.join(LOCK)))?;
    gone(disk.remove_dir(dir))?;
    reclaimed.stores += 1;
    Ok(())
}

/// A file that is gone counts as removed.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Claim {
    /// The name of a slot's file.
    pub fn file(&self, id: u64, end: &str) -> PathBuf {
        self.dir.join(format!("{id}.{end}"))
    }

    /// Removes the directory with its files. What cannot be removed stays for the next store that
    /// is opened.
    pub fn release(&mut self, disk: &dyn Disk) {
        self.clear(disk);
        self.lock = None;
    }

    /// Like [`Self::release`], while the directory may still be in use.
    pub fn clear(&self, disk: &dyn Disk) {
        if self.pid == std::process::id() {
            let _ = clear(disk, &self.dir, &mut Reclaimed::default());
        }
    }
}

//! A small file system that takes its time to give blocks back.
#![allow(dead_code)]

use gpumem::driver::disk::{Disk, DiskSpace, Lane, OsDisk};
use gpumem::tier::disk::{Slot, Store};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{mpsc, Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long to wait for what does not come if the code is broken.
const LONG: Duration = Duration::from_secs(20);
/// How long to watch that something does not come that would come at once if the code were broken.
const MOMENT: Duration = Duration::from_millis(200);

/// Files under one directory that share so many bytes. Those of a file are free when it has no name
/// and nobody has it open, as in any file system; but nobody gets through [`Disk::close`] while the
/// gate is shut.
pub struct Small {
    inner: OsDisk,
    dir: PathBuf,
    total: u64,
    /// It does not say how little is free before space is reserved.
    boasts: bool,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    shut: bool,
    /// How many wait at it.
    waiting: u64,
    /// How often space was asked about or for.
    asked: u64,
    /// What was done, in order.
    log: Vec<&'static str>,
    /// How often somebody has tried to take a lock.
    locks: u64,
    /// What a child has open that is forked whenever a lock is taken.
    inherited: Vec<File>,
}

/// Opens the gate in the end, so that a test that fails ends.
pub struct Shut<'a>(&'a Small);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.open_gate();
    }
}

impl Small {
    pub fn new(dir: &Path, total: u64, boasts: bool) -> Arc<Small> {
        let (inner, dir) = (OsDisk::default(), fs::canonicalize(dir).unwrap());
        Arc::new(Small { inner, dir, total, boasts, gate: Mutex::default(), changed: Condvar::new() })
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap()
    }

    pub fn shut(&self) -> Shut<'_> {
        self.gate().shut = true;
        Shut(self)
    }

    fn open_gate(&self) {
        self.gate().shut = false;
        self.changed.notify_all();
    }

    #[track_caller]
    fn wait_until(&self, what: &str, is_so: impl Fn(&Gate) -> bool) {
        let (gate, over) = self.changed.wait_timeout_while(self.gate(), LONG, |gate| !is_so(gate)).unwrap();
        drop(gate);
        assert!(!over.timed_out(), "never: {what}");
    }

    /// Waits until so many wait at the gate.
    #[track_caller]
    pub fn wait_for_closes(&self, count: u64) {
        self.wait_until("closes at the gate", |gate| gate.waiting == count);
    }

    /// How often somebody has asked how much space there is, or for some.
    pub fn asked(&self) -> u64 {
        self.gate().asked
    }

    /// Waits until that has been so often.
    #[track_caller]
    pub fn wait_for_asking(&self, count: u64) {
        self.wait_until("asking for space", |gate| gate.asked >= count);
    }

    /// Removals of directories and ends of closes, in order.
    pub fn log(&self) -> Vec<&'static str> {
        self.gate().log.clone()
    }

    /// How often somebody has tried to take a lock.
    pub fn locks(&self) -> u64 {
        self.gate().locks
    }

    /// How many files a child has open that is forked whenever a lock is taken.
    pub fn inherited(&self) -> usize {
        self.gate().inherited.len()
    }

    /// Bytes of files with a name, and of those that somebody has open.
    pub fn used(&self) -> u64 {
        let mut seen = BTreeSet::new();
        let (mut bytes, mut dirs) = (0, vec![self.dir.clone()]);
        let mut count = |m: fs::Metadata| bytes += if seen.insert(m.ino()) { m.len() } else { 0 };
        while let Some(dir) = dirs.pop() {
            for path in fs::read_dir(dir).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())) {
                match fs::symlink_metadata(&path) {
                    Ok(m) if m.is_dir() => dirs.push(path),
                    Ok(m) => count(m),
                    Err(_) => {}
                }
            }
        }
        for fd in fs::read_dir("/proc/self/fd").unwrap().filter_map(|e| Some(e.ok()?.path())) {
            let ours = fs::read_link(&fd).is_ok_and(|to| to.starts_with(&self.dir));
            if let (true, Ok(m)) = (ours, fs::metadata(&fd)) {
                if m.is_file() {
                    count(m);
                }
            }
        }
        bytes
    }

    fn free(&self) -> u64 {
        self.total.saturating_sub(self.used())
    }

    fn note_asking(&self) {
        self.gate().asked += 1;
        self.changed.notify_all();
    }
}

impl Disk for Small {
    fn engine(&self) -> String {
        self.inner.engine()
    }

    fn space(&self, _: &Path) -> io::Result<DiskSpace> {
        let free = if self.boasts { self.total } else { self.free() };
        self.note_asking();
        Ok(DiskSpace { total: self.total, free })
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.make_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.inner.list(dir)
    }

    fn create(&self, path: &Path, direct: bool) -> io::Result<File> {
        self.inner.create(path, direct)
    }

    fn open(&self, path: &Path, direct: bool) -> io::Result<File> {
        self.inner.open(path, direct)
    }

    fn open_lock(&self, path: &Path) -> io::Result<File> {
        self.inner.open_lock(path)
    }

    fn lock(&self, file: &File) -> io::Result<bool> {
        let taken = self.inner.lock(file)?;
        let mut gate = self.gate();
        gate.locks += 1;
        if taken {
            gate.inherited.push(file.try_clone()?);
        }
        Ok(taken)
    }

    fn unlock(&self, file: &File) {
        self.inner.unlock(file);
    }

    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        let free = self.free();
        self.note_asking();
        match free < bytes {
            true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            false => self.inner.allocate(file, bytes),
        }
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.inner.sync(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn close(&self, file: File) {
        let mut gate = self.gate();
        gate.waiting += 1;
        self.changed.notify_all();
        gate = self.changed.wait_while(gate, |gate| gate.shut).unwrap();
        self.inner.close(file);
        gate.waiting -= 1;
        gate.log.push("closed");
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.gate().log.push("directory removed");
        self.inner.remove_dir(path)
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        self.inner.lane()
    }
}

/// Runs `call` on another thread, which must end before anybody opens the gate.
#[track_caller]
pub fn without_waiting<T: Send>(call: impl FnOnce() -> T + Send, shut: Shut<'_>) -> (T, Shut<'_>) {
    std::thread::scope(|scope| {
        let (tell, ended) = mpsc::channel();
        scope.spawn(move || tell.send(call()));
        match ended.recv_timeout(LONG) {
            Ok(result) => (result, shut),
            Err(e) => {
                drop(shut);
                panic!("it waits for the file system: {e}");
            }
        }
    })
}

/// Removes a slot, which must not wait.
#[track_caller]
pub fn remove<'a>(store: &Store, slot: Slot, shut: Shut<'a>) -> Shut<'a> {
    without_waiting(|| store.remove(slot).unwrap(), shut).1
}

/// Runs `call` on another thread, which must not end before the gate is opened, which is done when
/// `ready` returns.
#[track_caller]
pub fn waiting<T: Send>(call: impl FnOnce() -> T + Send, ready: impl FnOnce(), shut: Shut<'_>) -> T {
    std::thread::scope(|scope| {
        let (tell, ended) = mpsc::channel();
        scope.spawn(move || tell.send(call()));
        // Opened also when something below fails.
        let shut = shut;
        ready();
        let early = ended.recv_timeout(MOMENT).is_ok();
        drop(shut);
        assert!(!early, "it does not wait for the file system");
        ended.recv_timeout(LONG).expect("an end")
    })
}

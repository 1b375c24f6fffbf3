//! A file system that fails on request, for tests.

use super::{Completion, Direction, Disk, DiskSpace, IoRequest, Lane};
use crate::base::sync::lock;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskCall {
    /// [`Disk::space`].
    Space,
    /// [`Disk::make_dir`].
    MakeDir,
    /// [`Disk::list`].
    List,
    /// [`Disk::create`], past the page cache.
    CreateDirect,
    /// [`Disk::create`].
    Create,
    /// [`Disk::open`].
    Open,
    /// [`Disk::open_lock`].
    OpenLock,
    /// [`Disk::lock`].
    Lock,
    /// [`Disk::allocate`].
    Allocate,
    /// [`Disk::sync`].
    Sync,
    /// [`Disk::sync_dir`].
    SyncDir,
    /// [`Disk::rename`].
    Rename,
    /// [`Disk::remove`].
    Remove,
    /// [`Disk::close`]. It cannot fail: an error number changes nothing.
    Close,
    /// [`Disk::remove_dir`].
    RemoveDir,
    /// [`Disk::lane`].
    Lane,
    /// [`Lane::submit`] of a read.
    Read,
    /// [`Lane::submit`] of a write.
    Write,
}

/// The effect of a rule on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call fails with this error number (`libc::EIO`, ..).
    Errno(i32),
    /// A read or write transfers at most this many bytes. Other calls are unaffected.
    Short(usize),
    /// The process is killed (SIGKILL), before the call.
    Kill,
    /// A read or write transfers at most this many bytes, and then the process is killed.
    Torn(usize),
}

/// A rule: which calls it affects, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRule {
    /// Only calls of this kind are counted; `None` counts every call.
    pub call: Option<DiskCall>,
    /// How many counted calls pass first.
    pub after: u64,
    /// The effect on a call.
    pub effect: Effect,
    /// Whether it affects every later call too, until the rules change.
    pub lasting: bool,
}

#[derive(Default)]
struct State {
    /// Each rule, with the number of calls it has counted.
    rules: Vec<(DiskRule, u64)>,
    fired: u64,
    calls: u64,
}

/// A wrapper around another file system. Without rules it changes nothing.
pub struct FaultDisk {
    inner: Arc<dyn Disk>,
    state: Arc<Mutex<State>>,
}

impl FaultDisk {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Disk>) -> FaultDisk {
        FaultDisk { inner, state: Arc::default() }
    }

    /// Replaces all rules. The first that applies to a call decides.
    pub fn set(&self, rules: &[DiskRule]) {
        lock(&*self.state).rules = rules.iter().map(|&r| (r, 0)).collect();
    }

    /// Fails every call of a kind from now on.
    pub fn fail(&self, call: DiskCall, errno: i32) {
        self.set(&[DiskRule { call: Some(call), after: 0, effect: Effect::Errno(errno), lasting: true }]);
    }

    /// How many calls the rules have changed.
    pub fn fired(&self) -> u64 {
        lock(&*self.state).fired
    }

    /// How many calls have been made.
    pub fn calls(&self) -> u64 {
        lock(&*self.state).calls
    }

    fn pass(&self, call: DiskCall) -> io::Result<()> {
        match effect(&self.state, call) {
            Some(Effect::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Effect::Kill | Effect::Torn(_)) => die(),
            Some(Effect::Short(_)) | None => Ok(()),
        }
    }
}

fn effect(state: &Mutex<State>, call: DiskCall) -> Option<Effect> {
    let mut state = lock(state);
    state.calls += 1;
    let mut found = None;
    for (rule, seen) in &mut state.rules {
        if rule.call.is_some_and(|c| c != call) {
            continue;
        }
        let applies = if rule.lasting { *seen >= rule.after } else { *seen == rule.after };
        *seen += 1;
        if applies && found.is_none() {
            found = Some(rule.effect);
        }
    }
    state.fired += u64::from(found.is_some());
    found
}

fn die() -> io::Result<()> {
    // SAFETY: raise has no preconditions. SIGKILL cannot be caught: nothing of this process runs
    // after it.
    unsafe { libc::raise(libc::SIGKILL) };
    Err(io::ErrorKind::Other.into())
}

impl Disk for FaultDisk {
    fn engine(&self) -> String {
        self.inner.engine()
    }

    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        self.pass(DiskCall::Space)?;
        self.inner.space(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.pass(DiskCall::MakeDir)?;
        self.inner.make_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.pass(DiskCall::List)?;
        self.inner.list(dir)
    }

    fn create(&self, path: &Path, direct: bool) -> io::Result<File> {
        self.pass(if direct { DiskCall::CreateDirect } else { DiskCall::Create })?;
        self.inner.create(path, direct)
    }

    fn open(&self, path: &Path, direct: bool) -> io::Result<File> {
        self.pass(DiskCall::Open)?;
        self.inner.open(path, direct)
    }

    fn open_lock(&self, path: &Path) -> io::Result<File> {
        self.pass(DiskCall::OpenLock)?;
        self.inner.open_lock(path)
    }

    fn lock(&self, file: &File) -> io::Result<bool> {
        self.pass(DiskCall::Lock)?;
        self.inner.lock(file)
    }

    fn unlock(&self, file: &File) {
        self.inner.unlock(file);
    }

    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.pass(DiskCall::Allocate)?;
        self.inner.allocate(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.pass(DiskCall::Sync)?;
        self.inner.sync(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.pass(DiskCall::SyncDir)?;
        self.inner.sync_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.pass(DiskCall::Rename)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.pass(DiskCall::Remove)?;
        self.inner.remove(path)
    }

    fn close(&self, file: File) {
        let _ = self.pass(DiskCall::Close);
        self.inner.close(file);
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.pass(DiskCall::RemoveDir)?;
        self.inner.remove_dir(path)
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        self.pass(DiskCall::Lane)?;
        let inner = self.inner.lane()?;
        Ok(Box::new(FaultLane { inner, state: self.state.clone(), failed: Vec::new(), cut: Vec::new() }))
    }
}

struct FaultLane {
    inner: Box<dyn Lane>,
    state: Arc<Mutex<State>>,
    /// Requests that failed without being made.
    failed: Vec<Completion>,
    /// Shortened requests: tag, file offset, and where in the buffer they were to end.
    cut: Vec<(u64, u64, usize)>,
}

impl Lane for FaultLane {
    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.failed.len()
    }

    fn submit(&mut self, mut request: IoRequest) -> Result<(), Box<Completion>> {
        let call = if request.direction == Direction::Read { DiskCall::Read } else { DiskCall::Write };
        let keep = match effect(&self.state, call) {
            Some(Effect::Errno(errno)) => {
                self.failed.push(Completion { request, result: Err(io::Error::from_raw_os_error(errno)) });
                return Ok(());
            }
            Some(Effect::Kill) => {
                let _ = die();
                return Ok(());
            }
            Some(Effect::Torn(bytes)) => {
                request.range.end = request.range.end.min(request.range.start.saturating_add(bytes));
                let _ = self.inner.submit(request);
                let mut done = Vec::new();
                while self.inner.in_flight() > 0 && self.inner.wait(&mut done).is_ok() {}
                let _ = die();
                return Ok(());
            }
            Some(Effect::Short(bytes)) => bytes,
            None => return self.inner.submit(request),
        };
        let end = request.range.end;
        request.range.end = end.min(request.range.start.saturating_add(keep));
        self.cut.push((request.tag, request.at, end));
        self.inner.submit(request)
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        if !self.failed.is_empty() {
            done.append(&mut self.failed);
            return Ok(());
        }
        let before = done.len();
        self.inner.wait(done)?;
        for Completion { request, .. } in done.iter_mut().skip(before) {
            if let Some(i) = self.cut.iter().position(|c| (c.0, c.1) == (request.tag, request.at)) {
                request.range.end = self.cut.swap_remove(i).2;
            }
        }
        Ok(())
    }
}

//! Closing files that have no name any more.
//!
//! A file system gives the blocks of a file back when its name is gone and nothing has it open;
//! that may take long (0.25 s a GiB on ext4 mounted with `discard`). So a thread that removes a
//! file unlinks it while it is open, which is quick, and the *reaper*'s thread closes it. What
//! waits for that is *pending*: gone for the store, not yet free in the file system.
//!
//! A process that ends needs none of this: the kernel closes what is open, and the names are gone.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::lock;
use crate::driver::disk::Disk;
use crate::driver::process::without_signals;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The thread's name, as `top -H` shows it.
const NAME: &str = "gpumem-reaper";
/// Most files pending: each takes a descriptor, of which a process has perhaps 1024. Beyond that, a
/// thread that removes a file closes it itself.
const MOST: u64 = 64;

/// One store's reaper. Its thread starts with the first file.
pub(super) struct Reaper {
    shared: Arc<Shared>,
    /// The thread's process: a forked child has no such thread, and the locks may be held for ever.
    pid: u32,
    /// Dropped only at the end: in a child, the drop would touch a thread that is not there.
    thread: Mutex<Option<ManuallyDrop<JoinHandle<()>>>>,
}

struct Shared {
    disk: Arc<dyn Disk>,
    queue: Mutex<Queue>,
    /// Told of every file that comes, of every one that is closed, and of the end.
    changed: Condvar,
}

/// `closed <= handed`; files are closed in the order in which they were handed over.
#[derive(Default)]
struct Queue {
    files: VecDeque<(File, u64)>,
    /// Bytes of the files not closed yet, with the one that is being closed.
    pending: u64,
    handed: u64,
    closed: u64,
    ended: bool,
}

/// The files that were pending at a moment.
pub(super) struct Pending {
    closed: u64,
    handed: u64,
}

impl Reaper {
    /// Starts no thread yet.
    pub fn new(disk: Arc<dyn Disk>) -> Reaper {
        let shared = Arc::new(Shared { disk, queue: Mutex::default(), changed: Condvar::new() });
        Reaper { shared, pid: std::process::id(), thread: Mutex::new(None) }
    }

    fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Closes a file of `bytes` some time later; or at once, which may take long, if many are
    /// pending or there is no thread.
    pub fn close(&self, file: File, bytes: u64) {
        if let Some(file) = self.hand_over(file, bytes) {
            self.shared.disk.close(file);
        }
    }

    /// Hands a file to the thread. Gives it back if that will not close it.
    fn hand_over(&self, file: File, bytes: u64) -> Option<File> {
        if !self.is_here() || !self.has_thread() {
            return Some(file);
        }
        let mut queue = lock(&self.shared.queue);
        if queue.ended || queue.handed - queue.closed >= MOST {
            return Some(file);
        }
        queue.files.push_back((file, bytes));
        queue.pending = queue.pending.saturating_add(bytes);
        queue.handed += 1;
        drop(queue);
        self.shared.changed.notify_all();
        None
    }

    /// Starts the thread if there is none.
    fn has_thread(&self) -> bool {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let shared = self.shared.clone();
            let started = without_signals(|| Builder::new().name(NAME.to_string()).spawn(move || shared.run()));
            *thread = started.ok().map(ManuallyDrop::new);
        }
        thread.is_some()
    }

    /// Bytes the file system has yet to get back.
    pub fn pending_bytes(&self) -> u64 {
        match self.is_here() {
            true => lock(&self.shared.queue).pending,
            false => 0,
        }
    }

    /// The files pending now.
    pub fn pending(&self) -> Pending {
        if !self.is_here() {
            return Pending { closed: 0, handed: 0 };
        }
        let queue = lock(&self.shared.queue);
        Pending { closed: queue.closed, handed: queue.handed }
    }

    /// Waits until one more of these is closed; `false` if all of them were before.
    pub fn wait_for_one(&self, pending: &mut Pending) -> bool {
        if pending.closed >= pending.handed {
            return false;
        }
        let mut queue = lock(&self.shared.queue);
        while queue.closed <= pending.closed {
            queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        pending.closed = queue.closed;
        true
    }

    /// Waits until all are closed, and ends the thread. A file that comes later is closed by the
    /// thread that brings it.
    pub fn end(&self) {
        if !self.is_here() {
            return;
        }
        lock(&self.shared.queue).ended = true;
        self.shared.changed.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // It does not panic: it makes system calls only.
            let _ = ManuallyDrop::into_inner(thread).join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some((file, bytes)) = queue.files.pop_front() {
                drop(queue);
                self.disk.close(file);
                queue = lock(&self.queue);
                queue.pending = queue.pending.saturating_sub(bytes);
                queue.closed += 1;
                self.changed.notify_all();
            } else if queue.ended {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Removes a file's name. The caller closes the file returned; without one, the blocks are given
/// back already.
pub(super) fn unlink(disk: &dyn Disk, path: &Path) -> io::Result<Option<File>> {
    let file = disk.open(path, false).ok();
    disk.remove(path).map(|()| file)
}

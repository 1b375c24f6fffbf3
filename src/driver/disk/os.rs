//! The real file system.

use super::threads::Workers;
use super::{Disk, DiskSpace, Lane};
use crate::base::sync::lock;
use crate::driver::process;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Threads by default. With eight requests of 512 KiB in flight, no disk tested is faster with
/// more.
const THREADS: usize = 4;

/// Makes the calls of [`Disk`]. A few threads read and write data with blocking calls.
pub struct OsDisk {
    threads: usize,
    /// Started by the first lane.
    workers: Mutex<Option<Workers>>,
}

impl Default for OsDisk {
    fn default() -> OsDisk {
        OsDisk::with_threads(THREADS)
    }
}

impl OsDisk {
    /// The file system with this many threads, clamped to 1 to 256.
    pub fn with_threads(threads: usize) -> OsDisk {
        OsDisk { threads: threads.clamp(1, 256), workers: Mutex::new(None) }
    }
}

impl Disk for OsDisk {
    fn engine(&self) -> String {
        format!("{} threads", self.threads)
    }

    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: a `statvfs` is integers, so zero is a value.
        let mut st: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: the path ends in NUL and `st` is writable.
        if unsafe { libc::statvfs(path.as_ptr(), &mut st) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes = |blocks: u64| blocks.saturating_mul(st.f_frsize);
        Ok(DiskSpace { total: bytes(st.f_blocks), free: bytes(st.f_bavail) })
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn create(&self, path: &Path, direct: bool) -> io::Result<File> {
        options(direct).write(true).create_new(true).mode(0o600).open(path)
    }

    fn open(&self, path: &Path, direct: bool) -> io::Result<File> {
        options(direct).open(path)
    }

    fn open_lock(&self, path: &Path) -> io::Result<File> {
        options(false).write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    fn lock(&self, file: &File) -> io::Result<bool> {
        loop {
            // SAFETY: `file` is an open descriptor.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(true);
            }
            match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            }
        }
    }

    fn unlock(&self, file: &File) {
        // SAFETY: `file` is an open descriptor. It fails only where nothing is locked.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
    }

    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        let too_large = || io::Error::from_raw_os_error(libc::EFBIG);
        let len = libc::off_t::try_from(bytes).map_err(|_| too_large())?;
        // Exceeding the limit would end the process with SIGXFSZ.
        if bytes > process::largest_file() {
            return Err(too_large());
        }
        loop {
            // SAFETY: `file` is an open descriptor.
            if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
                return Ok(());
            }
            match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                e => return Err(e),
            }
        }
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(dir)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn close(&self, file: File) {
        drop(file);
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        let mut workers = lock(&self.workers);
        let running = match workers.take() {
            Some(running) => running,
            None => Workers::start(self.threads)?,
        };
        let lane = running.lane();
        *workers = Some(running);
        Ok(Box::new(lane))
    }
}

fn options(direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | if direct { libc::O_DIRECT } else { 0 });
    options
}

//! A page of counters that a process publishes in shared memory, ten times a second, for others to
//! look at.
//!
//! It is a small file in `/dev/shm`: a head with the length and a checksum, then JSON. A reader
//! that meets a half-written page reads it again.

#![deny(unsafe_code, clippy::unwrap_used, clippy::indexing_slicing)]

use crate::base::{Error, Result};
use crate::driver::process;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The first bytes of every page.
const MAGIC: [u8; 8] = *b"gpumemPG";
/// Bytes before the text: [`MAGIC`], the text's length, its checksum.
const HEAD: usize = 24;
/// The most bytes of a page.
const MOST: usize = 1 << 20;
/// How often it is written.
pub const PERIOD: Duration = Duration::from_millis(100);
/// How often a reader tries.
const TRIES: u32 = 20;

/// A page that is being published, until this is dropped.
pub struct Page {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Where the page of a process is, below a folder: `/dev/shm`, or the folder for temporary files.
pub fn path(pid: u32) -> PathBuf {
    let shared = Path::new("/dev/shm");
    let folder = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
    folder.join(format!("gpumem.{pid}.stats"))
}

fn checksum(text: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(text)
}

fn write(file: &File, text: &str) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(checksum(text.as_bytes()).to_le_bytes());
    bytes.extend(text.as_bytes());
    file.write_all_at(&bytes, 0)
}

impl Page {
    /// Publishes what `text` says, in a file that only this user can read.
    pub fn publish(path: PathBuf, text: impl Fn() -> String + Send + 'static) -> Result<Page> {
        let failed = |e: io::Error| Error::invalid(format!("{} cannot be written: {e}", path.display()));
        // What a process of this number left that was killed.
        let _ = fs::remove_file(&path);
        let file = File::options().create_new(true).read(true).write(true).mode(0o600).open(&path).map_err(failed)?;
        write(&file, &text()).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            while !stopped.load(Relaxed) {
                std::thread::park_timeout(PERIOD);
                // A full file system is the next write's business.
                let _ = write(&file, &text());
            }
        };
        let thread = process::without_signals(|| Builder::new().name("gpumem-page".into()).spawn(run));
        let thread = thread.map_err(failed)?;
        Ok(Page { path, stop, thread: Some(thread) })
    }

    /// Ends it; the file is gone.
    pub fn withdraw(&self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        if !process::forked() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.withdraw();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads a page. `Invalid` when there is none, or it is no page.
pub fn read(path: &Path) -> Result<String> {
    let failed = |e: io::Error| {
        Error::invalid(format!(
            "{}: {e}; the process publishes its counters when it runs with GPUMEM_STATS_PAGE=on",
            path.display()
        ))
    };
    let file = File::open(path).map_err(failed)?;
    for _ in 0..TRIES {
        let len = usize::try_from(file.metadata().map_err(failed)?.size()).unwrap_or(MOST).min(MOST);
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        if let Some(text) = parse(&bytes) {
            return Ok(text);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(Error::invalid(format!("{} is no page of counters", path.display())))
}

fn parse(bytes: &[u8]) -> Option<String> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if !bytes.starts_with(&MAGIC) {
        return None;
    }
    let len = usize::try_from(number(8)?).ok()?;
    let text = bytes.get(HEAD..HEAD.checked_add(len)?)?;
    (checksum(text) == number(16)?).then(|| String::from_utf8(text.to_vec()).ok())?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn what_is_published_is_read_and_gone_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let n = Arc::new(AtomicU64::new(0));
        let counted = n.clone();
        let page =
            Page::publish(path.clone(), move || format!("n={}", counted.fetch_add(1, Relaxed)).repeat(100)).unwrap();
        while n.load(Relaxed) < 4 {
            let text = read(&path).unwrap();
            assert_eq!(text.matches("n=").count(), 100, "half a page");
        }
        drop(page);
        assert!(read(&path).unwrap_err().message.contains("GPUMEM_STATS_PAGE"));
    }

    #[test]
    fn other_files_are_no_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        std::fs::write(&path, "hello").unwrap();
        assert!(read(&path).unwrap_err().message.contains("no page"));
    }
}

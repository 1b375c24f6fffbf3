//! A page of counters that a process publishes in shared memory ten times a second, for other
//! processes to read.
//!
//! It is a small file in `/dev/shm`: a head with the length and a checksum, then JSON. A reader
//! that meets a half-written page reads it again.

#![deny(unsafe_code, clippy::unwrap_used, clippy::indexing_slicing)]

use crate::base::{Error, Result};
use crate::driver::process;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The first bytes of every page.
const MAGIC: [u8; 8] = *b"gpumemPG";
/// Bytes before the text: [`MAGIC`], the text's length, its checksum.
const HEAD: usize = 24;
/// The most bytes of text that are read. A page of 65,535 heaps on each of 64 devices is shorter.
const MOST: usize = 1 << 28;
/// How often the page is written.
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
        // A killed process with this number may have left its page.
        let _ = fs::remove_file(&path);
        let file = File::options().create_new(true).read(true).write(true).mode(0o600).open(&path).map_err(failed)?;
        let written = process::without_write_signals(|| write(&file, &text()));
        written.inspect_err(|_| drop(fs::remove_file(&path))).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            while !stopped.load(Relaxed) {
                std::thread::park_timeout(PERIOD);
                // If the file system is full, the next write tries again.
                let _ = write(&file, &text());
            }
        };
        let thread = process::without_signals(|| Builder::new().name("gpumem-page".into()).spawn(run));
        let thread = thread.inspect_err(|_| drop(fs::remove_file(&path))).map_err(failed)?;
        Ok(Page { path, stop, thread: Some(thread) })
    }

    /// Stops publishing and removes the file.
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
        match once(&file) {
            Ok(Some(text)) => return Ok(text),
            // Half a page, or none.
            Ok(None) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(e) => return Err(failed(e)),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(Error::invalid(format!("{} is no page of counters", path.display())))
}

/// The text, if the page is whole at this moment. The file may be longer, with the rest of an
/// earlier page.
fn once(file: &File) -> io::Result<Option<String>> {
    let [mut magic, mut len, mut sum] = [[0; 8]; 3];
    file.read_exact_at(&mut magic, 0)?;
    file.read_exact_at(&mut len, 8)?;
    file.read_exact_at(&mut sum, 16)?;
    let len = usize::try_from(u64::from_le_bytes(len)).unwrap_or(usize::MAX);
    if magic != MAGIC || len > MOST {
        return Ok(None);
    }
    let mut text = vec![0; len];
    file.read_exact_at(&mut text, HEAD as u64)?;
    Ok(String::from_utf8(text).ok().filter(|text| checksum(text.as_bytes()) == u64::from_le_bytes(sum)))
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
    fn a_page_is_as_long_as_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let file = File::options().create_new(true).write(true).open(&path).unwrap();
        let long = "[0,16,1048576,0],".repeat(200_000);
        write(&file, &long).unwrap();
        assert!(read(&path).unwrap() == long);
        // The rest of a longer page is no part of a shorter one.
        write(&file, "short").unwrap();
        assert_eq!(read(&path).unwrap(), "short");
    }

    #[test]
    fn other_files_are_no_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let too_long = [&MAGIC[..], &u64::MAX.to_le_bytes(), &[0; 8]].concat();
        let half = [&MAGIC[..], &100_u64.to_le_bytes(), &[0; 20]].concat();
        for other in [&b"hello"[..], &too_long, &half] {
            std::fs::write(&path, other).unwrap();
            assert!(read(&path).unwrap_err().message.contains("no page"));
        }
    }
}

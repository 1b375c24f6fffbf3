//! A log of allocations in the format of RMM's logging adaptor, which `gpumem replay` reads.

use crate::real::{Ptr, Stream};
use crate::settings;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

struct Log {
    file: Mutex<BufWriter<File>>,
    start: Instant,
}

static ON: AtomicBool = AtomicBool::new(false);

/// Whether anything is written.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

fn log() -> Option<&'static Log> {
    static LOG: OnceLock<Option<Log>> = OnceLock::new();
    LOG.get_or_init(|| {
        let path = PathBuf::from(settings::get().record.as_ref()?);
        match create(&path) {
            Ok(file) => Some(Log { file: Mutex::new(file), start: Instant::now() }),
            Err(e) => {
                settings::say(&format!("{} cannot be written, so nothing is recorded: {e}", path.display()));
                ON.store(false, Relaxed);
                None
            }
        }
    })
    .as_ref()
}

/// The file, or one with the process's number where another process has it.
fn create(path: &std::path::Path) -> std::io::Result<BufWriter<File>> {
    let mut file = File::create_new(path).or_else(|_| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        File::create(PathBuf::from(name))
    })?;
    file.write_all(b"Thread,Time,Action,Pointer,Size,Stream\n")?;
    Ok(BufWriter::new(file))
}

/// Called when a device is started.
pub fn start() {
    ON.store(settings::get().record.is_some(), Relaxed);
}

fn line(action: &str, ptr: Ptr, bytes: u64, stream: Stream) {
    let Some(log) = log() else { return };
    let t = log.start.elapsed();
    // SAFETY: no preconditions.
    let thread = unsafe { libc::gettid() };
    let mut file = log.file.lock().unwrap_or_else(PoisonError::into_inner);
    // A full disk ends the log, and nothing else.
    let _ = writeln!(
        file,
        "{thread},{:02}:{:02}:{:02}:{:06},{action},{ptr:#x},{bytes},{stream:#x}",
        t.as_secs() / 3600,
        t.as_secs() / 60 % 60,
        t.as_secs() % 60,
        t.subsec_micros()
    );
}

#[inline]
pub fn alloc(ptr: Ptr, bytes: u64, stream: Stream) {
    if is_on() {
        line("allocate", ptr, bytes, stream);
    }
}

#[inline]
pub fn free(ptr: Ptr, bytes: u64, stream: Stream) {
    if is_on() {
        line("free", ptr, bytes, stream);
    }
}

/// Writes what is still buffered.
pub fn finish() {
    if is_on() {
        if let Some(log) = log() {
            let _ = log.file.lock().unwrap_or_else(PoisonError::into_inner).flush();
        }
    }
}

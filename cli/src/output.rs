//! Files of results: each appears whole or not at all.

use flate2::write::GzEncoder;
use flate2::Compression;
use gpumem::driver::process;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Where a result goes.
#[derive(Debug)]
pub enum Target {
    /// Standard output, compressed or not.
    Stdout { gzip: bool },
    /// A device, a pipe or anything else that is no file, written in place.
    Stream { path: PathBuf, gzip: bool },
    /// A file, links followed: a new one is written beside it and takes its place.
    File { path: PathBuf, gzip: bool },
}

impl Target {
    /// Standard output as it is.
    pub const STDOUT: Target = Target::Stdout { gzip: false };

    /// Checks that a target can be written, before anything is computed for it.
    pub fn new(path: &Path) -> Result<Target, String> {
        if path.as_os_str() == "-" {
            return Ok(Target::STDOUT);
        }
        let cannot = |e: io::Error| format!("{}: cannot write: {e}", path.display());
        // By whichever of its names it is read: only of what is named .gz is that demanded.
        let gzip = is_gzip(path) || is_gzip(&end_of_links(path));
        match fs::metadata(path) {
            // Whatever it is called: /dev/stdout may be a file that others write to as well.
            Ok(there) if is_stdout(&there) => Ok(Target::Stdout { gzip: is_gzip(path) }),
            Ok(there) if there.is_dir() => Err(cannot(io::Error::from(io::ErrorKind::IsADirectory))),
            Ok(there) if !there.is_file() || is_open_file(path) => {
                Ok(Target::Stream { path: path.to_path_buf(), gzip })
            }
            Ok(there) if there.permissions().readonly() => {
                Err(cannot(io::Error::from(io::ErrorKind::PermissionDenied)))
            }
            Ok(_) => Target::file(fs::canonicalize(path).map_err(cannot)?, gzip).map_err(cannot),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let last = end_of_links(path);
                let leads = if last == path { String::new() } else { format!(" leads to {}", last.display()) };
                Target::file(last, gzip).map_err(|e| format!("{}{leads}: cannot write: {e}", path.display()))
            }
            Err(e) => Err(cannot(e)),
        }
    }

    /// A file whose directory takes new files.
    fn file(path: PathBuf, gzip: bool) -> io::Result<Target> {
        drop(beside(&path)?);
        Ok(Target::File { path, gzip })
    }

    /// Whether this is standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self, Target::Stdout { .. })
    }

    /// Writes everything that `write` does, or leaves a file as it was. What is named `.gz` is
    /// compressed, as all commands expect of it.
    pub fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), String> {
        // The limit on the size of files would end the process by a signal.
        let (name, done) = process::without_write_signals(|| match self {
            Target::Stdout { gzip } => ("standard output".to_string(), put(io::stdout().lock(), *gzip, write)),
            Target::Stream { path, gzip } => (path.display().to_string(), stream(path, *gzip, write)),
            Target::File { path, gzip } => (path.display().to_string(), replace(path, *gzip, write)),
        });
        done.map_err(|e| format!("{name}: cannot write: {e}"))
    }
}

/// Refuses more than one result on standard output. `users` are what may write there, as on the
/// command line, and whether it does. Returns whether one does.
pub fn one_on_stdout<'a>(users: impl IntoIterator<Item = (&'a str, bool)>) -> Result<bool, String> {
    let users: Vec<&str> = users.into_iter().filter_map(|(name, does)| does.then_some(name)).collect();
    match users.len() {
        0 | 1 => Ok(users.len() == 1),
        _ => Err(format!("{} both write to standard output; give one of them a file", users.join(" and "))),
    }
}

fn stream(path: &Path, gzip: bool, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    // A file that is open in this process goes on where it ends.
    put(OpenOptions::new().append(true).open(path)?, gzip, write)
}

fn replace(path: &Path, gzip: bool, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let scratch = beside(path)?;
    if let Ok(there) = fs::metadata(path) {
        fs::set_permissions(scratch.path(), there.permissions())?;
    }
    // The file alone: its temporary name means nothing in a message.
    put(scratch.as_file(), gzip, write)?;
    // Else the name could reach the disk before the contents.
    scratch.as_file().sync_all()?;
    scratch.persist(path).map(drop).map_err(|e| e.error)
}

fn put(out: impl Write, gzip: bool, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    match gzip {
        true => {
            let mut packed = GzEncoder::new(&mut out, Compression::default());
            write(&mut packed)?;
            packed.finish()?;
        }
        false => write(&mut out)?,
    }
    out.flush()
}

/// Whether a name is that of compressed data.
pub fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"))
}

/// Whether this is the file or pipe that standard output is. Not a device: both may well be
/// /dev/null.
fn is_stdout(there: &Metadata) -> bool {
    let out = io::stdout().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    let is_device = there.file_type().is_char_device();
    !is_device && out.is_ok_and(|out| (out.dev(), out.ino()) == (there.dev(), there.ino()))
}

/// Whether a name stands for a file that this process has open.
fn is_open_file(path: &Path) -> bool {
    let open = ["/proc/self/fd", "/proc/thread-self/fd"].map(|dir| fs::canonicalize(dir).ok());
    let is_there = |dir: PathBuf| open.contains(&Some(dir));
    links(path).any(|at| at.parent().and_then(|dir| fs::canonicalize(dir).ok()).is_some_and(is_there))
}

/// A name and what it links to, link by link: no more than the system would follow.
fn links(path: &Path) -> impl Iterator<Item = PathBuf> {
    let next = |at: &PathBuf| Some(at.parent().unwrap_or(Path::new("")).join(fs::read_link(at).ok()?));
    std::iter::successors(Some(path.to_path_buf()), next).take(41)
}

/// The end of a chain of links to a missing file: a file written there is then seen through them.
fn end_of_links(path: &Path) -> PathBuf {
    links(path).last().unwrap_or_else(|| path.to_path_buf())
}

/// A new file in the directory of another, gone again unless it takes that one's place.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    if path.file_name().is_none() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The process's umask decides who may use the file.
    let anybody = Permissions::from_mode(0o666);
    // A short name, as the result's own may be as long as the file system allows.
    let made = Builder::new().prefix(".gpumem-").suffix(".tmp").permissions(anybody).tempfile_in(dir);
    // Drops the temporary file's name, which means nothing to anybody, from the system's message.
    made.map_err(|e| {
        let text = e.to_string();
        io::Error::new(e.kind(), text.split(" at path ").next().unwrap_or_default())
    })
}

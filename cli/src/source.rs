//! The commands' input: a file or standard input, plain or gzip (told apart by contents), and how
//! messages quote it.

use crate::output::is_gzip;
use flate2::read::MultiGzDecoder;
use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The first bytes of every gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Most characters of a file that a message repeats.
const QUOTE_LIMIT: usize = 60;

/// Why a file cannot be read from.
#[derive(Debug)]
pub enum OpenError {
    /// The operating system says so.
    Io(io::Error),
    /// The file is named `.gz` but is not gzip.
    NotGzip,
}

/// Opens a file.
pub fn open(path: &Path) -> Result<Box<dyn Read>, OpenError> {
    let file = File::open(path).map_err(OpenError::Io)?;
    unpack(file, is_gzip(path))
}

/// Reads all of a file, once, as it may be a pipe. The error names it.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let what = match open(path) {
        Ok(mut input) => match input.read_to_end(&mut bytes) {
            Ok(_) => return Ok(bytes),
            Err(e) => explain(&e),
        },
        Err(OpenError::Io(e)) => e.to_string(),
        Err(OpenError::NotGzip) => "the name ends in .gz but the contents are not gzip".to_string(),
    };
    Err(format!("{}: {what}", path.display()))
}

/// `input`, decompressed if it is gzip; `expected` when it has to be, unless it is empty.
pub fn unpack(mut input: impl Read + 'static, expected: bool) -> Result<Box<dyn Read>, OpenError> {
    let mut magic = Vec::with_capacity(GZIP_MAGIC.len());
    (&mut input).take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic).map_err(OpenError::Io)?;
    let gzip = magic == GZIP_MAGIC;
    if expected && !gzip && !magic.is_empty() {
        return Err(OpenError::NotGzip);
    }
    // The bytes already read go in front again: the file may be a pipe, which cannot seek.
    let whole = Cursor::new(magic).chain(input);
    Ok(if gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) })
}

/// Refuses an output that would replace its own input.
pub fn spare(input: &Path, output: &Path) -> Result<(), String> {
    let file = |path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|m| (m.dev(), m.ino()));
    match (file(input), file(output)) {
        (Some(a), Some(b)) if a == b => {
            Err(format!("{}: this is the file that is read, and would be lost; write to another", output.display()))
        }
        _ => Ok(()),
    }
}

/// The message for a read that failed half-way.
pub fn explain(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        "the gzip data stops early: the file is truncated".to_string()
    } else {
        error.to_string()
    }
}

/// Text of a file for a message: printable and not long.
pub fn quote(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(QUOTE_LIMIT) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.into_owned(),
    }
}

/// Decimal digits and nothing else (`str::parse` would take a sign).
pub fn decimal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

//! Buffers as CSV: one record each, columns in any order, named by the header.
//!
//! | column | also | meaning |
//! |---|---|---|
//! | `id` | `buffer`, `buffer_id` | any text, each its own |
//! | `lower` | `start`, `begin` | first step at which it is live |
//! | `upper` | | first step at which it is no longer live |
//! | | `end` in place of `upper` | last step at which it is live; then the ends of gaps are last steps too |
//! | `size` | | bytes |
//! | `alignment` | | power of two; empty for 1 |
//! | `guard` | | bytes behind it that nothing else may use; empty for 0 |
//! | `offset` | | where it has to be; empty for anywhere |
//! | `hint` | | where it had better be; empty or -1 for anywhere |
//! | `gaps` | | steps at which it holds nothing: `lower-upper`, separated by blanks |
//! | `arena` | | number of the arena that it has to be in; empty for the first with room; `-` for a buffer that is left out |
//! | `name` | | for people; means nothing here |
//!
//! This is what `gpumem_plan_csv_get` writes, and what MiniMalloc reads and writes, except for
//! windows of gaps (`7-9@0:16`), which are refused. Other columns mean nothing here. The text is
//! kept whole, so that the output can repeat it with offsets.

use super::columns::{Column, Header};
use super::row::{Bad, Row, LEFT_OUT};
use crate::source::{self, explain, quote, OpenError};
use csv::ByteRecord;
use gpumem::plan::{self, Clash, Kinds, Place, Problem};
use std::collections::hash_map::{Entry, HashMap};
use std::io::Read;
use std::path::Path;

/// The columns that every file must have.
const EXPECTED: &str = "id, lower (or start), upper (or end) and size";

/// The header's line must end within this many bytes, so that a file without lines is not read
/// whole.
const HEADER_LIMIT: u64 = 1 << 20;

/// Why there is no problem to solve. Every message names the file, and if possible the line and the
/// column.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file cannot be opened.
    #[error("{file}: cannot open: {source}")]
    Open { file: String, source: std::io::Error },
    /// The file is named `.gz` but is not gzip.
    #[error("{file}: the name ends in .gz but the contents are not gzip; rename it or compress it")]
    NotGzip { file: String },
    /// The bytes run out or do not decompress.
    #[error("{file}: cannot read further: {what}")]
    Read { file: String, what: String },
    /// The file is empty.
    #[error("{file}: the file is empty; expected a header with the columns {EXPECTED}")]
    Empty { file: String },
    /// The first line names too few columns, or one of them twice.
    #[error("{file}:{line}: {what}; found {found:?}, expected the columns {EXPECTED}")]
    Header { file: String, line: u64, what: String, found: String },
    /// A record with too few or too many fields.
    #[error("{file}:{line}: wrong field count: found {found}, expected {expected} as in the header")]
    FieldCount { file: String, line: u64, found: usize, expected: usize },
    /// A field with an invalid value.
    #[error("{file}:{line}: column {column}: found {found:?}, expected {expected}")]
    Field { file: String, line: u64, column: String, found: String, expected: String },
    /// A buffer that the library refuses for another reason.
    #[error("{file}:{line}: {what}")]
    Refused { file: String, line: u64, what: String },
}

/// A problem and the text it came from.
#[derive(Debug)]
pub struct Input {
    /// The file's name in messages.
    pub file: String,
    /// Its columns.
    pub header: Header,
    /// Its buffers, in the order of the file, named by their ids.
    pub problem: Problem,
    text: Vec<u8>,
}

impl Input {
    /// Reads a file, or standard input for `-`.
    pub fn read(path: &Path) -> Result<Input, InputError> {
        let stdin = path.as_os_str() == "-";
        let file = if stdin { "standard input".to_string() } else { path.display().to_string() };
        let opened = if stdin { source::unpack(std::io::stdin(), false) } else { source::open(path) };
        let mut input = match opened {
            Ok(input) => input,
            Err(OpenError::Io(source)) => return Err(InputError::Open { file, source }),
            Err(OpenError::NotGzip) => return Err(InputError::NotGzip { file }),
        };
        let mut text = Vec::new();
        let read = |text: &mut Vec<u8>| {
            let head = (&mut input).take(HEADER_LIMIT).read_to_end(text)?;
            // A file that ends within the limit needs no line.
            if head as u64 == HEADER_LIMIT && !text.contains(&b'\n') && !text.contains(&b'\r') {
                let what = format!("a header of more than {HEADER_LIMIT} bytes; these are no buffers as CSV");
                return Err(std::io::Error::other(what));
            }
            input.read_to_end(text)
        };
        match { read }(&mut text) {
            Ok(_) => Input::parse(file, text),
            Err(e) => Err(InputError::Read { file, what: explain(&e) }),
        }
    }

    fn parse(file: String, text: Vec<u8>) -> Result<Input, InputError> {
        let mut records = Records::new(&text);
        let Some(first) = records.next() else { return Err(InputError::Empty { file }) };
        let header = match Header::parse(first) {
            Ok(header) => header,
            Err(what) => {
                let found = quote(first.iter().collect::<Vec<_>>().join(&b',').trim_ascii());
                return Err(InputError::Header { file, line: records.line(), what, found });
            }
        };
        let mut problem = Problem::new();
        problem.set_left_out(Kinds::NONE.with(LEFT_OUT));
        let mut total = 0;
        while let Some(record) = records.next() {
            let buffer = Row { header: &header, record }.buffer(&mut total);
            let added = buffer.and_then(|buffer| {
                while buffer.arena.is_some_and(|arena| arena as usize >= problem.arenas().len()) {
                    problem.add_arena(Default::default());
                }
                problem.add(buffer).map_err(|e| Bad::Refused(e.message))
            });
            if let Err(bad) = added {
                let found = record.len();
                let field = |column| quote(header.at(column).and_then(|i| record.get(i)).unwrap_or_default());
                return Err(match bad {
                    Bad::Count => {
                        let expected = header.names.len();
                        InputError::FieldCount { file, line: records.line(), found, expected }
                    }
                    Bad::Field(column, expected) => {
                        let (column, found) = (header.name(column), field(column));
                        InputError::Field { file, line: records.line(), column, found, expected }
                    }
                    Bad::Refused(what) => InputError::Refused { file, line: records.line(), what },
                });
            }
        }
        let input = Input { file, header, problem, text };
        input.check_ids()?;
        Ok(input)
    }

    fn check_ids(&self) -> Result<(), InputError> {
        let mut first: HashMap<&str, usize> = HashMap::with_capacity(self.problem.buffers().len());
        for (i, b) in self.problem.buffers().iter().enumerate() {
            let name = b.name.as_deref().unwrap_or_default();
            match first.entry(name) {
                Entry::Vacant(place) => _ = place.insert(i),
                Entry::Occupied(other) => {
                    let line = self.line(*other.get());
                    return Err(self.bad(i, Column::Id, format!("an id of its own: line {line} has the same")));
                }
            }
        }
        Ok(())
    }

    /// The records of the buffers, in the order of `problem`.
    pub fn records(&self) -> Records<'_> {
        let mut records = Records::new(&self.text);
        records.next();
        records
    }

    /// The line of a buffer, from 1.
    pub fn line(&self, buffer: usize) -> u64 {
        let mut records = self.records();
        for _ in 0..=buffer {
            records.next();
        }
        records.line()
    }

    /// Refuses two buffers at fixed offsets that share a byte of one arena at some step. This comes
    /// before solving, so that the message can name both lines.
    pub fn places_apart(&self) -> Result<(), InputError> {
        let Some(Clash { buffers: [first, second], step }) = plan::clash(&self.problem) else { return Ok(()) };
        let (Some(buffer), line) = (self.problem.buffers().get(first.index()), self.line(first.index())) else {
            return Ok(());
        };
        let Place::Fixed(at) = buffer.place else { return Ok(()) };
        let last = (at + buffer.extent()).saturating_sub(1);
        let expected = format!(
            "an offset apart from bytes {at} to {last} of line {line}, as both buffers are live at step {step}"
        );
        // The message blames the later line.
        Err(self.bad(second.index(), Column::Offset, expected))
    }

    /// The error for an invalid field of a buffer.
    fn bad(&self, buffer: usize, column: Column, expected: String) -> InputError {
        let mut records = self.records();
        for _ in 0..buffer {
            records.next();
        }
        let record = records.next().cloned().unwrap_or_default();
        let found = self.header.at(column).and_then(|i| record.get(i)).map(quote).unwrap_or_default();
        let (file, line) = (self.file.clone(), records.line());
        InputError::Field { file, line, column: self.header.name(column), found, expected }
    }
}

/// The records of a text, with their lines. Blank lines are skipped.
pub struct Records<'a> {
    text: &'a [u8],
    reader: csv::Reader<&'a [u8]>,
    record: ByteRecord,
}

impl<'a> Records<'a> {
    fn new(text: &'a [u8]) -> Records<'a> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
        Records { text, reader, record: ByteRecord::new() }
    }

    /// The next record.
    pub fn next(&mut self) -> Option<&ByteRecord> {
        // Reading from memory with any number of fields cannot fail.
        while self.reader.read_byte_record(&mut self.record).unwrap_or(false) {
            let blank = self.record.len() == 1 && self.record.iter().all(|f| f.trim_ascii().is_empty());
            if !blank {
                return Some(&self.record);
            }
        }
        None
    }

    /// The line at which the last record begins, from 1. Counted only for messages.
    fn line(&self) -> u64 {
        let at = self.record.position().map_or(0, |p| p.byte()) as usize;
        // The reader's position is before line ends and blank lines that it skips.
        let skipped = self.text.iter().skip(at).take_while(|b| matches!(b, b'\n' | b'\r')).count();
        let before = self.text.get(..at + skipped).unwrap_or(self.text);
        let ends = before.iter().filter(|&&b| b == b'\n').count();
        // Old line ends, a carriage return alone, count when there are no others.
        let ends = if ends == 0 { before.iter().filter(|&&b| b == b'\r').count() } else { ends };
        ends as u64 + 1
    }
}

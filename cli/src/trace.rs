//! Allocation logs in the format of RMM's logging adaptor,
//! `Thread,Time,Action,Pointer,Size,Stream`, and recordings of gpumem's.
//!
//! A log is read whole and turned into operations on dense slots, so that a replay does no parsing
//! and no hashing. RMM writes no quotes, so one line is one record and every message can name its
//! line; empty lines are ignored.
//! - `Thread` and `Time` may be any text (RMM writes clock times); only the number of threads is
//!   kept.
//! - `Action` is `allocate`, `free` (or `deallocate`), or `allocate failure`, which is counted and
//!   not replayed.
//! - `Pointer` and `Stream` are `0x` and hexadecimal digits, or decimal digits. `(nil)` is the null
//!   pointer; zero-byte allocations that gave it, and frees of it, are counted and not replayed.
//! - `Size` is decimal. The size of a free adds nothing to the allocation's, and is only checked to
//!   be a number.

use crate::record;
use crate::source::{self, decimal, explain, quote, OpenError};
use gpumem::observe::format::MAGIC;
use gpumem::observe::recording::is_recording;
use gpumem::observe::History;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

/// The columns, in order.
const FIELDS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
const ACTION: usize = 2;
const POINTER: usize = 3;
const SIZE: usize = 4;
const STREAM: usize = 5;

/// The longest line accepted, bytes: ten times what six numbers need.
const LINE_LIMIT: u64 = 1 << 10;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Allocates `size` bytes into the slot.
    Allocate,
    /// Frees what the slot holds.
    Free,
}

/// One operation; 16 bytes, so that replaying streams through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Bytes asked for by an allocation, 0 for a free.
    pub size: u64,
    /// Where the pointer is kept; below [`Trace::slots`]. Slots are used again after a free.
    pub slot: u32,
    /// Index into [`Trace::streams`].
    pub stream: u16,
    /// Allocate or free.
    pub kind: Kind,
}

/// A log, ready to replay.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The operations in log order. Never empty.
    pub ops: Vec<Op>,
    /// How many slots the operations use: the largest number of allocations live at once.
    pub slots: usize,
    /// The distinct stream values, in order of first use.
    pub streams: Vec<u64>,
    /// How many distinct threads the log names.
    pub threads: usize,
    /// `allocate failure` lines, not replayed.
    pub failed_in_log: u64,
    /// Operations on the null pointer, not replayed.
    pub null_in_log: u64,
    /// The largest sum of requested sizes live at once, bytes.
    pub peak_live_bytes: u64,
}

/// Why a log cannot be replayed. Every message names the file, and if possible the line and the
/// field.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("{file}: cannot open: {source}")]
    Open { file: String, source: std::io::Error },
    /// The file is empty.
    #[error("{file}: the file is empty; expected the header {}", FIELDS.join(","))]
    Empty { file: String },
    /// The first line is not the header.
    #[error("{file}:{line}: wrong header: found {found:?}, expected {:?}", FIELDS.join(","))]
    Header { file: String, line: u64, found: String },
    /// A header and nothing to replay.
    #[error("{file}: no operation to replay; expected allocate and free lines after the header")]
    NoOps { file: String },
    /// The file is named `.gz` but is not gzip.
    #[error("{file}: the name ends in .gz but the contents are not gzip; rename it or compress it")]
    NotGzip { file: String },
    /// A line with too few or too many columns.
    #[error("{file}:{line}: wrong field count: found {found}, expected 6 ({})", FIELDS.join(","))]
    FieldCount { file: String, line: u64, found: usize },
    /// A column with an invalid value.
    #[error("{file}:{line}: field {field}: found {found:?}, expected {expected}")]
    Field { file: String, line: u64, field: &'static str, found: String, expected: String },
    /// A recording that cannot be read.
    #[error("{what}")]
    Recording { what: String },
    /// The bytes run out or do not decompress.
    #[error("{file}:{line}: cannot read further: {what}")]
    Read { file: String, line: u64, what: String },
}

/// Reads a log, plain or gzip, or a recording (told apart by contents).
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    let file = path.display().to_string();
    match source::open(path) {
        Ok(mut input) => {
            let mut start = Vec::with_capacity(MAGIC.len());
            // An error here will recur when reading goes on.
            let _ = (&mut input).take(MAGIC.len() as u64).read_to_end(&mut start);
            match is_recording(&start) {
                true => {
                    let read = input.read_to_end(&mut start);
                    read.map_err(|e| TraceError::Recording { what: format!("{file}: {}", explain(&e)) })?;
                    of_recording(&file, path, &start)
                }
                false => parse(&file, Cursor::new(start).chain(input)),
            }
        }
        Err(OpenError::Io(source)) => Err(TraceError::Open { file, source }),
        Err(OpenError::NotGzip) => Err(TraceError::NotGzip { file }),
    }
}

/// The allocations and frees of a recording.
fn of_recording(file: &str, path: &Path, bytes: &[u8]) -> Result<Trace, TraceError> {
    let recording = record::read(path, bytes).map_err(|what| TraceError::Recording { what })?;
    let history = History::of(&recording);
    let mut trace = Trace { failed_in_log: history.failures, peak_live_bytes: history.peak, ..Trace::default() };
    let mut streams: HashMap<u64, u16> = HashMap::new();
    let mut slots: HashMap<u32, u32> = HashMap::new();
    let mut free_slots = Vec::new();
    for c in &history.changes {
        let Some(life) = history.lives.get(c.life as usize) else { continue };
        let value = if c.begins { life.stream } else { life.freed_on };
        let stream = match streams.get(&value) {
            Some(index) => *index,
            None => {
                let many = || TraceError::Recording { what: format!("{file}: more than 65,536 different streams") };
                let index = u16::try_from(trace.streams.len()).map_err(|_| many())?;
                trace.streams.push(value);
                streams.insert(value, index);
                index
            }
        };
        let op = if c.begins {
            let slot = free_slots.pop().unwrap_or_else(|| {
                trace.slots += 1;
                // There are no more slots than allocations, which have 32-bit numbers.
                trace.slots as u32 - 1
            });
            slots.insert(c.life, slot);
            Op { size: life.bytes, slot, stream, kind: Kind::Allocate }
        } else {
            let Some(slot) = slots.remove(&c.life) else { continue };
            free_slots.push(slot);
            Op { size: 0, slot, stream, kind: Kind::Free }
        };
        trace.ops.push(op);
    }
    if trace.ops.is_empty() {
        return Err(TraceError::NoOps { file: file.to_string() });
    }
    trace.threads = history.changes.iter().map(|c| c.thread).collect::<HashSet<_>>().len();
    Ok(trace)
}

/// Parses a log; `file` is its name in messages.
fn parse(file: &str, input: impl Read) -> Result<Trace, TraceError> {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    let mut builder = Builder { file, ..Builder::default() };
    if !builder.next(&mut input, &mut line)? {
        return Err(TraceError::Empty { file: file.to_string() });
    }
    // Some programs put a byte order mark in front.
    if !fields(line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line)).eq(FIELDS.map(str::as_bytes)) {
        return Err(TraceError::Header { file: file.to_string(), line: builder.at, found: quote(&line) });
    }
    while builder.next(&mut input, &mut line)? {
        builder.line(&line)?;
    }
    builder.finish()
}

/// The columns of a line, without the blanks around them.
fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&b| b == b',').map(<[u8]>::trim_ascii)
}

/// One line's columns.
type Record<'a> = [&'a [u8]; FIELDS.len()];

/// An allocation the log has made and not yet freed.
struct Live {
    slot: u32,
    size: u64,
    line: u64,
}

#[derive(Default)]
struct Builder<'a> {
    file: &'a str,
    /// The line being parsed, from 1.
    at: u64,
    trace: Trace,
    live: HashMap<u64, Live>,
    live_bytes: u64,
    free_slots: Vec<u32>,
    streams: HashMap<u64, u16>,
    threads: HashSet<Vec<u8>>,
}

impl Builder<'_> {
    /// Reads the next line that is not empty, without its end; `false` at the end of the file.
    fn next(&mut self, input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool, TraceError> {
        loop {
            line.clear();
            self.at += 1;
            let read = input.by_ref().take(LINE_LIMIT).read_until(b'\n', line);
            let bad = |what| TraceError::Read { file: self.file.to_string(), line: self.at, what };
            match read {
                Ok(0) => return Ok(false),
                Ok(n) if n as u64 == LINE_LIMIT && line.last() != Some(&b'\n') => {
                    return Err(bad(format!("a line of more than {LINE_LIMIT} bytes; this is no allocation log")));
                }
                Ok(_) => {}
                Err(e) => return Err(bad(explain(&e))),
            }
            line.truncate(line.trim_ascii_end().len());
            if !line.is_empty() {
                return Ok(true);
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), TraceError> {
        let mut record: Record = Default::default();
        let mut found = 0;
        for field in fields(line) {
            if let Some(place) = record.get_mut(found) {
                *place = field;
            }
            found += 1;
        }
        if found != FIELDS.len() {
            return Err(TraceError::FieldCount { file: self.file.to_string(), line: self.at, found });
        }
        let [thread, _, action, pointer, size, stream] = record;
        let Some(size) = decimal(size) else {
            return Err(self.bad(&record, SIZE, "a size in bytes, decimal digits below 2^64"));
        };
        let Some(stream) = number(stream) else {
            return Err(self.bad(&record, STREAM, "a stream, as decimal or 0x and hexadecimal digits"));
        };
        if !self.threads.contains(thread) {
            self.threads.insert(thread.to_vec());
        }
        // A failed allocation's pointer is null, however the logger spells it.
        if action == b"allocate failure" {
            self.trace.failed_in_log += 1;
            return Ok(());
        }
        let Some(pointer) = address(pointer) else {
            return Err(self.bad(&record, POINTER, "a pointer, as 0x and hexadecimal digits or decimal"));
        };
        match action {
            b"allocate" => self.allocate(&record, pointer, size, stream),
            b"free" | b"deallocate" => self.free(&record, pointer, stream),
            _ => Err(self.bad(&record, ACTION, "allocate, free or allocate failure")),
        }
    }

    fn allocate(&mut self, record: &Record, pointer: u64, size: u64, stream: u64) -> Result<(), TraceError> {
        if pointer == 0 {
            if size != 0 {
                return Err(self.bad(record, POINTER, "a pointer that is not null, as the size is not 0"));
            }
            self.trace.null_in_log += 1;
            return Ok(());
        }
        if let Some(live) = self.live.get(&pointer) {
            let expected = format!("a pointer that is not live: line {} allocated it and no line freed it", live.line);
            return Err(self.bad(record, POINTER, &expected));
        }
        let live_bytes = match self.live_bytes.checked_add(size) {
            Some(sum) => sum,
            None => return Err(self.bad(record, SIZE, "a size that keeps the sum of live sizes below 2^64")),
        };
        let stream = self.stream(record, stream)?;
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                let Ok(slot) = u32::try_from(self.trace.slots) else {
                    return Err(self.bad(record, POINTER, "at most 2^32 allocations live at once"));
                };
                self.trace.slots += 1;
                slot
            }
        };
        self.live_bytes = live_bytes;
        self.trace.peak_live_bytes = self.trace.peak_live_bytes.max(live_bytes);
        self.live.insert(pointer, Live { slot, size, line: self.at });
        self.trace.ops.push(Op { size, slot, stream, kind: Kind::Allocate });
        Ok(())
    }

    fn free(&mut self, record: &Record, pointer: u64, stream: u64) -> Result<(), TraceError> {
        if pointer == 0 {
            self.trace.null_in_log += 1;
            return Ok(());
        }
        let Some(live) = self.live.remove(&pointer) else {
            return Err(self.bad(record, POINTER, "a pointer that an earlier line allocated and no line has freed"));
        };
        let stream = self.stream(record, stream)?;
        self.live_bytes -= live.size;
        self.free_slots.push(live.slot);
        self.trace.ops.push(Op { size: 0, slot: live.slot, stream, kind: Kind::Free });
        Ok(())
    }

    /// The dense index of a stream value.
    fn stream(&mut self, record: &Record, value: u64) -> Result<u16, TraceError> {
        if let Some(&index) = self.streams.get(&value) {
            return Ok(index);
        }
        let Ok(index) = u16::try_from(self.trace.streams.len()) else {
            return Err(self.bad(record, STREAM, "at most 65,536 different streams"));
        };
        self.trace.streams.push(value);
        self.streams.insert(value, index);
        Ok(index)
    }

    fn bad(&self, record: &Record, field: usize, expected: &str) -> TraceError {
        TraceError::Field {
            file: self.file.to_string(),
            line: self.at,
            field: FIELDS.get(field).copied().unwrap_or_default(),
            found: quote(record.get(field).copied().unwrap_or_default()),
            expected: expected.to_string(),
        }
    }

    fn finish(mut self) -> Result<Trace, TraceError> {
        if self.trace.ops.is_empty() {
            return Err(TraceError::NoOps { file: self.file.to_string() });
        }
        self.trace.threads = self.threads.len();
        Ok(self.trace)
    }
}

/// `0x` and hexadecimal digits, or decimal digits.
fn number(field: &[u8]) -> Option<u64> {
    match field.strip_prefix(b"0x").or_else(|| field.strip_prefix(b"0X")) {
        Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => {
            u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        }
        Some(_) => None,
        None => decimal(field),
    }
}

/// A number, or null as printf's `%p` writes it.
fn address(field: &[u8]) -> Option<u64> {
    match field {
        b"(nil)" | b"nil" => Some(0),
        _ => number(field),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

    fn trace(lines: &str) -> Trace {
        parse("log", format!("{HEADER}{lines}").as_bytes()).unwrap()
    }

    #[test]
    fn slots_are_dense_and_reused() {
        let t = trace("0,0,allocate,0xa,10,0\n0,1,allocate,0xb,20,0\n0,2,free,0xa,10,0\n0,3,allocate,0xc,5,0\n");
        let slots: Vec<_> = t.ops.iter().map(|op| (op.kind, op.slot, op.size)).collect();
        assert_eq!(
            slots,
            [(Kind::Allocate, 0, 10), (Kind::Allocate, 1, 20), (Kind::Free, 0, 0), (Kind::Allocate, 0, 5)]
        );
        assert_eq!((t.slots, t.peak_live_bytes), (2, 30));
    }

    #[test]
    fn the_peak_is_the_largest_sum_and_not_the_last() {
        let t = trace("0,0,allocate,1,100,0\n0,0,allocate,2,50,0\n0,0,free,1,100,0\n0,0,allocate,3,99,0\n");
        assert_eq!(t.peak_live_bytes, 150);
        let t = trace("0,0,allocate,1,100,0\n0,0,free,1,100,0\n0,0,allocate,1,99,0\n");
        assert_eq!(t.peak_live_bytes, 100);
    }

    #[test]
    fn real_rmm_spellings_are_read() {
        let t = trace(
            "140573,13:50:24:567315,allocate,0x7f8a40000000,1024,0x7f8a38001020\n\
             140574,13:50:24:567400,allocate failure,(nil),99999999999,0\n\
             140574,13:50:24:567401,allocate,(nil),0,0x2\n\
             140574,13:50:24:567402,free,(nil),0,0x2\n\
             140573,13:50:24:567500,deallocate,0x7f8a40000000,1024,0x0\r\n",
        );
        assert_eq!(t.ops.len(), 2);
        assert_eq!((t.failed_in_log, t.null_in_log, t.threads), (1, 2, 2));
        assert_eq!(t.streams, [0x7f8a_3800_1020, 0]);
        assert_eq!(t.ops[1].stream, 1, "a free keeps the stream of its own line");
    }

    #[test]
    fn operations_stay_small() {
        assert_eq!(std::mem::size_of::<Op>(), 16);
    }

    #[test]
    fn blank_lines_do_not_shift_line_numbers() {
        let e = parse("log", format!("{HEADER}\n\r\n0,0,free,0x1,1,0").as_bytes()).unwrap_err().to_string();
        assert!(e.starts_with("log:4: field Pointer"), "{e}");
    }

    #[test]
    fn a_file_with_no_lines_is_not_read_whole_or_repeated() {
        let e = parse("log", std::io::repeat(b'x')).unwrap_err().to_string();
        assert!(e.starts_with("log:1: ") && e.len() < 200, "{e}");
        let e = parse("log", format!("{HEADER}0,0,free,{},1,0\n", "9".repeat(500)).as_bytes()).unwrap_err().to_string();
        assert!(e.contains("field Pointer") && e.len() < 200, "{e}");
    }
}

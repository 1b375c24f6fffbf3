//! A read in progress.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::books::Shared;
use super::claim::SLOT;
use super::failure::{failed, transfer};
use super::format::{checksum, Content, BLOCK};
use super::options::After;
use super::pump::{Finished, Pump};
use super::writer::{check_chunk, Chunk, Refused, FOOTER_TAG, HEADER_TAG};
use crate::base::{Error, Result, Status};
use crate::driver::disk::{Buffer, Direction, Lane};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A read in progress. Chunks are asked for in any order, as often as one likes, and any number may
/// be in flight. A buffer is the caller's again when its chunk is over and checked. Dropping the
/// read keeps the slot.
pub struct Reader {
    shared: Arc<Shared>,
    number: u64,
    content: Content,
    sums: Vec<u64>,
    path: PathBuf,
    /// `None` once the read is over.
    pump: Option<Pump>,
    /// Which chunks have been read and are what was written.
    good: Vec<bool>,
    error: Option<Error>,
}

/// A chunk that is over, but not checked by the read that returned it.
pub struct Arrived {
    finished: Finished,
    length: u64,
}

impl Arrived {
    /// Where in the data it is.
    pub fn offset(&self) -> u64 {
        self.finished.tag
    }

    /// Its bytes as they came from the disk; `None` when they did not come.
    pub fn data(&self) -> Option<&[u8]> {
        let data = self.finished.buffer.bytes().get(..self.length as usize);
        self.finished.result.as_ref().ok().and(data)
    }
}

impl Reader {
    pub(super) fn new(
        shared: Arc<Shared>,
        number: u64,
        content: Content,
        sums: Vec<u64>,
        file: File,
        lane: Box<dyn Lane>,
    ) -> Result<Reader> {
        let path = shared.claim.file(number, SLOT);
        let good = vec![false; sums.len()];
        let mut pump = Pump::new(lane, file);
        let ends = read_ends(&mut pump, Some(content), &path);
        let reader = Reader { shared, number, content, sums, path, pump: Some(pump), good, error: None };
        // From here on the drop uncounts the read.
        let (_, sums) = ends?;
        match sums == reader.sums {
            true => Ok(reader),
            false => Err(corrupt(&reader.path, "the footer is not the one that was written")),
        }
    }

    /// Bytes of a chunk; the last one may have fewer.
    pub fn chunk_bytes(&self) -> u64 {
        self.content.chunk
    }

    /// Bytes of data in all.
    pub fn length(&self) -> u64 {
        self.content.length
    }

    /// Starts reading the chunk at `offset` of the data, a multiple of [`Self::chunk_bytes`], to
    /// the start of `buffer`, which has room for a multiple of 4 KiB. Does not wait, unless very
    /// many chunks are in flight.
    pub fn submit(&mut self, offset: u64, buffer: Buffer) -> std::result::Result<(), Box<Refused>> {
        let checked = self.error.clone().map_or(Ok(()), Err).and_then(|()| check_chunk(&self.content, offset, &buffer));
        match (checked, &mut self.pump) {
            (Ok(()), Some(pump)) => {
                let padded = self.content.padded_at(offset);
                pump.submit(Direction::Read, self.content.place(offset), buffer, padded, offset);
                Ok(())
            }
            (Err(error), _) => Err(Box::new(Refused { buffer, error })),
            (_, None) => Err(Box::new(Refused { buffer, error: Error::internal("a read that is over") })),
        }
    }

    /// Waits until at least `least` chunks are over, or all that are in flight, and returns those
    /// that are over and have not been returned; 0 does not wait. `Corrupt` for a chunk that is not
    /// what was written: its buffer's content is of no use. After a failure no more chunks are
    /// taken, and [`Self::finish`] keeps the slot and fails.
    pub fn wait(&mut self, least: usize) -> Vec<Chunk> {
        let finished = self.pump.as_mut().map(|p| p.wait(least)).unwrap_or_default();
        self.note_broken();
        finished.into_iter().map(|f| self.verify(f)).collect()
    }

    /// Waits until a chunk is over, and returns it unchecked: [`Self::check`] says whether it is
    /// what was written. The caller may ask for others first, so that the disk does not stand still
    /// meanwhile. `None` if none is in flight.
    pub fn next_arrived(&mut self) -> Option<Arrived> {
        let finished = self.pump.as_mut().and_then(Pump::next);
        self.note_broken();
        finished.map(|f| Arrived { length: self.content.length_at(f.tag), finished: f })
    }

    /// Checks a chunk of this read, as [`Self::wait`] does.
    pub fn check(&mut self, arrived: Arrived) -> Chunk {
        self.verify(arrived.finished)
    }

    /// Keeps the lane's own failure, if it has failed.
    fn note_broken(&mut self) {
        if let Some(e) = self.pump.as_ref().and_then(Pump::broken) {
            self.error.get_or_insert_with(|| failed("waiting for I/O of", &self.path, e));
        }
    }

    /// Why no more chunks are taken, if none are.
    pub fn failure(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    fn verify(&mut self, f: Finished) -> Chunk {
        let offset = f.tag;
        let (length, padded) = (self.content.length_at(offset), self.content.padded_at(offset));
        let chunk = usize::try_from(offset / self.content.chunk).unwrap_or(usize::MAX);
        let result =
            f.result.map_err(|e| read_error(padded, self.content.place(offset), &self.path, &e)).and_then(|()| {
                let data = f.buffer.bytes().get(..padded as usize).unwrap_or_default();
                if self.sums.get(chunk) == Some(&checksum(data)) {
                    return Ok(());
                }
                let what = format!("the data from byte {offset}, {length} B, does not match its checksum");
                Err(corrupt(&self.path, &what))
            });
        match &result {
            Err(e) => {
                self.error.get_or_insert_with(|| e.clone());
            }
            Ok(()) => {
                if let Some(good) = self.good.get_mut(chunk) {
                    *good = true;
                }
            }
        }
        Chunk { offset, length, buffer: f.buffer, result }
    }

    /// Ends the read. Buffers that have not been returned are dropped, their chunks checked all the
    /// same. `Remove` removes the slot if every chunk has been read and none has failed; otherwise
    /// it returns `Invalid`, or the failure, and keeps the slot.
    pub fn finish(mut self, after: After) -> Result<()> {
        self.wait(usize::MAX);
        if let Some(e) = self.error.take() {
            return Err(e);
        }
        let left = self.good.iter().filter(|good| !**good).count();
        if after == After::Remove && left > 0 {
            let all = self.good.len();
            return Err(Error::invalid(format!(
                "{left} of {all} chunks were not read; read them first, or remove the slot"
            )));
        }
        let (shared, number) = (self.shared.clone(), self.number);
        drop(self);
        match after {
            After::Keep => Ok(()),
            After::Remove => shared.remove(number),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Waits for what is in flight, and closes the file.
        self.pump = None;
        self.shared.end_read(self.number);
    }
}

pub(super) fn corrupt(path: &Path, what: &str) -> Error {
    let message = format!("{}: {what}; this copy of the data is lost, use another", path.display());
    Error::new(Status::Corrupt, message)
}

/// An error of a read. An end of the file that comes too early means that the file is corrupt.
pub(super) fn read_error(bytes: u64, at: u64, path: &Path, e: &io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => corrupt(path, &format!("ends before byte {}", at.saturating_add(bytes))),
        _ => transfer("reading", bytes, at, path, e),
    }
}

/// Reads and checks header, footer and the file's length, against `expected` if that is known.
pub(super) fn read_ends(pump: &mut Pump, expected: Option<Content>, path: &Path) -> Result<(Content, Vec<u64>)> {
    pump.submit(Direction::Read, 0, Buffer::new(BLOCK)?, BLOCK, HEADER_TAG);
    if let Some(expected) = &expected {
        read_footer(pump, expected)?;
    }
    let header = arrived(pump, HEADER_TAG, path)?;
    let content = Content::from_header(header.bytes()).map_err(|e| corrupt(path, &e.message))?;
    if expected.is_some_and(|e| e != content) {
        return Err(corrupt(path, "the header is of another write"));
    }
    let length = pump.file().metadata().map_err(|e| failed("looking at", path, &e))?.len();
    if length != content.file_bytes() {
        return Err(corrupt(path, &format!("has {length} of {} bytes", content.file_bytes())));
    }
    if expected.is_none() {
        read_footer(pump, &content)?;
    }
    let footer = arrived(pump, FOOTER_TAG, path)?;
    let sums = content.sums(footer.bytes()).map_err(|e| corrupt(path, &e.message))?;
    Ok((content, sums))
}

fn read_footer(pump: &mut Pump, content: &Content) -> Result<()> {
    let bytes = content.footer_bytes();
    pump.submit(Direction::Read, content.footer_place(), Buffer::new(bytes)?, bytes, FOOTER_TAG);
    Ok(())
}

/// Waits for one request; the others stay to be waited for.
fn arrived(pump: &mut Pump, tag: u64, path: &Path) -> Result<Buffer> {
    let finished = pump.wait_for(tag).ok_or_else(|| Error::internal("a read without an end"))?;
    let name = if tag == HEADER_TAG { "header" } else { "footer" };
    finished.result.map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => corrupt(path, &format!("ends before its {name} does")),
        _ => failed(&format!("reading the {name} of"), path, &e),
    })?;
    Ok(finished.buffer)
}

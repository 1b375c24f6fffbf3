//! A write in progress.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::books::{Shared, Slot};
use super::claim::{PART, SLOT};
use super::failure::{failed, transfer};
use super::format::{checksum, Content, BLOCK};
use super::pump::Pump;
use super::reaper::unlink;
use crate::base::size::human;
use crate::base::{Error, Result};
use crate::driver::disk::{Buffer, Direction, Lane, ALIGN};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// Tags of requests that are no chunks.
pub(super) const HEADER_TAG: u64 = u64::MAX;
pub(super) const FOOTER_TAG: u64 = u64::MAX - 1;

/// A chunk whose I/O is over, with its buffer.
#[derive(Debug)]
pub struct Chunk {
    /// Where in the data it starts, bytes.
    pub offset: u64,
    /// Bytes of data in it, from the start of the buffer.
    pub length: u64,
    /// The caller's again.
    pub buffer: Buffer,
    /// Whether it was written, or read just as it had been written.
    pub result: Result<()>,
}

/// A chunk that was not taken. State is as before.
#[derive(Debug)]
pub struct Refused {
    /// The caller's, unchanged.
    pub buffer: Buffer,
    /// Why.
    pub error: Error,
}

/// A write in progress. Chunks are submitted in any order, each once, and any number may be in
/// flight. A buffer is the caller's again when its chunk is over. Dropping the write gives it up
/// and removes the file.
pub struct Writer {
    number: u64,
    content: Content,
    /// Declared before `part`: its drop waits for what is in flight, and closes the file.
    pump: Pump,
    part: Part,
    /// The checksum of each chunk that was submitted.
    sums: Vec<Option<u64>>,
    /// Chunks not submitted yet.
    missing: u64,
    error: Option<Error>,
}

/// The file of a write, and its bytes in the books. Its drop removes both, unless the slot is in
/// the books. Nothing else has it open then, so the file system gives the blocks back when the
/// store closes it, and not while the drop waits.
struct Part {
    shared: Arc<Shared>,
    content: Content,
    path: PathBuf,
    is_slot: bool,
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_slot {
            let left = unlink(&*self.shared.disk, &self.path).ok().flatten();
            self.shared.close_removed(left, self.content);
            self.shared.forget_write(self.content);
        }
    }
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, number: u64, content: Content, file: File, lane: Box<dyn Lane>) -> Writer {
        let path = shared.claim.file(number, PART);
        let missing = content.chunks();
        let sums = vec![None; usize::try_from(missing).unwrap_or(usize::MAX)];
        let pump = Pump::new(lane, file);
        let part = Part { shared, content, path, is_slot: false };
        Writer { number, content, pump, part, sums, missing, error: None }
    }

    /// Bytes of a chunk; the last one may have fewer.
    pub fn chunk_bytes(&self) -> u64 {
        self.content.chunk
    }

    /// Bytes of data in all.
    pub fn length(&self) -> u64 {
        self.content.length
    }

    /// Starts writing the chunk at `offset` of the data, a multiple of [`Self::chunk_bytes`], from
    /// the start of `buffer`. A last chunk is filled up with zeros in the buffer, which has room
    /// for a multiple of 4 KiB. Does not wait, unless very many chunks are in flight.
    pub fn submit(&mut self, offset: u64, mut buffer: Buffer) -> std::result::Result<(), Box<Refused>> {
        if let Err(error) = self.check(offset, &buffer) {
            return Err(Box::new(Refused { buffer, error }));
        }
        let (length, padded) = (self.content.length_at(offset), self.content.padded_at(offset));
        let bytes = buffer.bytes_mut();
        bytes.iter_mut().take(padded as usize).skip(length as usize).for_each(|b| *b = 0);
        let sum = checksum(bytes.get(..padded as usize).unwrap_or_default());
        if let Some(slot) = self.sums.get_mut((offset / self.content.chunk) as usize) {
            *slot = Some(sum);
        }
        self.missing -= 1;
        self.pump.submit(Direction::Write, self.content.place(offset), buffer, padded, offset);
        Ok(())
    }

    fn check(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        check_chunk(&self.content, offset, buffer)?;
        match self.sums.get((offset / self.content.chunk) as usize) {
            Some(None) => Ok(()),
            _ => Err(Error::invalid(format!("the chunk at {offset} was submitted before"))),
        }
    }

    /// Waits until at least `least` chunks are over, or all that are in flight, and returns those
    /// that are over and have not been returned; 0 does not wait. After a failure no more chunks
    /// are taken, and [`Self::finish`] fails.
    pub fn wait(&mut self, least: usize) -> Vec<Chunk> {
        let mut over = Vec::new();
        for f in self.pump.wait(least) {
            let (offset, length) = (f.tag, self.content.length_at(f.tag));
            let result = f.result.map_err(|e| match f.tag {
                HEADER_TAG => failed("writing the header of", &self.part.path, &e),
                FOOTER_TAG => failed("writing the footer of", &self.part.path, &e),
                _ => transfer("writing", length, self.content.place(offset), &self.part.path, &e),
            });
            if let Err(e) = &result {
                self.error.get_or_insert_with(|| e.clone());
            }
            over.push(Chunk { offset, length, buffer: f.buffer, result });
        }
        if let Some(e) = self.pump.broken() {
            self.error.get_or_insert_with(|| failed("waiting for I/O to", &self.part.path, e));
        }
        over
    }

    /// Why no more chunks are taken, if none are.
    pub fn failure(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Completes the file once all chunks are over: from then on the slot can be read. Buffers that
    /// have not been returned are dropped. After an error there is no slot and no file.
    pub fn finish(mut self) -> Result<Slot> {
        if self.missing > 0 && self.error.is_none() {
            let (missing, all) = (self.missing, self.content.chunks());
            return Err(Error::invalid(format!("{missing} of {all} chunks were not submitted; each must be, once")));
        }
        let sums: Vec<u64> = self.sums.iter().copied().flatten().collect();
        if self.error.is_none() {
            let (mut header, mut footer) = (Buffer::new(BLOCK)?, Buffer::new(self.content.footer_bytes())?);
            self.content.header(header.bytes_mut());
            self.content.footer(&sums, footer.bytes_mut());
            let (place, bytes) = (self.content.footer_place(), footer.len());
            // Written beside the last chunks: only the new name, below, says that all are there.
            self.pump.submit(Direction::Write, 0, header, BLOCK, HEADER_TAG);
            self.pump.submit(Direction::Write, place, footer, bytes, FOOTER_TAG);
        }
        self.wait(usize::MAX);
        if let Some(e) = self.error.take() {
            return Err(e);
        }
        let (disk, sync) = (&self.part.shared.disk, self.part.shared.options.sync);
        if sync {
            disk.sync(self.pump.file()).map_err(|e| failed("syncing", &self.part.path, &e))?;
        }
        let name = self.part.shared.claim.file(self.number, SLOT);
        disk.rename(&self.part.path, &name).map_err(|e| {
            let error = failed("renaming", &self.part.path, &e);
            self.part.shared.check_there().err().unwrap_or(error)
        })?;
        if sync {
            if let Err(e) = disk.sync_dir(&self.part.shared.claim.dir) {
                // The drop removes the file under its new name.
                self.part.path = name;
                return Err(failed("syncing", &self.part.shared.claim.dir, &e));
            }
        }
        self.part.shared.add_slot(self.number, self.content, sums);
        self.part.is_slot = true;
        Ok(self.part.shared.slot(self.number))
    }
}

/// Whether `buffer` can hold the chunk at `offset`, and there is one.
pub(super) fn check_chunk(content: &Content, offset: u64, buffer: &Buffer) -> Result<()> {
    if !offset.is_multiple_of(content.chunk) || offset >= content.length {
        let (chunk, length) = (content.chunk, content.length);
        return Err(Error::invalid(format!("no chunk starts at {offset}: they have {chunk} B each, of {length} B")));
    }
    let padded = content.padded_at(offset);
    if buffer.len() < padded {
        return Err(Error::invalid(format!(
            "a buffer of {} for a chunk of {}; it needs room for a multiple of {ALIGN} B",
            human(buffer.len()),
            human(padded)
        )));
    }
    Ok(())
}

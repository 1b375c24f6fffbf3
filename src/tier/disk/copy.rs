//! Whole writes and reads through functions that fill and take chunks; and looking at a file by itself.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::failure::failed;
use super::format::checksum;
use super::options::After;
use super::pump::Pump;
use super::reader::{corrupt, read_ends, read_error, Reader};
use super::store::{Slot, Store};
use super::writer::{Chunk, Refused, Writer};
use crate::base::{Error, Result};
use crate::driver::disk::{Buffer, Direction, Disk};
use std::path::Path;

impl Store {
    /// Writes `bytes` of data. `fill(offset, part)` puts the data's bytes from `offset` on into `part`; it is called for one
    /// chunk after the other, while those before are being written from the other `buffers`: two suffice to overlap. Each
    /// has [`super::StoreOptions::chunk_bytes`], or the data's length rounded up to 4 KiB if that is less. They come back in
    /// any order. When `fill` fails, so does the write, and there is no slot.
    pub fn write(
        &self,
        bytes: u64,
        buffers: &mut Vec<Buffer>,
        mut fill: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Slot> {
        let mut writer = self.begin_write(bytes)?;
        let fed = feed(&mut writer, buffers, &mut fill);
        buffers.extend(writer.wait(usize::MAX).into_iter().map(|chunk| chunk.buffer));
        fed.and_then(|()| writer.finish())
    }

    /// Reads a slot. `take(offset, part)` gets the data's bytes from `offset` on, once they are known to be those that were
    /// written; it is called for each chunk, in any order, while others are being read into the other `buffers`, which are as
    /// for [`Self::write`]. When it fails, so does the read, and the slot is kept.
    pub fn read(
        &self,
        slot: Slot,
        after: After,
        buffers: &mut Vec<Buffer>,
        mut take: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut reader = self.begin_read(slot)?;
        let fed = drain(&mut reader, buffers, &mut take);
        buffers.extend(reader.wait(usize::MAX).into_iter().map(|chunk| chunk.buffer));
        fed.and_then(|()| reader.finish(after))
    }
}

fn feed(
    writer: &mut Writer,
    buffers: &mut Vec<Buffer>,
    fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let (length, step) = (writer.length(), writer.chunk_bytes());
    let mut offset = 0;
    while offset < length {
        let Some(mut buffer) = buffers.pop() else {
            let over = writer.wait(1);
            let mut result = Ok(());
            for chunk in some(over, writer.failure())? {
                result = result.and(chunk.result);
                buffers.push(chunk.buffer);
            }
            result?;
            continue;
        };
        let part = step.min(length - offset) as usize;
        // One that is too short is refused below.
        let filled = buffer.bytes_mut().get_mut(..part).map_or(Ok(()), |part| fill(offset, part));
        if let Err(e) = filled {
            buffers.push(buffer);
            return Err(e);
        }
        writer.submit(offset, buffer).or_else(|refused| back(refused, buffers))?;
        offset += part as u64;
    }
    Ok(())
}

fn drain(reader: &mut Reader, buffers: &mut Vec<Buffer>, take: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let (length, step) = (reader.length(), reader.chunk_bytes());
    let (mut offset, mut left) = (0, length.div_ceil(step));
    while left > 0 {
        if offset < length {
            if let Some(buffer) = buffers.pop() {
                reader.submit(offset, buffer).or_else(|refused| back(refused, buffers))?;
                offset = offset.saturating_add(step);
                continue;
            }
        }
        // One at a time: those in flight end together, and the disk would stand still while all are checked.
        let chunk = match reader.wait_one() {
            Some(chunk) => chunk,
            None => return Err(reader.failure().cloned().unwrap_or_else(no_buffer)),
        };
        let part = chunk.buffer.bytes().get(..chunk.length as usize).unwrap_or_default();
        // Every buffer comes back, also behind a failure.
        let result = chunk.result.and_then(|()| take(chunk.offset, part));
        buffers.push(chunk.buffer);
        left -= 1;
        result?;
    }
    Ok(())
}

fn no_buffer() -> Error {
    Error::invalid("no buffer to read or write with; give at least one")
}

/// Chunks that are over; without any, nothing was in flight.
fn some(chunks: Vec<Chunk>, failure: Option<&Error>) -> Result<Vec<Chunk>> {
    match chunks.is_empty() {
        true => Err(failure.cloned().unwrap_or_else(no_buffer)),
        false => Ok(chunks),
    }
}

// As it comes from `submit`.
#[allow(clippy::boxed_local)]
fn back(refused: Box<Refused>, buffers: &mut Vec<Buffer>) -> Result<()> {
    buffers.push(refused.buffer);
    Err(refused.error)
}

/// Checks that a file of any store is whole, and passes its data to `take`, chunk by chunk in order; returns the data's
/// length. For tools: a store reads only what it wrote itself. `Corrupt` when it is not whole.
pub fn inspect(disk: &dyn Disk, path: &Path, mut take: impl FnMut(u64, &[u8])) -> Result<u64> {
    let file = disk.open(path, false).map_err(|e| failed("opening", path, &e))?;
    let lane = disk.lane().map_err(|e| failed("starting I/O for", path, &e))?;
    let mut pump = Pump::new(lane, file);
    let (content, sums) = read_ends(&mut pump, None, path)?;
    let mut buffer = Some(Buffer::new(content.padded_at(0))?);
    for (offset, sum) in (0..content.length).step_by(usize::try_from(content.chunk).unwrap_or(usize::MAX)).zip(sums) {
        let (padded, at) = (content.padded_at(offset), content.place(offset));
        let lost = || Error::internal("a read without an end");
        pump.submit(Direction::Read, at, buffer.take().ok_or_else(lost)?, padded, offset);
        let read = pump.wait(1).pop().ok_or_else(lost)?;
        read.result.map_err(|e| read_error(padded, at, path, &e))?;
        let data = read.buffer.bytes().get(..padded as usize).unwrap_or_default();
        if checksum(data) != sum {
            return Err(corrupt(path, &format!("the data from byte {offset} does not match its checksum")));
        }
        take(offset, data.get(..content.length_at(offset) as usize).unwrap_or_default());
        buffer = Some(read.buffer);
    }
    Ok(content.length)
}

//! Whole writes and reads through functions that fill and take chunks, and checks of single files.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::books::Slot;
use super::failure::failed;
use super::format::checksum;
use super::options::After;
use super::pump::Pump;
use super::reader::{corrupt, read_ends, read_error, Reader};
use super::store::Store;
use super::writer::{Chunk, Refused, Writer};
use crate::base::{Error, Result};
use crate::driver::disk::{Buffer, Direction, Disk, ALIGN};
use std::collections::BTreeMap;
use std::path::Path;

/// The most chunks in flight. More buffers than that are used in turn: one that a processor has
/// just read is in its nearest cache, where others (such as the disk of a virtual machine) are slow
/// to write. docs/adr/disk-io.md
const IN_FLIGHT: usize = 8;

/// Takes the data of a slot that is read, chunk by chunk.
pub trait Sink {
    /// Bytes from `offset` on have been read, but not checked. A copy of them may begin: they stay
    /// where they are until [`Self::checked`] returns or, if that is not called, until the read has
    /// returned and its buffers are used again or dropped.
    fn arrived(&mut self, offset: u64, data: &[u8]) -> Result<()>;

    /// The bytes are those that were written.
    fn checked(&mut self, offset: u64, data: &[u8]) -> Result<()>;
}

/// Passes a chunk to a function only once it is checked.
struct Checked<F>(F);

impl<F: FnMut(u64, &[u8]) -> Result<()>> Sink for Checked<F> {
    fn arrived(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn checked(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.0(offset, data)
    }
}

impl Store {
    /// Writes `bytes` of data. `fill(offset, part)` puts the data's bytes from `offset` on into
    /// `part`; it is called for one chunk after the other, while those before are being written
    /// from the other `buffers`: two suffice to overlap. Each has
    /// [`super::StoreOptions::chunk_bytes`], or the data's length rounded up to 4 KiB if that is
    /// less. They are used in turn, and come back in any order. When `fill` fails, so does the
    /// write, and there is no slot.
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

    /// Reads a slot. `take(offset, part)` gets the data's bytes from `offset` on, once they are
    /// known to be those that were written; it is called for each chunk, in any order, while others
    /// are being read into the other `buffers`, which are as for [`Self::write`]. When it fails, so
    /// does the read, and the slot is kept.
    pub fn read(
        &self,
        slot: Slot,
        after: After,
        buffers: &mut Vec<Buffer>,
        take: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read_into(slot, after, buffers, &mut Checked(take))
    }

    /// Reads a slot from front to back for a caller that asks for the bytes.
    pub fn read_ahead(&self, slot: Slot) -> Result<ReadAhead> {
        let reader = self.begin_read(slot)?;
        let (chunk, length) = (reader.chunk_bytes(), reader.length());
        let bytes = chunk.min(length.next_multiple_of(ALIGN));
        let count = length.div_ceil(chunk).min(IN_FLIGHT as u64);
        let idle = (0..count).map(|_| Buffer::new(bytes)).collect::<Result<_>>()?;
        Ok(ReadAhead { reader, idle, arrived: BTreeMap::new(), asked: 0 })
    }

    /// Like [`Self::read`], for a caller that begins with a chunk while that is being checked.
    pub fn read_into(&self, slot: Slot, after: After, buffers: &mut Vec<Buffer>, sink: &mut dyn Sink) -> Result<()> {
        let mut reader = self.begin_read(slot)?;
        let fed = drain(&mut reader, buffers, sink);
        buffers.extend(reader.wait(usize::MAX).into_iter().map(|chunk| chunk.buffer));
        fed.and_then(|()| reader.finish(after))
    }
}

/// A slot read ahead of a caller that takes its bytes from front to back, in parts of any size.
/// Dropping it keeps the slot.
pub struct ReadAhead {
    reader: Reader,
    idle: Vec<Buffer>,
    /// Checked chunks that have not been taken whole, by offset.
    arrived: BTreeMap<u64, Chunk>,
    /// Chunks before this offset have been asked for.
    asked: u64,
}

impl ReadAhead {
    /// Puts the data's bytes from `offset` on into `out`. Each call goes on where the one before
    /// ended.
    pub fn fill(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let start = at - at % self.reader.chunk_bytes();
            let chunk = self.chunk(start)?;
            let data = chunk.buffer.bytes().get((at - start) as usize..chunk.length as usize).unwrap_or_default();
            let part = out.get_mut(done..).unwrap_or_default();
            let n = data.len().min(part.len());
            let (Some(from), Some(to)) = (data.get(..n).filter(|d| !d.is_empty()), part.get_mut(..n)) else {
                return Err(Error::invalid(format!("byte {at} is behind the end of the data")));
            };
            to.copy_from_slice(from);
            done += n;
            if n == data.len() {
                self.idle.extend(self.arrived.remove(&start).map(|chunk| chunk.buffer));
            }
        }
        Ok(())
    }

    /// The chunk at an offset, once it has arrived.
    fn chunk(&mut self, start: u64) -> Result<&Chunk> {
        while !self.arrived.contains_key(&start) {
            while self.asked < self.reader.length() && !self.idle.is_empty() {
                let buffer = self.idle.remove(0);
                self.reader.submit(self.asked, buffer).or_else(|refused| back(refused, &mut self.idle))?;
                self.asked = self.asked.saturating_add(self.reader.chunk_bytes());
            }
            let over = self.reader.wait(1);
            for chunk in some(over, self.reader.failure())? {
                chunk.result.clone()?;
                self.arrived.insert(chunk.offset, chunk);
            }
        }
        self.arrived.get(&start).ok_or_else(|| Error::internal("a chunk that has arrived is not there"))
    }
}

fn feed(
    writer: &mut Writer,
    buffers: &mut Vec<Buffer>,
    fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let (length, step) = (writer.length(), writer.chunk_bytes());
    let (mut offset, mut in_flight) = (0, 0);
    while offset < length {
        let Some(mut buffer) = next_of(buffers, in_flight) else {
            let over = writer.wait(1);
            let mut result = Ok(());
            for chunk in some(over, writer.failure())? {
                result = result.and(chunk.result);
                buffers.push(chunk.buffer);
                in_flight -= 1;
            }
            result?;
            continue;
        };
        let part = step.min(length - offset) as usize;
        // A buffer that is too short is refused below.
        let filled = buffer.bytes_mut().get_mut(..part).map_or(Ok(()), |part| fill(offset, part));
        if let Err(e) = filled {
            buffers.push(buffer);
            return Err(e);
        }
        writer.submit(offset, buffer).or_else(|refused| back(refused, buffers))?;
        offset += part as u64;
        in_flight += 1;
    }
    Ok(())
}

/// The buffer unused for longest, if one more may be in flight.
fn next_of(buffers: &mut Vec<Buffer>, in_flight: usize) -> Option<Buffer> {
    (in_flight < IN_FLIGHT && !buffers.is_empty()).then(|| buffers.remove(0))
}

fn drain(reader: &mut Reader, buffers: &mut Vec<Buffer>, sink: &mut dyn Sink) -> Result<()> {
    let (length, step) = (reader.length(), reader.chunk_bytes());
    let (mut offset, mut in_flight, mut left) = (0, 0, length.div_ceil(step));
    let mut ask = |reader: &mut Reader, buffers: &mut Vec<Buffer>, in_flight: &mut usize| {
        while offset < length {
            let Some(buffer) = next_of(buffers, *in_flight) else { break };
            reader.submit(offset, buffer).or_else(|refused| back(refused, buffers))?;
            offset = offset.saturating_add(step);
            *in_flight += 1;
        }
        Ok(())
    };
    while left > 0 {
        ask(reader, buffers, &mut in_flight)?;
        let Some(arrived) = reader.next_arrived() else {
            return Err(reader.failure().cloned().unwrap_or_else(no_buffer));
        };
        in_flight -= 1;
        // Ask before looking at the chunk: those in flight end together, and the disk would stand
        // still.
        let asked = ask(reader, buffers, &mut in_flight);
        let begun = arrived.data().map_or(Ok(()), |data| sink.arrived(arrived.offset(), data));
        let chunk = reader.check(arrived);
        let part = chunk.buffer.bytes().get(..chunk.length as usize).unwrap_or_default();
        // Every buffer comes back, even after a failure.
        let result = chunk.result.and(begun).and_then(|()| sink.checked(chunk.offset, part));
        buffers.push(chunk.buffer);
        left -= 1;
        result.and(asked)?;
    }
    Ok(())
}

fn no_buffer() -> Error {
    Error::invalid("no buffer to read or write with; give at least one")
}

/// Chunks that are over. Fails without any, as nothing was in flight then.
fn some(chunks: Vec<Chunk>, failure: Option<&Error>) -> Result<Vec<Chunk>> {
    match chunks.is_empty() {
        true => Err(failure.cloned().unwrap_or_else(no_buffer)),
        false => Ok(chunks),
    }
}

// `submit` returns it boxed.
#[allow(clippy::boxed_local)]
fn back(refused: Box<Refused>, buffers: &mut Vec<Buffer>) -> Result<()> {
    buffers.push(refused.buffer);
    Err(refused.error)
}

/// Checks that a file of any store is whole, and passes its data to `take`, chunk by chunk in
/// order. Returns the data's length. For tools: a store reads only what it wrote itself. Fails with
/// `Corrupt` if the file is not whole.
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

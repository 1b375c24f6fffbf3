//! What is in a file.
//!
//! ```text
//! header   4 KiB      magic, kind 1, generation, length of the data, bytes of a chunk,
//!                     checksum of the header
//! data     n x 4 KiB  chunks, one after the other; the last is filled up with zeros
//! footer   n x 4 KiB  magic, kind 2, the same fields, number of chunks, checksum of each,
//!                     checksum of the footer
//! ```
//!
//! Numbers are little endian. Checksums are XXH3, 64 bits. A header's and a footer's are their last
//! 8 bytes and cover all before; a chunk's covers what is written, with the zeros. So each byte of
//! the file is covered.
//!
//! A file is *whole* when it has the length its header says, header and footer have their checksums
//! and agree, and every chunk has its own. The generation is of one write of one store, so parts of
//! two writes never agree.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::size::round_up;
use crate::base::{Error, Result, Status};
use crate::driver::disk::ALIGN;
use twox_hash::XxHash3_64;

/// Lengths and places in a file are multiples of this, bytes; a header takes as much.
pub(super) const BLOCK: u64 = ALIGN;
const MAGIC: [u8; 8] = *b"gpumemD1";
const HEADER: u64 = 1;
const FOOTER: u64 = 2;
/// Where the checksums of the chunks start in a footer.
const TABLE: usize = 56;
/// Bytes of a checksum.
const SUM: usize = 8;
/// The most data in one file, so that no sum of lengths overflows.
const LONGEST: u64 = 1 << 60;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// The store's number, and the write's in it.
    pub generation: (u64, u64),
    /// Bytes of data, not 0.
    pub length: u64,
    /// Bytes of a chunk; the last one may have fewer.
    pub chunk: u64,
}

impl Content {
    /// Checks the numbers, so that every sum below is within a u64.
    pub fn new(generation: (u64, u64), length: u64, chunk: u64) -> Result<Content> {
        if length == 0 || length > LONGEST {
            return Err(Error::invalid(format!("{length} B of data; a slot holds 1 to {LONGEST}")));
        }
        if chunk == 0 || !chunk.is_multiple_of(BLOCK) || chunk > LONGEST {
            return Err(Error::invalid(format!("chunks of {chunk} B")));
        }
        Ok(Content { generation, length, chunk })
    }

    pub fn chunks(&self) -> u64 {
        self.length.div_ceil(self.chunk)
    }

    /// Bytes of data in the chunk at `offset`.
    pub fn length_at(&self, offset: u64) -> u64 {
        self.length.saturating_sub(offset).min(self.chunk)
    }

    /// Bytes of the chunk at `offset` as written: filled up.
    pub fn padded_at(&self, offset: u64) -> u64 {
        padded(self.length_at(offset))
    }

    /// Where in the file the data's byte `offset` is.
    pub fn place(&self, offset: u64) -> u64 {
        BLOCK.saturating_add(offset)
    }

    pub fn footer_place(&self) -> u64 {
        BLOCK.saturating_add(padded(self.length))
    }

    pub fn footer_bytes(&self) -> u64 {
        padded((TABLE as u64 + SUM as u64).saturating_add(self.chunks().saturating_mul(SUM as u64)))
    }

    pub fn file_bytes(&self) -> u64 {
        self.footer_place().saturating_add(self.footer_bytes())
    }

    fn start(&self, kind: u64, out: &mut [u8]) {
        out.fill(0);
        let fields = [kind, self.generation.0, self.generation.1, self.length, self.chunk];
        let bytes = MAGIC.into_iter().chain(fields.into_iter().flat_map(u64::to_le_bytes));
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    }

    /// Fills `out`, [`BLOCK`] bytes, with the header.
    pub fn header(&self, out: &mut [u8]) {
        self.start(HEADER, out);
        seal(out);
    }

    /// Fills `out`, [`Self::footer_bytes`], with the footer.
    pub fn footer(&self, sums: &[u64], out: &mut [u8]) {
        self.start(FOOTER, out);
        let table = std::iter::once(&self.chunks()).chain(sums).flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        out.iter_mut().skip(TABLE - SUM).zip(table).for_each(|(to, from)| *to = from);
        seal(out);
    }

    /// Reads a header.
    pub fn from_header(bytes: &[u8]) -> Result<Content> {
        Content::parse(HEADER, "header", bytes)
    }

    fn parse(kind: u64, name: &str, bytes: &[u8]) -> Result<Content> {
        let altered = |what: &str| Error::new(Status::Corrupt, format!("the {name} {what}"));
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(altered("is not one of gpumem's, or was never written"));
        }
        let (body, sum) = bytes.split_at_checked(bytes.len().saturating_sub(SUM)).unwrap_or_default();
        if number(sum, 0) != Some(checksum(body)) {
            return Err(altered("does not match its checksum"));
        }
        let field = |i: usize| number(bytes, 8 + 8 * i).ok_or_else(|| altered("is too short"));
        if field(0)? != kind {
            return Err(altered("is of another kind"));
        }
        Content::new((field(1)?, field(2)?), field(3)?, field(4)?).map_err(|e| altered(&format!("says {}", e.message)))
    }

    /// Reads the footer that belongs to this header: the checksums of the chunks.
    pub fn sums(&self, footer: &[u8]) -> Result<Vec<u64>> {
        let other = Content::parse(FOOTER, "footer", footer)?;
        if other != *self || number(footer, TABLE - SUM) != Some(self.chunks()) {
            return Err(Error::new(Status::Corrupt, "header and footer are of different writes"));
        }
        let sums = (0..self.chunks()).map(|i| number(footer, TABLE + SUM * usize::try_from(i).ok()?));
        sums.collect::<Option<Vec<u64>>>().ok_or_else(|| Error::new(Status::Corrupt, "the footer is too short"))
    }
}

fn padded(bytes: u64) -> u64 {
    // `Content::new` keeps lengths far from an overflow.
    round_up(bytes, BLOCK).unwrap_or(u64::MAX)
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(SUM)?)?;
    field.try_into().ok().map(u64::from_le_bytes)
}

/// Puts the checksum of all before at the end.
fn seal(out: &mut [u8]) {
    let (body, sum) = out.split_at_mut(out.len().saturating_sub(SUM));
    sum.copy_from_slice(&checksum(body).to_le_bytes());
}

/// Bytes of the file of a slot of `bytes` of data, in chunks of `chunk_bytes`: the data, rounded up
/// to 4 KiB, with a header and a footer. `Invalid` for 0.
pub fn file_bytes(bytes: u64, chunk_bytes: u64) -> Result<u64> {
    Content::new((0, 0), bytes, chunk_bytes).map(|content| content.file_bytes())
}

/// A checksum of any bytes.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn blocks(content: &Content) -> (Vec<u8>, Vec<u8>, Vec<u64>) {
        let sums: Vec<u64> = (0..content.chunks()).map(|i| i * 0x9E37_79B9).collect();
        let (mut header, mut footer) = (vec![1; BLOCK as usize], vec![1; content.footer_bytes() as usize]);
        content.header(&mut header);
        content.footer(&sums, &mut footer);
        (header, footer, sums)
    }

    #[test]
    fn header_and_footer_say_what_was_put_in() {
        for (length, chunk, chunks, file) in [
            (1, 4096, 1, 3 * BLOCK),
            (4096, 4096, 1, 3 * BLOCK),
            (4097, 4096, 2, 4 * BLOCK),
            // The first table that takes a second block: 4096 - 56 - 8 bytes are 504 checksums.
            (504 * 4096, 4096, 504, 506 * BLOCK),
            (505 * 4096, 4096, 505, 508 * BLOCK),
        ] {
            let content = Content::new((3, 4), length, chunk).unwrap();
            assert_eq!((content.chunks(), content.file_bytes()), (chunks, file), "{length}");
            let (header, footer, sums) = blocks(&content);
            assert_eq!(Content::from_header(&header).unwrap(), content);
            assert_eq!(content.sums(&footer).unwrap(), sums);
        }
    }

    #[test]
    fn any_altered_byte_and_parts_of_two_writes_are_seen() {
        let content = Content::new((3, 4), 10_000, 4096).unwrap();
        let (mut header, mut footer, _) = blocks(&content);
        for i in 0..header.len() {
            header[i] ^= 1 << (i % 8);
            footer[i] ^= 1 << (i % 8);
            assert_eq!(Content::from_header(&header).unwrap_err().status, Status::Corrupt, "{i}");
            assert_eq!(content.sums(&footer).unwrap_err().status, Status::Corrupt, "{i}");
            header[i] ^= 1 << (i % 8);
            footer[i] ^= 1 << (i % 8);
        }
        for other in [((3, 5), 10_000, 4096), ((2, 4), 10_000, 4096), ((3, 4), 10_001, 4096), ((3, 4), 10_000, 8192)] {
            let other = Content::new(other.0, other.1, other.2).unwrap();
            assert!(other.sums(&footer).unwrap_err().message.contains("different writes"));
        }
        assert!(Content::from_header(&footer).is_err() && content.sums(&header).is_err());
        for short in [&header[..0], &header[..7], &header[..8], &header[..63]] {
            assert!(Content::from_header(short).is_err() && content.sums(short).is_err());
        }
    }

    #[test]
    fn lengths_that_would_overflow_are_refused() {
        for (length, chunk) in [(0, 4096), (u64::MAX, 4096), (1, 0), (1, 4095), (1, !4095)] {
            assert!(Content::new((0, 0), length, chunk).is_err(), "{length} {chunk}");
        }
        let longest = Content::new((0, 0), LONGEST, 4096).unwrap();
        assert!(longest.file_bytes() > LONGEST && longest.file_bytes() < u64::MAX / 2);
    }
}

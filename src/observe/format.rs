//! The file of a recording: a head, then blocks that can each be read alone. docs/spec/recording.md
//! describes it.

#![deny(unsafe_code, clippy::unwrap_used, clippy::indexing_slicing)]

use super::event::{Event, Kind};
use std::hash::Hasher;

/// The first bytes of every recording.
pub const MAGIC: [u8; 8] = *b"gpumemRC";
/// The version that is written. A reader accepts files of its own and of earlier versions.
pub const VERSION: u32 = 1;
/// Bytes of the head: [`MAGIC`], [`VERSION`], four zeros.
pub const HEAD: usize = 16;
/// The first bytes of every block.
pub const BLOCK_MAGIC: [u8; 4] = *b"gmBK";
/// Bytes of a block's head.
pub const BLOCK_HEAD: usize = 32;
/// The most bytes of a block's contents, packed or not. A block that claims more is damaged.
pub const MOST_BYTES: usize = 1 << 26;
/// The most bytes to which LZ4 expands one byte.
const MOST_GROWTH: usize = 255;
/// The most events in a block.
pub const MOST_EVENTS: usize = 1 << 14;

/// The contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// JSON: what was recorded, and by which process.
    Info = 1,
    /// Events of one thread.
    Events = 2,
    /// Numbered strings.
    Strings = 3,
    /// Numbered stacks: each a list of string numbers, innermost frame first.
    Stacks = 4,
    /// Totals so far; the last one says that nothing follows.
    Totals = 5,
}

/// A block's head as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// The number of a [`Holds`]; blocks with an unknown one are skipped.
    pub holds: u8,
    /// Bytes of the packed contents, which follow the head.
    pub packed: usize,
    /// Bytes of the contents.
    pub bytes: usize,
    /// The operating system's number of the thread whose events they are.
    pub thread: u32,
    /// How many entries the contents have.
    pub count: u32,
    checksum: u64,
}

fn checksum(head: &[u8], packed: &[u8]) -> u64 {
    let mut hash = twox_hash::XxHash3_64::with_seed(u64::from(VERSION));
    hash.write(head);
    hash.write(packed);
    hash.finish()
}

/// The head of a file.
pub fn head() -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend([0; 4]);
    out
}

/// A whole block, its contents packed.
pub fn block(holds: Holds, thread: u32, count: u32, contents: &[u8]) -> Vec<u8> {
    let packed = lz4_flex::block::compress(contents);
    let mut out = BLOCK_MAGIC.to_vec();
    out.extend([holds as u8, 0, 0, 0]);
    // Both are below MOST_BYTES by how blocks are made.
    out.extend((packed.len() as u32).to_le_bytes());
    out.extend((contents.len() as u32).to_le_bytes());
    out.extend(thread.to_le_bytes());
    out.extend(count.to_le_bytes());
    let sum = checksum(&out, &packed);
    out.extend(sum.to_le_bytes());
    out.extend(packed);
    out
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl BlockHead {
    /// Reads a head from the first bytes of `bytes`; `None` when they are not a head, or
    /// impossible.
    pub fn read(bytes: &[u8]) -> Option<BlockHead> {
        if bytes.get(..4)? != BLOCK_MAGIC {
            return None;
        }
        let head = BlockHead {
            holds: *bytes.get(4)?,
            packed: word(bytes, 8)? as usize,
            bytes: word(bytes, 12)? as usize,
            thread: word(bytes, 16)?,
            count: word(bytes, 20)?,
            checksum: u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?),
        };
        let possible = head.packed <= MOST_BYTES && head.bytes <= MOST_BYTES.min(head.packed * MOST_GROWTH);
        possible.then_some(head)
    }

    /// The packed contents of a block that begins at `bytes`; `None` when its checksum is wrong or
    /// it ends early.
    pub fn checked<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let packed = bytes.get(BLOCK_HEAD..BLOCK_HEAD + self.packed)?;
        (checksum(bytes.get(..24)?, packed) == self.checksum).then_some(packed)
    }

    /// Unpacks the contents; `None` if they are not as long as the head says.
    pub fn unpack(&self, packed: &[u8]) -> Option<Vec<u8>> {
        lz4_flex::block::decompress(packed, self.bytes).ok().filter(|c| c.len() == self.bytes)
    }
}

/// Appends a number, seven bits a byte, the lowest first.
pub fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Takes a number written by [`put`] off the front.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(n);
        }
    }
    None
}

fn zigzag(from: u64, to: u64) -> u64 {
    let d = to.wrapping_sub(from) as i64;
    ((d << 1) ^ (d >> 63)) as u64
}

fn unzigzag(from: u64, n: u64) -> u64 {
    from.wrapping_add((n >> 1) ^ (n & 1).wrapping_neg())
}

/// The previous event's fields; an event's fields are stored as differences from them.
#[derive(Clone, Copy)]
struct Before {
    time: u64,
    address: u64,
    stream: u64,
    arena: u32,
    device: u8,
}

const START: Before = Before { time: 0, address: 0, stream: 0, arena: 0, device: 0 };

const BYTES: u8 = 1;
const OTHER: u8 = 2;
const STREAM: u8 = 4;
const TAG: u8 = 8;
const ARENA: u8 = 16;
const STACK: u8 = 32;
const DEVICE: u8 = 64;

/// The contents of a block of events.
pub fn encode(events: &[Event]) -> Vec<u8> {
    let mut out = Vec::with_capacity(events.len() * 12);
    let mut before = START;
    for e in events {
        let mark = |differs, bit| if differs { bit } else { 0 };
        let mask = mark(e.bytes != 0, BYTES)
            | mark(e.other != 0, OTHER)
            | mark(e.stream != before.stream, STREAM)
            | mark(e.tag != 0, TAG)
            | mark(e.arena != before.arena, ARENA)
            | mark(e.stack != 0, STACK)
            | mark(e.device != before.device, DEVICE);
        out.extend([e.kind as u8, mask]);
        put(&mut out, zigzag(before.time, e.time));
        put(&mut out, zigzag(before.address, e.address));
        let fields = [
            (BYTES, e.bytes),
            (OTHER, e.other),
            (STREAM, e.stream),
            (TAG, e.tag),
            (ARENA, e.arena.into()),
            (STACK, e.stack.into()),
            (DEVICE, e.device.into()),
        ];
        fields.iter().filter(|(bit, _)| mask & bit != 0).for_each(|(_, n)| put(&mut out, *n));
        before = Before { time: e.time, address: e.address, stream: e.stream, arena: e.arena, device: e.device };
    }
    out
}

/// The events of a block; `None` when it is damaged. Events of an unknown kind are left out.
pub fn decode(mut bytes: &[u8], count: u32) -> Option<Vec<Event>> {
    // A row takes at least four bytes, so a false count allocates in proportion to the file at
    // most.
    let mut events = Vec::with_capacity((count as usize).min(bytes.len() / 4));
    let mut before = START;
    for _ in 0..count {
        let (&[kind, mask], rest) = bytes.split_first_chunk::<2>()?;
        bytes = rest;
        before.time = unzigzag(before.time, take(&mut bytes)?);
        before.address = unzigzag(before.address, take(&mut bytes)?);
        let mut field = |bit, otherwise: u64| match mask & bit {
            0 => Some(otherwise),
            _ => take(&mut bytes),
        };
        let (bytes_asked, other) = (field(BYTES, 0)?, field(OTHER, 0)?);
        before.stream = field(STREAM, before.stream)?;
        let tag = field(TAG, 0)?;
        before.arena = u32::try_from(field(ARENA, before.arena.into())?).ok()?;
        let stack = u32::try_from(field(STACK, 0)?).ok()?;
        before.device = u8::try_from(field(DEVICE, before.device.into())?).ok()?;
        let Some(kind) = Kind::from_number(kind) else { continue };
        events.push(Event {
            time: before.time,
            address: before.address,
            bytes: bytes_asked,
            other,
            stream: before.stream,
            tag,
            arena: before.arena,
            stack,
            kind,
            device: before.device,
        });
    }
    bytes.is_empty().then_some(events)
}

/// The contents of a block of strings.
pub fn encode_strings<'a>(strings: impl IntoIterator<Item = (u32, &'a str)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, text) in strings {
        put(&mut out, number.into());
        put(&mut out, text.len() as u64);
        out.extend(text.as_bytes());
    }
    out
}

/// The strings of a block.
pub fn decode_strings(mut bytes: &[u8]) -> Option<Vec<(u32, String)>> {
    let mut strings = Vec::new();
    while !bytes.is_empty() {
        let number = u32::try_from(take(&mut bytes)?).ok()?;
        let len = usize::try_from(take(&mut bytes)?).ok()?;
        let (text, rest) = bytes.split_at_checked(len)?;
        strings.push((number, String::from_utf8_lossy(text).into_owned()));
        bytes = rest;
    }
    Some(strings)
}

/// The contents of a block of stacks.
pub fn encode_stacks<'a>(stacks: impl IntoIterator<Item = (u32, &'a [u32])>) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, frames) in stacks {
        put(&mut out, number.into());
        put(&mut out, frames.len() as u64);
        frames.iter().for_each(|f| put(&mut out, u64::from(*f)));
    }
    out
}

/// The stacks of a block.
pub fn decode_stacks(mut bytes: &[u8]) -> Option<Vec<(u32, Vec<u32>)>> {
    let mut stacks = Vec::new();
    while !bytes.is_empty() {
        let number = u32::try_from(take(&mut bytes)?).ok()?;
        let len = usize::try_from(take(&mut bytes)?).ok().filter(|&n| n <= bytes.len())?;
        let frames = (0..len).map(|_| u32::try_from(take(&mut bytes)?).ok()).collect::<Option<Vec<_>>>()?;
        stacks.push((number, frames));
    }
    Some(stacks)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        let number = || prop_oneof![Just(0), 0..300_u64, any::<u64>()];
        let small = || prop_oneof![Just(0), 0..9_u32, any::<u32>()];
        let words = (number(), number(), number(), number(), number(), number());
        (words, small(), small(), 0..Kind::ALL.len(), any::<u8>()).prop_map(
            |((time, address, bytes, other, stream, tag), arena, stack, kind, device)| Event {
                time,
                address,
                bytes,
                other,
                stream,
                tag,
                arena,
                stack,
                kind: Kind::ALL[kind],
                device,
            },
        )
    }

    proptest! {
        #[test]
        fn events_come_back(events in proptest::collection::vec(event(), 0..200), thread: u32) {
            let whole = block(Holds::Events, thread, events.len() as u32, &encode(&events));
            let head = BlockHead::read(&whole).unwrap();
            prop_assert_eq!((head.holds, head.thread), (Holds::Events as u8, thread));
            let contents = head.checked(&whole).and_then(|packed| head.unpack(packed)).unwrap();
            prop_assert_eq!(decode(&contents, head.count).unwrap(), events);
        }

        /// Any changed byte is noticed, and garbage is refused.
        #[test]
        fn damage_is_noticed(events in proptest::collection::vec(event(), 1..40), at: usize, flip in 1..=255_u8) {
            let mut whole = block(Holds::Events, 7, events.len() as u32, &encode(&events));
            let at = at % whole.len();
            whole[at] ^= flip;
            let same = BlockHead::read(&whole).is_some_and(|head| head.checked(&whole).is_some());
            prop_assert!(!same, "byte {}", at);
        }

        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), count: u32) {
            let _ = decode(&bytes, count);
            let _ = decode_strings(&bytes);
            let _ = decode_stacks(&bytes);
            let _ = BlockHead::read(&bytes).map(|h| (h.checked(&bytes).is_some(), h.unpack(&bytes)));
        }
    }

    #[test]
    fn what_repeats_most_is_a_possible_block() {
        for len in (0..600).chain([10_000, MOST_BYTES]) {
            let whole = block(Holds::Strings, 0, 0, &vec![0; len]);
            assert_eq!(BlockHead::read(&whole).map(|head| head.bytes), Some(len));
        }
    }

    #[test]
    fn strings_and_stacks_come_back() {
        let strings = [(1, "main at a.c:3"), (9, "")];
        assert_eq!(
            decode_strings(&encode_strings(strings)).unwrap(),
            strings.map(|(n, s)| (n, s.to_string())).to_vec()
        );
        let stacks: [(u32, &[u32]); 2] = [(1, &[9, 1]), (2, &[])];
        assert_eq!(decode_stacks(&encode_stacks(stacks)).unwrap(), [(1, vec![9, 1]), (2, vec![])]);
    }
}

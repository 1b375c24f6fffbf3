//! A recording as read from a file: whole, or as much of it as a killed process left.

#![deny(unsafe_code, clippy::unwrap_used, clippy::indexing_slicing)]

use super::event::{Event, Kind};
use super::format::{self, BlockHead, BLOCK_HEAD, BLOCK_MAGIC, HEAD, MAGIC, VERSION};
use crate::base::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// An event and the thread on which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happened {
    /// What happened.
    pub event: Event,
    /// The operating system's number of the thread.
    pub thread: u32,
}

/// The contents of a file.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Facts: the process, its settings, the start time.
    pub info: Value,
    /// The events in the order of their times, which count from the start.
    pub events: Vec<Happened>,
    /// The strings, by number.
    pub strings: HashMap<u32, String>,
    /// The stacks, by number: string numbers, innermost frame first.
    pub stacks: HashMap<u32, Vec<u32>>,
    /// How many events are missing from the file, as far as it knows.
    pub lost: u64,
    /// Whether the recording was ended properly, not cut off with its process.
    pub complete: bool,
    /// Blocks that could not be read.
    pub damaged: u64,
    /// Bytes after the last whole block.
    pub cut_off: u64,
}

/// How many times its own length a damaged file may be read in vain: every head in it may falsely
/// claim everything after it.
const PATIENCE: usize = 16;

/// Whether a file that begins with these bytes is a recording.
pub fn is_recording(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

impl Recording {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Recording> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|mut f| f.read_to_end(&mut bytes));
        read.map_err(|e| Error::invalid(format!("{}: {e}", path.display())))?;
        Recording::read(&bytes).map_err(|e| e.context(path.display()))
    }

    /// Reads the bytes of a file.
    pub fn read(bytes: &[u8]) -> Result<Recording> {
        if !is_recording(bytes) {
            return Err(Error::invalid(
                "this is no recording: it does not begin with \"gpumemRC\"; record one with GPUMEM_RECORD=FILE or gpumem run --record",
            ));
        }
        let version = bytes.get(8..12).and_then(|b| Some(u32::from_le_bytes(b.try_into().ok()?)));
        match version {
            Some(1..=VERSION) => {}
            Some(other) => {
                return Err(Error::invalid(format!(
                    "the recording has version {other} of the format, and this gpumem reads up to {VERSION}; use a newer one"
                )))
            }
            None => return Err(Error::invalid("the recording ends within its first bytes")),
        }
        let mut recording = Recording::default();
        let mut rest = bytes.get(HEAD..).unwrap_or_default();
        let mut patience = bytes.len().saturating_mul(PATIENCE);
        while !rest.is_empty() {
            rest = recording.block(rest, &mut patience);
        }
        recording.join_stacks();
        let began = recording.info.get("clock_ns").and_then(Value::as_u64).unwrap_or(0);
        recording.events.iter_mut().for_each(|h| h.event.time = h.event.time.saturating_sub(began));
        // The sort is stable, so one thread's events of the same moment keep their order. Frees
        // come before allocations of that moment on other threads, which may have got the same
        // addresses.
        recording.events.sort_by_key(|h| (h.event.time, h.event.kind.allocates()));
        Ok(recording)
    }

    /// Gives all stacks that differ only inside gpumem, whose frames are left out, the lowest of
    /// their numbers.
    fn join_stacks(&mut self) {
        let mut numbers: Vec<u32> = self.stacks.keys().copied().collect();
        numbers.sort_unstable();
        let mut first: HashMap<&[u32], u32> = HashMap::new();
        let mut same: HashMap<u32, u32> = HashMap::new();
        for number in numbers {
            let Some(frames) = self.stacks.get(&number) else { continue };
            let one = *first.entry(frames.as_slice()).or_insert(number);
            if one != number {
                same.insert(number, one);
            }
        }
        if same.is_empty() {
            return;
        }
        for h in &mut self.events {
            h.event.stack = same.get(&h.event.stack).copied().unwrap_or(h.event.stack);
        }
    }

    /// Reads the block that `bytes` begin with, and returns what follows it. `patience` is how many
    /// more bytes may prove to be other than their head says.
    fn block<'a>(&mut self, bytes: &'a [u8], patience: &mut usize) -> &'a [u8] {
        let Some(head) = BlockHead::read(bytes) else { return self.resume(bytes) };
        let Some(rest) = bytes.get(BLOCK_HEAD + head.packed..) else { return self.resume(bytes) };
        let Some(packed) = head.checked(bytes) else {
            let Some(left) = patience.checked_sub(head.packed) else { return self.give_up(bytes) };
            *patience = left;
            return self.resume(bytes);
        };
        let read = head.unpack(packed).and_then(|contents| self.contents(&head, &contents));
        self.damaged += u64::from(read.is_none());
        rest
    }

    fn give_up<'a>(&mut self, bytes: &[u8]) -> &'a [u8] {
        self.cut_off = bytes.len() as u64;
        &[]
    }

    fn contents(&mut self, head: &BlockHead, contents: &[u8]) -> Option<()> {
        const INFO: u8 = format::Holds::Info as u8;
        const EVENTS: u8 = format::Holds::Events as u8;
        const STRINGS: u8 = format::Holds::Strings as u8;
        const STACKS: u8 = format::Holds::Stacks as u8;
        const TOTALS: u8 = format::Holds::Totals as u8;
        match head.holds {
            INFO => self.info = serde_json::from_slice(contents).ok()?,
            EVENTS => {
                let thread = head.thread;
                self.events
                    .extend(format::decode(contents, head.count)?.into_iter().map(|event| Happened { event, thread }));
            }
            STRINGS => self.strings.extend(format::decode_strings(contents)?),
            STACKS => self.stacks.extend(format::decode_stacks(contents)?),
            TOTALS => {
                let totals: Value = serde_json::from_slice(contents).ok()?;
                self.lost = totals.get("lost").and_then(Value::as_u64).unwrap_or(0);
                self.complete = totals.get("end").and_then(Value::as_bool).unwrap_or(false);
            }
            // A block of a later version.
            _ => {}
        }
        Some(())
    }

    /// Looks for the next block after one that cannot be read.
    fn resume<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let next = bytes.windows(BLOCK_MAGIC.len()).skip(1).position(|w| w == BLOCK_MAGIC);
        match next.and_then(|at| bytes.get(at + 1..)) {
            Some(rest) => {
                self.damaged += 1;
                rest
            }
            None => self.give_up(bytes),
        }
    }

    /// The string with a number; empty when there is none.
    pub fn string(&self, number: u32) -> &str {
        self.strings.get(&number).map_or("", String::as_str)
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: u32) -> Vec<&str> {
        self.stacks.get(&stack).map_or_else(Vec::new, |frames| frames.iter().map(|f| self.string(*f)).collect())
    }

    /// What is wrong with the file, for people; `None` if nothing is.
    pub fn faults(&self) -> Option<String> {
        let mut faults = Vec::new();
        if !self.complete {
            let why = "the process ended before the recording did, or the file could not be written further";
            faults.push(format!("{why}, so the last moments are missing"));
        }
        if self.lost > 0 {
            faults.push(format!("{} events were lost", self.lost));
        }
        if self.damaged > 0 {
            faults.push(format!("{} blocks are damaged and were passed over", self.damaged));
        }
        if self.cut_off > 0 {
            faults.push(format!("{} bytes at the end are no whole block", self.cut_off));
        }
        (!faults.is_empty()).then(|| faults.join("; "))
    }

    /// The names of arenas, from their `ArenaEnter` events.
    pub fn arena_names(&self) -> HashMap<u32, &str> {
        let entered = self.events.iter().map(|h| &h.event).filter(|e| e.kind == Kind::ArenaEnter);
        entered.map(|e| (e.arena, self.string(e.bytes as u32))).filter(|(_, name)| !name.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::observe::format::{block, encode, encode_strings, head, Holds};

    fn events(from: u64, n: u64) -> Vec<u8> {
        let events: Vec<_> =
            (from..from + n).map(|t| Event { address: t * 512, ..Event::new(Kind::Malloc, t) }).collect();
        block(Holds::Events, 5, n as u32, &encode(&events))
    }

    fn file(blocks: &[Vec<u8>]) -> Vec<u8> {
        [head(), blocks.concat()].concat()
    }

    #[test]
    fn blocks_are_put_in_order_and_the_end_is_noticed() {
        let totals = block(Holds::Totals, 0, 0, br#"{"lost":3,"end":true}"#);
        let strings = block(Holds::Strings, 0, 1, &encode_strings([(4, "step")]));
        let r = Recording::read(&file(&[events(50, 10), strings, events(0, 10), totals])).unwrap();
        assert_eq!(
            r.events.iter().map(|h| h.event.time).collect::<Vec<_>>(),
            [(0..10).collect::<Vec<_>>(), (50..60).collect()].concat()
        );
        assert_eq!((r.string(4), r.lost, r.complete, r.damaged, r.cut_off), ("step", 3, true, 0, 0));
        assert!(r.faults().unwrap().contains("3 events were lost"));
        // Times count from the begin.
        let info = block(Holds::Info, 0, 0, br#"{"clock_ns":40}"#);
        let r = Recording::read(&file(&[info, events(50, 3), events(39, 2)])).unwrap();
        assert_eq!(r.events.iter().map(|h| h.event.time).collect::<Vec<_>>(), [0, 0, 10, 11, 12]);
    }

    #[test]
    fn stacks_that_look_alike_are_one() {
        use crate::observe::format::encode_stacks;
        let stacks = block(Holds::Stacks, 0, 3, &encode_stacks([(1, &[7, 8][..]), (2, &[8]), (3, &[7, 8])]));
        let all: Vec<_> = (0..4).map(|n| Event { stack: n, ..Event::new(Kind::Malloc, n.into()) }).collect();
        let r = Recording::read(&file(&[stacks, block(Holds::Events, 1, 4, &encode(&all))])).unwrap();
        assert_eq!(r.events.iter().map(|h| h.event.stack).collect::<Vec<_>>(), [0, 1, 2, 1]);
    }

    #[test]
    fn what_a_cut_or_a_damaged_byte_leaves_is_read() {
        let whole = file(&[events(0, 100), events(100, 100), events(200, 100)]);
        let cut = Recording::read(&whole[..whole.len() - 1]).unwrap();
        assert_eq!((cut.events.len(), cut.complete, cut.damaged), (200, false, 0));
        assert!(cut.cut_off > 0);
        let mut damaged = whole.clone();
        let second = HEAD + events(0, 100).len();
        damaged[second + 40] ^= 1;
        let r = Recording::read(&damaged).unwrap();
        assert_eq!((r.events.len(), r.damaged, r.cut_off), (200, 1, 0));
        // A length that lies.
        damaged[second + 8] ^= 0xff;
        damaged[second + 10] ^= 0xff;
        assert_eq!(Recording::read(&damaged).unwrap().events.len(), 200);
    }

    #[test]
    fn every_whole_block_of_a_file_with_many_damaged_ones_is_read() {
        let mut blocks: Vec<_> = (0..400).map(|n| events(10 * n, 10)).collect();
        blocks.iter_mut().step_by(2).for_each(|block| block[40] ^= 1);
        let r = Recording::read(&file(&blocks)).unwrap();
        assert_eq!((r.events.len(), r.damaged, r.cut_off), (2000, 200, 0));
        // A whole block without what its head says: the blocks behind it are read.
        let other = block(Holds::Events, 5, 3, b"no events");
        let r = Recording::read(&file(&[other, events(0, 10)])).unwrap();
        assert_eq!((r.events.len(), r.damaged, r.cut_off), (10, 1, 0));
    }

    #[test]
    fn heads_that_claim_all_that_follows_are_not_all_believed() {
        let heads = 1000;
        let lies = (0..heads).map(|n| {
            let mut head = block(Holds::Events, 1, 1, &[]);
            head.truncate(BLOCK_HEAD);
            let rest = (heads - n - 1) * BLOCK_HEAD as u32;
            head[8..12].copy_from_slice(&rest.to_le_bytes());
            head
        });
        let r = Recording::read(&file(&[vec![events(0, 10)], lies.collect()].concat())).unwrap();
        assert_eq!(r.events.len(), 10);
        assert!(r.damaged < 100 && r.cut_off > 0, "{} were looked at", r.damaged);
    }

    #[test]
    fn every_cut_is_readable_or_says_why_not() {
        let whole = file(&[events(0, 20), events(20, 20)]);
        let mut most = 0;
        for n in 0..whole.len() {
            match Recording::read(&whole[..n]) {
                Ok(r) => {
                    assert!(r.events.len() >= most);
                    most = r.events.len();
                }
                Err(e) => assert!(n < HEAD, "{n}: {e}"),
            }
        }
        assert_eq!(most, 20);
    }

    #[test]
    fn other_files_and_later_versions_are_refused() {
        assert!(Recording::read(b"Thread,Time").unwrap_err().message.contains("no recording"));
        let mut later = head();
        later[8] = 99;
        assert!(Recording::read(&later).unwrap_err().message.contains("version 99"));
    }
}

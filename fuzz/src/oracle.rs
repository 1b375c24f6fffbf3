//! The library's state as known from outside, and what must hold for it.

use crate::program::Program;
use std::collections::BTreeMap;

/// A failure: its kind, by which it is recognised while it is shrunk, what was seen, and a check in
/// C.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failure {
    pub kind: String,
    pub text: String,
    pub check: String,
    /// The thread that failed, with `op` its operation: past the last one if the program had ended.
    pub thread: usize,
    pub op: usize,
}

pub fn failure(kind: &str, text: String, check: String) -> Failure {
    Failure { kind: kind.to_owned(), text, check, ..Failure::default() }
}

/// A live allocation, by its address.
#[derive(Clone, Debug)]
pub struct Block {
    /// The name in C of the slot it was made in.
    pub name: String,
    pub usable: u64,
    pub stream: u64,
    pub id: u64,
    /// Bytes and value of its contents, if they are known.
    pub fill: Option<(u64, u8)>,
    pub evictable: bool,
    pub holds: u64,
    /// Whether it came from another process's or another allocation's memory, or was in an arena or
    /// a capture.
    pub unusual: bool,
}

#[derive(Default)]
pub struct Model {
    pub blocks: BTreeMap<u64, Block>,
    /// Blocks that one of the `ending` calls in progress may end, such as the exit of an arena.
    /// They are not in `blocks`, as another thread may get their memory before that call returns; a
    /// free by another thread takes them from here.
    pub in_doubt: BTreeMap<u64, Block>,
    ending: usize,
    /// Whether a free or a move may have been ordered wrongly; then contents prove nothing any
    /// more.
    pub racy: bool,
}

/// Whether no call may return the status: a bug in the library, a fork, or an unknown number.
pub fn is_wrong(status: i32) -> bool {
    !(0..=18).contains(&status) || status == 10 || status == 9
}

impl Model {
    pub fn get(&self, ptr: u64) -> Option<&Block> {
        self.blocks.get(&ptr).or_else(|| self.in_doubt.get(&ptr))
    }

    /// Takes out the block that a call frees.
    pub fn remove(&mut self, ptr: u64) -> Option<Block> {
        self.blocks.remove(&ptr).or_else(|| self.in_doubt.remove(&ptr))
    }

    /// Notes the start of a call that may end many blocks.
    pub fn begin_ending(&mut self) {
        self.ending += 1;
        let all = std::mem::take(&mut self.blocks);
        let (unusual, usual) = all.into_iter().partition(|(_, b)| b.unusual);
        self.blocks = usual;
        self.in_doubt.append(&mut { unusual });
    }

    /// Ends a call noted by `begin_ending`. After the last, the blocks that `is_live` confirms
    /// count again.
    pub fn finish_ending(&mut self, is_live: impl Fn(u64, &Block) -> bool) -> Result<(), Failure> {
        self.ending -= 1;
        if self.ending > 0 {
            return Ok(());
        }
        let in_doubt = std::mem::take(&mut self.in_doubt);
        in_doubt.into_iter().filter(|(ptr, b)| is_live(*ptr, b)).try_for_each(|(ptr, block)| self.add(ptr, block))
    }

    /// Adds a new allocation, which must overlap no other.
    pub fn add(&mut self, ptr: u64, block: Block) -> Result<(), Failure> {
        if self.ending > 0 && block.unusual {
            self.in_doubt.insert(ptr, block);
            return Ok(());
        }
        let end = ptr.saturating_add(block.usable.max(1));
        let near = self.blocks.range(..end).next_back().filter(|(at, b)| **at + b.usable.max(1) > ptr);
        if let Some((at, other)) = near {
            let text = format!(
                "{} at {ptr:#x} with {} usable bytes overlaps {} at {at:#x} with {}",
                block.name, block.usable, other.name, other.usable
            );
            let (a, b) = (&block.name, &other.name);
            let check = format!(
                "CHECK((char *){a} + {} <= (char *){b} || (char *){b} + {} <= (char *){a});",
                block.usable.max(1),
                other.usable.max(1)
            );
            return Err(failure("overlap", text, check));
        }
        self.blocks.insert(ptr, block);
        Ok(())
    }
}

/// Whether the live allocations are exactly those that the program's calls returned.
pub fn is_plain(program: &Program) -> bool {
    let is_odd = |name: &str| ["capture", "import", "torch_", "sim_"].iter().any(|part| name.contains(part));
    !calls(program).any(is_odd)
}

pub fn calls(program: &Program) -> impl Iterator<Item = &str> {
    program.threads.iter().flatten().filter_map(|op| match op {
        crate::program::Op::Call { function, .. } => Some(function.as_str()),
        _ => None,
    })
}

//! What is to be laid out.
//!
//! Steps are positions in the execution order, counted from 0; ranges of them are half-open,
//! `[lower, upper)`. Bytes are `u64` and every sum is checked.

use crate::base::{Error, Result};
use std::fmt;

/// A position in the execution order.
pub type Step = u64;

/// Most buffers of one problem: indices are 32 bits wide in the solver, and a few values mark
/// special cases.
pub const MAX_BUFFERS: usize = (u32::MAX - 16) as usize;

/// Largest offset, size or sum of sizes accepted, bytes. No machine has addresses above it, and
/// below it no sum of two values can overflow.
pub const MAX_BYTES: u64 = 1 << 62;

/// Largest alignment accepted, bytes. It is more than any memory can have, and the padding of two
/// million buffers with it adds up to no more than [`MAX_BYTES`].
pub const MAX_ALIGNMENT: u64 = 1 << 40;

/// A half-open range of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interval {
    /// First step in it.
    pub lower: Step,
    /// First step after it.
    pub upper: Step,
}

impl Interval {
    /// `[lower, upper)`.
    pub const fn new(lower: Step, upper: Step) -> Interval {
        Interval { lower, upper }
    }

    /// Whether it contains no step.
    pub const fn is_empty(self) -> bool {
        self.lower >= self.upper
    }

    /// Whether both contain some step.
    pub fn overlaps(self, other: Interval) -> bool {
        self.lower.max(other.lower) < self.upper.min(other.upper)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.lower, self.upper)
    }
}

/// A buffer of a problem: its index, in the order of adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    /// The index into what is kept per buffer.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a buffer is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Made and used up within the run.
    #[default]
    Temporary = 0,
    /// Given by the caller for each run.
    Input = 1,
    /// Read by the caller after each run.
    Output = 2,
    /// Weights: they outlive the run.
    Parameter = 3,
    /// Never written.
    Constant = 4,
}

impl Kind {
    /// Every kind, in numeric order.
    pub const ALL: [Kind; 5] = [Kind::Temporary, Kind::Input, Kind::Output, Kind::Parameter, Kind::Constant];
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// No kind.
    pub const NONE: Kinds = Kinds(0);

    /// This set and `kind`.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Kinds {
        Kinds(self.0 | 1 << kind as u8)
    }

    /// Whether `kind` is in it.
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

/// Where a buffer may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Wherever it fits.
    #[default]
    Anywhere,
    /// At this offset of its arena and nowhere else, bytes.
    Fixed(u64),
    /// At this offset if that makes the arena no larger, bytes.
    Preferred(u64),
}

/// One buffer.
///
/// It occupies bytes `[offset, offset + size + guard)` of its arena at every step of `[lower,
/// upper)` that is in none of `gaps`. A buffer of no bytes, or live at no step, occupies nothing,
/// not even its guard. It gets an aligned offset without further meaning, which others may have
/// too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Bytes, without the guard.
    pub size: u64,
    /// First step at which it holds something.
    pub lower: Step,
    /// First step after its last use.
    pub upper: Step,
    /// Ranges of steps at which it holds nothing: in order, not touching, inside `[lower, upper)`.
    /// Its contents do not survive a gap; its offset does.
    pub gaps: Vec<Interval>,
    /// Its offset is a multiple of this power of two.
    pub alignment: u64,
    /// Bytes after it that nothing else may use while it is live.
    pub guard: u64,
    /// Where it may go.
    pub place: Place,
    /// The arena it must be in; `None` for the first with room.
    pub arena: Option<u32>,
    /// What it is for.
    pub kind: Kind,
    /// A name for people, and for sharing with another plan.
    pub name: Option<Box<str>>,
}

impl Buffer {
    /// A temporary of `size` bytes, live in `[lower, upper)`, that may go anywhere.
    pub fn new(size: u64, lower: Step, upper: Step) -> Buffer {
        Buffer {
            size,
            lower,
            upper,
            gaps: Vec::new(),
            alignment: 1,
            guard: 0,
            place: Place::Anywhere,
            arena: None,
            kind: Kind::Temporary,
            name: None,
        }
    }

    /// Whether it occupies any byte at any step.
    pub fn occupies(&self) -> bool {
        self.size > 0 && self.live().next().is_some()
    }

    /// Bytes it occupies while live: its size and its guard.
    pub fn extent(&self) -> u64 {
        self.size + self.guard
    }

    /// The ranges of steps at which it is live, in order, none empty.
    pub fn live(&self) -> impl Iterator<Item = Interval> + Clone + '_ {
        let stretch = |k: usize| {
            let lower = k.checked_sub(1).and_then(|k| self.gaps.get(k)).map_or(self.lower, |gap| gap.upper);
            Interval { lower, upper: self.gaps.get(k).map_or(self.upper, |gap| gap.lower) }
        };
        (0..=self.gaps.len()).map(stretch).filter(|live| !live.is_empty())
    }

    /// Checks everything that does not depend on other buffers.
    pub(super) fn check(&self, arenas: usize) -> Result<()> {
        if self.upper < self.lower {
            return Err(Error::invalid(format!(
                "upper, {}, is less than lower, {}: upper is the first step after the last one",
                self.upper, self.lower
            )));
        }
        if !self.alignment.is_power_of_two() || self.alignment > MAX_ALIGNMENT {
            return Err(Error::invalid(format!(
                "alignment {} is not a power of two from 1 to 2^40; use 1 for none",
                self.alignment
            )));
        }
        if self.size > MAX_BYTES || self.guard > MAX_BYTES - self.size {
            return Err(Error::invalid(format!(
                "size {} and guard {} together are more than 2^62 bytes",
                self.size, self.guard
            )));
        }
        if let Place::Fixed(at) | Place::Preferred(at) = self.place {
            if at % self.alignment != 0 {
                return Err(Error::invalid(format!(
                    "offset {at} is not a multiple of its alignment {}",
                    self.alignment
                )));
            }
            if at > MAX_BYTES - self.extent() {
                return Err(Error::invalid(format!("offset {at} and {} bytes pass 2^62", self.extent())));
            }
        }
        if self.arena.is_some_and(|a| a as usize >= arenas) {
            return Err(Error::invalid(format!(
                "arena {} does not exist; there are {arenas}",
                self.arena.unwrap_or_default()
            )));
        }
        let mut from = self.lower;
        for gap in &self.gaps {
            if gap.is_empty() || gap.lower < from || gap.upper > self.upper {
                return Err(Error::invalid(format!(
                    "gap {gap} must be non-empty, after the gap before it and inside {}",
                    Interval::new(self.lower, self.upper)
                )));
            }
            from = gap.upper;
        }
        Ok(())
    }
}

/// Bytes of an arena that no buffer may use during some steps: memory of another plan, or of the
/// caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The arena.
    pub arena: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// The steps during which nothing else may be there.
    pub during: Interval,
}

impl Reserved {
    /// Whether it keeps any byte clear at any step.
    pub(super) fn blocks(&self) -> bool {
        self.size > 0 && !self.during.is_empty()
    }
}

/// One arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arena {
    /// A name for people.
    pub name: Option<Box<str>>,
    /// Most bytes, or `None` for as many as it takes.
    pub capacity: Option<u64>,
}

/// Buffers, and the arenas that they are laid out in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    buffers: Vec<Buffer>,
    reserved: Vec<Reserved>,
    arenas: Vec<Arena>,
    left_out: Kinds,
    reuse: bool,
    unit: u64,
}

impl Default for Problem {
    fn default() -> Problem {
        Problem::new()
    }
}

impl Problem {
    /// No buffers, and one arena without a capacity.
    pub fn new() -> Problem {
        Problem {
            buffers: Vec::new(),
            reserved: Vec::new(),
            arenas: vec![Arena::default()],
            left_out: Kinds::NONE,
            reuse: true,
            unit: 1,
        }
    }

    /// Adds a buffer.
    pub fn add(&mut self, buffer: Buffer) -> Result<BufferId> {
        let id = self.buffers.len();
        if id >= MAX_BUFFERS {
            return Err(Error::invalid(format!("a plan holds at most {MAX_BUFFERS} buffers")));
        }
        buffer.check(self.arenas.len()).map_err(|e| match &buffer.name {
            Some(name) => e.context(format_args!("buffer {id} ({name})")),
            None => e.context(format_args!("buffer {id}")),
        })?;
        self.buffers.push(buffer);
        Ok(BufferId(id as u32))
    }

    /// Changes the size of a buffer, which then needs a new layout.
    pub fn resize(&mut self, id: BufferId, size: u64) -> Result<()> {
        let arenas = self.arenas.len();
        let count = self.buffers.len();
        let Some(buffer) = self.buffers.get_mut(id.index()) else {
            return Err(Error::invalid(format!("buffer {id} does not exist; there are {count}")));
        };
        let before = std::mem::replace(&mut buffer.size, size);
        let checked = buffer.check(arenas).map_err(|e| e.context(format_args!("buffer {id}")));
        if checked.is_err() {
            buffer.size = before;
        }
        checked
    }

    /// Keeps a range of bytes free of buffers.
    pub fn reserve(&mut self, reserved: Reserved) -> Result<()> {
        if reserved.arena as usize >= self.arenas.len() {
            return Err(Error::invalid(format!(
                "reserved range: arena {} does not exist; there are {}",
                reserved.arena,
                self.arenas.len()
            )));
        }
        if reserved.size > MAX_BYTES || reserved.offset > MAX_BYTES - reserved.size {
            return Err(Error::invalid(format!(
                "reserved range: offset {} and size {} together pass 2^62",
                reserved.offset, reserved.size
            )));
        }
        if reserved.during.upper < reserved.during.lower {
            return Err(Error::invalid(format!("reserved range: steps {} end before they start", reserved.during)));
        }
        self.reserved.push(reserved);
        Ok(())
    }

    /// Limits the first arena, the only one unless [`Problem::add_arena`] was called.
    pub fn set_capacity(&mut self, capacity: Option<u64>) {
        if let Some(arena) = self.arenas.first_mut() {
            arena.capacity = capacity;
        }
    }

    /// Limits any arena.
    pub fn set_arena_capacity(&mut self, arena: u32, capacity: Option<u64>) -> Result<()> {
        let count = self.arenas.len();
        let Some(arena) = self.arenas.get_mut(arena as usize) else {
            return Err(Error::invalid(format!("arena {arena} does not exist; there are {count}")));
        };
        arena.capacity = capacity;
        Ok(())
    }

    /// Adds an arena. A buffer bound to none goes to the first arena, in order of adding, that has
    /// room for it.
    pub fn add_arena(&mut self, arena: Arena) -> u32 {
        self.arenas.push(arena);
        self.arenas.len() as u32 - 1
    }

    /// Kinds that get no slot: their memory is the caller's business.
    pub fn set_left_out(&mut self, kinds: Kinds) {
        self.left_out = kinds;
    }

    /// Sets whether buffers that are not live together may share bytes (the default). If not, each
    /// has bytes of its own, which helps to find out whether a wrong result comes from sharing.
    pub fn set_reuse(&mut self, reuse: bool) {
        self.reuse = reuse;
    }

    /// Makes every offset a multiple of `unit` bytes, which need not be a power of two. Set it to
    /// the size of the buffers' elements for offsets that can count elements; 1 means no unit.
    pub fn set_unit(&mut self, unit: u64) -> Result<()> {
        if unit == 0 || unit > MAX_BYTES {
            return Err(Error::invalid(format!("unit {unit} must be from 1 to 2^62 bytes")));
        }
        self.unit = unit;
        Ok(())
    }

    /// The buffers, in order of adding.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The reserved ranges.
    pub fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// The arenas; never empty.
    pub fn arenas(&self) -> &[Arena] {
        &self.arenas
    }

    /// The kinds that get no slot.
    pub fn left_out(&self) -> Kinds {
        self.left_out
    }

    /// Whether buffers may share bytes at different steps.
    pub fn reuse(&self) -> bool {
        self.reuse
    }

    /// What every offset is a multiple of, bytes.
    pub fn unit(&self) -> u64 {
        self.unit
    }
}

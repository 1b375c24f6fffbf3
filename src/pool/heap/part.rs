//! A stream's part of a capture arena, as its heaps know it: which stream uses it, and what is
//! noted of its large allocations.
//!
//! One stream's allocations are told apart by their order: the i-th large one of the real capture
//! gets the place of the i-th recorded one, if its size is the same and the place is free. Any
//! other is a *deviation*, and is served as without a layout. Small allocations live in slabs and
//! are neither recorded nor laid out.

use crate::base::sync::AtomicU64;
use crate::pool::types::{Rank, Ranked};
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// What a handle stands for when it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Now {
    /// The stream with this identity, which is not being captured.
    Idle(u64),
    /// A captured stream, which cannot be asked for its identity.
    Captured,
}

/// The stream that uses a part of an arena.
pub(crate) struct User {
    /// The identity of the stream that was last seen idle; `None` when none was.
    pub(crate) id: Option<u64>,
    /// Whether the stream has allocated or freed outside captures since the part last changed
    /// hands.
    pub(crate) eager: bool,
    /// When the stream was last met in a capture, or announced for one, by the order's count; 0
    /// before.
    pub(crate) met: u64,
}

impl User {
    pub(crate) fn new(now: Now) -> User {
        let id = match now {
            Now::Idle(id) => Some(id),
            Now::Captured => None,
        };
        User { id, eager: false, met: 0 }
    }
}

/// One large allocation of a recorded run. Births and deaths are counted together, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Bytes, a multiple of 512.
    pub size: u64,
    /// Its offset is a multiple of this power of two.
    pub align: u64,
    /// When it was made.
    pub birth: u64,
    /// When it was freed; `None` when it was not.
    pub death: Option<u64>,
}

/// Where a layout puts one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Bytes, as recorded.
    pub size: u64,
    /// Bytes from the start of the span, a multiple of 512.
    pub offset: u64,
}

/// A layout for the large allocations of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its length, bytes.
    pub bytes: u64,
    /// Its start is a multiple of this power of two.
    pub align: u64,
    /// The places, in the order in which the allocations are made.
    pub placed: Vec<Placed>,
}

/// What is noted of one stream's allocations in an arena.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) clock: u64,
    /// Recorded allocations in the order of birth; `None` if the arena does not record.
    pub(crate) lives: Option<Vec<Life>>,
    /// Positions in `lives` of live allocations, by address.
    pub(crate) living: HashMap<u64, usize>,
    pub(crate) plan: Option<LayoutInUse>,
}

/// A layout in use.
pub(crate) struct LayoutInUse {
    pub(crate) span: Arc<Span>,
    /// The heap that consists of the span.
    pub(crate) heap: u32,
    /// Where the span starts.
    pub(crate) base: u64,
    /// How many large allocations have been made since the layout came into use.
    pub(crate) next: usize,
}

impl Notes {
    pub(crate) fn new(record: bool) -> Notes {
        Notes { lives: record.then(Vec::new), ..Notes::default() }
    }

    /// Whether no block may grow in place: that could not be laid out.
    pub(crate) fn is_laid_out(&self) -> bool {
        self.lives.is_some() || self.plan.is_some()
    }

    /// Notes an allocation, if the arena records.
    pub(crate) fn born(&mut self, addr: u64, size: u64, align: u64) {
        let Some(lives) = &mut self.lives else { return };
        self.living.insert(addr, lives.len());
        lives.push(Life { size, align, birth: self.clock, death: None });
        self.clock += 1;
    }

    /// Notes, if the arena records, that the block at `addr` is being freed.
    pub(crate) fn died(&mut self, addr: u64) {
        if let (Some(lives), Some(i)) = (&mut self.lives, self.living.remove(&addr)) {
            if let Some(life) = lives.get_mut(i) {
                life.death = Some(self.clock);
                self.clock += 1;
            }
        }
    }

    /// The heap and the address for the next large allocation, if the layout has a place for it.
    pub(crate) fn next_place(&mut self, size: u64, align: u64, counts: &Counts) -> Option<(u32, u64)> {
        let plan = self.plan.as_mut()?;
        let found = plan.span.placed.get(plan.next).filter(|p| p.size == size).map(|p| plan.base + p.offset);
        plan.next = plan.next.saturating_add(1);
        let found = found.filter(|a| a.is_multiple_of(align));
        if found.is_none() {
            counts.deviations.fetch_add(1, Relaxed);
        }
        found.map(|addr| (plan.heap, addr))
    }
}

/// An allocation of a route.
pub(crate) struct Made {
    pub(crate) addr: u64,
    /// The route's number.
    pub(crate) route: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    /// Every heap of the arena.
    pub(crate) heaps: Ranked<Vec<u32>, { Rank::PartHeaps as u8 }>,
    pub(crate) peak: AtomicU64,
    pub(crate) total: AtomicU64,
    pub(crate) allocations: AtomicU64,
    pub(crate) deviations: AtomicU64,
    /// What aborts of the arena's routes free, by id, those freed since included.
    pub(crate) made: Ranked<FxHashMap<u64, Made>, { Rank::Made as u8 }>,
}

/// One stream's part of an arena.
pub(crate) struct StreamPart {
    pub(crate) key: usize,
    /// The lane of the heap for allocations without a place in a layout.
    pub(crate) lane: u32,
    pub(crate) monotone: bool,
    /// The heap of `lane`, then those of layouts.
    pub(crate) heaps: Ranked<Vec<u32>, { Rank::PartHeaps as u8 }>,
    /// Which stream the handle last stood for.
    pub(crate) user: Ranked<User, { Rank::User as u8 }>,
    pub(crate) notes: Ranked<Notes, { Rank::Leaf as u8 }>,
    pub(crate) counts: Arc<Counts>,
}

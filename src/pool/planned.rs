//! Dry runs of captures: how long each large allocation lived, and where a layout made of that puts the next run's.
//!
//! The allocations of one stream are told apart by their order: the i-th large one of the real capture gets the place of
//! the i-th that was recorded, when its size is the same and the place is free. Anything else is a *deviation*, and served
//! as it would be without a layout. Small allocations live in slabs and are neither recorded nor laid out.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::heap::HeapState;
use super::members::Place;
use super::private::{Counts, StreamPart};
use super::region::GRANULE;
use super::{lock, AllocRequest, Pool};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

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
    /// From the start of the span, bytes, a multiple of 512.
    pub offset: u64,
}

/// A layout for the large allocations of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its length.
    pub bytes: u64,
    /// Its start is a multiple of this power of two.
    pub align: u64,
    /// In the order in which the allocations are made.
    pub placed: Vec<Placed>,
}

/// What is noted of one stream's allocations in an arena.
#[derive(Default)]
pub(super) struct Notes {
    clock: u64,
    /// In the order of birth; `None` unless they are recorded.
    pub(super) lives: Option<Vec<Life>>,
    /// Positions in `lives` of those that live, by address.
    living: HashMap<u64, usize>,
    pub(super) plan: Option<Plan>,
}

/// A layout in use.
pub(super) struct Plan {
    pub(super) span: Arc<Span>,
    /// The heap that consists of the span.
    pub(super) heap: u32,
    /// Where it starts.
    pub(super) base: u64,
    /// How many large allocations were made since.
    pub(super) next: usize,
}

impl Notes {
    pub(super) fn new(record: bool) -> Notes {
        Notes { lives: record.then(Vec::new), ..Notes::default() }
    }

    pub(super) fn born(&mut self, addr: u64, size: u64, align: u64) {
        let Some(lives) = &mut self.lives else { return };
        self.living.insert(addr, lives.len());
        lives.push(Life { size, align, birth: self.clock, death: None });
        self.clock += 1;
    }

    pub(super) fn died(&mut self, addr: u64) {
        if let (Some(lives), Some(i)) = (&mut self.lives, self.living.remove(&addr)) {
            if let Some(life) = lives.get_mut(i) {
                life.death = Some(self.clock);
                self.clock += 1;
            }
        }
    }

    /// The heap and the address for the next large allocation, if the layout has it.
    fn next_place(&mut self, size: u64, align: u64, counts: &Counts) -> Option<(u32, u64)> {
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

impl HeapState {
    /// The number of a ready region that has all of `[addr, addr + size)`.
    fn ready_around(&self, addr: u64, size: u64) -> Option<u32> {
        self.regions.ready_from(size).find(|&r| {
            let g = self.regions.get(r);
            g.addr <= addr && addr + size <= g.end()
        })
    }
}

impl Pool {
    /// A large block at the place that the layout has for it, if there is one and it is free.
    pub(super) fn place_as_planned(
        &self,
        member: &StreamPart,
        req: &AllocRequest,
        size: u64,
        align: u64,
    ) -> Option<u64> {
        let align = align.max(GRANULE);
        let (heap, addr) = lock(&member.notes).next_place(size, align, &member.counts)?;
        let heap = self.heap(heap)?;
        let mut st = heap.lock();
        st.settle(&self.order, &self.index);
        let Some(r) = st.ready_around(addr, size) else {
            member.counts.deviations.fetch_add(1, Relaxed);
            return None;
        };
        let cut = st.regions.cut(r, addr, size);
        st.note_taken();
        let block = self.block(heap, &mut st, req, align);
        let addr = st.hand_out(cut, block, &self.index);
        st.admit(req, Place::Block { region: cut }, self.number);
        heap.publish(&st);
        Some(addr)
    }
}

//! The state of the search: the skyline, the unplaced items, and their immediate consequences.
//!
//! Invariants, checked by [`State::validate`] in debug builds whenever the state has settled:
//! - `slack = capacity − floor − Σ sizes of the unplaced items that cover the section − what
//!   obstacles take above the floor`, and `slack ≥ 0`, in unfinished sections;
//! - `left` is the number of unplaced items that cover the section; a section is finished when it
//!   is 0;
//! - `choices` is the number of items that cover the section, fit its niche and can stand on its
//!   floor, or `NO_NICHE` outside niches. A section with no choices has items that fit but cannot
//!   stand there, and must rise.

use super::super::blocks::Blocks;
use super::super::instance::{in_order, Instance, Item};
use super::super::numbers::mix;
use super::trail::{Change, Run, Trail};

/// Floor of a finished section: above every other.
pub(super) const FINISHED: u64 = u64::MAX;
/// `choices` of a section outside niches.
pub(super) const NO_NICHE: u32 = u32::MAX;
/// Trail flag, above any number of choices: the section passed a block, and its old `next` follows.
const PASSED: u32 = 1 << 31;
/// How fast the weight of old failures fades: each new one counts this much more.
const FADE: f64 = 1.0 / 0.995;
/// Above this, weights are scaled down, so that they stay finite.
const HEAVY: f64 = 1e100;

/// Most items for which debug builds validate the state.
const MOST_VALIDATED: usize = 24;

#[derive(Clone, Copy, Default)]
pub(super) struct Section {
    pub(super) floor: u64,
    pub(super) slack: u64,
    /// This section's part of the state's key: its floor, and the unplaced items that start here.
    pub(super) mark: u64,
    pub(super) choices: u32,
    /// The number of the lowest block above the floor.
    pub(super) next: u32,
}

/// The skyline and the unplaced items.
pub(super) struct State<'a> {
    pub(super) items: &'a [Item],
    /// By item, the heights within which it must lie; empty if all items may lie anywhere.
    bands: &'a [(u64, u64)],
    pub(super) blocks: Blocks,
    /// The initial floor of each section.
    floors: Vec<u64>,
    capacity: u64,
    /// Items by first section, as sets order them; and each item's place in that order.
    pub(super) by_start: Vec<u32>,
    bit: Vec<u32>,
    /// Per section boundary, the number of items that start before it.
    starting_before: Vec<u32>,
    /// Per section boundary, the set of items that end at it or earlier, in words that begin at
    /// `ending_from`. All of them start before it, so a set only has words for items that do: half
    /// of what all items would take.
    ending_by: Vec<u64>,
    ending_from: Vec<u32>,
    unplaced: Vec<u64>,
    /// The number of unplaced items.
    pub(super) remaining: u32,
    pub(super) sections: Vec<Section>,
    left: Vec<u32>,
    /// Per section, the weight of the failures it caused.
    pub(super) weight: Vec<f64>,
    bump: f64,
    pub(super) offsets: Vec<u64>,
    zobrist: Vec<u64>,
    /// The changes to undo; searches that take turns share it.
    pub(super) trail: Trail,
    /// Ranges of sections to check again.
    dirty: Vec<(u32, u32)>,
    /// Whether the last placement finished a section.
    pub(super) finished_any: bool,
    /// Looks at items, for the caller to charge.
    pub(super) looks: u64,
    /// Scratch of `count_choices`: changes in number and bytes from one section to the next.
    steps: Vec<(u32, u64)>,
    /// As `steps`, for items that fit but cannot stand.
    hidden: Vec<(u32, u64)>,
    /// Scratch of `look_up`: the end of each stretch, and the bottom of the lowest block above it.
    ceilings: Vec<(u32, u64)>,
}

fn mark_of(section: usize, floor: u64) -> u64 {
    mix(floor ^ (section as u64).wrapping_mul(0xa076_1d64_78bd_642f))
}

impl<'a> State<'a> {
    pub(super) fn new(instance: &'a Instance) -> State<'a> {
        let items = &instance.items[..];
        let sections = instance.totals.len();
        let by_start = in_order(items, |item| item.from, &mut || false).unwrap_or_default();
        let mut bit = vec![0; items.len()];
        let mut starting_before = vec![0; sections + 1];
        for (at, &i) in by_start.iter().enumerate() {
            bit[i as usize] = at as u32;
            starting_before[items[i as usize].from as usize + 1] = at as u32 + 1;
        }
        // Items that start before earlier boundaries also start before this one.
        for k in 0..sections {
            starting_before[k + 1] = starting_before[k + 1].max(starting_before[k]);
        }
        let words_at = |boundary: usize| starting_before[boundary].div_ceil(64) as usize;
        let mut ending_from = Vec::with_capacity(sections + 1);
        let mut words = 0;
        for boundary in 0..=sections {
            ending_from.push(words as u32);
            words += words_at(boundary);
        }
        let mut ending_by = vec![0; words];
        for (at, &i) in by_start.iter().enumerate() {
            ending_by[ending_from[items[i as usize].to as usize] as usize + at / 64] |= 1u64 << (at % 64);
        }
        // Items that end by earlier boundaries also end by this one.
        for boundary in 1..=sections {
            let (before, here) = (ending_from[boundary - 1] as usize, ending_from[boundary] as usize);
            for w in 0..words_at(boundary - 1) {
                ending_by[here + w] |= ending_by[before + w];
            }
        }
        let (blocks, floors) = instance.blocks();
        let hidden =
            if blocks.is_empty() && instance.bands.is_empty() { Vec::new() } else { vec![(0, 0); sections + 1] };
        State {
            items,
            bands: &instance.bands,
            blocks,
            floors,
            hidden,
            ceilings: Vec::new(),
            capacity: 0,
            by_start,
            bit,
            starting_before,
            ending_by,
            ending_from,
            unplaced: vec![0; items.len().div_ceil(64)],
            remaining: 0,
            sections: vec![Section::default(); sections],
            left: vec![0; sections],
            weight: vec![1.0; sections],
            bump: 1.0,
            offsets: vec![0; items.len()],
            zobrist: (0..items.len() as u64).map(|i| mix(i ^ 0x5bf0_3635)).collect(),
            trail: Trail::default(),
            steps: vec![(0, 0); sections + 1],
            dirty: Vec::new(),
            finished_any: false,
            looks: 0,
        }
    }

    /// Starts again with every item unplaced and this capacity; `false` if sums alone exceed it.
    pub(super) fn reset(&mut self, instance: &Instance, capacity: u64) -> bool {
        self.capacity = capacity;
        self.unplaced.fill(0);
        for i in 0..self.items.len() {
            self.unplaced[i / 64] |= 1 << (i % 64);
        }
        self.remaining = self.items.len() as u32;
        self.left.fill(0);
        for (k, section) in self.sections.iter_mut().enumerate() {
            let (floor, total, next) = (self.floors[k], instance.totals[k], self.blocks.lowest(k));
            let sum = floor + total + self.blocks.bytes(k, next);
            let Some(slack) = self.capacity.checked_sub(sum) else { return false };
            // In the top of another instance, some sections may have no items.
            let floor = if total == 0 { FINISHED } else { floor };
            *section = Section { floor, slack, mark: mark_of(k, floor), choices: NO_NICHE, next };
        }
        for (i, item) in self.items.iter().enumerate() {
            self.sections[item.from as usize].mark ^= self.zobrist[i];
            for k in item.from..item.to {
                self.left[k as usize] += 1;
            }
        }
        self.trail.clear();
        self.dirty.clear();
        true
    }

    /// Puts `item` on `floor`; `false` if that fails at once.
    pub(super) fn place(&mut self, item: usize, floor: u64) -> bool {
        let Item { from, to, size, align } = self.items[item];
        let offset = floor.next_multiple_of(align);
        let waste = offset - floor;
        self.finished_any = false;
        let bit = self.bit[item];
        self.unplaced[bit as usize / 64] &= !(1 << (bit % 64));
        self.remaining -= 1;
        self.offsets[item] = offset;
        let mut fits = true;
        for k in from as usize..to as usize {
            self.left[k] -= 1;
            let section = self.sections[k];
            debug_assert_eq!(section.floor, floor, "an item stands in a niche");
            let (mut top, next, _) = self.blocks.climb(k, section.next, offset + size);
            self.save(section, next);
            let hit = &mut self.sections[k];
            fits &= waste <= section.slack;
            // If the slack does not suffice, nothing reads it before it is undone.
            hit.slack = section.slack.wrapping_sub(waste);
            hit.choices = NO_NICHE;
            if self.left[k] == 0 {
                top = FINISHED;
            }
            self.finished_any |= top == FINISHED;
            hit.mark ^= mark_of(k, section.floor) ^ mark_of(k, top);
            (hit.floor, hit.next) = (top, next);
        }
        self.trail.placed(item, floor);
        self.sections[from as usize].mark ^= self.zobrist[item];
        self.dirty.push((from, to));
        fits && self.settle()
    }

    /// Leaves section `k` empty up to `height`; `false` if its slack does not suffice.
    pub(super) fn raise(&mut self, k: usize, height: u64) -> bool {
        let mut run = Run::default();
        let raised = self.lift(k, height, &mut run);
        self.trail.end(run);
        raised
    }

    /// As [`State::raise`], but records it in `run`, which the caller ends.
    fn lift(&mut self, k: usize, height: u64, run: &mut Run) -> bool {
        let section = self.sections[k];
        let Some((floor, next, slack)) = self.raised(k, height) else { return false };
        self.trail.extend(run, k, Some(section.floor));
        self.save(section, next);
        let mark = section.mark ^ mark_of(k, section.floor) ^ mark_of(k, floor);
        self.sections[k] = Section { floor, slack, mark, choices: NO_NICHE, next };
        true
    }

    /// Floor, next block and slack of section `k` if left empty up to `height`; `None` if too
    /// costly.
    pub(super) fn raised(&self, k: usize, height: u64) -> Option<(u64, u32, u64)> {
        let section = &self.sections[k];
        if height == FINISHED {
            return None;
        }
        let (floor, next, taken) = self.blocks.climb(k, section.next, height);
        let slack = section.slack.checked_sub(floor - section.floor - taken)?;
        Some((floor, next, slack))
    }

    /// Finds the ceilings above a niche. Returns whether items that fit it may be unable to stand.
    pub(super) fn look_up(&mut self, niche: (u32, u32)) -> bool {
        if self.hidden.is_empty() {
            return false;
        }
        self.ceilings.clear();
        let mut low = false;
        for k in niche.0..niche.1 {
            let block = self.blocks.from(k as usize, self.sections[k as usize].next).first();
            let ceiling = block.map_or(u64::MAX, |b| b.bottom);
            low |= ceiling < u64::MAX;
            match self.ceilings.last_mut() {
                Some(last) if last.1 == ceiling => last.0 = k + 1,
                _ => self.ceilings.push((k + 1, ceiling)),
            }
        }
        low || !self.bands.is_empty()
    }

    /// Whether an item can stand in the niche last given to [`State::look_up`], below its ceilings.
    pub(super) fn stands(&self, i: usize, floor: u64) -> bool {
        let item = &self.items[i];
        let offset = floor.next_multiple_of(item.align);
        let end = offset + item.size;
        let (low, high) = self.bands.get(i).copied().unwrap_or((0, u64::MAX));
        let first = self.ceilings.partition_point(|c| c.0 <= item.from);
        let mut from = item.from;
        low <= offset
            && end <= high
            && self.ceilings[first..].iter().all(|&(to, ceiling)| {
                let met = from < item.to;
                from = to;
                !met || end <= ceiling
            })
    }

    /// Whether two items are interchangeable.
    pub(super) fn are_alike(&self, a: usize, b: usize) -> bool {
        self.items[a] == self.items[b] && self.bands.get(a) == self.bands.get(b)
    }

    /// The lowest top of an obstacle over a niche; something may rest on it.
    pub(super) fn lowest_top(&self, niche: (u32, u32)) -> u64 {
        let top = |k: u32| self.blocks.from(k as usize, self.sections[k as usize].next).first().map(|b| b.end);
        (niche.0..niche.1).filter_map(top).min().unwrap_or(FINISHED)
    }

    /// The height that obstacles take in section `k` between its floor and `height`.
    fn taken_below(&self, k: usize, height: u64) -> u64 {
        let blocks = self.blocks.from(k, self.sections[k].next).iter();
        blocks.take_while(|b| b.bottom < height).map(|b| b.end.min(height) - b.bottom).sum()
    }

    /// Counts the choices of the niches in and around the dirty ranges, and raises sections without
    /// any, until nothing changes. `false` if some section cannot pay.
    pub(super) fn settle(&mut self) -> bool {
        while let Some((from, to)) = self.dirty.pop() {
            let (mut at, end) = self.with_neighbours(from as usize, to as usize);
            while at < end {
                let flat = self.flat_from(at, end);
                at = flat.1 as usize;
                let floor = self.sections[flat.0 as usize].floor;
                if floor == FINISHED {
                    continue;
                }
                let wall = self.wall(flat);
                if wall < floor || !self.is_niche(flat, floor) {
                    self.set_no_niche(flat);
                } else if !self.count_choices(flat, floor, wall) {
                    self.dirty.clear();
                    return false;
                }
            }
        }
        debug_assert!(self.items.len() > MOST_VALIDATED || self.validate());
        true
    }

    /// Counts the choices of one niche, and raises sections without any. `false` if some section
    /// cannot pay.
    fn count_choices(&mut self, niche: (u32, u32), floor: u64, wall: u64) -> bool {
        let (from, to) = (niche.0 as usize, niche.1 as usize);
        let low = self.look_up(niche);
        for w in self.words(niche) {
            let mut set = self.fitting(niche, w);
            self.looks += u64::from(set.count_ones());
            while set != 0 {
                let i = self.by_start[w * 64 + set.trailing_zeros() as usize] as usize;
                set &= set - 1;
                let item = &self.items[i];
                let stands = !low || self.stands(i, floor);
                let steps = if stands { &mut self.steps } else { &mut self.hidden };
                let (start, end) = (&mut steps[item.from as usize], item.to as usize);
                start.0 = start.0.wrapping_add(1);
                start.1 = start.1.wrapping_add(item.size);
                let end = &mut steps[end];
                end.0 = end.0.wrapping_sub(1);
                end.1 = end.1.wrapping_sub(item.size);
            }
        }
        let (mut choices, mut hidden, mut bytes) = (0u32, 0u32, 0u64);
        let mut raised = false;
        let mut fault = None;
        let mut run = Run::default();
        for k in from..to {
            let step = std::mem::take(&mut self.steps[k]);
            choices = choices.wrapping_add(step.0);
            bytes = bytes.wrapping_add(step.1);
            let mut taken = 0;
            if low {
                let step = std::mem::take(&mut self.hidden[k]);
                hidden = hidden.wrapping_add(step.0);
                bytes = bytes.wrapping_add(step.1);
                taken = self.taken_below(k, wall);
            }
            let section = self.sections[k];
            if choices == 0 && hidden == 0 {
                // All items left here cross a wall of the niche, so none can lie below the lower
                // wall.
                if fault.is_none() && self.lift(k, wall, &mut run) {
                    raised = true;
                } else {
                    fault = fault.or(Some(k));
                }
            } else {
                // Items that do not fit the niche lie above the wall. Obstacles and items that fit
                // may fail to fill the space below it.
                let full = floor + bytes + taken;
                if choices + hidden < self.left[k] && wall > full && wall - full > section.slack {
                    fault = fault.or(Some(k));
                }
                if section.choices != choices {
                    self.note_choices(&mut run, k);
                    self.sections[k].choices = choices;
                }
            }
        }
        self.trail.end(run);
        self.steps[to] = (0, 0);
        if let Some(last) = self.hidden.get_mut(to) {
            *last = (0, 0);
        }
        if let Some(k) = fault {
            self.blame(k);
            return false;
        }
        if raised {
            self.dirty.push(niche);
        }
        true
    }

    /// Marks sections that are in no niche as having no choices.
    fn set_no_niche(&mut self, flat: (u32, u32)) {
        let mut run = Run::default();
        for k in flat.0 as usize..flat.1 as usize {
            if self.sections[k].choices != NO_NICHE {
                self.note_choices(&mut run, k);
                self.sections[k].choices = NO_NICHE;
            }
        }
        self.trail.end(run);
    }

    /// Records the choices of section `k` before they change.
    #[inline]
    fn note_choices(&mut self, run: &mut Run, k: usize) {
        self.trail.extend(run, k, None);
        self.trail.word(self.sections[k].choices);
    }

    /// Adds weight to a section that ended a branch, so that it is asked earlier.
    pub(super) fn blame(&mut self, section: usize) {
        self.weight[section] += self.bump;
        self.bump *= FADE;
        if self.bump > HEAVY {
            for weight in &mut self.weight {
                *weight = (*weight / HEAVY).max(1.0 / HEAVY);
            }
            self.bump /= HEAVY;
        }
    }

    /// Records what cannot be recomputed of a section before its next block becomes `next`.
    #[inline]
    fn save(&mut self, section: Section, next: u32) {
        let mut choices = section.choices & !PASSED;
        if section.next != next {
            self.trail.word(section.next);
            choices |= PASSED;
        }
        self.trail.word(choices);
    }

    /// Restores the floor of section `k` and what [`State::save`] recorded, but not the slack.
    #[inline]
    fn restore(&mut self, k: usize, floor: u64) {
        let section = &mut self.sections[k];
        let choices = self.trail.pop_word();
        if choices & PASSED != 0 {
            section.next = self.trail.pop_word();
        }
        let choices = choices & !PASSED;
        section.choices = if choices == NO_NICHE & !PASSED { NO_NICHE } else { choices };
        section.mark ^= mark_of(k, section.floor) ^ mark_of(k, floor);
        section.floor = floor;
    }

    /// The length of the trail.
    pub(super) fn mark(&self) -> usize {
        self.trail.len()
    }

    /// Undoes everything since the trail had length `mark`.
    pub(super) fn undo(&mut self, mark: usize) {
        self.dirty.clear();
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Choices(to)) => {
                    for k in (self.trail.pop_word()..to).rev() {
                        self.sections[k as usize].choices = self.trail.pop_word();
                    }
                }
                Some(Change::Raised(to)) => {
                    let from = self.trail.pop_word();
                    let floor = self.trail.pop_height();
                    for k in (from as usize..to as usize).rev() {
                        let Section { floor: height, next, .. } = self.sections[k];
                        self.restore(k, floor);
                        let first = self.sections[k].next;
                        let passed = self.blocks.from(k, first).iter().take((next - first) as usize);
                        let taken: u64 = passed.map(|b| b.end - b.bottom).sum();
                        self.sections[k].slack += height - floor - taken;
                    }
                }
                Some(Change::Placed(item)) => {
                    let item = item as usize;
                    let bit = self.bit[item];
                    self.unplaced[bit as usize / 64] |= 1 << (bit % 64);
                    self.remaining += 1;
                    let floor = self.trail.pop_height();
                    let waste = self.offsets[item] - floor;
                    let Item { from, to, .. } = self.items[item];
                    self.sections[from as usize].mark ^= self.zobrist[item];
                    for k in (from as usize..to as usize).rev() {
                        self.restore(k, floor);
                        self.left[k] += 1;
                        self.sections[k].slack = self.sections[k].slack.wrapping_add(waste);
                    }
                }
                None => break,
            }
        }
    }

    /// Marks a range of sections to be checked by the next [`State::settle`].
    pub(super) fn touch(&mut self, from: u32, to: u32) {
        self.dirty.push((from, to));
    }

    fn is_unplaced(&self, item: usize) -> bool {
        let bit = self.bit[item] as usize;
        self.unplaced[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// The words of a set that may have items within `niche`: those of items that start in it.
    #[inline]
    pub(super) fn words(&self, niche: (u32, u32)) -> std::ops::Range<usize> {
        let before = |boundary: u32| self.starting_before[boundary as usize] as usize;
        before(niche.0) / 64..before(niche.1).div_ceil(64)
    }

    /// Word `w` of the set of unplaced items that lie within `niche`.
    #[inline]
    pub(super) fn fitting(&self, niche: (u32, u32), w: usize) -> u64 {
        let before = (self.starting_before[niche.0 as usize] as usize).saturating_sub(w * 64);
        let starting = u64::MAX.checked_shl(before as u32).unwrap_or(0);
        starting & self.ending_by[self.ending_from[niche.1 as usize] as usize + w] & self.unplaced[w]
    }

    /// The lower of the floors beside `flat`.
    pub(super) fn wall(&self, flat: (u32, u32)) -> u64 {
        let (left, right) = self.walls(flat);
        left.min(right)
    }

    fn is_niche(&self, flat: (u32, u32), floor: u64) -> bool {
        let (left, right) = self.walls(flat);
        left > floor && right > floor
    }

    fn walls(&self, flat: (u32, u32)) -> (u64, u64) {
        let beside = |k: Option<usize>| k.and_then(|k| self.sections.get(k)).map_or(FINISHED, |s| s.floor);
        (beside((flat.0 as usize).checked_sub(1)), beside(Some(flat.1 as usize)))
    }

    pub(super) fn niche_around(&self, section: usize) -> (u32, u32) {
        let floor = self.sections[section].floor;
        let from = self.sections[..section].iter().rev().take_while(|s| s.floor == floor).count();
        let to = self.sections[section..].iter().take_while(|s| s.floor == floor).count();
        ((section - from) as u32, (section + to) as u32)
    }

    /// The flat that starts at `at`, which is the start of one.
    fn flat_from(&self, at: usize, end: usize) -> (u32, u32) {
        let floor = self.sections[at].floor;
        let length = self.sections[at..end].iter().take_while(|s| s.floor == floor).count();
        (at as u32, (at + length) as u32)
    }

    /// Widens a range to whole flats and to the flats beside it, which may have become niches or
    /// ceased to be.
    fn with_neighbours(&self, from: usize, to: usize) -> (usize, usize) {
        let (mut from, _) = self.niche_around(from);
        let (_, mut to) = self.niche_around(to - 1);
        if from > 0 && self.sections[from as usize - 1].floor != FINISHED {
            from = self.niche_around(from as usize - 1).0;
        }
        if (to as usize) < self.sections.len() && self.sections[to as usize].floor != FINISHED {
            to = self.niche_around(to as usize).1;
        }
        (from as usize, to as usize)
    }

    /// Checks the invariants at the top of this file, from scratch: for debug builds.
    fn validate(&self) -> bool {
        (0..self.sections.len()).all(|k| {
            let section = &self.sections[k];
            let unplaced = |i: &usize| self.is_unplaced(*i);
            let covers = |i: &usize| self.items[*i].from as usize <= k && k < self.items[*i].to as usize;
            let mine: Vec<usize> = (0..self.items.len()).filter(unplaced).filter(covers).collect();
            let sizes: u64 = mine.iter().map(|&i| self.items[i].size).sum();
            if mine.is_empty() || section.floor == FINISHED {
                return mine.is_empty() && section.floor == FINISHED && self.left[k] == 0;
            }
            let flat = self.niche_around(k);
            let free = |i: usize, k: u32| {
                let (from, to) = (section.floor.next_multiple_of(self.items[i].align), self.items[i].size);
                let mut blocks = self.blocks.from(k as usize, self.sections[k as usize].next).iter();
                let (low, high) = self.bands.get(i).copied().unwrap_or((0, u64::MAX));
                blocks.all(|b| from + to <= b.bottom) && low <= from && from + to <= high
            };
            let stands = |i: usize| (self.items[i].from..self.items[i].to).all(|k| free(i, k));
            let fits = |i: &&usize| self.items[**i].from >= flat.0 && self.items[**i].to <= flat.1 && stands(**i);
            let choices =
                if self.is_niche(flat, section.floor) { mine.iter().filter(fits).count() as u32 } else { NO_NICHE };
            section.slack + section.floor + sizes + self.blocks.bytes(k, section.next) == self.capacity
                && self.left[k] as usize == mine.len()
                && section.choices == choices
        })
    }
}

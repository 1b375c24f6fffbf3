//! Exact search for a layout within a capacity: fill the niches of the skyline.
//!
//! Sections are the steps that matter (see [`super::instance`]); the *skyline* is the height up to which each section is
//! filled, its *floor*. A *niche* is a longest run of sections of equal floor with higher neighbours on both sides. As
//! floors only rise, whatever comes to lie at a niche's floor fits between its walls. So for any section of any niche
//! there are only these continuations: one of the unplaced items that cover the section and fit the niche is placed
//! there, or the section stays empty at that height and its floor rises to where something can rest. Each layout in
//! which nothing can be pushed down is reached by exactly one sequence of such choices, whatever section is asked next,
//! and some smallest layout is among them.
//!
//! That freedom is what makes the search quick. Every section has a *slack*: the bytes that may stay empty in it.
//! A section without candidates rises to its wall and pays from its slack; one that cannot pay ends the branch; the
//! section asked next is one with few continuations. Sections with nothing left to place separate the problem into
//! parts that are searched one by one. What failed once is not tried again: a table remembers floors and unplaced
//! items of failed parts. Restarts with other rules keep bad early choices from costing much.
//!
//! Related: the canonical depth-first search of MiniMalloc (Moffitt, ASPLOS 2024), which places in order of offset;
//! niche filling for strip packing (Burke, Kendall and Whitwell 2004); weights of failed constraints (Boussemart et al.
//! 2004); restarts after Luby, Sinclair and Zuckerman (1993).
//!
//! Invariants (checked by `validate` in debug builds after each placement):
//! - `slack = capacity − floor − Σ sizes of unplaced items covering the section`, and `slack ≥ 0`, in unfinished sections;
//! - `left` is the number of unplaced items covering the section; a section is finished when it is 0;
//! - `choices` is the number of items that cover the section and fit its niche, `NO_NICHE` outside of niches.

use super::budget::Budget;
use super::instance::{Instance, Item};
use super::order::Rule;

/// Floor of a finished section: above every other.
const FINISHED: u64 = u64::MAX;
/// `choices` of a section that is in no niche.
const NO_NICHE: u32 = u32::MAX;
/// Remembered failures: a power of two, 8 bytes each.
const TABLE: usize = 1 << 16;
/// Sections looked at in the time of a step of the budget.
const SECTIONS_A_STEP: u64 = 128;
/// How fast the weight of old failures fades: each new one counts this much more.
const FADE: f64 = 1.0 / 0.995;
/// Weights are scaled down beyond this, so that they stay finite.
const HEAVY: f64 = 1e100;

/// Most items whose sums are listed: 2^6 of them.
const MOST_SUMMED: u32 = 6;

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every item is placed; see [`Niche::offsets`].
    Found,
    /// There is no such layout.
    Impossible,
    /// The steps ran out.
    Unknown,
}

#[derive(Clone, Copy, Default)]
struct Section {
    floor: u64,
    slack: u64,
    /// Part of the key of a state: floor, and the unplaced items that start here.
    mark: u64,
    choices: u32,
}

/// An entry of the trail: how to go back.
enum Change {
    Section(u32, Section),
    Placed(u32),
}

/// A choice point: a niche's section and what can be done about it, and the parts that the present choice left.
struct Frame {
    key: u64,
    part: (u32, u32),
    section: u32,
    /// Where the floor rises to when the section stays empty at its height; `FINISHED` if that is no choice.
    rise: u64,
    /// Untried candidates: `candidates[next..end]`.
    first: u32,
    next: u32,
    end: u32,
    /// Unsolved parts: `parts[parts..]` as far as the next frame's.
    parts: u32,
    trail: u32,
}

/// The search over one instance with one capacity. Buffers are reused from run to run.
pub(super) struct Niche<'a> {
    items: &'a [Item],
    capacity: u64,
    words: usize,
    /// Per section boundary, a set of items: those that start at it or later, and those that end at it or earlier.
    starting_from: Vec<u64>,
    ending_by: Vec<u64>,
    unplaced: Vec<u64>,
    sections: Vec<Section>,
    left: Vec<u32>,
    weight: Vec<f64>,
    bump: f64,
    offsets: Vec<u64>,
    zobrist: Vec<u64>,
    table: Vec<u64>,
    trail: Vec<Change>,
    frames: Vec<Frame>,
    candidates: Vec<u32>,
    parts: Vec<(u32, u32)>,
    /// Per section boundary, the items that end at it, and those that start at it.
    ending_at: Vec<Vec<u32>>,
    starting_at: Vec<Vec<u32>>,
    /// Scratch of `can_meet`: what stacks on either side of a boundary can sum to.
    sums: [Vec<u64>; 2],
    /// Scratch of `count_choices`: changes in number and bytes from one section to the next.
    steps: Vec<(u32, u64)>,
    /// Ranges of sections to look at again.
    dirty: Vec<(u32, u32)>,
    finished_any: bool,
    /// Items have alignments: an item above a gap may hide a place for another, so that a search that found nothing
    /// proves nothing.
    exact: bool,
}

/// A well-mixed 64-bit value (Stafford's variant 13 of the murmur finaliser).
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Whether some height of `a` and some of `b` differ by no more than the lower one's slack.
fn meet(a: &[u64], slack_a: u64, b: &[u64], slack_b: u64) -> bool {
    let mut j = 0;
    for &x in a {
        // The first of `b` that `x` plus waste can reach or that can reach `x`.
        while j < b.len() && b[j] < x && x - b[j] > slack_b {
            j += 1;
        }
        if j < b.len() && (b[j] <= x || b[j] - x <= slack_a) {
            return true;
        }
    }
    false
}

fn mark_of(section: usize, floor: u64) -> u64 {
    mix(floor ^ (section as u64).wrapping_mul(0xa076_1d64_78bd_642f))
}

impl<'a> Niche<'a> {
    pub(super) fn new(instance: &'a Instance) -> Niche<'a> {
        let items = &instance.items[..];
        let sections = instance.totals.len();
        let words = items.len().div_ceil(64);
        let mut starting_from = vec![0; (sections + 1) * words];
        let mut ending_by = vec![0; (sections + 1) * words];
        for (i, item) in items.iter().enumerate() {
            let bit = 1u64 << (i % 64);
            for k in 0..=item.from as usize {
                starting_from[k * words + i / 64] |= bit;
            }
            for k in item.to as usize..=sections {
                ending_by[k * words + i / 64] |= bit;
            }
        }
        let mut ending_at = vec![Vec::new(); sections + 1];
        let mut starting_at = vec![Vec::new(); sections + 1];
        for (i, item) in items.iter().enumerate() {
            ending_at[item.to as usize].push(i as u32);
            starting_at[item.from as usize].push(i as u32);
        }
        Niche {
            items,
            ending_at,
            starting_at,
            sums: [Vec::new(), Vec::new()],
            capacity: 0,
            words,
            starting_from,
            ending_by,
            unplaced: vec![0; words],
            sections: vec![Section::default(); sections],
            left: vec![0; sections],
            weight: vec![1.0; sections],
            bump: 1.0,
            offsets: vec![0; items.len()],
            zobrist: (0..items.len() as u64).map(|i| mix(i ^ 0x5bf0_3635)).collect(),
            table: vec![0; TABLE],
            trail: Vec::new(),
            frames: Vec::new(),
            candidates: Vec::new(),
            parts: Vec::new(),
            steps: vec![(0, 0); sections + 1],
            dirty: Vec::new(),
            finished_any: false,
            exact: items.iter().all(|i| i.align == 1),
        }
    }

    /// Sets the capacity for the following runs. Weights stay: what was hard is still hard.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.table.fill(0);
    }

    /// Where each item was placed by the last run that found a layout.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Searches for at most `limit` steps. `rank` orders the candidates of a section, lowest first.
    pub(super) fn run(
        &mut self,
        instance: &Instance,
        rule: Rule,
        rank: &[u32],
        limit: u64,
        budget: &mut Budget<'_>,
    ) -> Outcome {
        if !self.reset(instance) {
            return Outcome::Impossible;
        }
        let sections = self.sections.len() as u32;
        self.dirty.push((0, sections));
        if !self.settle() {
            return self.nothing();
        }
        self.parts.clear();
        self.split((0, sections));
        let mut steps = 0;
        // The outermost parts are solved one by one, like those of a choice.
        while let Some(part) = self.parts.pop() {
            match self.solve(part, rule, rank, &mut steps, limit, budget) {
                Outcome::Found => {}
                other => return other,
            }
        }
        Outcome::Found
    }

    fn nothing(&self) -> Outcome {
        if self.exact {
            Outcome::Impossible
        } else {
            Outcome::Unknown
        }
    }

    fn reset(&mut self, instance: &Instance) -> bool {
        self.unplaced.fill(0);
        for i in 0..self.items.len() {
            self.unplaced[i / 64] |= 1 << (i % 64);
        }
        self.left.fill(0);
        for (k, section) in self.sections.iter_mut().enumerate() {
            let (floor, total) = (instance.floors[k], instance.totals[k]);
            let Some(slack) = self.capacity.checked_sub(floor + total) else { return false };
            // Nothing may cover a section of an instance that is the top of another.
            let floor = if total == 0 { FINISHED } else { floor };
            *section = Section { floor, slack, mark: mark_of(k, floor), choices: NO_NICHE };
        }
        for (i, item) in self.items.iter().enumerate() {
            self.sections[item.from as usize].mark ^= self.zobrist[i];
            for k in item.from..item.to {
                self.left[k as usize] += 1;
            }
        }
        self.trail.clear();
        self.frames.clear();
        self.candidates.clear();
        self.dirty.clear();
        true
    }

    /// Solves one part: depth-first over choices (any may do) and the parts that each leaves (all must do).
    fn solve(
        &mut self,
        part: (u32, u32),
        rule: Rule,
        rank: &[u32],
        steps: &mut u64,
        limit: u64,
        budget: &mut Budget<'_>,
    ) -> Outcome {
        let base = self.frames.len();
        let cost = 1 + self.sections.len() as u64 / SECTIONS_A_STEP;
        if !self.choose(part, rule, rank) {
            return self.nothing();
        }
        loop {
            *steps += 1;
            if *steps > limit || !budget.take(cost) {
                return Outcome::Unknown;
            }
            // Try the next choice of the frame on top, going back as far as it takes.
            while !self.advance() {
                self.remember_failure();
                self.frames.pop();
                if self.frames.len() == base {
                    return self.nothing();
                }
                self.undo_choice();
            }
            // Then the first of the parts it left, or of those that frames below still have.
            loop {
                let Some(frame) = self.frames.last() else { return Outcome::Found };
                if self.parts.len() > frame.parts as usize {
                    break;
                }
                self.candidates.truncate(frame.first as usize);
                self.frames.pop();
                if self.frames.len() == base {
                    return Outcome::Found;
                }
            }
            if let Some(part) = self.parts.pop() {
                if !self.choose(part, rule, rank) {
                    self.undo_choice();
                }
            }
        }
    }

    /// Pushes a frame for the section of `part` to ask next; `false` if the part is known to have no solution.
    fn choose(&mut self, part: (u32, u32), rule: Rule, rank: &[u32]) -> bool {
        let (from, to) = (part.0 as usize, part.1 as usize);
        let mut key = mix(u64::from(part.0) << 32 | u64::from(part.1));
        let mut best = (f64::MAX, from);
        for (k, section) in self.sections.iter().enumerate().take(to).skip(from) {
            key ^= section.mark;
            if section.choices != NO_NICHE {
                let choices = f64::from(section.choices) + if section.slack > 0 { 1.0 } else { 0.0 };
                let score = rule.score(choices, section.floor, self.capacity, self.weight[k]);
                if score < best.0 {
                    best = (score, k);
                }
            }
        }
        if self.table[key as usize & (TABLE - 1)] == key {
            return false;
        }
        let section = best.1;
        let niche = self.niche_around(section);
        let floor = self.sections[section].floor;
        let first = self.candidates.len();
        // The lowest thing that an item of this niche could rest on, if not the floor.
        let mut rise = self.wall(niche);
        let covering = section as u32;
        for w in 0..self.words {
            let mut set = self.fitting(niche, w);
            while set != 0 {
                let i = w * 64 + set.trailing_zeros() as usize;
                set &= set - 1;
                let item = &self.items[i];
                if item.from <= covering && covering < item.to {
                    self.candidates.push(i as u32);
                } else {
                    rise = rise.min(floor + item.size);
                }
            }
        }
        self.candidates[first..].sort_unstable_by_key(|&i| rank[i as usize]);
        if rise != FINISHED && rise - floor > self.sections[section].slack {
            rise = FINISHED;
        }
        self.frames.push(Frame {
            key,
            part,
            section: section as u32,
            rise,
            first: first as u32,
            next: first as u32,
            end: self.candidates.len() as u32,
            parts: self.parts.len() as u32,
            trail: self.trail.len() as u32,
        });
        true
    }

    /// Makes the next choice of the frame on top that does not fail at once, and finds the parts it leaves. `false`
    /// when there is none left.
    fn advance(&mut self) -> bool {
        loop {
            let Some(frame) = self.frames.last_mut() else { return false };
            let part = frame.part;
            let possible = if frame.next < frame.end {
                let at = frame.next as usize;
                frame.next += 1;
                let item = self.candidates[at] as usize;
                let tried = frame.first as usize..at;
                // Of items that are alike only the first is worth trying.
                let like = |&other: &u32| self.items[other as usize] == self.items[item];
                if self.candidates[tried].iter().any(like) {
                    continue;
                }
                let floor = self.sections[frame.section as usize].floor;
                self.place(item, floor)
            } else if frame.rise != FINISHED {
                let (section, rise) = (frame.section as usize, frame.rise);
                frame.rise = FINISHED;
                self.raise(section, rise);
                self.dirty.push((section as u32, section as u32 + 1));
                self.settle()
            } else {
                return false;
            };
            if possible {
                if self.finished_any {
                    self.split(part);
                } else {
                    self.parts.push(part);
                }
                return true;
            }
            self.undo_choice();
        }
    }

    /// Puts `item` on `floor`; `false` if that fails at once.
    fn place(&mut self, item: usize, floor: u64) -> bool {
        let Item { from, to, size, align } = self.items[item];
        let offset = floor.next_multiple_of(align);
        let waste = offset - floor;
        self.finished_any = false;
        self.trail.push(Change::Placed(item as u32));
        self.unplaced[item / 64] &= !(1 << (item % 64));
        self.offsets[item] = offset;
        let mut fits = true;
        for k in from as usize..to as usize {
            self.left[k] -= 1;
            let section = self.sections[k];
            self.trail.push(Change::Section(k as u32, section));
            let hit = &mut self.sections[k];
            fits &= waste <= section.slack;
            hit.slack = section.slack.saturating_sub(waste);
            hit.choices = NO_NICHE;
            let top = if self.left[k] == 0 { FINISHED } else { offset + size };
            self.finished_any |= top == FINISHED;
            hit.mark ^= mark_of(k, section.floor) ^ mark_of(k, top);
            hit.floor = top;
        }
        self.sections[from as usize].mark ^= self.zobrist[item];
        self.dirty.push((from, to));
        fits && self.settle()
    }

    /// Leaves `section` empty up to `floor`. The caller has checked its slack.
    fn raise(&mut self, k: usize, floor: u64) {
        let section = self.sections[k];
        self.trail.push(Change::Section(k as u32, section));
        let mark = section.mark ^ mark_of(k, section.floor) ^ mark_of(k, floor);
        self.sections[k] = Section { floor, slack: section.slack - (floor - section.floor), mark, choices: NO_NICHE };
    }

    /// Counts the choices of the niches in and around the dirty ranges, and raises what has none, until nothing
    /// changes. `false` if some section cannot pay.
    fn settle(&mut self) -> bool {
        while let Some((from, to)) = self.dirty.pop() {
            let (mut at, end) = self.with_neighbours(from as usize, to as usize);
            while at < end {
                let flat = self.flat_from(at, end);
                at = flat.1 as usize;
                let floor = self.sections[flat.0 as usize].floor;
                if floor == FINISHED {
                    continue;
                }
                if !self.can_meet(flat.0 as usize) || !self.can_meet(at) {
                    self.dirty.clear();
                    return false;
                }
                let wall = self.wall(flat);
                if wall < floor || !self.is_niche(flat, floor) {
                    self.set_choices(flat, |_| NO_NICHE);
                } else if !self.count_choices(flat, floor, wall) {
                    self.dirty.clear();
                    return false;
                }
            }
        }
        true
    }

    /// Counts the choices of one niche; raises sections that have none.
    fn count_choices(&mut self, niche: (u32, u32), floor: u64, wall: u64) -> bool {
        let (from, to) = (niche.0 as usize, niche.1 as usize);
        for w in 0..self.words {
            let mut set = self.fitting(niche, w);
            while set != 0 {
                let item = &self.items[w * 64 + set.trailing_zeros() as usize];
                set &= set - 1;
                let (start, end) = (&mut self.steps[item.from as usize], item.to as usize);
                start.0 = start.0.wrapping_add(1);
                start.1 = start.1.wrapping_add(item.size);
                let end = &mut self.steps[end];
                end.0 = end.0.wrapping_sub(1);
                end.1 = end.1.wrapping_sub(item.size);
            }
        }
        let (mut choices, mut bytes) = (0u32, 0u64);
        let mut raised = false;
        let mut fault = None;
        for k in from..to {
            let step = std::mem::take(&mut self.steps[k]);
            choices = choices.wrapping_add(step.0);
            bytes = bytes.wrapping_add(step.1);
            let section = self.sections[k];
            if choices == 0 {
                // Everything left here crosses a wall of the niche, so that it cannot lie below the lower one.
                if wall == FINISHED || wall - floor > section.slack {
                    fault = fault.or(Some(k));
                } else if fault.is_none() {
                    self.raise(k, wall);
                    raised = true;
                }
            } else {
                // What does not fit the niche lies above the wall; what fits may not reach it.
                if choices < self.left[k] && wall > floor + bytes && wall - floor - bytes > section.slack {
                    fault = fault.or(Some(k));
                }
                if section.choices != choices {
                    self.trail.push(Change::Section(k as u32, section));
                    self.sections[k].choices = choices;
                }
            }
        }
        self.steps[to] = (0, 0);
        if let Some(k) = fault {
            self.blame(k);
            return false;
        }
        if raised {
            self.dirty.push(niche);
        }
        true
    }

    /// Whether the floors on both sides of a boundary can become level: the next item that crosses it needs that. Only
    /// items that end at the boundary raise the left floor alone, and only those that start at it the right one.
    fn can_meet(&mut self, boundary: usize) -> bool {
        if boundary == 0 || boundary >= self.sections.len() {
            return true;
        }
        let (left, right) = (self.sections[boundary - 1], self.sections[boundary]);
        if left.floor == FINISHED || right.floor == FINISHED || left.floor == right.floor {
            return true;
        }
        let level = |low: &Section, high: &Section| low.floor < high.floor && high.floor - low.floor <= low.slack;
        if level(&left, &right) || level(&right, &left) {
            return true;
        }
        let mut sums = std::mem::take(&mut self.sums);
        let ending = self.sums_of(&self.ending_at[boundary], left.floor, &mut sums[0]);
        let starting = self.sums_of(&self.starting_at[boundary], right.floor, &mut sums[1]);
        let mut meets = true;
        if let (Some(ending), Some(_)) = (ending, starting) {
            if self.left[boundary - 1] > ending {
                meets = meet(&sums[0], left.slack, &sums[1], right.slack);
            }
        }
        self.sums = sums;
        if !meets {
            self.blame(boundary - 1);
            self.blame(boundary);
        }
        meets
    }

    /// The heights that `floor` and some of the unplaced items of `among` can add up to, sorted, and how many items
    /// those are; `None` if they are too many to say.
    fn sums_of(&self, among: &[u32], floor: u64, sums: &mut Vec<u64>) -> Option<u32> {
        sums.clear();
        sums.push(floor);
        let mut count = 0;
        for &i in among {
            if self.unplaced[i as usize / 64] >> (i % 64) & 1 == 1 {
                count += 1;
                if count > MOST_SUMMED {
                    return None;
                }
                for s in 0..sums.len() {
                    sums.push(sums[s] + self.items[i as usize].size);
                }
            }
        }
        sums.sort_unstable();
        Some(count)
    }

    fn set_choices(&mut self, flat: (u32, u32), choices: impl Fn(usize) -> u32) {
        for k in flat.0 as usize..flat.1 as usize {
            let section = self.sections[k];
            if section.choices != choices(k) {
                self.trail.push(Change::Section(k as u32, section));
                self.sections[k].choices = choices(k);
            }
        }
    }

    /// Makes a section that ended a branch more likely to be asked early.
    fn blame(&mut self, section: usize) {
        self.weight[section] += self.bump;
        self.bump *= FADE;
        if self.bump > HEAVY {
            for weight in &mut self.weight {
                *weight = (*weight / HEAVY).max(1.0 / HEAVY);
            }
            self.bump /= HEAVY;
        }
    }

    fn remember_failure(&mut self) {
        if let Some(frame) = self.frames.last() {
            let (key, section, first) = (frame.key, frame.section as usize, frame.first as usize);
            self.table[key as usize & (TABLE - 1)] = key;
            self.candidates.truncate(first);
            self.blame(section);
        }
    }

    /// Takes back the present choice of the frame on top, with everything that was done since.
    fn undo_choice(&mut self) {
        let Some(frame) = self.frames.last() else { return };
        let (trail, parts, end) = (frame.trail as usize, frame.parts as usize, frame.end as usize);
        self.parts.truncate(parts);
        self.candidates.truncate(end);
        self.dirty.clear();
        while self.trail.len() > trail {
            match self.trail.pop() {
                Some(Change::Section(k, section)) => self.sections[k as usize] = section,
                Some(Change::Placed(item)) => {
                    let item = item as usize;
                    self.unplaced[item / 64] |= 1 << (item % 64);
                    for k in self.items[item].from..self.items[item].to {
                        self.left[k as usize] += 1;
                    }
                }
                None => break,
            }
        }
    }

    /// Appends the runs of unfinished sections in `part`, the longest first, so that the shortest is solved first.
    fn split(&mut self, part: (u32, u32)) {
        let first = self.parts.len();
        let mut k = part.0;
        while k < part.1 {
            let from = k;
            while k < part.1 && self.sections[k as usize].floor != FINISHED {
                k += 1;
            }
            if k > from {
                self.parts.push((from, k));
            }
            k += 1;
        }
        self.parts[first..].sort_by_key(|p| std::cmp::Reverse(p.1 - p.0));
    }

    /// Word `w` of the set of unplaced items that lie within `niche`.
    #[inline]
    fn fitting(&self, niche: (u32, u32), w: usize) -> u64 {
        self.starting_from[niche.0 as usize * self.words + w]
            & self.ending_by[niche.1 as usize * self.words + w]
            & self.unplaced[w]
    }

    /// The lower of the floors beside `flat`.
    fn wall(&self, flat: (u32, u32)) -> u64 {
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

    fn niche_around(&self, section: usize) -> (u32, u32) {
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

    /// Widens a range to whole flats, and to the flats beside it: whether they are niches may have changed.
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
}

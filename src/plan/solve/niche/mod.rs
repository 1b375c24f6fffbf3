//! Exact search for a layout within a capacity: fill the niches of the skyline.
//!
//! Sections are the steps that matter (see [`super::instance`]); the *skyline* is the height up to
//! which each section is filled, its *floor*. A *niche* is a longest run of sections of equal floor
//! with higher neighbours on both sides. As floors only rise, any item placed at a niche's floor
//! fits between its walls. So each section of a niche has only these continuations: an unplaced
//! item that covers the section and fits the niche is placed there, or the section stays empty at
//! that height and its floor rises to where something can rest. Exactly one sequence of such
//! choices, whatever section is asked next, leads to each layout in which nothing can be pushed
//! down. Some smallest layout is among these.
//!
//! The free choice of the next section makes the search quick. Every section has a *slack*: the
//! bytes that may stay empty in it. A section without candidates rises to its wall and pays from
//! its slack; one that cannot pay ends the branch. The search asks a section with few continuations
//! next. Sections with nothing left to place split the problem into parts that are searched one by
//! one. A table remembers floors and unplaced items of failed parts, so that none is tried again.
//! Restarts with other rules keep bad early choices cheap.
//!
//! Related: the canonical depth-first search of MiniMalloc (Moffitt, ASPLOS 2024), which places in
//! order of offset; niche filling for strip packing (Burke, Kendall and Whitwell 2004); weights of
//! failed constraints (Boussemart et al. 2004); restarts after Luby, Sinclair and Zuckerman (1993).

mod state;
mod trail;

use super::budget::Budget;
use super::instance::Instance;
use super::numbers::mix;
use super::order::Rule;
use state::{State, FINISHED, NO_NICHE};

pub(super) use trail::Trail;

/// Remembered failures: a power of two, 8 bytes each.
const TABLE: usize = 1 << 16;
/// Steps that the setup of a run over a few items costs.
const SETUP_STEPS: u64 = 4;
/// Sections scanned in the time of one step.
const SECTIONS_A_STEP: u64 = 128;
/// Blocks for which a step takes twice the time: it looks at those of some sections.
const BLOCKS_A_STEP: u64 = 1 << 17;
/// Looks at items that take the time of one step. Where a niche fits thousands they are most of
/// it.
const LOOKS_A_STEP: u64 = 256;
/// Blocks that a run is set up with in the time of one step.
const BLOCKS_A_SETUP_STEP: u64 = 1 << 10;
/// Longest trail, in words of 4 bytes: a run that needs more is given up. No public instance that
/// reached its bound needed a million.
const MOST_NOTED: usize = 1 << 20;

/// When a search gives up.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) steps: u64,
    /// Steps without placing more items than ever before.
    pub(super) patience: u64,
}

impl Limits {
    /// Gives up after this many `steps`, whatever the progress.
    pub(super) fn steps(steps: u64) -> Limits {
        Limits { steps, patience: steps }
    }
}

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

/// A choice point: a section of a niche, its untried choices, and the parts left by the current
/// choice.
struct Frame {
    key: u64,
    part: (u32, u32),
    section: u32,
    /// The height to which the floor rises if the section stays empty; `FINISHED` if that is no
    /// choice.
    rise: u64,
    /// Untried candidates: `candidates[next..end]`.
    first: u32,
    next: u32,
    end: u32,
    /// Unsolved parts: `parts[parts..]`, up to those of the next frame.
    parts: u32,
    trail: u32,
}

/// The search over one instance with one capacity. Buffers are reused from run to run.
pub(super) struct Niche<'a> {
    state: State<'a>,
    capacity: u64,
    table: Vec<u64>,
    frames: Vec<Frame>,
    candidates: Vec<u32>,
    parts: Vec<(u32, u32)>,
    /// The fewest items that were left to place in the last run.
    fewest_left: u32,
    /// Whether no item has an alignment. With alignments, an item above a gap may hide a place for
    /// another, so a failed search proves nothing.
    exact: bool,
}

impl<'a> Niche<'a> {
    pub(super) fn new(instance: &'a Instance) -> Niche<'a> {
        Niche {
            state: State::new(instance),
            capacity: 0,
            table: vec![0; TABLE],
            frames: Vec::new(),
            candidates: Vec::new(),
            parts: Vec::new(),
            fewest_left: 0,
            exact: instance.items.iter().all(|i| i.align == 1),
        }
    }

    /// Sets the capacity for the following runs. Weights stay: what was hard is still hard.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.table.fill(0);
    }

    /// The offsets of all items in the last run that found a layout.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.state.offsets
    }

    /// The share of items left unplaced at the best moment of the last run.
    pub(super) fn shortfall(&self) -> f64 {
        f64::from(self.fewest_left) / self.state.items.len().max(1) as f64
    }

    /// Swaps the trail for another. Searches that take turns can share one trail.
    pub(super) fn swap_trail(&mut self, trail: &mut Trail) {
        std::mem::swap(&mut self.state.trail, trail);
    }

    /// Searches within `limits`. `rank` orders the candidates of a section, lowest first.
    pub(super) fn run(
        &mut self,
        instance: &Instance,
        rule: Rule,
        rank: &[u32],
        limits: Limits,
        budget: &mut Budget<'_>,
    ) -> Outcome {
        // Setting up takes time too, and a run may end right after it.
        budget.take(
            SETUP_STEPS + self.state.items.len() as u64 / 8 + self.state.blocks.len() as u64 / BLOCKS_A_SETUP_STEP,
        );
        self.frames.clear();
        self.candidates.clear();
        self.fewest_left = self.state.items.len() as u32;
        if !self.state.reset(instance, self.capacity) {
            return Outcome::Impossible;
        }
        let sections = self.state.sections.len() as u32;
        self.state.touch(0, sections);
        if !self.state.settle() {
            return self.nothing();
        }
        self.parts.clear();
        self.split((0, sections));
        // Steps taken, and steps since the last progress.
        let mut taken = (0, 0);
        // The outermost parts are solved one by one, like those of a choice.
        while let Some(part) = self.parts.pop() {
            match self.solve(part, rule, rank, &mut taken, limits, budget) {
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

    /// Solves one part: depth-first over choices (any may do) and the parts that each leaves (all
    /// must do).
    fn solve(
        &mut self,
        part: (u32, u32),
        rule: Rule,
        rank: &[u32],
        taken: &mut (u64, u64),
        limits: Limits,
        budget: &mut Budget<'_>,
    ) -> Outcome {
        let base = self.frames.len();
        let (sections, blocks) = (self.state.sections.len() as u64, self.state.blocks.len() as u64);
        let cost = 1 + sections / SECTIONS_A_STEP + blocks / BLOCKS_A_STEP;
        if !self.choose(part, rule, rank) {
            return self.nothing();
        }
        loop {
            taken.0 += 1;
            taken.1 += 1;
            if self.state.remaining < self.fewest_left {
                (self.fewest_left, taken.1) = (self.state.remaining, 0);
            }
            let noted_most = self.state.mark() > MOST_NOTED;
            let cost = cost + self.state.looks / LOOKS_A_STEP;
            self.state.looks %= LOOKS_A_STEP;
            if taken.0 > limits.steps || taken.1 > limits.patience || noted_most || !budget.take(cost) {
                return Outcome::Unknown;
            }
            // Try the next choice of the top frame, backtracking as far as needed.
            while !self.advance() {
                self.remember_failure();
                self.frames.pop();
                if self.frames.len() == base {
                    return self.nothing();
                }
                self.undo_choice();
            }
            // Then solve the next part left by that choice, or by the frames below.
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

    /// Chooses the section of `part` to ask next and pushes its frame; `false` if the part is known
    /// to have no solution.
    fn choose(&mut self, part: (u32, u32), rule: Rule, rank: &[u32]) -> bool {
        let (from, to) = (part.0 as usize, part.1 as usize);
        let mut key = mix(u64::from(part.0) << 32 | u64::from(part.1));
        let mut best = (f64::MAX, from);
        for (k, section) in self.state.sections.iter().enumerate().take(to).skip(from) {
            key ^= section.mark;
            if section.choices != NO_NICHE {
                let choices = f64::from(section.choices) + if section.slack > 0 { 1.0 } else { 0.0 };
                let score = rule.score(choices, section.floor, self.capacity, self.state.weight[k]);
                if score < best.0 {
                    best = (score, k);
                }
            }
        }
        if self.table[key as usize & (TABLE - 1)] == key {
            return false;
        }
        let section = best.1;
        let niche = self.state.niche_around(section);
        let floor = self.state.sections[section].floor;
        let first = self.candidates.len();
        // The lowest thing that an item of this niche could rest on, if not the floor.
        let mut rise = self.state.wall(niche);
        let covering = section as u32;
        let low = self.state.look_up(niche);
        if low {
            rise = rise.min(self.state.lowest_top(niche));
        }
        for w in self.state.words(niche) {
            let mut set = self.state.fitting(niche, w);
            self.state.looks += u64::from(set.count_ones());
            while set != 0 {
                let i = self.state.by_start[w * 64 + set.trailing_zeros() as usize] as usize;
                set &= set - 1;
                let item = &self.state.items[i];
                if low && !self.state.stands(i, floor) {
                    continue;
                }
                if item.from <= covering && covering < item.to {
                    // What its alignment leaves empty here is lost, whatever rises first.
                    if floor.next_multiple_of(item.align) - floor <= self.state.sections[section].slack {
                        self.candidates.push(i as u32);
                    }
                } else {
                    rise = rise.min(floor.next_multiple_of(item.align) + item.size);
                }
            }
        }
        self.candidates[first..].sort_unstable_by_key(|&i| rank[i as usize]);
        if self.state.raised(section, rise).is_none() {
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
            trail: self.state.mark() as u32,
        });
        true
    }

    /// Makes the next choice of the top frame that does not fail at once, and finds the parts it
    /// leaves. `false` when no choice is left.
    fn advance(&mut self) -> bool {
        loop {
            let Some(frame) = self.frames.last_mut() else { return false };
            let part = frame.part;
            let possible = if frame.next < frame.end {
                let at = frame.next as usize;
                frame.next += 1;
                let item = self.candidates[at] as usize;
                let tried = frame.first as usize..at;
                self.state.looks += tried.len() as u64;
                // Among identical items only the first is worth trying.
                let like = |&other: &u32| self.state.are_alike(other as usize, item);
                if self.candidates[tried].iter().any(like) {
                    continue;
                }
                let floor = self.state.sections[frame.section as usize].floor;
                self.state.place(item, floor)
            } else if frame.rise != FINISHED {
                let (section, rise) = (frame.section as usize, frame.rise);
                frame.rise = FINISHED;
                let afforded = self.state.raise(section, rise);
                self.state.touch(section as u32, section as u32 + 1);
                afforded && self.state.settle()
            } else {
                return false;
            };
            if possible {
                if self.state.finished_any {
                    self.split(part);
                } else {
                    self.parts.push(part);
                }
                return true;
            }
            self.undo_choice();
        }
    }

    fn remember_failure(&mut self) {
        if let Some(frame) = self.frames.last() {
            let (key, section, first) = (frame.key, frame.section as usize, frame.first as usize);
            self.table[key as usize & (TABLE - 1)] = key;
            self.candidates.truncate(first);
            self.state.blame(section);
        }
    }

    /// Undoes the current choice of the top frame, with everything since.
    fn undo_choice(&mut self) {
        let Some(frame) = self.frames.last() else { return };
        let (trail, parts, end) = (frame.trail as usize, frame.parts as usize, frame.end as usize);
        self.parts.truncate(parts);
        self.candidates.truncate(end);
        self.state.undo(trail);
    }

    /// Appends the runs of unfinished sections in `part`, longest first, so that the shortest is
    /// solved first.
    fn split(&mut self, part: (u32, u32)) {
        let first = self.parts.len();
        let mut k = part.0;
        while k < part.1 {
            let from = k;
            while k < part.1 && self.state.sections[k as usize].floor != FINISHED {
                k += 1;
            }
            if k > from {
                self.parts.push((from, k));
            }
            k += 1;
        }
        self.parts[first..].sort_by_key(|p| std::cmp::Reverse(p.1 - p.0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::instance::Item;
    use super::*;

    /// With thousands of items in one niche, a step looks at all of them, and costs more.
    #[test]
    fn a_step_costs_what_it_looks_at() {
        let cost = |count: u64| {
            let item = |k: u64| Item { from: 0, to: 1, size: 1_000 + 7 * k % 501, align: 1 << (k % 4) };
            let items: Vec<Item> = (0..count).map(item).collect();
            let total = items.iter().map(|i| i.size).sum();
            let ranks: Vec<u32> = (0..count as u32).collect();
            let instance = Instance { items, totals: vec![total], floors: vec![0], ..Instance::default() };
            let mut niche = Niche::new(&instance);
            niche.set_capacity(total + 5);
            let mut budget = Budget::new(u64::MAX, None, None);
            niche.run(&instance, Rule::of_round(0), &ranks, Limits::steps(40), &mut budget);
            budget.taken() - SETUP_STEPS - count / 8
        };
        assert!((40..50).contains(&cost(20)), "{}", cost(20));
        assert!(cost(4_096) > 40 * 4_096 / LOOKS_A_STEP, "{}", cost(4_096));
    }
}

//! The sweep over steps, with everything live at each.

use super::cover::Cover;
use super::item::{blocks_anything, described, live_ranges, wrong, Bytes, Item};
use crate::base::Result;
use crate::plan::problem::{Problem, Step};
use std::collections::BTreeMap;

/// The live bytes so far, and their maximum.
#[derive(Clone, Copy, Default)]
pub struct Peak {
    now: u128,
    /// Largest sum, bytes.
    pub most: u128,
    /// The first step with that sum.
    pub step: Step,
}

impl Peak {
    fn add(&mut self, bytes: u64, step: Step) {
        self.now += u128::from(bytes);
        if self.now > self.most {
            (self.most, self.step) = (self.now, step);
        }
    }

    fn sub(&mut self, bytes: u64) {
        self.now = self.now.saturating_sub(u128::from(bytes));
    }
}

/// Results of the sweep: the peaks of live bytes, reserved ranges included.
pub struct Sweep {
    /// The peak over all arenas together.
    pub total: Peak,
    /// The peak of each arena, of the buffers that the layout places there.
    pub placed: Vec<Peak>,
    /// The peak of each arena, of the buffers that can be nowhere else.
    pub bound: Vec<Peak>,
}

/// The live buffers and reserved ranges of one arena.
struct Live {
    /// (End, buffer) by start. They are disjoint: an insertion that would overlap is an error.
    buffers: BTreeMap<u64, (u64, u32)>,
    /// Reserved ranges, which may overlap each other.
    reserved: Cover,
}

impl Live {
    /// The live buffer that shares a byte with `[start, end)`, if one does.
    fn in_the_way(&self, start: u64, end: u64) -> Option<(u64, u64, u32)> {
        // They are disjoint, so the last to start before `end` is also the last to end.
        let (&at, &(until, id)) = self.buffers.range(..end).next_back()?;
        (until > start).then_some((at, until, id))
    }
}

/// Marks events at which something becomes live. At equal steps, they sort after events at which
/// something ends.
const STARTS: u64 = 1 << 63;

impl Sweep {
    /// Goes through the steps, and fails at the first step at which two live things share a byte.
    pub fn run(problem: &Problem, items: &[Item]) -> Result<Sweep> {
        let arenas = problem.arenas().len();
        let mut reserved = vec![Vec::new(); arenas];
        for range in problem.reserved().iter().filter(|r| blocks_anything(r)) {
            reserved[range.arena as usize].push(range);
        }
        let mut live: Vec<Live> = (reserved.into_iter())
            .map(|ranges| Live { buffers: BTreeMap::new(), reserved: Cover::new(ranges.into_iter()) })
            .collect();
        let mut sweep = Sweep {
            total: Peak::default(),
            placed: vec![Peak::default(); arenas],
            bound: vec![Peak::default(); arenas],
        };
        for (step, event) in events(problem, items) {
            let starts = event & STARTS != 0;
            let index = (event & !STARTS) as usize;
            match items.get(index) {
                Some(item) => sweep.buffer(problem, &mut live, item, step, starts)?,
                None => sweep.reserved(problem, &mut live, index - items.len(), step, starts)?,
            }
        }
        Ok(sweep)
    }

    fn buffer(&mut self, problem: &Problem, live: &mut [Live], item: &Item, step: Step, starts: bool) -> Result<()> {
        let count = |peak: Option<&mut Peak>| match peak {
            Some(peak) if starts => peak.add(item.extent, step),
            Some(peak) => peak.sub(item.extent),
            None => {}
        };
        count(Some(&mut self.total));
        count(item.home.and_then(|home| self.bound.get_mut(home)));
        let Some(at) = item.at else { return Ok(()) };
        count(self.placed.get_mut(at.arena));
        let Some(live) = live.get_mut(at.arena) else { return Ok(()) };
        if !starts {
            live.buffers.remove(&at.start);
            return Ok(());
        }
        if let Some((start, end, other)) = live.in_the_way(at.start, at.end) {
            return wrong(format!(
                "{} and {} of arena {} are both live at step {step}",
                described(problem, other, start, end),
                described(problem, item.id, at.start, at.end),
                at.arena
            ));
        }
        if live.reserved.touches(at.start, at.end) {
            return in_reserved(problem, item.id, at, step);
        }
        live.buffers.insert(at.start, (at.end, item.id));
        Ok(())
    }

    fn reserved(&mut self, problem: &Problem, live: &mut [Live], i: usize, step: Step, starts: bool) -> Result<()> {
        let Some(r) = problem.reserved().get(i) else { return Ok(()) };
        let arena = r.arena as usize;
        let Some(live) = live.get_mut(arena) else { return Ok(()) };
        let (start, end) = (r.offset, r.offset.saturating_add(r.size));
        let before = live.reserved.covered();
        live.reserved.change(start, end, starts);
        let after = live.reserved.covered();
        for peak in [Some(&mut self.total), self.placed.get_mut(arena), self.bound.get_mut(arena)].into_iter().flatten()
        {
            if starts {
                peak.add(after - before, step);
            } else {
                peak.sub(before - after);
            }
        }
        match live.in_the_way(start, end) {
            Some((start, end, id)) if starts => in_reserved(problem, id, Bytes { arena, start, end }, step),
            _ => Ok(()),
        }
    }
}

/// All starts and ends of live ranges, by step. At equal steps ends come first, because ranges are
/// half-open, so a sum after a start is one that is live at that step.
fn events(problem: &Problem, items: &[Item]) -> Vec<(Step, u64)> {
    let mut events = Vec::with_capacity(2 * (items.len() + problem.reserved().len()));
    for (index, item) in (0u64..).zip(items) {
        let Some(buffer) = problem.buffers().get(item.id as usize) else { continue };
        for (lower, upper) in live_ranges(buffer) {
            events.push((lower, index | STARTS));
            events.push((upper, index));
        }
    }
    for (index, r) in (items.len() as u64..).zip(problem.reserved()).filter(|(_, r)| blocks_anything(r)) {
        events.push((r.during.lower, index | STARTS));
        events.push((r.during.upper, index));
    }
    events.sort_unstable();
    events
}

/// The error for a buffer that shares bytes with a reserved range. It scans all ranges to find
/// which one, but only once.
fn in_reserved(problem: &Problem, id: u32, at: Bytes, step: Step) -> Result<()> {
    let meets = problem.reserved().iter().enumerate().find(|(_, r)| {
        r.arena as usize == at.arena
            && blocks_anything(r)
            && (r.during.lower..r.during.upper).contains(&step)
            && r.offset < at.end
            && at.start < r.offset.saturating_add(r.size)
    });
    let range = meets.map_or_else(
        || "a reserved range".to_string(),
        |(i, r)| {
            let end = r.offset.saturating_add(r.size);
            format!("reserved range {i}, bytes [{}, {end}) during steps {},", r.offset, r.during)
        },
    );
    wrong(format!("{} of arena {} is in {range} at step {step}", described(problem, id, at.start, at.end), at.arena))
}

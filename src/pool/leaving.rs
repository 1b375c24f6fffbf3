//! Leaving: memory that a flip has given to a run, and that its heap's regions still show as free.
//!
//! Cutting half a dozen pieces out of free regions is most of what a flip costs, and nothing that its caller waits for: the run is
//! mapped already, and that its extents are there is what the table of aliases says. So the pieces are put on a list, and
//! the calls that come next cut a few each, until none is left. What takes memory out of free regions, or joins anything with them, cuts
//! all of them first: so everything is decided as if they had been cut at once. A hit that does neither can come in between.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::cut::Cut;
use super::extend::take_out_all;
use super::heap::HeapState;
use super::parts::Part;

/// Steps that a hit does besides what it is called for.
const AT_A_TIME: usize = 4;

/// What is left to do of a flip.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Addresses leave a free region.
    Out { region: u32, addr: u64, end: u64 },
    /// A region, live but nobody's, is free: what the request leaves of the run.
    Back(u32),
}

/// What is left to do of a heap's last flip, the next step last.
#[derive(Default)]
pub(super) struct Leaving(Vec<Step>);

impl Leaving {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl HeapState {
    /// Parts, from high to low addresses, of which some lie in free regions of this heap: those begin to leave. What is left of a region before a
    /// piece that is cut out keeps its number. After them goes what a request has left of the run that they went to.
    pub(super) fn leave(&mut self, parts: &[Part], cut: Cut) {
        debug_assert!(self.leaving.is_empty());
        let steps = &mut self.leaving.0;
        steps.extend([cut.rest, cut.lead].into_iter().flatten().map(Step::Back));
        for p in parts.iter().rev() {
            let Some((at, stop)) = p.whereabouts() else { continue };
            match steps.last_mut() {
                // Often neighbours leave together.
                Some(Step::Out { region, end, .. }) if *region == p.region && *end == at => *end = stop,
                _ => steps.push(Step::Out { region: p.region, addr: at, end: stop }),
            }
        }
    }

    /// Some of what is leaving has left: called by hits, which leave the rest to the next.
    #[inline(never)]
    pub(super) fn part_with_some(&mut self) {
        for _ in 0..AT_A_TIME {
            self.part_with_next();
        }
    }

    /// All that was leaving has left.
    #[inline(always)]
    pub(super) fn part_with_all(&mut self) {
        while !self.leaving.is_empty() {
            self.part_with_next();
        }
    }

    /// Every free region is where searches find it, and nothing else is.
    #[inline]
    pub(super) fn tidy(&mut self) {
        self.part_with_all();
        self.regions.tidy();
    }

    fn part_with_next(&mut self) {
        match self.leaving.0.pop() {
            Some(Step::Out { region, addr, end }) => take_out_all(self, region, addr, end),
            Some(Step::Back(region)) => self.regions.put_back(region, self.regions.get(region).order),
            None => return,
        }
        if self.leaving.is_empty() {
            self.note_taken();
        }
    }
}

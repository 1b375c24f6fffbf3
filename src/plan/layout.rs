//! The result of planning.

use super::problem::BufferId;
use std::time::Duration;

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The arena.
    pub arena: u32,
    /// Its first byte there.
    pub offset: u64,
}

/// How good a layout is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum LayoutStatus {
    /// No smaller arena is possible.
    Optimal = 0,
    /// Valid, and perhaps not the smallest.
    Feasible = 1,
    /// No layout fits the capacities, which is proved by sums or by a search that was exhausted.
    Infeasible = 2,
    /// No layout that fits the capacities was found with the effort, in the time or until
    /// cancelled; there may be one. Not used when the lower bound is above the sum of the
    /// capacities, which proves that there is none.
    OutOfTime = 3,
}

impl LayoutStatus {
    /// Its name in reports: `optimal`, `feasible`, `infeasible`, `out_of_time`.
    pub fn name(self) -> &'static str {
        match self {
            LayoutStatus::Optimal => "optimal",
            LayoutStatus::Feasible => "feasible",
            LayoutStatus::Infeasible => "infeasible",
            LayoutStatus::OutOfTime => "out_of_time",
        }
    }
}

/// What one arena needs, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaUse {
    /// The end of its highest buffer, guard included, or of its highest reserved range, whichever
    /// is higher. Buffers and ranges that never occupy a byte do not count: those that are empty or
    /// live at no step. 0 when nothing is in it.
    pub size: u64,
    /// No layout of the arena's buffers can be smaller. It is at most the bound of
    /// [`Layout::lower_bound`] for those buffers and this arena alone.
    pub lower_bound: u64,
}

/// A slot for every buffer.
///
/// `size == Σ arenas.size`, `lower_bound ≤ size` when there are slots, and `status == Optimal` when
/// they are equal. [`verify`](super::verify()) checks what is said here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// By buffer. `None` for buffers of a kind left out, and for all when `status` is `Infeasible`
    /// or `OutOfTime`.
    pub slots: Vec<Option<Slot>>,
    /// By arena.
    pub arenas: Vec<ArenaUse>,
    /// Bytes of all arenas together. Without slots, those of the smallest layout found that ignores
    /// the capacities, or 0 if none was made.
    pub size: u64,
    /// No layout can be smaller than this, bytes. It is at least the largest sum of what is live at
    /// one step in all arenas together: buffers with their guards, and the bytes that reserved
    /// ranges cover. It is at most what else follows from sums. For each arena, over the buffers
    /// that can be nowhere else, these are the same sum, the highest end of a fixed buffer or
    /// reserved range, and without reuse all of them side by side. It does not count padding for
    /// alignment, nor what a search proved: `Optimal` says that.
    pub lower_bound: u64,
    /// What the buffers that occupy bytes and are not left out would take side by side, bytes, with
    /// guards and without padding for alignment.
    pub total_unshared: u64,
    /// How good it is.
    pub status: LayoutStatus,
    /// Whether the search was cancelled, or stopped by the clock rather than by its effort: another
    /// run may differ.
    pub interrupted: bool,
    /// How long planning took.
    pub elapsed: Duration,
}

impl Layout {
    /// Where `id` is, or `None` if it has no slot.
    pub fn slot(&self, id: BufferId) -> Option<Slot> {
        self.slots.get(id.index()).copied().flatten()
    }

    /// How far the size is above the lower bound, as a fraction of the bound: 0 is optimal.
    pub fn gap(&self) -> f64 {
        if self.size <= self.lower_bound {
            0.0
        } else {
            (self.size - self.lower_bound) as f64 / self.lower_bound.max(1) as f64
        }
    }

    /// What sharing bytes saves, bytes. 0 where no layout was made, and in an empty one.
    pub fn saved(&self) -> u64 {
        if self.size == 0 {
            0
        } else {
            self.total_unshared.saturating_sub(self.size)
        }
    }
}

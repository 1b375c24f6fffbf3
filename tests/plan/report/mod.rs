//! What `plan::report` and `plan::svg` say about a layout, against the layout itself: text compared
//! in full, pictures read back as XML and turned from pixels into steps and bytes again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod picture;
mod text;

use gpumem::plan::{peak_bytes, ArenaUse, Buffer, Layout, LayoutStatus, Problem, Slot};
use std::time::Duration;

pub fn named(name: &str, size: u64, lower: u64, upper: u64) -> Buffer {
    Buffer { name: Some(name.into()), ..Buffer::new(size, lower, upper) }
}

pub fn problem(buffers: impl IntoIterator<Item = Buffer>) -> Problem {
    let mut problem = Problem::new();
    for buffer in buffers {
        problem.add(buffer).unwrap();
    }
    problem
}

/// A layout that says where everything is.
pub fn layout(problem: &Problem, slots: Vec<Option<Slot>>) -> Layout {
    let mut arenas = vec![ArenaUse::default(); problem.arenas().len()];
    for (slot, b) in slots.iter().zip(problem.buffers()) {
        if let Some(slot) = slot {
            let arena = &mut arenas[slot.arena as usize];
            arena.size = arena.size.max(slot.offset + b.extent());
        }
    }
    let size = arenas.iter().map(|a| a.size).sum();
    let lower_bound = peak_bytes(problem);
    if let [only] = &mut arenas[..] {
        only.lower_bound = lower_bound;
    }
    Layout {
        slots,
        arenas,
        size,
        lower_bound,
        total_unshared: problem.buffers().iter().map(Buffer::extent).sum(),
        status: if size == lower_bound { LayoutStatus::Optimal } else { LayoutStatus::Feasible },
        interrupted: false,
        elapsed: Duration::from_secs(1),
    }
}

pub fn at(offsets: &[u64]) -> Vec<Option<Slot>> {
    offsets.iter().map(|&offset| Some(Slot { arena: 0, offset })).collect()
}

//! Weights at the places that another plan gave them.

use super::lowered::Lowered;
use super::Graph;
use crate::base::{Error, Result};
use crate::plan::layout::Layout;
use crate::plan::problem::MAX_BYTES;
use std::collections::BTreeMap;

/// Bytes of an arena that belong to another plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shared {
    pub(super) arena: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// What is shared: in order of name, so that lowering does not depend on the order of stating.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    pub(super) named: BTreeMap<Box<str>, Shared>,
    /// Weights without a name, and guards: only to be kept clear.
    pub(super) unnamed: Vec<Shared>,
}

impl Shares {
    fn add(&mut self, name: &str, shared: Shared) -> Result<()> {
        match self.named.get(name) {
            Some(&other) if other != shared => Err(Error::invalid(format!(
                "shared weight {name}: it is {} bytes at offset {} of arena {} already and cannot be {} bytes at offset \
                 {} of arena {} too",
                other.size, other.offset, other.arena, shared.size, shared.offset, shared.arena
            ))),
            Some(_) => Ok(()),
            None => {
                self.named.insert(name.into(), shared);
                Ok(())
            }
        }
    }
}

impl Graph {
    /// States that another plan has the weight `name` in bytes `[offset, offset + size)` of arena `arena`, and that both
    /// plans use the same memory for the arena.
    ///
    /// A parameter or constant of this name gets exactly this slot, even if its kind is left out. Whether this graph has
    /// one or not, nothing else is placed there at any step. Weights that overlap in the other plan, such as views of
    /// each other or tied ones, may overlap here. A view may be shared if its root is and both agree.
    pub fn share(&mut self, name: &str, arena: u32, offset: u64, size: u64) -> Result<()> {
        let shared = Shared { arena, offset, size };
        self.check_shared(shared).map_err(|e| e.context(format_args!("shared weight {name}")))?;
        self.shares.add(name, shared)
    }

    /// Shares every parameter and constant that lives throughout `other` and has a slot in `layout`, a layout of it, and
    /// what `other` shares itself. Returns how many have a name, by which a value of this graph can get the slot; the
    /// others are only kept clear, as are guards.
    pub fn share_from(&mut self, other: &Lowered, layout: &Layout) -> Result<usize> {
        let (slots, buffers) = (layout.slots.len(), other.problem.buffers().len());
        if slots != buffers {
            return Err(Error::invalid(format!(
                "the layout has slots for {slots} buffers and the graph {buffers}; pass a layout of this graph's problem"
            )));
        }
        let mut shares = self.shares.clone();
        let mut count = 0;
        for weight in &other.weights {
            let text = || weight.name.as_deref().unwrap_or("without a name").to_string();
            let Some(slot) = weight.place.slot(layout) else {
                return Err(Error::invalid(format!(
                    "shared weight {}: the other plan has no slot for it: its layout is {}",
                    text(),
                    layout.status.name()
                )));
            };
            let shared = Shared { arena: slot.arena, offset: slot.offset, size: weight.size };
            let guard = Shared { offset: slot.offset.saturating_add(weight.size), size: weight.guard, ..shared };
            for part in [shared, guard] {
                self.check_shared(part).map_err(|e| e.context(format_args!("shared weight {}", text())))?;
            }
            match &weight.name {
                Some(name) => {
                    shares.add(name, shared)?;
                    count += 1;
                }
                None => shares.unnamed.push(shared),
            }
            if weight.guard > 0 && weight.size > 0 {
                shares.unnamed.push(guard);
            }
        }
        self.shares = shares;
        Ok(count)
    }

    fn check_shared(&self, shared: Shared) -> Result<()> {
        let arenas = self.problem.arenas().len();
        if shared.arena as usize >= arenas {
            return Err(Error::invalid(format!(
                "arena {} does not exist; there are {arenas}; add it first",
                shared.arena
            )));
        }
        if shared.size > MAX_BYTES || shared.offset > MAX_BYTES - shared.size {
            return Err(Error::invalid(format!(
                "offset {} and size {} together pass 2^62",
                shared.offset, shared.size
            )));
        }
        Ok(())
    }
}

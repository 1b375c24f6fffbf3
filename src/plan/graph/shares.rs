//! Weights of another plan, and their places.

use crate::base::{Error, Result};
use crate::plan::layout::Slot;
use std::collections::BTreeMap;

/// Bytes of an arena that belong to another plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shared {
    pub(super) arena: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Shared {
    pub(super) fn slot(self) -> Slot {
        Slot { arena: self.arena, offset: self.offset }
    }
}

/// A weight with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) at: Shared,
    /// Bytes after it that the other plan keeps clear.
    pub(super) guard: u64,
}

/// Shared weights, each once however often it was stated. They are in order of name or place, so
/// that lowering does not depend on the order of statements.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    pub(super) named: BTreeMap<Box<str>, Named>,
    /// Weights without a name, which are only kept clear, and their guards.
    pub(super) unnamed: BTreeMap<Shared, u64>,
}

impl Shares {
    pub(super) fn add(&mut self, name: &str, at: Shared, guard: u64) -> Result<()> {
        if let Some(known) = self.named.get_mut(name) {
            if known.at != at {
                return Err(Error::invalid(format!(
                    "shared weight {name}: it is {} bytes at offset {} of arena {} already and cannot be {} bytes at \
                     offset {} of arena {} too; unshare it first to share it elsewhere",
                    known.at.size, known.at.offset, known.at.arena, at.size, at.offset, at.arena
                )));
            }
            known.guard = known.guard.max(guard);
        } else {
            self.named.insert(name.into(), Named { at, guard });
        }
        Ok(())
    }
}

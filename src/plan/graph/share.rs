//! Weights at the places that another plan gave them.

use super::builder::Graph;
use super::lowered::Lowered;
use super::shares::{Shared, Shares};
use crate::base::{Error, Result};
use crate::plan::layout::Layout;
use crate::plan::problem::MAX_BYTES;

impl Graph {
    /// States that another plan has the weight `name` in bytes `[offset, offset + size)` of
    /// `arena`, and that both plans use the same memory for that arena.
    ///
    /// A parameter or constant of this name gets exactly this slot, even if its kind is left out.
    /// Whether or not this graph has such a value, nothing else is placed there at any step.
    /// Weights that overlap in the other plan, such as views of each other or tied ones, may
    /// overlap here; the guard of one may not overlap another. A view may be shared if its root is
    /// and both agree. Stating the same again changes nothing; to change the place, call
    /// [`Graph::unshare`] first.
    pub fn share(&mut self, name: &str, arena: u32, offset: u64, size: u64) -> Result<()> {
        let shared = Shared { arena, offset, size };
        self.check_shared(shared).map_err(|e| e.context(format_args!("shared weight {name}")))?;
        self.shares.add(name, shared, 0)
    }

    /// Takes back what [`Graph::share`] or [`Graph::share_from`] stated about the weight `name`,
    /// its guard included. A value of this name becomes ordinary again.
    pub fn unshare(&mut self, name: &str) -> Result<()> {
        match self.shares.named.remove(name) {
            Some(_) => Ok(()),
            None => Err(Error::invalid(format!(
                "weight {name} is not shared, so it cannot be unshared; there are {} shared weights with names",
                self.shares.named.len()
            ))),
        }
    }

    /// Takes back everything that was shared, weights without a name included.
    pub fn unshare_all(&mut self) {
        self.shares = Shares::default();
    }

    /// Shares every parameter and constant that lives throughout `other` and has a slot in
    /// `layout`, a layout of it, and what `other` shares itself. Returns the number of weights with
    /// names, by which values of this graph can get the slots; weights without names are only kept
    /// clear, as are guards. Weights without a name that `other` had elsewhere before stay kept
    /// clear there too, until [`Graph::unshare_all`].
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
            // A weight of no bytes occupies nothing, not even its guard.
            let guard = if weight.size > 0 { weight.guard } else { 0 };
            for part in [shared, Shared { size: weight.size.saturating_add(guard), ..shared }] {
                self.check_shared(part).map_err(|e| e.context(format_args!("shared weight {}", text())))?;
            }
            match &weight.name {
                Some(name) => {
                    shares.add(name, shared, guard)?;
                    count += 1;
                }
                None => {
                    let known = shares.unnamed.entry(shared).or_default();
                    *known = guard.max(*known);
                }
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

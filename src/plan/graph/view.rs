//! Views: stating them, and checking them against their roots.

use super::builder::Graph;
use super::value::{ValueId, NONE};
use super::views::Bytes;
use crate::base::{Error, Result};
use crate::plan::problem::{Kind, Place};

impl Graph {
    /// States that `child` is bytes `[offset, offset + its size)` of `parent`.
    ///
    /// Use it for a reshape, a cast to a type of the same size, a part of the outermost axis, or an
    /// input of a concatenation that is written in its final place. The child gets no slot of its
    /// own but lies inside its parent. The root of the family lives from the first operation that
    /// writes any member to the last that reads or writes one. Offsets of nested views add up. The
    /// child may be the output of an operation. If that also reads the parent, it counts as a
    /// reshape that moves nothing; otherwise it writes those bytes of the root.
    ///
    /// The child must not be a view yet, nor have a range, guard or place of its own. The root may
    /// itself become a view later, so lowering checks what depends on it. A child of a kind that
    /// lives throughout needs a root of the same kind. A child bound to an arena needs a root bound
    /// to it. Its offset in the root must be a multiple of its alignment, unless the graph sets
    /// that. The slot is aligned for all members.
    pub fn view(&mut self, child: ValueId, parent: ValueId, offset: u64) -> Result<()> {
        self.known(child)?;
        self.known(parent)?;
        let text = |id: ValueId| self.value_text(id.0);
        if child == parent {
            return Err(Error::invalid(format!("{} cannot be a view of itself", text(child))));
        }
        let stated = self.views.parent(child.0);
        if stated != NONE {
            return Err(Error::invalid(format!(
                "{} cannot become a view of {}: it is one of {} already",
                text(child),
                text(parent),
                self.value_text(stated)
            )));
        }
        let top = self.views.find(parent.0);
        let text = |id: ValueId| self.value_text(id.0);
        let refuse =
            |why: String| Err(Error::invalid(format!("{} cannot be a view of {}: {why}", text(child), text(parent))));
        if top.root == child.0 {
            return refuse("that is a view of it".to_string());
        }
        let (own, within) = (&self.values[child.index()], &self.values[parent.index()]);
        if own.stated {
            return refuse(
                "it has a range of its own, and a view lives as its root does; add it with add_value".into(),
            );
        }
        if own.buffer.place != Place::Anywhere {
            return refuse("it has a place of its own; give the place to the root of its views".into());
        }
        if own.buffer.guard != 0 {
            return refuse(format!(
                "it has a guard of its own, {} bytes; give it to the root of its views",
                own.buffer.guard
            ));
        }
        if offset.checked_add(own.buffer.size).is_none_or(|upper| upper > within.buffer.size) {
            return refuse(format!(
                "{} bytes at offset {offset} pass the parent's {} bytes",
                own.buffer.size, within.buffer.size
            ));
        }
        if self.values[child.index()].aligned_by_graph {
            // It lies in its root's slot, whatever the alignment of slots.
            self.values[child.index()].buffer.alignment = 1;
        }
        self.views.link(child.0, parent.0, Bytes { root: top.root, offset: top.offset + offset });
        Ok(())
    }

    /// Checks every view against its root. Returns the alignment that the slot of each root needs.
    pub(super) fn slot_alignments(&self, roots: &[Bytes]) -> Result<Vec<u64>> {
        let mut alignments: Vec<u64> = self.values.iter().map(|v| v.buffer.alignment).collect();
        for (v, item) in self.values.iter().enumerate() {
            let Bytes { root, offset } = roots[v];
            if root as usize == v {
                continue;
            }
            let top = &self.values[root as usize].buffer;
            let own = &item.buffer;
            let refuse = |why: String| {
                let (view, root) = (self.value_text(v as u32), self.value_text(root));
                Err(Error::invalid(format!("{view} is a view of bytes of {root}, {why}")))
            };
            if !matches!(own.kind, Kind::Temporary | Kind::Output) && own.kind != top.kind {
                return refuse(format!(
                    "but of kind {:?} and that of kind {:?}; give both the same",
                    own.kind, top.kind
                ));
            }
            if own.arena.is_some() && own.arena != top.arena {
                return refuse("but bound to an arena, and that is not bound to it; bind that one".into());
            }
            if !offset.is_multiple_of(own.alignment) {
                let alignment = own.alignment;
                return refuse(format!(
                    "but {offset} bytes into it, which is no multiple of its alignment {alignment}"
                ));
            }
            match top.place {
                Place::Fixed(fixed) if !fixed.is_multiple_of(own.alignment) => {
                    let alignment = own.alignment;
                    return refuse(format!(
                        "which is fixed at offset {fixed}, so it cannot have its alignment {alignment}"
                    ));
                }
                _ => alignments[root as usize] = alignments[root as usize].max(own.alignment),
            }
        }
        Ok(alignments)
    }
}

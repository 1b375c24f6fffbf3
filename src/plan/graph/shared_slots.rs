//! Lowers shared weights into a problem.

use super::builder::Graph;
use super::lowered::{Placement, Weight};
use super::shares::Shared;
use super::slots::Draft;
use super::views::Bytes;
use crate::base::{Error, Result};
use crate::plan::problem::{Buffer, Interval, Kind, Place, Reserved};
use std::collections::BTreeMap;

/// The values at shared places.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedSlots {
    /// The place of each shared root.
    roots: BTreeMap<u32, Shared>,
    /// The value, root or view, with each shared name.
    owners: BTreeMap<Box<str>, u32>,
}

/// Bytes that a shared weight takes, guard included.
struct Piece<'g> {
    arena: u32,
    lower: u64,
    /// First byte of its guard.
    guard: u64,
    upper: u64,
    /// The root in this plan whose slot it is.
    owner: Option<u32>,
    name: Option<&'g str>,
}

impl SharedSlots {
    /// The place of `root` if it is shared.
    pub(super) fn of(&self, root: u32) -> Option<Shared> {
        self.roots.get(&root).copied()
    }

    /// Shared weights without a value in `graph`, for plans that share from this one.
    pub(super) fn unowned(&self, graph: &Graph) -> Vec<Weight> {
        let named = graph.shares.named.iter().filter(|(name, _)| !self.owners.contains_key(*name));
        let named = named.map(|(name, known)| (Some(name.clone()), &known.at, known.guard));
        named
            .chain(graph.shares.unnamed.iter().map(|(shared, &guard)| (None, shared, guard)))
            .map(|(name, shared, guard)| Weight { name, size: shared.size, guard, place: Placement::At(shared.slot()) })
            .collect()
    }

    /// Adds shared weights to `draft`: as fixed buffers where this plan has the weights, as
    /// reserved ranges elsewhere. Overlapping pieces become one buffer or range, because buffers
    /// live together may not overlap.
    pub(super) fn add(&self, graph: &Graph, alignments: &[u64], draft: &mut Draft) -> Result<()> {
        for (&root, shared) in &self.roots {
            draft.places[root as usize] = Placement::At(shared.slot());
        }
        let mut pieces = self.pieces(graph);
        pieces.sort_unstable_by_key(|p| (p.arena, p.lower, p.upper, p.owner));
        guards_are_clear(&pieces)?;
        let mut rest = pieces.as_slice();
        while let Some(first) = rest.first() {
            let mut upper = first.upper;
            let count = rest
                .iter()
                .take_while(|p| {
                    let joins = p.arena == first.arena && p.lower < upper;
                    upper = if joins { upper.max(p.upper) } else { upper };
                    joins
                })
                .count();
            let (group, others) = rest.split_at(count);
            rest = others;
            let whole = Shared { arena: first.arena, offset: first.lower, size: upper - first.lower };
            self.add_group(graph, alignments, group, whole, draft)?;
        }
        Ok(())
    }

    /// Adds a group of pieces that together cover the bytes `whole`.
    fn add_group(
        &self,
        graph: &Graph,
        alignments: &[u64],
        group: &[Piece<'_>],
        whole: Shared,
        draft: &mut Draft,
    ) -> Result<()> {
        let owned = group.iter().filter_map(|p| p.owner);
        let left_out = draft.problem.left_out();
        let planned = owned.clone().find(|&v| !left_out.contains(graph.values[v as usize].buffer.kind));
        let Some(owner) = planned else {
            let Shared { arena, offset, size } = whole;
            return draft.problem.reserve(Reserved { arena, offset, size, during: Interval::new(0, draft.end) });
        };
        let own = &graph.values[owner as usize].buffer;
        let guard = group.iter().find(|p| p.owner == Some(owner)).map_or(0, |p| p.upper - p.guard);
        let alone = own.size + guard == whole.size;
        let name = group.iter().find(|p| p.upper - p.lower == whole.size).and_then(|p| p.name);
        let buffer = Buffer {
            alignment: if alone { alignments[owner as usize] } else { 1 },
            guard: if alone { guard } else { 0 },
            place: Place::Fixed(whole.offset),
            arena: Some(whole.arena),
            kind: own.kind,
            name: name.map(Into::into).or_else(|| own.name.clone()),
            ..Buffer::new(if alone { own.size } else { whole.size }, 0, draft.end)
        };
        let buffer = draft.add(owner, buffer).map_err(|e| e.context("shared weight"))?;
        for v in owned {
            if let Some(shared) = self.of(v) {
                draft.places[v as usize] = Placement::In { buffer, offset: shared.offset - whole.offset };
            }
        }
        Ok(())
    }

    fn pieces<'g>(&self, graph: &'g Graph) -> Vec<Piece<'g>> {
        let mut pieces = Vec::new();
        let piece = |at: &Shared, guard: u64, owner, name| {
            let end = at.offset.saturating_add(at.size);
            Piece { arena: at.arena, lower: at.offset, guard: end, upper: end.saturating_add(guard), owner, name }
        };
        for (name, known) in &graph.shares.named {
            let owner = self.owners.get(name).copied().filter(|v| self.roots.contains_key(v));
            let own = owner.map_or(0, |v| graph.values[v as usize].buffer.guard);
            pieces.push(piece(&known.at, known.guard.max(own), owner, Some(&**name)));
        }
        pieces.extend(graph.shares.unnamed.iter().map(|(at, &guard)| piece(at, guard, None, None)));
        // Weights of no bytes take none, but still get their given place.
        pieces.retain(|p| p.guard > p.lower);
        pieces
    }
}

/// Refuses a guard that covers bytes of another weight: a write past the end of the first
/// would write there. `pieces` are sorted by arena and offset.
fn guards_are_clear(pieces: &[Piece<'_>]) -> Result<()> {
    for arena in pieces.chunk_by(|a, b| a.arena == b.arena) {
        // For each piece, the one that ends last, without guards, among it and those before.
        let mut last: Vec<usize> = Vec::with_capacity(arena.len());
        for (i, p) in arena.iter().enumerate() {
            let before = last.last().copied().unwrap_or(i);
            last.push(if p.guard > arena[before].guard { i } else { before });
        }
        for p in arena.iter().filter(|p| p.upper > p.guard) {
            // A piece that begins before the guard ends, and ends after the guard begins, overlaps
            // it.
            let begun = arena.partition_point(|q| q.lower < p.upper);
            let Some(q) = begun.checked_sub(1).and_then(|i| arena.get(last[i])).filter(|q| q.guard > p.guard) else {
                continue;
            };
            return Err(Error::invalid(format!(
                "shared weight {}: its guard is bytes [{}, {}) of arena {}, and shared weight {} is at [{}, {}); leave \
                 the guard out here, or ask for it in the plan that places both",
                p.text(),
                p.guard,
                p.upper,
                p.arena,
                q.text(),
                q.lower,
                q.guard
            )));
        }
    }
    Ok(())
}

impl Piece<'_> {
    fn text(&self) -> &str {
        self.name.unwrap_or("without a name")
    }
}

impl Graph {
    /// Finds the values with shared names, and checks them against the shared weights.
    pub(super) fn shared_slots(&self, roots: &[Bytes], alignments: &[u64]) -> Result<SharedSlots> {
        let mut found = SharedSlots::default();
        if self.shares.named.is_empty() {
            return Ok(found);
        }
        for (v, item) in self.values.iter().enumerate() {
            let v = v as u32;
            let Some((name, known)) = item.buffer.name.as_ref().and_then(|n| self.shares.named.get_key_value(n)) else {
                continue;
            };
            let shared = known.at;
            let b = &item.buffer;
            let refuse =
                |why: String| Err(Error::invalid(format!("shared weight {name}: {} {why}", self.value_text(v))));
            if let Some(&other) = found.owners.get(name) {
                let other = self.value_text(other);
                return refuse(format!("and {other} both have the name; rename one, or make it a view without a name"));
            }
            if !matches!(b.kind, Kind::Parameter | Kind::Constant) {
                return refuse(format!("is of kind {:?}; make it a parameter or a constant, or rename it", b.kind));
            }
            if b.size != shared.size {
                return refuse(format!("has {} bytes here and {} in the other plan", b.size, shared.size));
            }
            found.owners.insert(name.clone(), v);
            if roots[v as usize].root != v {
                continue;
            }
            let alignment = alignments[v as usize];
            if !shared.offset.is_multiple_of(alignment) {
                return refuse(format!(
                    "needs an alignment of {alignment} and is at offset {} in the other plan; ask for it there",
                    shared.offset
                ));
            }
            if b.arena.is_some_and(|a| a != shared.arena) {
                return refuse(format!(
                    "is bound to another arena than {}, where it is in the other plan",
                    shared.arena
                ));
            }
            if matches!(b.place, Place::Fixed(offset) if offset != shared.offset) {
                return refuse(format!(
                    "is fixed elsewhere than at offset {}, where it is in the other plan",
                    shared.offset
                ));
            }
            found.roots.insert(v, shared);
        }
        for (name, &v) in &found.owners {
            let from = roots[v as usize];
            let Some(view) = self.shares.named.get(name).map(|known| known.at).filter(|_| from.root != v) else {
                continue;
            };
            let agrees = found
                .of(from.root)
                .is_some_and(|root| root.arena == view.arena && root.offset + from.offset == view.offset);
            if !agrees {
                return Err(Error::invalid(format!(
                    "shared weight {name}: {} is {} bytes into {} here, which is not shared or not so far before it; \
                     share both as the other plan has them, or rename the view",
                    self.value_text(v),
                    from.offset,
                    self.value_text(from.root)
                )));
            }
        }
        Ok(found)
    }
}

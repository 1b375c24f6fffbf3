//! Views: values that are bytes of other values.
//!
//! A *family* is a root, which is not a view, and all its direct and indirect views. A family has
//! one slot and one live range.

use super::value::NONE;

/// Bytes of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    /// The value that has the slot.
    pub(super) root: u32,
    /// Bytes from the root's start.
    pub(super) offset: u64,
}

/// The parents, views and roots of values. All lists are by value.
#[derive(Clone, Debug, Default)]
pub(super) struct Views {
    /// The stated parent, or `NONE`.
    parents: Vec<u32>,
    /// The last stated view of this value, or `NONE`.
    children: Vec<u32>,
    /// The view of the same parent stated just before this value, or `NONE`.
    siblings: Vec<u32>,
    /// A value further up and the offset in it; itself and 0 for a root. Walks shorten paths, so
    /// that long chains cost little whatever the order of statements.
    links: Vec<Bytes>,
}

impl Views {
    pub(super) fn push(&mut self) {
        let root = self.parents.len() as u32;
        self.parents.push(NONE);
        self.children.push(NONE);
        self.siblings.push(NONE);
        self.links.push(Bytes { root, offset: 0 });
    }

    /// Makes `child`, a root, a view of `parent`; `bytes` is its place in the root of `parent`.
    pub(super) fn link(&mut self, child: u32, parent: u32, bytes: Bytes) {
        self.parents[child as usize] = parent;
        self.siblings[child as usize] = std::mem::replace(&mut self.children[parent as usize], child);
        self.links[child as usize] = bytes;
    }

    /// The stated parent of `value`, or `NONE`.
    pub(super) fn parent(&self, value: u32) -> u32 {
        self.parents[value as usize]
    }

    /// The views with `value` as their stated parent, last first.
    pub(super) fn of(&self, value: u32) -> impl Iterator<Item = u32> + '_ {
        let or_none = |v: u32| (v != NONE).then_some(v);
        let first = self.children.get(value as usize).copied().and_then(or_none);
        std::iter::successors(first, move |&v| self.siblings.get(v as usize).copied().and_then(or_none))
    }

    pub(super) fn find(&mut self, value: u32) -> Bytes {
        find(&mut self.links, value)
    }

    /// The root and offset of every value.
    pub(super) fn flatten(&self) -> Vec<Bytes> {
        let mut links = self.links.clone();
        for value in 0..links.len() as u32 {
            find(&mut links, value);
        }
        links
    }
}

fn find(links: &mut [Bytes], value: u32) -> Bytes {
    let mut root = value;
    let mut offset = 0;
    loop {
        let link = links[root as usize];
        if link.root == root {
            break;
        }
        root = link.root;
        offset += link.offset;
    }
    let found = Bytes { root, offset };
    let mut at = value;
    while at != root {
        let link = std::mem::replace(&mut links[at as usize], Bytes { root, offset });
        at = link.root;
        offset -= link.offset;
    }
    found
}

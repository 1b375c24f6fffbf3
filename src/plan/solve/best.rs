//! The smallest layout found for a part.

use super::instance::Instance;

/// The best layout so far.
pub(super) struct Best {
    pub(super) size: u64,
    pub(super) offsets: Vec<u64>,
    /// A proved lower bound on the size of any layout.
    pub(super) bound: u64,
    /// Room for the next layout's offsets.
    pub(super) scratch: Vec<u64>,
}

impl Best {
    /// No layout yet.
    pub(super) fn none(instance: &Instance) -> Best {
        let n = instance.items.len();
        Best { size: u64::MAX, offsets: vec![0; n], bound: instance.bound(), scratch: vec![0; n] }
    }

    /// Keeps the layout in `scratch`, if there is one and it is smaller than the best.
    pub(super) fn offer(&mut self, size: Option<u64>) {
        if let Some(size) = size {
            if size < self.size {
                self.size = size;
                std::mem::swap(&mut self.offsets, &mut self.scratch);
            }
        }
    }
}

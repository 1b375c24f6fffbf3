//! When a range was last used, in one word.

/// The lane of the whole context.
pub(crate) const CONTEXT: u32 = 0;

const EPOCH_BITS: u32 = 48;

/// When a range was last used: a lane and an epoch of it. [`Tag::SETTLED`] is "long ago, on any
/// stream".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(u64);

impl Tag {
    pub(crate) const SETTLED: Tag = Tag(0);

    #[inline]
    pub(crate) fn new(lane: u32, epoch: u64) -> Tag {
        Tag(u64::from(lane) << EPOCH_BITS | epoch)
    }

    #[inline]
    pub(crate) fn lane(self) -> u32 {
        (self.0 >> EPOCH_BITS) as u32
    }

    #[inline]
    pub(crate) fn epoch(self) -> u64 {
        self.0 & ((1 << EPOCH_BITS) - 1)
    }

    /// The later of two uses in the order of one lane: neither is of another lane, but either may
    /// be settled.
    #[inline]
    pub(crate) fn later(self, other: Tag) -> Tag {
        debug_assert!(self == Tag::SETTLED || other == Tag::SETTLED || self.lane() == other.lane());
        self.max(other)
    }
}

//! Parts of a run of aliases, whose extents are also neighbours where they are now.

/// Names a run while it has aliases. Afterwards its number may be another run's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunId {
    pub(crate) number: u32,
    pub(crate) born: u64,
}

/// For [`RunPart::from`]: the extents are in stock, and in no run at present.
pub(crate) const STOCK: u32 = u32::MAX;

/// Neighbours in a run whose extents are neighbours in another run, too, or all in stock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPart {
    /// Its addresses in the other run. They never change, so they are kept here: that run is
    /// elsewhere in memory. For the stock, 0 to the part's bytes.
    pub(crate) there: (u64, u64),
    /// When the other run was mapped.
    pub(crate) born: u64,
    /// The other run's number, or [`STOCK`].
    pub(crate) from: u32,
    /// Where the part starts in the other run.
    pub(crate) at: u32,
    /// Where it starts in the run it is a part of.
    pub(crate) first: u32,
    /// How many extents it has.
    pub(crate) len: u32,
    /// The number of the free region that its extents were in when they were taken last: a hint.
    pub(crate) region: u32,
}

impl RunPart {
    /// Where its extents are, from and to; `None` for the stock.
    #[inline]
    pub(crate) fn whereabouts(&self) -> Option<(u64, u64)> {
        (self.from != STOCK).then_some(self.there)
    }

    /// The other run and the part's positions there, from and how many; `None` for the stock.
    #[inline]
    pub(crate) fn source(&self) -> Option<(RunId, usize, usize)> {
        let run = RunId { number: self.from, born: self.born };
        (self.from != STOCK).then_some((run, self.at as usize, self.len as usize))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.there.1 - self.there.0
    }
}

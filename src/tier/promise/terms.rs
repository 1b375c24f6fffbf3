//! How many bytes a request is for, and how long it waits for them.

#![deny(unsafe_code, clippy::unwrap_used)]

use std::time::Duration;

/// How many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This many, and no fewer.
    Exact(u64),
    /// As many as there are, up to `most`, but no fewer than `least`. The reservation's size says
    /// how many it was.
    UpTo {
        /// No fewer than this; not 0.
        least: u64,
        /// No more than this.
        most: u64,
    },
}

impl Amount {
    /// The least and the most bytes.
    pub(super) fn bounds(self) -> (u64, u64) {
        match self {
            Amount::Exact(bytes) => (bytes, bytes),
            Amount::UpTo { least, most } => (least, most),
        }
    }
}

/// How long to wait for room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: all or nothing at once.
    #[default]
    No,
    /// At most this long.
    For(Duration),
    /// Until there is room, or the wait is cancelled, or the manager shut down.
    Forever,
}

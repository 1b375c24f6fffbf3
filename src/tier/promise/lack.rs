//! What an allocation lacks, and why it was not counted.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::Error;

/// What an allocation lacks, by what would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Its reservation has so many bytes too few: what is drawn from that helps, and nothing else.
    Reservation {
        /// The reservation's number.
        number: u64,
        /// How many bytes, at least 1.
        bytes: u64,
    },
    /// The space would have to promise so many bytes, and cannot: what is drawn outside of any
    /// reservation helps.
    Promise(u64),
    /// So many bytes were promised, and there is no memory for them: anything helps.
    Memory(u64),
}

/// Whether an allocation was counted.
pub(super) type Counting<T> = std::result::Result<T, Refused>;

/// Why an allocation was not counted.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: Error,
    /// What would have to be there; `None` where nothing would help.
    pub(super) lack: Option<Lack>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, lack: None }
    }
}

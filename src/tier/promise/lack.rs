//! What an allocation lacks, and why it was not counted.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::Error;

/// What would help an allocation that was not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Its reservation lacks bytes. Only bytes drawn from that reservation help.
    Reservation(Short),
    /// The space would have to promise bytes, and cannot. Bytes drawn outside of any reservation
    /// help.
    Promise {
        /// How many bytes.
        bytes: u64,
        /// How far above its limit the space may go for them.
        above: u64,
        /// The reservation that wants more than it has, if one does. What is drawn from it helps
        /// as well: with enough of its own back it needs nothing more of the space.
        short: Option<Short>,
    },
    /// This many bytes were promised, and there is no memory for them. Any bytes help.
    Memory(u64),
}

/// A reservation that lacks bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The reservation's number.
    pub number: u64,
    /// How many bytes, at least 1.
    pub bytes: u64,
}

/// Whether an allocation was counted.
pub(super) type Counting<T> = std::result::Result<T, Refused>;

/// Why an allocation was not counted.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: Error,
    /// What is lacking; `None` if nothing would help.
    pub(super) lack: Option<Lack>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, lack: None }
    }
}

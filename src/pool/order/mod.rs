//! Stream order: which frees the device has passed.

mod cadence;
mod captures;
pub(crate) mod lanes;
pub(crate) mod tag;

pub(crate) use cadence::OwnBatch;
pub(crate) use captures::KnownCapture;
pub(crate) use lanes::Order;
pub(crate) use tag::{Tag, CONTEXT};

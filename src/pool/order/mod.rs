//! Stream order: which frees the device has passed.

pub(crate) mod cadence;
pub(crate) mod captures;
pub(crate) mod lanes;
pub(crate) mod tag;

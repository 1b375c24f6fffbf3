//! The memory of one stream. Nothing here calls the driver.

pub(crate) mod afresh;
pub(crate) mod bins;
pub(crate) mod blocks;
pub(crate) mod check;
pub(crate) mod lock;
pub(crate) mod members;
pub(crate) mod memo;
pub(crate) mod objects;
pub(crate) mod part;
pub(crate) mod places;
pub(crate) mod quick;
pub(crate) mod region;
pub(crate) mod retire;
pub(crate) mod settle;
pub(crate) mod slab;
pub(crate) mod state;
pub(crate) mod trial;
pub(crate) mod waiting;
pub(crate) mod wide;

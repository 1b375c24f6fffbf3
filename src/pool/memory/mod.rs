//! Addresses and physical memory, without heaps and without the driver: tables that say what is
//! where.

mod aliases;
mod dedicated;
mod extent;
mod holes;
mod index;
mod parts;
mod stock;

pub(crate) use aliases::{Aliases, Unmapping};
pub use dedicated::Guest;
pub(crate) use dedicated::{Dedicated, Grave};
pub(crate) use extent::{ladder, AliasId, Extent, Extents, Mapped};
pub(crate) use holes::Holes;
pub(crate) use index::{Entry, Index, SLOT};
pub(crate) use parts::{RunId, RunPart};
pub(crate) use stock::{Stock, Supply};

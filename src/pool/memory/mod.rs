//! Addresses and physical memory, without heaps and without the driver: tables that say what is where.

pub(crate) mod aliases;
pub(crate) mod bits;
pub(crate) mod dedicated;
pub(crate) mod extent;
pub(crate) mod holes;
pub(crate) mod index;
pub(crate) mod pages;
pub(crate) mod parts;
pub(crate) mod stock;

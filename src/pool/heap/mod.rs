//! The memory of one stream. Nothing here calls the driver.

mod backoff;
mod bins;
mod blocks;
mod check;
mod fresh_starts;
mod low;
mod members;
mod memo;
mod part;
mod places;
mod quick_list;
mod region;
mod settle;
pub(crate) mod slab;
mod state;
mod waiting;

pub(crate) use backoff::Backoff;
pub(crate) use members::{Place, NO_MEMBER};
pub(crate) use part::{Counts, LayoutInUse, Made, Notes, Now, StreamPart, User};
pub use part::{Life, Placed, Span};
pub(crate) use places::Known;
pub(crate) use region::{block_size, Block, State, GRANULE, MIN_SPLIT};
pub(crate) use slab::SMALL_MAX;
pub(crate) use state::{Heap, HeapState, Locked, Vain, SMALL_HEAP, WANTED};

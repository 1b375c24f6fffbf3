//! Looking at a pool: statistics, dumps, checks.

mod counting;
mod dump;
mod stats;
mod still;
mod walk;

pub(crate) use dump::asked;
pub use stats::PoolStats;
pub use still::{add_to, Still, Sums};
pub use walk::{Alive, HeapView, Is, Piece};

//! What callers ask the pool for, and what the rooms below say to each other.

mod allocation;
mod options;
mod ranks;
mod receipts;
mod scope;
mod units;

pub(crate) use allocation::{checked_alignment, too_large, Want};
pub use allocation::{AllocFlags, AllocInfo, AllocRequest};
pub use options::PoolOptions;
pub(crate) use ranks::{Guard, Rank, RankHeld, Ranked, RankedGuard};
pub(crate) use receipts::rounded;
pub use receipts::{Counter, Receipt, Slip};
pub use scope::{Scope, ScopeCounts};
pub(crate) use units::{NONE, SMALL_MIN};

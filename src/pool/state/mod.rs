//! What a pool consists of.

mod arenas;
mod pool;
mod streams;

pub(crate) use arenas::Routed;
pub use arenas::{Filter, GraphArena, GraphArenaOptions, GraphArenaStats, Route, WhichStreams};
pub(crate) use pool::Core;
pub use pool::{Pool, Unclaimed};
pub(crate) use streams::{Key, RemoteStream, SpareStreams, StreamHeaps};

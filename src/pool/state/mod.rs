//! What a pool consists of.

mod arenas;
mod pool;
mod streams;

pub use arenas::{Filter, GraphArena, GraphArenaOptions, GraphArenaStats, Route, WhichStreams};
pub(crate) use arenas::{Privates, Routed};
pub(crate) use pool::{Core, Counters};
pub use pool::{Pool, Unclaimed};
pub(crate) use streams::{Key, OtherDevices, RemoteStream, StreamHeaps};

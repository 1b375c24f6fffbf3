//! What a pool consists of.

mod arenas;
mod other_devices;
mod pool;
mod streams;

pub use arenas::{Filter, GraphArena, GraphArenaOptions, GraphArenaStats, Route, WhichStreams};
pub(crate) use arenas::{Privates, Routed};
pub(crate) use other_devices::{OtherDevices, RemoteStream};
pub(crate) use pool::{Core, Counters};
pub use pool::{Pool, Unclaimed};
pub(crate) use streams::{Key, StreamHeaps};

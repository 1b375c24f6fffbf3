//! What a pool consists of.

mod afar;
mod arenas;
mod pool;
mod streams;

pub(crate) use afar::{Afar, RemoteStream};
pub(crate) use arenas::{Claim, Ids, Privates, Which};
pub use arenas::{Filter, GraphArena, GraphArenaOptions, GraphArenaStats, Route, WhichStreams};
pub(crate) use pool::{Core, Counters, Zombie};
pub use pool::{Pool, Unclaimed};
pub(crate) use streams::{Key, StreamHeaps};

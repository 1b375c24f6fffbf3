//! What the arenas' tests share.
#![allow(clippy::unwrap_used)]

use gpumem::base::{DeviceId, StreamHandle};
use gpumem::context::{Context, Request};

pub const D: DeviceId = DeviceId(0);

pub fn malloc(ctx: &Context, size: u64, stream: StreamHandle) -> u64 {
    ctx.malloc(&Request { size, stream, ..Request::default() }).unwrap()
}

/// Live allocations, and the bytes asked for in them.
pub fn live(ctx: &Context) -> (u64, u64) {
    let s = ctx.stats(D).unwrap();
    (s.allocations, s.requested)
}

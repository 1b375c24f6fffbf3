//! Models of the context for loom: `sh scripts/loom.sh`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::{Config, Context, Request};
use crate::arena::Arena;
use crate::base::size::GIB;
use crate::base::DeviceId;
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::Driver;
use loom::thread;
use std::sync::Arc;

fn context() -> (Arc<HostDriver>, Arc<Context>) {
    let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..HostOptions::default() }).unwrap();
    let context = Context::new(host.clone(), Config { va_size: GIB, ..Config::default() }).unwrap();
    (host, Arc::new(context))
}

/// Fails when `Context::make_pool` does not hold `making`: both threads then reserve addresses.
#[test]
fn a_pool_is_made_once() {
    loom::model(|| {
        let (_host, context) = context();
        let other = thread::spawn({
            let context = context.clone();
            move || std::ptr::from_ref(context.pool(DeviceId(0)).unwrap()) as usize
        });
        let mine = std::ptr::from_ref(context.pool(DeviceId(0)).unwrap()) as usize;
        assert_eq!(mine, other.join().unwrap());
        let reserved = context.driver_calls().into_iter().find(|c| c.0 == "va_reserve").unwrap();
        assert_eq!(reserved.1, 1, "a second pool was made");
    });
}

/// A thread allocates in an arena that it names while another ends the arena and then allocates as
/// much: what that one gets stays its own. Fails when `Context::malloc_in_named` asks for the id of
/// what it allocated in the arena after the arena was exited, when the address may be another
/// allocation's.
#[test]
fn what_is_allocated_in_an_arena_that_ends_is_freed_once() {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let (host, context) = context();
        let stream = host.stream_create(DeviceId(0)).unwrap();
        let arena = context.arena_enter("").unwrap();
        // Loom's threads are one of the system's, and so have one list of arenas.
        context.arena_detach(&arena).unwrap();
        let malloc = move |context: &Context, arena: Option<&Arc<Arena>>| {
            context.malloc(&Request { size: 1000, stream, arena, ..Request::default() })
        };
        context.free(malloc(&context, None).unwrap()).unwrap();
        let other = thread::spawn({
            let (context, arena) = (context.clone(), arena.clone());
            move || malloc(&context, Some(&arena)).is_ok()
        });
        let freed = context.arena_abort(&arena).unwrap().freed;
        let mine = malloc(&context, None).unwrap();
        let allocated = other.join().unwrap();
        assert!(freed == 1 || !allocated, "what was allocated in an arena that is gone");
        context.free(mine).unwrap();
        let stats = context.stats(DeviceId(0)).unwrap();
        assert_eq!((stats.allocations, stats.mallocs - stats.frees), (0, 0));
        context.validate().unwrap();
    });
}

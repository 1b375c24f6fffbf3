//! Models of the context for loom: `sh scripts/loom.sh`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::{Config, Context};
use crate::base::size::GIB;
use crate::base::DeviceId;
use crate::driver::host::{HostDriver, HostOptions};
use loom::thread;
use std::sync::Arc;

/// Fails when `Context::make_pool` does not hold `making`: both threads then reserve addresses.
#[test]
fn a_pool_is_made_once() {
    loom::model(|| {
        let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..HostOptions::default() }).unwrap();
        let context = Context::new(host, Config { va_size: GIB, ..Config::default() }).unwrap();
        let context = Arc::new(context);
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

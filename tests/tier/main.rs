//! Tiers: promises, evictions, and memory of the host and on disks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod accounts;
mod accounts_threads;
mod callbacks;
mod disk_store;
mod disk_support;
mod disks;
mod evict;
mod evict_by_itself;
mod evict_devices;
mod evict_faults;
mod evict_limits;
mod evict_panics;
mod evict_races;
mod evict_support;
mod host_blocks;
mod model;
mod reservations;
mod stream_pool;
mod waiting;

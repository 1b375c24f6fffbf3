//! gpumem: a GPU memory allocator behind a C ABI.
//!
//! # Layers
//!
//! A folder uses folders of a lower number and nothing else, and no file leads back to itself
//! through others (`tests/rules/layers.rs` enforces both):
//!
//! | level | folder | holds |
//! |---|---|---|
//! | 0 | [`base`] | errors, sizes, identifiers |
//! | 1 | [`driver`] | the boundary to CUDA and the operating system: real, host-made and failing devices |
//! | 1 | [`plan`] | the static planner: sizes and live ranges in, offsets out |
//! | 2 | [`pool`] | one device's memory: regions, extents, stream order, stitching |
//! | 3 | [`arena`] | scopes of allocations that end together; memory for CUDA graphs |
//! | 3 | [`observe`] | events, recordings of them, and their readers |
//! | 3 | [`tier`] | spaces of GPUs, host and disks, and promises of their bytes |
//! | 4 | [`context`] | configuration, and one of everything per device |
//! | 5 | [`capi`] | the C ABI: check, convert, one core call |
//!
//! `docs/spec/pool.md` says how the pool works, `docs/spec/capture.md` how graphs get memory, and
//! `docs/adr/` why.
//!
//! # Threads
//!
//! Loading the library starts no thread. These start when they are needed:
//!
//! - one for the background trim, if `GPUMEM_TRIM_INTERVAL` is set;
//! - one that pins host memory ahead of need, after the first use of pinned memory;
//! - one that moves data out of spaces that are too full, after the first evictable allocation,
//!   unless `GPUMEM_MOVER=off`;
//! - four that read and write files, after the first move to or from a disk, and for each disk
//!   space one that closes removed files, because a close may take long;
//! - one that writes a recording, while there is one, or that keeps the last events, with
//!   `GPUMEM_SNAPSHOT_ON=oom`;
//! - one that publishes the statistics page, with `GPUMEM_STATS_PAGE=on`;
//! - helpers that end with the call: those that touch the pages of large blocks, and those of a
//!   plan's search that asks for more than one thread.
//!
//! Every call may come from any thread. A malloc on the hit path takes one lock: that of one of its
//! stream's heaps. Threads on different streams do not meet there; threads that share a stream get
//! separate heaps once they keep meeting. The top of [`pool`] gives the lock order. A call that
//! waits for the device holds no lock but the pool's `changing`, shared. A lock poisoned by a panic
//! can still be taken, and the C ABI turns a panic into an error.
//!
//! # Start, fork, exit
//!
//! Loading the library runs nothing. The first call that needs a device makes the process's one
//! [`context`](context::Context); a failure to make it is reported, and the next call tries again.
//! A child forked after that gets `GPUMEM_ERROR_FORKED` from every call that needs the context, and
//! its frees do nothing; a child forked before may start its own.
//!
//! The context is never destroyed: no destructor calls CUDA. At exit the operating system takes
//! everything but the files of disk spaces, which the library removes. Once the driver is shutting
//! down, calls return `GPUMEM_ERROR_SHUTTING_DOWN` and frees do nothing. Once exit handlers run,
//! the library's own threads make no more driver calls; a call that they are in is waited for, but
//! no longer than a second.

// println! and eprintln! panic where nobody reads what they print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod arena;
pub mod base;
pub mod capi;
pub mod context;
pub mod driver;
pub mod observe;
pub mod plan;
pub mod pool;
pub mod tier;

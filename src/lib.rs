//! gpumem: a GPU memory allocator behind a C ABI.
//!
//! # Layers
//!
//! A folder may use folders of a lower number, and nothing else (`tests/rules/layers.rs` enforces it):
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
//! How the pool works is in `docs/spec/pool.md`, how graphs get memory in `docs/spec/capture.md`, why it works that way in `docs/adr/`.
//!
//! # Threads
//!
//! The library starts no thread but, with `GPUMEM_TRIM_INTERVAL`, the background trim's; one that pins host memory ahead of need, once
//! somebody has used pinned memory; one that moves data out of spaces that are too full, once there is evictable memory, unless
//! `GPUMEM_MOVER=off`; one for each disk space that closes removed files, as that may take long; and helpers that
//! touch the pages of large blocks and end with the call. Every call may come from any thread. Allocating on the hit path
//! takes one lock, that of a heap of the stream; threads that use streams of their own do not meet there, and threads that
//! share one get heaps of their own once they keep meeting. The order in which locks are taken is at the top of [`pool`]; no
//! lock is held in a call that waits for the device. A lock poisoned by a panic is taken all the same, and a panic becomes an
//! error at the C ABI.
//!
//! # Start, fork, exit
//!
//! Loading the library runs nothing: the first call that needs a device makes the process's one
//! [`context`](context::Context), and a failure to make it is reported and tried again by the next call. A child forked
//! after that gets `GPUMEM_ERROR_FORKED` from every call that needs the context, and its frees do nothing; one forked
//! before may start its own.
//! The context is never destroyed: no destructor calls CUDA, at exit the operating system takes everything but the files of
//! disk spaces, which the library removes. Once the driver is shutting down, calls return `GPUMEM_ERROR_SHUTTING_DOWN` and
//! frees do nothing. Once exit handlers run, the library's own threads make no driver call any more; a call that they
//! are in is waited for, but no longer than a second.

pub mod arena;
pub mod base;
pub mod capi;
pub mod context;
pub mod driver;
pub mod observe;
pub mod plan;
pub mod pool;
pub mod tier;

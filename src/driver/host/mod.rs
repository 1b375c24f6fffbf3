//! A device made of ordinary memory.
//!
//! It has two uses: it stands in for a GPU where there is none, and it is the device on which
//! everything above the driver is tested. Device addresses are ordinary addresses that the process
//! can read and write. Physical memory is sparse files in memory, mapped where `map` says, so
//! double mapping is real and a stale access by the processor faults. It enforces the rules of CUDA
//! that the operating system would let through.
//!
//! Streams are queues; a deterministic scheduler runs them when the driver is called
//! (`schedule.rs`). Simulated kernels declare what they touch (`kernel.rs`), and the device reports
//! accesses that are not mapped, not live or not ordered (`report.rs`, `race.rs`, `clock.rs`).
//! Those checks cost time and are off by default.
//!
//! # Threads
//!
//! Everything is behind one lock, except `stream_id` and the current device. The lock is dropped
//! while data is moved and while a kernel's body runs. A body may call the driver, but calls that
//! wait for the device fail there.

mod calls;
mod capture;
mod captured;
mod clock;
mod device;
mod events;
mod graph;
mod graphs;
mod harness;
mod identities;
mod kernel;
mod lanes;
mod live;
mod memory;
mod mood;
mod op;
mod options;
mod os;
mod physical;
mod race;
mod ranges;
mod report;
mod schedule;
mod seats;
mod state;
mod stream;
mod ties;
mod transfer;
mod wait;

pub use device::HostDriver;
pub use identities::Identities;
pub use kernel::{Body, Kernel, KernelCtx};
pub use options::{HostOptions, Tell};
pub use report::{Report, ReportKind};

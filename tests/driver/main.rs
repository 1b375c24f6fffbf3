//! The boundary to the driver: one contract for all, the host device, and CUDA, real and a
//! stand-in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod contract;
mod cuda_device;
mod cuda_driver;
mod cuda_graphs;
mod cuda_watch;
mod host_device;
mod wrappers;

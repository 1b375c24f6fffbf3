//! `libgpumem_preload.so` in front of programs, on a driver library that is gpumem's host device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cudart;
mod flows;
mod limits;
mod look_ups;
mod support;

//! The command from the outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod bench;
mod common;
mod doctor;
mod example_trace;
mod peers;
mod plan;
mod plan_bad_input;
mod plan_files;
mod plan_round_trip;
mod record;
mod replay;
mod run;
mod top;

//! The planner: layouts against oracles that share no code with it, graphs, reports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod arenas;
mod fixed;
mod generate;
mod graph;
mod limits;
mod plan_support;
mod report;
mod solver;
mod verify;

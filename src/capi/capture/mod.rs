//! Memory for CUDA graphs.

pub mod capture_arena;
pub mod sim_graph;

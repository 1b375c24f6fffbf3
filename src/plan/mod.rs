//! The static planner: it lays buffers with known sizes and live ranges out in one arena that is as
//! small as possible.
//!
//! The problem is offset assignment, also called dynamic storage allocation: buffers that are live
//! at the same step must not share bytes, and the arena should be as small as possible. The problem
//! is NP-hard; the largest sum of sizes live at one step is a lower bound that real traces come
//! very close to.
//!
//! | file | holds |
//! |---|---|
//! | [`problem`] | what is to be laid out: [`Buffer`], [`Arena`], reserved ranges, and the checks on them |
//! | [`graph`] | operations, views, in-place, pins, shared weights; turns into a [`Problem`] |
//! | [`mod@solve`] | the solver: [`solve()`] and its options |
//! | [`layout`] | the result: a slot for each buffer, sizes, bounds, status |
//! | [`mod@verify`] | says whether a layout is right, sharing no code with the solver |
//! | [`mod@report`], [`mod@svg`] | a layout as text, CSV and picture |
//!
//! Everything here is pure: no driver, no unsafe, and no clock except for a time limit. Without a
//! time limit, the same problem with the same options gives the same layout on every machine.
//! `docs/spec/planner.md` is the specification.

#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod covered;
pub mod graph;
pub mod layout;
pub mod problem;
pub mod report;
pub mod solve;
pub mod svg;
pub mod verify;

pub use graph::{Graph, Lowered, OpId, Placement, Preset, Value, ValueId};
pub use layout::{ArenaUse, Layout, LayoutStatus, Slot};
pub use problem::{Arena, Buffer, BufferId, Interval, Kind, Kinds, Place, Problem, Reserved, Step};
pub use report::{critical, csv, peak_bytes, report};
pub use solve::{clash, solve, Clash, Effort, SolveOptions};
pub use svg::svg;
pub use verify::{verify, verify_slots};

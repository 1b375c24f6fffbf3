//! What the tests of all members share. It knows nothing of gpumem, so it is built once and first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod alone;
mod effort;
mod program;
mod rng;

pub use alone::{child, role, runs_elsewhere};
pub use effort::{rounds, stride};
pub use program::{c_compiler, forget_settings, have, must_succeed, run};
pub use rng::Rng;

/// Runs the rest of the test that is named in a process of its own, because it counts or changes
/// what belongs to a process.
#[macro_export]
macro_rules! alone {
    ($test:literal) => {
        if $crate::runs_elsewhere(module_path!(), $test) {
            return;
        }
    };
}

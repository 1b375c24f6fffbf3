//! Models of what threads share, for loom: `sh scripts/loom.sh`. Each runs the pool's own code under every order of its
//! threads' steps and every value that its loads may see, up to the bounds it names; each comment names a change to the
//! code that makes its model fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod device;
mod index;
mod order;
mod whole;

/// Every execution with at most this many switches between threads that could have gone on.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

//! Models of what threads share, for loom: `sh scripts/loom.sh`. Each runs the pool's own code
//! under every order of its threads' steps and every value that its loads may see; each comment
//! names a change to the code that makes its model fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod device;
mod index;
mod order;
mod whole;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// Every execution, without a bound on the switches between threads.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    let executions = Arc::new(AtomicU64::new(0));
    builder.check({
        let executions = executions.clone();
        move || {
            executions.fetch_add(1, Relaxed);
            model();
        }
    });
    println!("{} executions", executions.load(Relaxed));
}

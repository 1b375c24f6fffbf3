//! Problems for tests and benches. The same arguments give the same problem on every machine.
//!
//! | function | gives |
//! |---|---|
//! | [`random`] | sizes and lives of every magnitude |
//! | [`training`] | the shape of a training step: activations kept from forward to backward, gradients, weights |
//! | [`guillotine`], [`guillotine_with_holes`] | a filled rectangle, cut up: its height is the optimum |
//! | [`with_features`] | random, with everything else that a [`Problem`] can ask for |
//!
//! Sizes are bytes. Buffers are temporaries bound to no arena unless said otherwise.

mod features;
mod guillotine;
pub mod rng;
mod training;

#[allow(unused_imports)]
pub use features::{with_features, Features};
#[allow(unused_imports)]
pub use guillotine::{guillotine, guillotine_with_holes};
pub use training::training;

use gpumem::base::Result;
use gpumem::plan::{Buffer, Problem, Step};
pub use rng::Rng;

/// `count` buffers of 1 to `most_bytes` bytes, live in 1 to `steps` of the steps `[0, steps)`, each
/// power of two of both as likely. Zero for either counts as 1.
pub fn random(seed: u64, count: usize, steps: Step, most_bytes: u64) -> Result<Problem> {
    let mut rng = Rng::new(seed);
    let mut problem = Problem::new();
    for _ in 0..count {
        let size = rng.magnitude(most_bytes);
        let (lower, upper) = rng.steps(steps);
        problem.add(Buffer::new(size, lower, upper))?;
    }
    Ok(problem)
}

//! What a caller asks of the solver.

use crate::plan::layout::Layout;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How hard to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// A few greedy orders and no search: under a millisecond for hundreds of buffers, for
    /// replanning at run time.
    Fast,
    /// Greedy orders, then a search whose steps are counted, so that the result does not depend on
    /// the machine.
    #[default]
    Normal,
}

/// How to solve.
#[derive(Clone, Copy, Debug, Default)]
pub struct SolveOptions<'a> {
    /// How hard to try.
    pub effort: Effort,
    /// With a limit, the search goes on until the limit, the lower bound or a proof, and the result
    /// depends on the machine. `None` allows 5,000 steps for each buffer, at most 3,000,000, and
    /// any time. In either case there is a layout unless a capacity forbids it.
    pub time_limit: Option<Duration>,
    /// Number of threads to search with; 0 and 1 search on the caller's thread. The result depends
    /// on their number, not on their timing.
    pub threads: u32,
    /// Set from another thread to stop early with the best so far.
    pub cancel: Option<&'a AtomicBool>,
    /// An earlier layout of the same buffers with other sizes, for replanning. Its order is tried
    /// first.
    pub previous: Option<&'a Layout>,
}

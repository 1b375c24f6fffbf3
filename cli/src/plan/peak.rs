//! Where most bytes are live.

use gpumem::plan::{self, Problem};

/// The first step at which most bytes are live.
pub struct Peak {
    pub step: u64,
    pub buffers: usize,
    pub bytes: u64,
}

impl Peak {
    pub fn of(problem: &Problem) -> Peak {
        let (step, live) = plan::critical(problem);
        // The input has at most 2^62 bytes in all.
        let bytes = live.iter().filter_map(|id| problem.buffers().get(id.index())).map(|b| b.extent()).sum();
        Peak { step, buffers: live.len(), bytes }
    }
}

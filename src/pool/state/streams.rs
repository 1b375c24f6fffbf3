//! What the registry of streams knows.

/// What the registry knows a stream by: its handle, or its identity where many streams share one
/// handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Handle(usize),
    PerThread(u64),
    /// A stream that is being captured, by [`capture_key`]: which stream it is cannot be asked
    /// then, so captures have heaps of their own.
    Captured(usize),
}

/// What the registry has for a stream.
pub(crate) struct StreamHeaps {
    pub(crate) lane: u32,
    /// Heap numbers; never empty.
    pub(crate) heaps: Vec<u32>,
    /// Which of them the next thread that wants another one gets, when no more are made.
    pub(crate) next: usize,
}

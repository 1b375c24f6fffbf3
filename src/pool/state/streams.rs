//! What the registry of streams knows.

/// The registry's key for a stream: its handle, or its identity if many streams share one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Handle(usize),
    PerThread(u64),
    /// A captured stream, by `capture_key`: it cannot be asked for its identity, so captures have
    /// heaps of their own.
    Captured(usize),
}

/// What the registry has for a stream.
pub(crate) struct StreamHeaps {
    pub(crate) lane: u32,
    /// Heap numbers; never empty.
    pub(crate) heaps: Vec<u32>,
    /// The position of the heap for the next thread that wants another one, when no more are made.
    pub(crate) next: usize,
}

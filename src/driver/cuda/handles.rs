//! Handles as CUDA's types.

use crate::base::StreamHandle;
use crate::driver::EventHandle;
use cudarc::driver::sys::{CUevent, CUstream};

pub(super) fn raw_stream(s: StreamHandle) -> CUstream {
    s.0 as CUstream
}

pub(super) fn raw_event(e: EventHandle) -> CUevent {
    e.0 as usize as CUevent
}

/// Whether the handle is one of the special names, whose stream depends on the thread or device.
pub(super) fn is_special(s: StreamHandle) -> bool {
    s.0 <= 2
}

//! CUDA's types and numbers, as far as they pass through here.

use std::ffi::{c_int, c_uint};

/// A `CUresult`, any number.
pub type Code = u32;
/// A `CUdeviceptr`.
pub type Ptr = u64;
/// A `CUstream`, by number: 0 and 1 the legacy stream, 2 the per-thread one.
pub type Stream = usize;
/// A `CUcontext`.
pub type Ctx = usize;
/// A `CUmemoryPool`.
pub type MemPool = usize;

pub const SUCCESS: Code = 0;
pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NOT_INITIALIZED: Code = 3;
pub const INVALID_CONTEXT: Code = 201;
pub const MAP_FAILED: Code = 205;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub const CAPTURING: Code = 900;

/// A `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle(pub [u8; 64]);

/// A `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Access {
    pub location: c_int,
    pub id: c_int,
    pub flags: c_int,
}
/// A `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    pub kind: c_int,
    pub id: c_int,
}

/// A `CUgraphNodeParams`, in words: the type, a reserved one, what the type needs, a reserved one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NodeParams(pub [u64; 32]);

/// `CU_MEM_LOCATION_TYPE_DEVICE`, and `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub const DEVICE: c_int = 1;
pub const READ_WRITE: c_int = 3;

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
pub const RELEASE_THRESHOLD: c_int = 4;

/// `CU_EVENT_DISABLE_TIMING`, and `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub const NO_TIMING: c_uint = 2;
pub const RELAXED: c_uint = 2;

//! CUDA's error codes.

use cudarc::driver::sys::CUresult;

/// A `CUresult` as the C ABI passes it: any number, including codes newer than the bindings.
pub(super) type Code = u32;

pub(super) const CODE_SUCCESS: Code = CUresult::CUDA_SUCCESS as Code;
pub(super) const CODE_INVALID_VALUE: Code = CUresult::CUDA_ERROR_INVALID_VALUE as Code;
pub(super) const CODE_OUT_OF_MEMORY: Code = CUresult::CUDA_ERROR_OUT_OF_MEMORY as Code;
pub(super) const CODE_DEINITIALIZED: Code = CUresult::CUDA_ERROR_DEINITIALIZED as Code;
pub(super) const CODE_STUB_LIBRARY: Code = CUresult::CUDA_ERROR_STUB_LIBRARY as Code;
pub(super) const CODE_NO_DEVICE: Code = CUresult::CUDA_ERROR_NO_DEVICE as Code;
pub(super) const CODE_NOT_READY: Code = CUresult::CUDA_ERROR_NOT_READY as Code;
pub(super) const CODE_CAPTURE_IMPLICIT: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as Code;
pub(super) const CODE_INVALID_HANDLE: Code = CUresult::CUDA_ERROR_INVALID_HANDLE as Code;
pub(super) const CODE_CONTEXT_IS_DESTROYED: Code = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as Code;
pub(super) const CODE_NOT_SUPPORTED: Code = CUresult::CUDA_ERROR_NOT_SUPPORTED as Code;
const CODE_NOT_PERMITTED: Code = CUresult::CUDA_ERROR_NOT_PERMITTED as Code;
pub(super) const CODE_CAPTURE_FIRST: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as Code;
pub(super) const CODE_CAPTURE_INVALIDATED: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as Code;
pub(super) const CODE_CAPTURE_LAST: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as Code;

/// Whether the driver declined the request, as opposed to trying and failing.
pub(super) fn is_refusal(code: Code) -> bool {
    matches!(code, CODE_INVALID_VALUE | CODE_NOT_PERMITTED | CODE_NOT_SUPPORTED)
}

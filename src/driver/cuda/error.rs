//! CUDA's error codes as gpumem's statuses and texts.

use super::api::Api;
use super::code::*;
use crate::base::Status;
use cudarc::driver::sys::CUresult;
use std::ffi::{c_char, CStr};

/// The subject of a call, which decides what `CUDA_ERROR_INVALID_HANDLE` means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Stream,
    Other,
}

pub(super) fn status(code: Code, subject: Subject) -> Status {
    match code {
        CODE_SUCCESS => Status::Ok,
        CODE_OUT_OF_MEMORY => Status::OutOfMemory,
        // Calls meet a destroyed context while the process exits (or after cudaDeviceReset).
        CODE_DEINITIALIZED | CODE_CONTEXT_IS_DESTROYED => Status::ShuttingDown,
        CODE_NO_DEVICE | CODE_STUB_LIBRARY => Status::NoDevice,
        CODE_NOT_SUPPORTED => Status::Unsupported,
        CODE_CAPTURE_FIRST..=CODE_CAPTURE_LAST => Status::Capturing,
        CODE_INVALID_HANDLE if subject == Subject::Stream => Status::InvalidStream,
        _ => Status::Driver,
    }
}

/// A code's name and text, `CUDA_ERROR_OUT_OF_MEMORY (out of memory)`, with advice where CUDA's own
/// words give none.
pub(super) fn describe(api: &Api, code: Code) -> String {
    let name = look_up(api.cuGetErrorName, code);
    let text = look_up(api.cuGetErrorString, code);
    let advice = match code {
        CODE_DEINITIALIZED => "; the process is exiting",
        CODE_CONTEXT_IS_DESTROYED => "; the process is exiting, or the device was reset",
        CODE_CAPTURE_INVALIDATED => {
            "; an illegal call made during the capture has lost it, capture again without that call"
        }
        CODE_CAPTURE_LAST => "; only the thread that began the capture can end it",
        CODE_CAPTURE_FIRST..=CODE_CAPTURE_LAST => "; end the stream capture first",
        // Sticky errors: every later call reports them.
        700 | 702 | 710 | 714..=719 => "; earlier work on the device failed, the process has to start again",
        _ => "",
    };
    match (name, text) {
        (Some(name), Some(text)) => format!("{name} ({text}){advice}"),
        (Some(name), None) => format!("{name}{advice}"),
        _ => format!("CUDA error {code}{advice}"),
    }
}

/// `cuGetErrorName` and `cuGetErrorString` as they really are in C: any number may be passed.
type LookUp = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

fn look_up(call: unsafe extern "C" fn(CUresult, *mut *const c_char) -> Code, code: Code) -> Option<String> {
    // SAFETY: CUresult is `repr(u32)`, so both types are the same C function.
    let call: LookUp = unsafe { std::mem::transmute(call) };
    let mut text = std::ptr::null();
    // SAFETY: any number is accepted (an unknown one gives INVALID_VALUE); the result is a static C
    // string.
    if unsafe { call(code, &mut text) } != CODE_SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: not null, and static in the driver library, which is never unloaded.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_codes() {
        for (code, subject, want) in [
            (0, Subject::Other, Status::Ok),
            (2, Subject::Other, Status::OutOfMemory),
            (4, Subject::Other, Status::ShuttingDown),
            (709, Subject::Stream, Status::ShuttingDown),
            (100, Subject::Other, Status::NoDevice),
            (400, Subject::Stream, Status::InvalidStream),
            (400, Subject::Other, Status::Driver),
            (801, Subject::Other, Status::Unsupported),
            (899, Subject::Other, Status::Driver),
            (900, Subject::Other, Status::Capturing),
            (908, Subject::Stream, Status::Capturing),
            (909, Subject::Other, Status::Driver),
            (123_456, Subject::Other, Status::Driver),
        ] {
            assert_eq!(status(code, subject), want, "{code}");
        }
    }
}

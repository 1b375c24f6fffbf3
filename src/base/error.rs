//! One error type for the whole library: a stable status code and a sentence for a person.

use std::fmt;

/// What went wrong, as the C ABI reports it. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// An argument, option or flag combination is not allowed.
    Invalid = 1,
    /// The request does not fit the device, the configured limit or the address space.
    OutOfMemory = 2,
    /// The pointer was never handed out, or points into the middle of an allocation.
    UnknownPointer = 3,
    /// The pointer was handed out and has been freed already.
    DoubleFree = 4,
    /// A driver call failed; the text names the call and the driver's error.
    Driver = 5,
    /// There is no usable driver or device.
    NoDevice = 6,
    /// This driver, device or build cannot do what was asked.
    Unsupported = 7,
    /// An environment variable or context option does not parse.
    Config = 8,
    /// The process was forked after gpumem had started; children must not use it.
    Forked = 9,
    /// A bug in gpumem: an internal check failed or a panic was caught.
    Internal = 10,
    /// The driver is shutting down, or the stream pool or all waits for reservations were closed.
    ShuttingDown = 11,
    /// Not legal while a stream capture is in progress.
    Capturing = 12,
    /// The stream handle is not, or no longer, a stream (host device; CUDA itself cannot tell).
    InvalidStream = 13,
    /// Memory was used that its owner, or its arena, had freed.
    UseAfterFree = 14,
    /// A wait ended at its timeout, before there was room.
    TimedOut = 15,
    /// A wait or a move was cancelled.
    Cancelled = 16,
    /// A file could not be read or written; the text names the call, the file and the system's
    /// error.
    Io = 17,
    /// Data on disk is not what was written there: truncated, or altered.
    Corrupt = 18,
}

impl Status {
    /// Every status, in numeric order.
    pub const ALL: [Status; 19] = [
        Status::Ok,
        Status::Invalid,
        Status::OutOfMemory,
        Status::UnknownPointer,
        Status::DoubleFree,
        Status::Driver,
        Status::NoDevice,
        Status::Unsupported,
        Status::Config,
        Status::Forked,
        Status::Internal,
        Status::ShuttingDown,
        Status::Capturing,
        Status::InvalidStream,
        Status::UseAfterFree,
        Status::TimedOut,
        Status::Cancelled,
        Status::Io,
        Status::Corrupt,
    ];

    /// The C constant's name, e.g. `GPUMEM_ERROR_OUT_OF_MEMORY`.
    pub fn name(self) -> &'static str {
        match self {
            Status::Ok => "GPUMEM_OK",
            Status::Invalid => "GPUMEM_ERROR_INVALID",
            Status::OutOfMemory => "GPUMEM_ERROR_OUT_OF_MEMORY",
            Status::UnknownPointer => "GPUMEM_ERROR_UNKNOWN_POINTER",
            Status::DoubleFree => "GPUMEM_ERROR_DOUBLE_FREE",
            Status::Driver => "GPUMEM_ERROR_DRIVER",
            Status::NoDevice => "GPUMEM_ERROR_NO_DEVICE",
            Status::Unsupported => "GPUMEM_ERROR_UNSUPPORTED",
            Status::Config => "GPUMEM_ERROR_CONFIG",
            Status::Forked => "GPUMEM_ERROR_FORKED",
            Status::Internal => "GPUMEM_ERROR_INTERNAL",
            Status::ShuttingDown => "GPUMEM_ERROR_SHUTTING_DOWN",
            Status::Capturing => "GPUMEM_ERROR_CAPTURING",
            Status::InvalidStream => "GPUMEM_ERROR_INVALID_STREAM",
            Status::UseAfterFree => "GPUMEM_ERROR_USE_AFTER_FREE",
            Status::TimedOut => "GPUMEM_ERROR_TIMED_OUT",
            Status::Cancelled => "GPUMEM_ERROR_CANCELLED",
            Status::Io => "GPUMEM_ERROR_IO",
            Status::Corrupt => "GPUMEM_ERROR_CORRUPT",
        }
    }

    /// The status with this number, if any.
    pub fn from_code(code: i32) -> Option<Status> {
        Status::ALL.into_iter().find(|s| *s as i32 == code)
    }
}

/// A failed operation. State is as it was before the call that returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The stable code.
    pub status: Status,
    /// What was asked, what there was, and, where that is not plain, what to do next.
    pub message: String,
}

impl Error {
    /// An error with this status and text.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error { status, message: message.into() }
    }

    /// An argument that is not allowed.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Status::Invalid, message)
    }

    /// An internal check that failed: a bug in gpumem, not in its user.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Status::Internal, message)
    }

    /// The error with `what` put in front of its message.
    pub fn context(mut self, what: impl fmt::Display) -> Error {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.name(), self.message)
    }
}

impl std::error::Error for Error {}

/// The result of every fallible operation in gpumem.
pub type Result<T> = std::result::Result<T, Error>;

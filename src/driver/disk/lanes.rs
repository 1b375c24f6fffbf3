//! What both kinds of lanes need.

use super::{Completion, Direction, IoRequest};
use std::io;
use std::os::unix::fs::FileExt;

/// Most requests in flight in one lane.
pub(super) const CAPACITY: usize = 64;

/// The error for requests that no lane can start.
pub(super) fn refuse(request: IoRequest, why: &'static str) -> Box<Completion> {
    Box::new(Completion { request, result: Err(io::Error::new(io::ErrorKind::InvalidInput, why)) })
}

/// Makes a request by a call that blocks.
pub(super) fn perform(mut request: IoRequest) -> Completion {
    let range = request.range.clone();
    let result = match request.direction {
        Direction::Read => match request.buffer.bytes_mut().get_mut(range) {
            Some(part) => request.file.read_at(part, request.at),
            None => Err(io::ErrorKind::InvalidInput.into()),
        },
        Direction::Write => match request.buffer.bytes().get(range) {
            Some(part) => request.file.write_at(part, request.at),
            None => Err(io::ErrorKind::InvalidInput.into()),
        },
    };
    Completion { request, result }
}

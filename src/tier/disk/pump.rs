//! Reads and writes of one file in flight. Goes on after short ones, and keeps those that are over
//! until they are asked for.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::size::round_down;
use crate::driver::disk::{Buffer, Completion, Direction, IoRequest, Lane, ALIGN};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// How often a request is repeated although nothing has moved.
const PATIENCE: u32 = 16;

/// A request that is over, as a whole.
pub(super) struct Finished {
    pub tag: u64,
    pub buffer: Buffer,
    pub result: io::Result<()>,
}

pub(super) struct Pump {
    lane: Box<dyn Lane>,
    file: Arc<File>,
    /// Tags of requests in flight that got nowhere, and how often.
    stuck: Vec<(u64, u32)>,
    finished: Vec<Finished>,
    scratch: Vec<Completion>,
    /// The lane's own failure. Requests in flight then stay so.
    broken: Option<io::Error>,
}

impl Pump {
    pub fn new(lane: Box<dyn Lane>, file: File) -> Pump {
        let (stuck, finished, scratch) = (Vec::new(), Vec::new(), Vec::new());
        Pump { lane, file: Arc::new(file), stuck, finished, scratch, broken: None }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Starts a request for the first `bytes` of the buffer; waits only when too many are in
    /// flight.
    pub fn submit(&mut self, direction: Direction, at: u64, buffer: Buffer, bytes: u64, tag: u64) {
        while self.lane.in_flight() >= self.lane.capacity() && self.broken.is_none() {
            self.advance();
        }
        let range = 0..usize::try_from(bytes).unwrap_or(usize::MAX);
        self.start(IoRequest { direction, file: self.file.clone(), at, buffer, range, tag });
    }

    fn start(&mut self, request: IoRequest) {
        if let Some(e) = &self.broken {
            let result = Err(io::Error::new(e.kind(), e.to_string()));
            self.finished.push(Finished { tag: request.tag, buffer: request.buffer, result });
        } else if let Err(refused) = self.lane.submit(request) {
            let Completion { request, result } = *refused;
            let result = result.and_then(|_| Err(io::ErrorKind::Other.into()));
            self.finished.push(Finished { tag: request.tag, buffer: request.buffer, result });
        }
    }

    /// Waits until at least `least` requests are over, or all that are in flight, and returns all
    /// that are.
    pub fn wait(&mut self, least: usize) -> Vec<Finished> {
        while self.finished.len() < least && self.lane.in_flight() > 0 && self.broken.is_none() {
            self.advance();
        }
        std::mem::take(&mut self.finished)
    }

    /// Waits until a request is over, and returns the first that was; others stay. `None` if none
    /// is in flight.
    pub fn next(&mut self) -> Option<Finished> {
        while self.finished.is_empty() && self.lane.in_flight() > 0 && self.broken.is_none() {
            self.advance();
        }
        (!self.finished.is_empty()).then(|| self.finished.remove(0))
    }

    /// Waits until the request with this tag is over; others stay. `None` if there is no such
    /// request.
    pub fn wait_for(&mut self, tag: u64) -> Option<Finished> {
        loop {
            if let Some(i) = self.finished.iter().position(|f| f.tag == tag) {
                return Some(self.finished.swap_remove(i));
            }
            if self.lane.in_flight() == 0 || self.broken.is_some() {
                return None;
            }
            self.advance();
        }
    }

    /// The lane's own failure, if it has failed: what was in flight is lost.
    pub fn broken(&self) -> Option<&io::Error> {
        self.broken.as_ref()
    }

    /// Waits for the lane, and continues requests that are not over.
    fn advance(&mut self) {
        let mut scratch = std::mem::take(&mut self.scratch);
        if let Err(e) = self.lane.wait(&mut scratch) {
            self.broken = Some(e);
        }
        for completion in scratch.drain(..) {
            self.settle(completion);
        }
        self.scratch = scratch;
    }

    fn settle(&mut self, completion: Completion) {
        let Completion { mut request, result } = completion;
        let asked = request.range.len();
        let outcome = match result {
            Ok(n) if n >= asked => Some(Ok(())),
            Ok(n) => self.go_on(&mut request, n),
            // A thread that ends cancels what it has in flight, and signals interrupt: both pass.
            Err(e) if is_passing(&e) => self.again(request.tag, e),
            Err(e) => Some(Err(e)),
        };
        match outcome {
            None => self.start(request),
            Some(result) => {
                self.stuck.retain(|s| s.0 != request.tag);
                self.finished.push(Finished { tag: request.tag, buffer: request.buffer, result });
            }
        }
    }

    /// Continues behind `n` bytes, fewer than asked, from a place where direct I/O may start.
    fn go_on(&mut self, request: &mut IoRequest, n: usize) -> Option<io::Result<()>> {
        let kind = match request.direction {
            Direction::Read => io::ErrorKind::UnexpectedEof,
            Direction::Write => io::ErrorKind::WriteZero,
        };
        let moved = round_down(n as u64, ALIGN);
        if moved == 0 {
            return self.again(request.tag, kind.into());
        }
        self.stuck.retain(|s| s.0 != request.tag);
        request.at = request.at.saturating_add(moved);
        let Range { start, end } = request.range;
        request.range = start.saturating_add(moved as usize).min(end)..end;
        None
    }

    /// Repeats a request of which nothing moved. Returns the error once that was so too often.
    fn again(&mut self, tag: u64, e: io::Error) -> Option<io::Result<()>> {
        let Some(stuck) = self.stuck.iter_mut().find(|s| s.0 == tag) else {
            self.stuck.push((tag, 1));
            return None;
        };
        stuck.1 += 1;
        (stuck.1 > PATIENCE).then_some(Err(e))
    }
}

fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
        || e.raw_os_error() == Some(libc::ECANCELED)
}

//! Reads and writes on blocking threads. `docs/adr/disk-io.md` says why not with `io_uring`.

use super::{Completion, Direction, IoRequest, Lane};
use crate::base::sync::lock;
use crate::driver::process::without_signals;
use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Most requests in flight in one lane.
const CAPACITY: usize = 64;

/// The threads and their work.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified of every request, and of the end.
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<(IoRequest, Arc<Mailbox>)>,
    ended: bool,
}

/// Where a lane's completions arrive.
#[derive(Default)]
struct Mailbox {
    done: Mutex<Vec<Completion>>,
    arrived: Condvar,
}

impl Workers {
    /// Starts `count` threads, or as many as the system allows; an error if it allows none.
    pub(super) fn start(count: usize) -> io::Result<Workers> {
        let mut workers = Workers { shared: Arc::default(), threads: Vec::new() };
        for _ in 0..count.max(1) {
            let shared = workers.shared.clone();
            let builder = std::thread::Builder::new().name("gpumem-disk".into());
            match without_signals(|| builder.spawn(move || shared.work())) {
                Ok(thread) => workers.threads.push(thread),
                Err(e) if workers.threads.is_empty() => return Err(e),
                Err(_) => break,
            }
        }
        Ok(workers)
    }

    pub(super) fn lane(&self) -> ThreadLane {
        ThreadLane { shared: self.shared.clone(), mailbox: Arc::default(), in_flight: 0 }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.queue).ended = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // Threads do not panic: `work` makes system calls only.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let (request, mailbox) = {
                let mut queue = lock(&self.queue);
                loop {
                    match queue.requests.pop_front() {
                        Some(next) => break next,
                        // Queued requests are done first: lanes wait for them.
                        None if queue.ended => return,
                        None => queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
                    }
                }
            };
            let completion = perform(request);
            lock(&mailbox.done).push(completion);
            mailbox.arrived.notify_one();
        }
    }
}

/// One user's requests to the threads.
pub(super) struct ThreadLane {
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    in_flight: usize,
}

impl Lane for ThreadLane {
    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, request: IoRequest) -> Result<(), Box<Completion>> {
        if self.in_flight >= CAPACITY {
            return Err(refuse(request, "too many requests in flight"));
        }
        if request.buffer.part(&request.range).is_none() {
            return Err(refuse(request, "not a part of the buffer"));
        }
        let mut queue = lock(&self.shared.queue);
        if queue.ended {
            return Err(refuse(request, "the disk's threads have ended"));
        }
        queue.requests.push_back((request, self.mailbox.clone()));
        drop(queue);
        self.in_flight += 1;
        self.shared.wake.notify_one();
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        if self.in_flight == 0 {
            return Ok(());
        }
        let mut arrived = lock(&self.mailbox.done);
        while arrived.is_empty() {
            arrived = self.mailbox.arrived.wait(arrived).unwrap_or_else(PoisonError::into_inner);
        }
        self.in_flight -= arrived.len();
        done.append(&mut arrived);
        Ok(())
    }
}

impl Drop for ThreadLane {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight > 0 && self.wait(&mut done).is_ok() {}
    }
}

/// The error for requests that no lane can start.
fn refuse(request: IoRequest, why: &'static str) -> Box<Completion> {
    Box::new(Completion { request, result: Err(io::Error::new(io::ErrorKind::InvalidInput, why)) })
}

/// Carries out a request with a blocking call.
fn perform(mut request: IoRequest) -> Completion {
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

//! Reads and writes through `io_uring`: one ring for each lane, so lanes share no lock and no thread waits for them.

use super::lanes::{refuse, CAPACITY};
use super::{Completion, Direction, IoRequest, Lane};
use crate::base::sync::lock;
use io_uring::{opcode, types, IoUring, Probe};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

/// Most rings kept for later lanes; each takes a descriptor and a few pages.
const KEPT: usize = 16;

/// Rings without users.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
}

impl Rings {
    /// Rings, if the kernel lets this process have one that reads and writes.
    pub(super) fn new() -> io::Result<Rings> {
        let ring = new_ring()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "io_uring without read and write (Linux 5.6 has them)",
            ));
        }
        Ok(Rings { idle: Mutex::new(vec![ring]) })
    }

    pub(super) fn lane(self: &Arc<Rings>) -> io::Result<UringLane> {
        let idle = lock(&self.idle).pop();
        let ring = match idle {
            Some(ring) => ring,
            None => new_ring()?,
        };
        let requests = std::iter::repeat_with(|| None).take(CAPACITY).collect();
        Ok(UringLane { ring: ManuallyDrop::new(ring), rings: self.clone(), requests, in_flight: 0, queued: false })
    }
}

fn new_ring() -> io::Result<IoUring> {
    IoUring::new(CAPACITY as u32)
}

/// One user's ring. `requests[i]` is what the kernel knows as `i`: it stays until the kernel says that it is over.
pub(super) struct UringLane {
    /// Taken once, by the drop.
    ring: ManuallyDrop<IoUring>,
    rings: Arc<Rings>,
    requests: Vec<Option<IoRequest>>,
    in_flight: usize,
    /// Some entries are in the ring, but the kernel has not taken them yet.
    queued: bool,
}

/// The kernel asks to try again: a signal, or a moment without resources.
fn passing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

impl UringLane {
    fn collect(&mut self, done: &mut Vec<Completion>) -> usize {
        let mut found = 0;
        for entry in self.ring.completion() {
            let slot = usize::try_from(entry.user_data()).ok().and_then(|i| self.requests.get_mut(i));
            let Some(request) = slot.and_then(Option::take) else { continue };
            found += 1;
            let result = match entry.result() {
                n if n < 0 => Err(io::Error::from_raw_os_error(n.saturating_neg())),
                n => Ok(n as usize),
            };
            done.push(Completion { request, result });
        }
        self.in_flight -= found;
        found
    }
}

impl Lane for UringLane {
    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, request: IoRequest) -> Result<(), Box<Completion>> {
        let Some((addr, len)) = request.buffer.part(&request.range) else {
            return Err(refuse(request, "not a part of the buffer"));
        };
        let Some((index, slot)) = self.requests.iter_mut().enumerate().find(|(_, r)| r.is_none()) else {
            return Err(refuse(request, "too many requests in flight"));
        };
        let file = types::Fd(request.file.as_raw_fd());
        let entry = match request.direction {
            Direction::Read => opcode::Read::new(file, addr, len).offset(request.at).build(),
            Direction::Write => opcode::Write::new(file, addr, len).offset(request.at).build(),
        };
        // SAFETY: the descriptor and `len` bytes at `addr` are the request's, which is kept in `requests` until its
        // completion is seen: `collect` takes it out then, and the drop keeps it for ever when that never happens. The
        // buffer's memory does not move with it.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
        if pushed.is_err() {
            // As many entries as requests: the kernel has not taken earlier ones.
            return Err(refuse(request, "the ring is full"));
        }
        *slot = Some(request);
        self.in_flight += 1;
        // When the kernel does not take it now, `wait` asks again; it counts as in flight.
        self.queued = self.ring.submit().is_err();
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        if !self.queued && self.collect(done) > 0 {
            return Ok(());
        }
        while self.in_flight > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => self.queued = false,
                Err(e) if passing(&e) => {}
                Err(e) => return Err(e),
            }
            if self.collect(done) > 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for UringLane {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight > 0 && self.wait(&mut done).is_ok() {}
        // SAFETY: `ring` is not used after this.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        if self.in_flight > 0 {
            // The kernel may still write into these buffers, and the ring holds entries: both are lost.
            std::mem::forget((ring, std::mem::take(&mut self.requests)));
            return;
        }
        let mut idle = lock(&self.rings.idle);
        if idle.len() < KEPT {
            idle.push(ring);
        }
    }
}

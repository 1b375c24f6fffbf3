//! The one thread that takes events out of all rings, into a file if there is one and into the list
//! of last events.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::event::Event;
use super::format::{self, Holds, MOST_EVENTS};
use super::recording::Happened;
use super::session::{Ring, Session};
use super::stacks::Symbols;
use crate::base::sync::lock;
use crate::driver::process;
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// How often the writer looks when nothing wakes it. A killed process loses at most this much time.
const PERIOD: Duration = Duration::from_millis(100);

/// The thread's own state.
pub(super) struct Writer {
    pub(super) session: std::sync::Arc<Session>,
    pub(super) file: Option<File>,
    /// The file's name, if stderr is to be told when it can no longer be written.
    warn: Option<PathBuf>,
    symbols: Symbols,
    /// How many lost events the file reports.
    lost: u64,
}

impl Writer {
    pub(super) fn new(
        session: std::sync::Arc<Session>,
        file: Option<File>,
        warn: Option<PathBuf>,
        symbols: Symbols,
    ) -> Writer {
        Writer { session, file, warn, symbols, lost: 0 }
    }

    /// Runs until the session ends.
    pub(super) fn run(mut self) {
        let session = self.session.clone();
        loop {
            let stopping = session.stop.load(Acquire);
            let wanted = lock(&session.rounds).0;
            let busy = self.round();
            {
                let mut rounds = lock(&session.rounds);
                rounds.1 = rounds.1.max(wanted);
            }
            session.done.notify_all();
            match (stopping, busy) {
                (true, false) => break,
                (_, true) => {}
                (false, false) => std::thread::park_timeout(PERIOD),
            }
        }
        self.write(|w| w.totals(true).and_then(|()| w.has_name()));
        lock(&session.rounds).2 = true;
        session.done.notify_all();
    }

    /// Takes all events. Returns whether a ring was so full that it is worth looking again at once.
    fn round(&mut self) -> bool {
        let mut taken: Vec<(u32, Vec<Event>)> = Vec::new();
        let mut busy = false;
        {
            let mut rings = lock(&self.session.rings);
            for ring in rings.iter_mut() {
                let events = take(ring);
                busy |= events.len() >= 1 << 9;
                if !events.is_empty() {
                    taken.push((ring.thread, events));
                }
            }
            // A thread may push until it drops its end, so this checks for that first.
            rings.retain(|ring| !(ring.events.is_abandoned() && ring.events.is_empty()));
        }
        let strays = std::mem::take(&mut *lock(&self.session.strays));
        taken.extend(strays.into_iter().map(|h| (h.thread, vec![h.event])));
        // After the events, so that every number in them is known by now.
        self.write(Writer::names);
        for (thread, events) in &taken {
            self.keep_last(*thread, events);
            self.events(*thread, events);
        }
        if self.session.lost.load(Relaxed) != self.lost {
            self.write(|w| w.totals(false));
        }
        busy || (self.session.stop.load(Relaxed) && !taken.is_empty())
    }

    fn keep_last(&self, thread: u32, events: &[Event]) {
        let keep = self.session.keep;
        if keep == 0 {
            return;
        }
        let mut last = lock(&self.session.last);
        let new = events.iter().rev().take(keep).rev();
        last.extend(new.map(|&event| Happened { event, thread }));
        let surplus = last.len().saturating_sub(2 * keep);
        last.drain(..surplus);
    }

    /// Runs `what` on the file, unless there is none or it failed before. Returns whether it
    /// succeeded.
    fn write(&mut self, what: impl FnOnce(&mut Writer) -> io::Result<()>) -> bool {
        if self.file.is_none() || self.session.failed.get().is_some() {
            return false;
        }
        let done = what(self);
        let went_well = done.is_ok();
        if let Err(e) = done {
            if let Some(file) = &self.warn {
                let file = file.display();
                process::say(format_args!("the recording {file} ends here, as it cannot be written further: {e}"));
            }
            let _ = self.session.failed.set(e);
        }
        went_well
    }

    /// Writes a block unbuffered: it is large enough, and is in the file or not once this returns.
    fn put(&mut self, block: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |f| f.write_all(block))
    }

    /// Writes events to the file, if there is one. Events that the file does not take are lost.
    fn events(&mut self, thread: u32, events: &[Event]) {
        if self.file.is_none() {
            return;
        }
        for part in events.chunks(MOST_EVENTS) {
            let count = part.len() as u64;
            let block =
                |w: &mut Writer| w.put(&format::block(Holds::Events, thread, part.len() as u32, &format::encode(part)));
            match self.write(block) {
                true => self.session.written.fetch_add(count, Relaxed),
                false => self.session.lost.fetch_add(count, Relaxed),
            };
        }
    }

    fn names(&mut self) -> io::Result<()> {
        let new = lock(&self.session.names).take_stacks();
        let depth = self.session.depth.max(1);
        let frames: Vec<_> = new.iter().map(|(n, raw)| (*n, self.symbols.frames(raw, depth))).collect();
        let (stacks, strings) = {
            let mut names = lock(&self.session.names);
            let number =
                |(n, frames): &(u32, Vec<String>)| (*n, frames.iter().map(|f| names.string(f)).collect::<Vec<u32>>());
            let stacks: Vec<_> = frames.iter().map(number).collect();
            (stacks, names.take_strings())
        };
        if !strings.is_empty() {
            let contents = format::encode_strings(strings.iter().map(|(n, s)| (*n, s.as_str())));
            self.put(&format::block(Holds::Strings, 0, strings.len() as u32, &contents))?;
        }
        if !stacks.is_empty() {
            let contents = format::encode_stacks(stacks.iter().map(|(n, f)| (*n, f.as_slice())));
            self.put(&format::block(Holds::Stacks, 0, stacks.len() as u32, &contents))?;
        }
        Ok(())
    }

    fn totals(&mut self, end: bool) -> io::Result<()> {
        let (events, lost) = (self.session.written.load(Relaxed), self.session.lost.load(Relaxed));
        self.lost = lost;
        let text = json!({"events": events, "lost": lost, "end": end}).to_string();
        self.put(&format::block(Holds::Totals, 0, 0, text.as_bytes()))
    }

    /// Fails if the file was removed: nobody can open it any more, and all events are lost.
    fn has_name(&mut self) -> io::Result<()> {
        match &self.file {
            Some(file) if file.metadata()?.nlink() == 0 => {
                self.session.lost.fetch_add(self.session.written.swap(0, Relaxed), Relaxed);
                Err(io::Error::new(io::ErrorKind::NotFound, "it was removed"))
            }
            _ => Ok(()),
        }
    }
}

/// Takes the events that are in a ring now.
fn take(ring: &mut Ring) -> Vec<Event> {
    let there = ring.events.slots();
    let Ok(chunk) = ring.events.read_chunk(there) else { return Vec::new() };
    let (first, second) = chunk.as_slices();
    let events = [first, second].concat();
    chunk.commit_all();
    events
}

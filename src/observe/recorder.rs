//! The recorder, which takes events.
//!
//! When off, it costs the caller a look at one flag. When on, an event costs a look at the clock
//! and a store into the thread's ring.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::event::{Event, Kind};
use super::format::{self, Holds};
use super::recording::{Happened, Recording};
use super::session::{Local, Session};
use super::stacks::{Raw, Symbols};
use super::writer::Writer;
use crate::base::sync::lock;
use crate::base::{later, Error, Result, Status};
use crate::driver::process;
use crate::driver::thread_end;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr::addr_eq;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::Builder;

/// Called with each event, on the thread on which it happened. It must not panic, and gpumem calls
/// inside it make no events.
pub type Callback = Arc<dyn Fn(&Event) + Send + Sync>;
/// Writes the calling thread's stack as an interpreter sees it, one frame a line, innermost first.
pub type StackSource = Arc<dyn Fn(&mut String) + Send + Sync>;

/// The options of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The file to write. If it exists, `.` and the process's number are added to its name. `None`:
    /// no file, and only the last events are kept.
    pub file: Option<PathBuf>,
    /// The most stack frames taken at each request for memory; 0: none.
    pub stack_depth: usize,
    /// How many events are kept for [`Recorder::last_events`].
    pub keep: usize,
    /// Facts for the file's head; an object.
    pub info: Value,
    /// Prints nothing on stderr, not even when the file can no longer be written.
    pub quiet: bool,
}

/// The totals of a recording.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// Events in it.
    pub events: u64,
    /// Events that happened but are not in the file.
    pub lost: u64,
    /// `Io` when the file could not be written to its end, or not yet.
    pub written: Result<()>,
}

/// A bit of `wanted`: there is a recording.
const RECORDS: u32 = 1;
/// A bit of `wanted`: there is a callback.
const CALLS: u32 = 2;

/// Takes events.
pub struct Recorder {
    /// The takers of events: [`RECORDS`], [`CALLS`].
    wanted: AtomicU32,
    /// The number of the session under way; 0: none.
    current: AtomicU64,
    session: RwLock<Option<Running>>,
    /// Held while a session starts or ends.
    changing: Mutex<()>,
    callback: Arc<RwLock<Option<Callback>>>,
    source: RwLock<Option<StackSource>>,
    failures: AtomicU64,
    /// The most stack frames taken in the session under way.
    depth: AtomicU32,
    /// Whether a thread may be in a callback: there is or was one.
    calls_out: AtomicBool,
    /// The system's time at which the clock of events began, nanoseconds.
    epoch: u64,
}

#[derive(Clone)]
struct Running {
    session: Arc<Session>,
    file: Option<PathBuf>,
    began: u64,
}

thread_local! {
    static LOCAL: ManuallyDrop<RefCell<Option<Local>>> = const { ManuallyDrop::new(RefCell::new(None)) };
    /// Whether the thread is in a callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The driver's work for the thread's request.
    static WORK: Cell<Work> = const { Cell::new(Work { created: 0, mapped: 0 }) };
}

/// Gives up the ring of a thread that ends.
fn leave() {
    drop(LOCAL.with(|local| local.take()));
}

/// Bytes of physical memory that were made and mapped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) created: u64,
    pub(super) mapped: u64,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            wanted: AtomicU32::new(0),
            current: AtomicU64::new(0),
            session: RwLock::new(None),
            changing: Mutex::new(()),
            callback: Arc::default(),
            source: RwLock::new(None),
            failures: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            calls_out: AtomicBool::new(false),
            epoch: process::monotonic_ns(),
        }
    }
}

impl Recorder {
    /// The recorder shared by the contexts of a process that record to the same file.
    pub fn of_process() -> &'static Arc<Recorder> {
        static SHARED: OnceLock<Arc<Recorder>> = OnceLock::new();
        SHARED.get_or_init(Arc::default)
    }

    /// Whether anybody wants events.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.wanted.load(Relaxed) != 0
    }

    /// Whether a recording to a file is under way.
    pub fn is_recording(&self) -> bool {
        self.running().is_some_and(|r| r.file.is_some())
    }

    /// Nanoseconds of the clock of events. It is the system's, which takes 33 ns on a Xeon. The
    /// processor's counter takes 12, but is read out of order, so a malloc could seem earlier than
    /// the free whose address it got; with a fence before it, the counter takes 23.
    #[inline]
    pub fn now(&self) -> u64 {
        process::monotonic_ns().saturating_sub(self.epoch)
    }

    fn running(&self) -> Option<Running> {
        self.session.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a recording and returns the file that is written. A recording with a file replaces
    /// one without. A recording without a file does nothing while another is under way, which keeps
    /// the last events too. `Invalid` while a recording to a file is under way; `Io` when the file
    /// cannot be created.
    pub fn start(&self, options: &Options) -> Result<Option<PathBuf>> {
        let _changing = lock(&self.changing);
        match self.running() {
            Some(_) if options.file.is_none() => return Ok(None),
            Some(Running { file: Some(to), .. }) => {
                let to = to.display();
                return Err(Error::invalid(format!("a recording is under way already, to {to}; stop that first")));
            }
            _ => {}
        }
        let mut symbols = Symbols::default();
        if options.stack_depth > 0 && options.file.is_some() {
            symbols.warm_up();
        }
        let began = self.now();
        let mut file = None;
        let mut path = None;
        if let Some(wanted) = &options.file {
            let failed = |name: &Path, e: io::Error| {
                let text = format!("{} cannot be written, so nothing is recorded: {e}", name.display());
                Error::new(Status::Io, text)
            };
            let (mut out, name) = create(wanted).map_err(|e| failed(wanted, e))?;
            let head =
                [format::head(), format::block(Holds::Info, 0, 0, self.info(options, began).as_bytes())].concat();
            process::without_write_signals(|| out.write_all(&head)).map_err(|e| {
                let _ = std::fs::remove_file(&name);
                failed(&name, e)
            })?;
            if name != *wanted && !options.quiet {
                let (wanted, name) = (wanted.display(), name.display());
                process::say(format_args!("{wanted} is there already; this process records to {name}"));
            }
            (file, path) = (Some(out), Some(name));
        }
        let session = Arc::new(Session::new(options.stack_depth, options.keep));
        let warn = path.clone().filter(|_| !options.quiet);
        let writer = Writer::new(session.clone(), file, warn, symbols);
        // A forked child must know that it has no writer.
        process::watch_forks();
        let thread =
            process::without_signals(|| Builder::new().name("gpumem-record".into()).spawn(move || writer.run()));
        let thread = thread.map_err(|e| {
            path.iter().for_each(|name| drop(std::fs::remove_file(name)));
            Error::invalid(format!("no thread for the recording: {e}"))
        })?;
        let _ = session.writer.set(thread.thread().clone());
        let number = session.number;
        // An absolute name, as the file may be read again from another working directory.
        let file = path.as_ref().map(|p| std::path::absolute(p).unwrap_or_else(|_| p.clone()));
        let running = Running { session, file, began };
        let before = self.session.write().unwrap_or_else(PoisonError::into_inner).replace(running);
        self.depth.store(u32::try_from(options.stack_depth).unwrap_or(u32::MAX), Relaxed);
        self.current.store(number, Release);
        self.wanted.fetch_or(RECORDS, Relaxed);
        if let Some(before) = before {
            before.session.end();
        }
        Ok(path)
    }

    fn info(&self, options: &Options, began: u64) -> String {
        let mut info = options.info.clone();
        if !info.is_object() {
            info = serde_json::json!({});
        }
        if let Some(o) = info.as_object_mut() {
            o.insert("clock_ns".into(), began.into());
            o.insert("pid".into(), std::process::id().into());
            o.insert("gpumem".into(), env!("CARGO_PKG_VERSION").into());
            let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            o.insert("unix_ms".into(), u64::try_from(unix.as_millis()).unwrap_or(0).into());
            let command: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
            o.insert("command".into(), command.into());
            o.insert("stack_depth".into(), options.stack_depth.into());
        }
        info.to_string()
    }

    /// Ends the recording to a file and waits until it is written. `Invalid` when none is under
    /// way, or in a forked child.
    pub fn stop(&self) -> Result<Summary> {
        let _changing = lock(&self.changing);
        (self.is_recording() && !process::forked())
            .then(|| self.finish())
            .flatten()
            .ok_or_else(|| Error::invalid("no recording is under way; gpumem_record_start or GPUMEM_RECORD begins one"))
    }

    /// Ends any session under way: nothing is recorded and no last events are kept any more.
    pub fn end(&self) {
        let _changing = lock(&self.changing);
        self.finish();
    }

    fn finish(&self) -> Option<Summary> {
        let running = self.session.write().unwrap_or_else(PoisonError::into_inner).take()?;
        self.wanted.fetch_and(!RECORDS, Relaxed);
        self.current.store(0, Release);
        let ended = running.session.end();
        let Running { session, file, .. } = running;
        let (events, lost) = (session.written.load(Relaxed), session.lost.load(Relaxed));
        let name = file.as_deref().unwrap_or(Path::new("")).display();
        let written = match session.failed.get() {
            Some(e) => Err(format!(
                "{name} cannot be written: {e}; of the recording it has {events} events, and {lost} are lost"
            )),
            None if !ended => Err(format!("the recording has ended, but its last events are not in {name} yet")),
            None => Ok(()),
        };
        Some(Summary { events, lost, written: written.map_err(|text| Error::new(Status::Io, text)), file })
    }

    /// Waits until what has happened so far is in the file.
    pub fn flush(&self) {
        if let Some(running) = self.running() {
            running.session.flush();
        }
    }

    /// When the recording under way began, on the clock of events.
    pub fn began(&self) -> Option<u64> {
        self.running().map(|r| r.began)
    }

    /// The recording under way as its file has it by now, and the present time in nanoseconds since
    /// its start. `Invalid` when there is no such file.
    pub fn so_far(&self) -> Result<(Recording, u64)> {
        let running = self.running();
        let Some((session, file, began)) = running.and_then(|r| Some((r.session, r.file?, r.began))) else {
            return Err(Error::invalid("no recording is under way; GPUMEM_RECORD or gpumem_record_start begins one"));
        };
        let now = self.now().saturating_sub(began);
        session.flush();
        Ok((Recording::open(&file)?, now))
    }

    /// The last events, oldest first: as many as are kept. Empty when nothing is recorded.
    pub fn last_events(&self) -> Vec<Happened> {
        let Some(running) = self.running() else { return Vec::new() };
        running.session.flush();
        let mut last: Vec<Happened> = lock(&running.session.last).iter().copied().collect();
        last.sort_by_key(|h| (h.event.time, h.event.kind.allocates()));
        last.drain(..last.len().saturating_sub(running.session.keep));
        last.iter_mut().for_each(|h| h.event.time = h.event.time.saturating_sub(running.began));
        last
    }

    /// Calls a function with each event from now on; `None` ends that. A call under way on another
    /// thread may still be running when this returns, but no call begins.
    pub fn set_callback(&self, callback: Option<Callback>) {
        let some = callback.is_some();
        self.calls_out.fetch_or(some, Relaxed);
        *self.callback.write().unwrap_or_else(PoisonError::into_inner) = callback;
        match some {
            true => self.wanted.fetch_or(CALLS, Relaxed),
            false => self.wanted.fetch_and(!CALLS, Relaxed),
        };
    }

    /// Takes stacks from a callback; with `None`, takes native stacks.
    pub fn set_stack_source(&self, source: Option<StackSource>) {
        self.calls_out.fetch_or(source.is_some(), Relaxed);
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = source;
    }

    /// The number of a string in the recording under way.
    pub fn string(&self, text: &str) -> u32 {
        self.running().map_or(0, |r| lock(&r.session.names).string(text))
    }

    /// The number of the calling thread's stack; 0 where none is taken.
    #[inline]
    pub fn stack(&self) -> u32 {
        match self.depth.load(Relaxed) {
            0 => 0,
            _ => LOCAL.with(|cell| self.stack_of(cell)),
        }
    }

    fn stack_of(&self, cell: &RefCell<Option<Local>>) -> u32 {
        let current = self.current.load(Relaxed);
        let session = {
            let Ok(mut local) = cell.try_borrow_mut() else { return 0 };
            match self.local(&mut local, current) {
                Some(local) if local.session.depth > 0 => local.session.clone(),
                _ => return 0,
            }
        };
        self.take_stack(&session)
    }

    #[cold]
    fn take_stack(&self, session: &Session) -> u32 {
        let source = self.source.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = String::new();
        if let Some(source) = source {
            let was = INSIDE.replace(true);
            source(&mut text);
            INSIDE.set(was);
        }
        let raw = match text.is_empty() {
            true => Raw::here(session.depth),
            false => Raw::Text(text),
        };
        lock(&session.names).stack(raw)
    }

    /// The number of a failure: 1 for the first of the process.
    pub fn next_failure(&self) -> u64 {
        self.failures.fetch_add(1, Relaxed) + 1
    }

    /// Hands an event in.
    #[inline]
    pub fn push(&self, event: Event) {
        let wanted = self.wanted.load(Relaxed);
        if wanted & CALLS != 0 {
            self.call(&event);
        }
        let current = self.current.load(Relaxed);
        if current == 0 {
            return;
        }
        let pushed = LOCAL.with(|cell| {
            let mut local = cell.try_borrow_mut().ok()?;
            self.local(&mut local, current)?.push(event);
            Some(())
        });
        if pushed.is_none() {
            self.stray(event);
        }
    }

    /// This thread's end of its ring in the session under way. A thread that nobody would take it
    /// from has none.
    #[inline]
    fn local<'a>(&self, local: &'a mut Option<Local>, current: u64) -> Option<&'a mut Local> {
        if local.as_ref().is_none_or(|l| l.session.number != current) {
            thread_end::watch(leave).ok()?;
            *local = Some(self.running()?.session.attach());
        }
        local.as_mut()
    }

    #[cold]
    fn stray(&self, event: Event) {
        if let Some(running) = self.running() {
            running.session.stray(event);
        }
    }

    #[cold]
    fn call(&self, event: &Event) {
        if INSIDE.try_with(Cell::get).unwrap_or(true) {
            return;
        }
        let present = |slot: &RwLock<Option<Callback>>| slot.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(due) = present(&self.callback) else { return };
        let (event, slot) = (*event, self.callback.clone());
        later::after(move || {
            // It may have been unset since, and what it uses may be gone.
            if present(&slot).is_some_and(|now| addr_eq(Arc::as_ptr(&now), Arc::as_ptr(&due))) {
                INSIDE.set(true);
                due(&event);
                INSIDE.set(false);
            }
        });
    }

    /// Whether the thread is in a callback, where nothing is recorded.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.calls_out.load(Relaxed) && INSIDE.try_with(Cell::get).unwrap_or(false)
    }

    /// Counts what the driver does for the calling thread from now on.
    pub fn begin_work(&self) {
        WORK.set(Work::default());
    }

    /// An event for what the driver has done for a request since [`Self::begin_work`], at `time`,
    /// which took `ns`: a growth, a stitch, or nothing.
    pub fn end_work(&self, address: u64, device: u8, time: u64, ns: u64) {
        let work = WORK.replace(Work::default());
        let (kind, bytes) = match (work.created, work.mapped) {
            (0, 0) => return,
            (0, mapped) => (Kind::Stitch, mapped),
            (created, _) => (Kind::Growth, created),
        };
        self.push(Event { address, bytes, device, other: ns, ..Event::new(kind, time) });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

/// Creates a new file. If one of that name exists, `.` and the process's number are added; if that
/// exists too, from an earlier recording of the process, `.2`, `.3`, .... A directory or a device
/// of that name is an error: nobody who writes `/dev/null` wants a file beside it.
fn create(path: &Path) -> io::Result<(File, PathBuf)> {
    for n in 0_u32.. {
        let mut name = path.as_os_str().to_owned();
        match n {
            0 => {}
            1 => name.push(format!(".{}", std::process::id())),
            n => name.push(format!(".{}.{n}", std::process::id())),
        }
        match File::create_new(&name) {
            Ok(file) => return Ok((file, name.into())),
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            Err(_) if path.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Err(_) if path.exists() && !path.is_file() => return Err(io::Error::other("it is no regular file")),
            Err(_) => {}
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Driver calls that change addresses or memory, as events.
impl crate::driver::wrap::Observer for Recorder {
    fn is_on(&self) -> bool {
        Recorder::is_on(self)
    }

    fn step(&self, step: &crate::driver::wrap::Step) {
        use crate::driver::Call;
        if self.is_inside() {
            return;
        }
        let kind = match step.call {
            Call::VaReserve => Kind::Reserve,
            Call::VaFree => Kind::Unreserve,
            Call::PhysCreate => Kind::Create,
            Call::PhysRelease => Kind::Release,
            Call::Map => Kind::Map,
            Call::Unmap => Kind::Unmap,
            Call::SetAccess => Kind::SetAccess,
            _ => return,
        };
        let _ = WORK.try_with(|work| {
            let mut w = work.get();
            match kind {
                Kind::Create => w.created += step.bytes,
                Kind::Map => w.mapped += step.bytes,
                _ => {}
            }
            work.set(w);
        });
        let took = u64::try_from(step.took.as_nanos()).unwrap_or(u64::MAX);
        let time = self.now().saturating_sub(took);
        let device = u8::try_from(step.device.0).unwrap_or(u8::MAX);
        let (address, tag) = match kind {
            Kind::Create | Kind::Release => (step.handle, 0),
            _ => (step.address, step.handle),
        };
        self.push(Event { address, bytes: step.bytes, other: took, tag, device, ..Event::new(kind, time) });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::observe::Recording;

    fn options(file: &Path) -> Options {
        Options { file: Some(file.to_path_buf()), keep: 16, ..Options::default() }
    }

    #[test]
    fn every_event_of_every_thread_arrives_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.rec");
        let recorder = Recorder::default();
        recorder.start(&options(&file)).unwrap();
        // More than the rings hold, from threads that end before the writer looks.
        std::thread::scope(|s| {
            for t in 0..4_u64 {
                let recorder = &recorder;
                s.spawn(move || {
                    for i in 0..20_000 {
                        recorder.push(Event { address: t, bytes: i, ..Event::new(Kind::Malloc, recorder.now()) });
                    }
                });
            }
        });
        let summary = recorder.stop().unwrap();
        assert_eq!((summary.events, summary.lost, summary.written), (80_000, 0, Ok(())));
        let read = Recording::open(&file).unwrap();
        assert!(read.complete && read.faults().is_none());
        for t in 0..4 {
            let mine: Vec<u64> = read.events.iter().filter(|h| h.event.address == t).map(|h| h.event.bytes).collect();
            assert_eq!(mine, (0..20_000).collect::<Vec<_>>());
        }
        assert!(read.events.is_sorted_by_key(|h| h.event.time));
    }

    thread_local! {
        /// Where the thread pushes an event at its end. No destructor of Rust's takes it away
        /// before.
        static LATE: ManuallyDrop<RefCell<Option<Arc<Recorder>>>> = const { ManuallyDrop::new(RefCell::new(None)) };
    }

    fn push_late() {
        if let Some(recorder) = LATE.with(|late| late.take()) {
            recorder.push(Event::new(Kind::Malloc, recorder.now()));
        }
    }

    #[test]
    fn a_thread_that_pushes_in_its_last_destructors_keeps_no_ring() {
        let recorder = Arc::new(Recorder::default());
        recorder.start(&Options { keep: 10, ..Options::default() }).unwrap();
        let session = recorder.running().unwrap().session;
        let theirs = recorder.clone();
        let ends = std::thread::spawn(move || {
            thread_end::watch(push_late).unwrap();
            LATE.with(|late| late.replace(Some(theirs)));
        });
        ends.join().unwrap();
        assert_eq!(recorder.last_events().len(), 1);
        // The writer forgets a ring once it is empty and nobody's.
        assert_eq!(lock(&session.rings).len(), 0);
    }

    #[test]
    fn what_was_flushed_is_in_the_file_before_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.rec");
        let recorder = Recorder::default();
        recorder.start(&options(&file)).unwrap();
        let name = recorder.string("step");
        recorder.push(Event { bytes: name.into(), arena: 3, ..Event::new(Kind::ArenaEnter, recorder.now()) });
        recorder.flush();
        let read = Recording::open(&file).unwrap();
        assert_eq!((read.events.len(), read.complete), (1, false));
        assert_eq!(read.arena_names().get(&3), Some(&"step"));
        assert!(read.faults().unwrap().contains("ended before"));
        // A second one beside it does not take the file.
        let other = Recorder::default();
        let second = other.start(&options(&file)).unwrap().unwrap();
        assert_ne!(second, file);
        assert!(recorder.start(&options(&file)).unwrap_err().message.contains("under way already"));
    }

    #[test]
    fn the_last_events_are_kept_without_a_file() {
        let recorder = Recorder::default();
        recorder.start(&Options { keep: 10, ..Options::default() }).unwrap();
        (0..5000).for_each(|i| recorder.push(Event { bytes: i, ..Event::new(Kind::Malloc, recorder.now()) }));
        let last: Vec<u64> = recorder.last_events().iter().map(|h| h.event.bytes).collect();
        assert_eq!(last, (4990..5000).collect::<Vec<_>>());
        // A program does not see that as a recording, and may begin one.
        assert!(recorder.stop().is_err() && recorder.is_on());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.rec");
        recorder.start(&options(Path::new("/no/such/place/a.rec"))).unwrap_err();
        assert_eq!(recorder.last_events().len(), 10, "a recording that did not begin took their place");
        recorder.start(&options(&file)).unwrap();
        recorder.push(Event { bytes: 7, ..Event::new(Kind::Malloc, recorder.now()) });
        assert_eq!(recorder.start(&Options { keep: 10, ..Options::default() }).unwrap(), None);
        let summary = recorder.stop().unwrap();
        assert_eq!((summary.file.as_deref(), summary.events, recorder.is_on()), (Some(&*file), 1, false));
        recorder.start(&Options { keep: 10, ..Options::default() }).unwrap();
        recorder.end();
        assert!(!recorder.is_on() && recorder.last_events().is_empty());
    }

    #[test]
    fn a_callback_gets_every_event_and_none_of_its_own() {
        let recorder = Arc::new(Recorder::default());
        let seen = Arc::new(AtomicU64::new(0));
        let (inner, counted) = (Arc::downgrade(&recorder), seen.clone());
        recorder.set_callback(Some(Arc::new(move |e: &Event| {
            counted.fetch_add(e.bytes, Relaxed);
            if let Some(r) = inner.upgrade() {
                r.push(Event { bytes: 1000, ..*e });
            }
        })));
        recorder.push(Event { bytes: 5, ..Event::new(Kind::Malloc, 0) });
        assert_eq!(seen.load(Relaxed), 5);
        recorder.set_callback(None);
        assert!(!recorder.is_on());
    }

    /// Events that a call puts off until it holds no lock may outlive the callback.
    #[test]
    fn no_call_begins_once_the_callback_is_unset() {
        let recorder = Arc::new(Recorder::default());
        let seen = Arc::new(AtomicU64::new(0));
        let (inner, counted) = (Arc::downgrade(&recorder), seen.clone());
        recorder.set_callback(Some(Arc::new(move |_: &Event| {
            counted.fetch_add(1, Relaxed);
            inner.upgrade().unwrap().set_callback(None);
        })));
        later::hold(|| {
            recorder.push(Event::new(Kind::Malloc, 0));
            recorder.push(Event::new(Kind::Free, 0));
        });
        assert_eq!(seen.load(Relaxed), 1);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error_and_changes_nothing() {
        let recorder = Recorder::default();
        let e = recorder.start(&options(Path::new("/no/such/place/a.rec"))).unwrap_err();
        assert!(e.message.contains("/no/such/place/a.rec cannot be written"), "{e}");
        assert!(!recorder.is_on() && recorder.stop().is_err());
    }

    #[test]
    fn a_file_that_was_removed_has_lost_everything() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.rec");
        let recorder = Recorder::default();
        recorder.start(&options(&file)).unwrap();
        std::fs::remove_file(&file).unwrap();
        recorder.push(Event::new(Kind::Malloc, recorder.now()));
        let summary = recorder.stop().unwrap();
        assert_eq!((summary.events, summary.lost), (0, 1));
        let e = summary.written.unwrap_err();
        assert!(e.status == Status::Io && e.message.contains("a.rec cannot be written: it was removed"), "{e}");
    }

    #[test]
    fn stacks_are_taken_from_whoever_says_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.rec");
        let recorder = Recorder::default();
        recorder.start(&Options { stack_depth: 4, ..options(&file) }).unwrap();
        recorder.set_stack_source(Some(Arc::new(|text: &mut String| text.push_str("inner (a.py:1)\nouter (b.py:2)"))));
        let stack = recorder.stack();
        recorder.push(Event { stack, ..Event::new(Kind::Malloc, recorder.now()) });
        recorder.set_stack_source(None);
        let machine = recorder.stack();
        recorder.push(Event { stack: machine, ..Event::new(Kind::Malloc, recorder.now()) });
        recorder.stop().unwrap();
        let read = Recording::open(&file).unwrap();
        assert_eq!(read.frames(stack), ["inner (a.py:1)", "outer (b.py:2)"]);
        assert!(machine != stack && !read.frames(machine).is_empty());
    }
}

//! What the process's calls tell the recorder.
//!
//! When off, it costs an allocation nothing: the allocation reads one word for arenas, tiers and
//! events, and a free reads whether it may be a hit.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::{settings, Context, Request};
use crate::arena::Arena;
use crate::base::sync::lock;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::process::{self, Uncancelled};
use crate::observe::history::Life;
use crate::observe::{Callback, Event, History, Kind, Options, Recorder, StackSource, Summary};
use crate::pool::{Alive, AllocInfo, Pool};
use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// What a recording knows of a live allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Nanoseconds since it was made or resized, or since the recording began if that was later; 0:
    /// not known.
    pub age_ns: u64,
    /// The stack of the request, a frame a line, the innermost first; empty: not recorded.
    pub stack: String,
}

impl Context {
    /// Whether every allocation is watched.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.interest.in_events()
    }

    /// What takes events.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Makes the calls of this context emit events, as long as they are wanted.
    fn watch(&self) {
        let _one = lock(&self.watching);
        if self.interest.start_events() {
            self.quick_free.store(false, Relaxed);
        }
    }

    /// Restores the hit path once no events are wanted.
    fn unwatch(&self) {
        // Whoever wants them from now on turns them on again after this.
        let _one = lock(&self.watching);
        if !self.recorder.is_on() && self.interest.stop_events() {
            self.quick_free.store(self.config.pool, Relaxed);
        }
    }

    /// Starts what the configuration asks for. A file that cannot be written is reported on stderr,
    /// and nothing else changes.
    pub(super) fn start_observing(&self) {
        if self.config.nvtx {
            if let Err(e) = crate::driver::nvtx::start() {
                self.complain(&e);
            }
        }
        // Another context of the process may have begun it.
        if let Some(file) = self.config.record.as_deref().filter(|_| !self.recorder.is_recording()) {
            if let Err(e) = self.recorder.start(&self.record_options(Some(file))) {
                self.complain(&e);
            }
        }
        self.keep_last();
        if self.recorder.is_on() {
            self.watch();
        }
    }

    /// Keeps the last events while no recording is under way, if that is wanted.
    fn keep_last(&self) {
        if self.config.snapshot_on.oom && self.config.snapshot_events > 0 {
            if let Err(e) = self.recorder.start(&self.record_options(None)) {
                self.complain(&e);
            }
        }
    }

    /// A line on stderr, unless `GPUMEM_LOG` is 0.
    pub(super) fn complain(&self, what: impl Display) {
        if self.config.log >= 1 {
            process::say(what);
        }
    }

    fn record_options(&self, file: Option<&Path>) -> Options {
        let settings = settings::in_force(&self.config);
        Options {
            file: file.map(Path::to_path_buf),
            stack_depth: self.config.record_stacks as usize,
            keep: self.config.snapshot_events as usize,
            quiet: self.config.log == 0,
            info: serde_json::json!({"backend": self.driver().backend(), "devices": self.pools.len(), "settings": settings}),
        }
    }

    /// Records to a file from now on, with stacks of up to `depth` frames. The file begins with
    /// what is live already. If the file exists, `.` and the process's number are added to its
    /// name.
    pub fn record_start(&self, file: &Path, depth: Option<u32>) -> Result<PathBuf> {
        let mut options = self.record_options(Some(file));
        if let Some(depth) = depth {
            options.stack_depth = depth as usize;
        }
        let file = self.recorder.start(&options)?;
        self.watch();
        self.tell_what_lives();
        file.ok_or_else(|| Error::internal("a recording without its file"))
    }

    /// Ends the recording and waits until it is written. `Invalid` when none is under way.
    pub fn record_stop(&self) -> Result<Summary> {
        let summary = self.recorder.stop();
        self.keep_last();
        self.unwatch();
        summary
    }

    /// Calls a function with each event; `None` ends that.
    pub fn set_event_callback(&self, callback: Option<Callback>) {
        let some = callback.is_some();
        self.recorder.set_callback(callback);
        match some {
            true => self.watch(),
            false => self.unwatch(),
        }
    }

    /// Takes the stacks of recordings from a callback.
    pub fn set_stack_source(&self, source: Option<StackSource>) {
        self.recorder.set_stack_source(source);
    }

    /// Calls `f` with every live allocation, heap by heap, each heap as it was at one moment.
    /// Allocations and frees made in `f` may or may not be seen. `f` says whether to go on.
    pub fn visit(&self, f: &mut dyn FnMut(&Alive, Option<u64>) -> bool) {
        let mut on = true;
        if !self.config.pool {
            for info in self.native.all() {
                on = on && f(&Alive { info, scope: None }, None);
            }
            return;
        }
        for pool in self.pools() {
            pool.walk(&mut |view| {
                for alive in &view.alive {
                    if !on {
                        return;
                    }
                    let arena = alive.scope.as_ref().and_then(|s| self.arenas.arena_of(s)).map(|a| a.id());
                    on = f(alive, arena);
                }
            });
        }
    }

    /// Like [`Self::visit`], with what the recording under way knows of each. It collects all
    /// allocations first and then calls `f`. It takes as long as reading the recording. `Invalid`
    /// when nothing is recorded to a file.
    pub fn visit_with_past(&self, f: &mut dyn FnMut(&Alive, Option<u64>, &Past) -> bool) -> Result<()> {
        let start = self.recorder.now();
        let mut all = Vec::new();
        self.visit(&mut |alive, arena| {
            all.push((alive.clone(), arena));
            true
        });
        let (recording, now) = self.recorder.so_far()?;
        let start = now.saturating_sub(self.recorder.now().saturating_sub(start));
        let history = History::of(&recording);
        // The last that was live at some moment of the visit.
        let seen = history.lives.iter().filter(|l| l.from <= now && start <= l.to);
        let lives: HashMap<u64, &Life> = seen.map(|l| (l.address, l)).collect();
        for (alive, arena) in all {
            let past = lives.get(&alive.info.base).map_or_else(Past::default, |l| Past {
                age_ns: now.saturating_sub(l.from).max(1),
                stack: recording.frames(l.stack).join("\n"),
            });
            if !f(&alive, arena, &past) {
                break;
            }
        }
        Ok(())
    }

    /// Events for what was live before the recording.
    fn tell_what_lives(&self) {
        let Some(began) = self.recorder.began() else { return };
        let recorder = self.recorder.clone();
        self.visit(&mut |alive, arena| {
            let i = &alive.info;
            recorder.push(Event {
                address: i.base,
                bytes: i.requested,
                stream: i.stream.0 as u64,
                tag: i.tag,
                arena: arena.map_or(0, short),
                device: i.device.0 as u8,
                ..Event::new(Kind::Existing, began)
            });
            true
        });
    }

    fn arena_number(&self, req: &Request) -> u32 {
        match req.arena {
            Some(arena) => short(arena.id()),
            // Nobody is attached to one.
            None if !self.interest.in_arenas() || Context::is_evictable(req) => 0,
            None => self.arenas.current().map_or(0, |a| short(a.id())),
        }
    }

    /// The number of the arena that a live allocation is in, 0 if it is in none.
    fn arena_around(&self, ptr: u64) -> u32 {
        self.arena_of(ptr).ok().flatten().map_or(0, |a| short(a.id()))
    }

    /// An allocation of the hit path.
    pub(super) fn saw_hit(&self, ptr: u64, size: u64, stream: StreamHandle, device: Option<DeviceId>) {
        if self.recorder.is_inside() {
            return;
        }
        // A hit is not protected from it, but this may call back, or wait for the recording.
        let _uncancelled = Uncancelled::new();
        let arena = self.arena_number(&Request::default());
        self.saw_malloc(ptr, &Request { size, stream, device, ..Request::default() }, arena);
    }

    /// Memory of another process, which is in no arena.
    pub(super) fn saw_import(&self, ptr: u64, size: u64, device: DeviceId) {
        if self.is_watched() && !self.recorder.is_inside() {
            self.saw_malloc(ptr, &Request { size, device: Some(device), ..Request::default() }, 0);
        }
    }

    fn saw_malloc(&self, address: u64, req: &Request, arena: u32) {
        let stack = self.recorder.stack();
        // After the allocation, so that the free of what was here before has an earlier time.
        let time = self.recorder.now();
        self.recorder.push(Event {
            address,
            bytes: req.size,
            stream: req.stream.canonical().0 as u64,
            tag: req.tag,
            arena,
            stack,
            device: self.short_device(req),
            ..Event::new(Kind::Malloc, time)
        });
    }

    /// The device that a request names, or else its stream's.
    fn short_device(&self, req: &Request) -> u8 {
        let device = req.device.or_else(|| self.device_of(None, req.stream.canonical()).ok());
        device.map_or(0, |d| d.0 as u8)
    }

    /// The device whose memory contains `ptr`. A pool has its addresses for good, so with pools a
    /// free changes nothing.
    pub(super) fn device_at(&self, ptr: u64) -> u8 {
        let device = match self.config.pool {
            true => self.owner(ptr, "look-up").map(Pool::device),
            false => self.native.info_containing(ptr).map(|i| i.device),
        };
        device.map_or(0, |d| d.0 as u8)
    }

    /// [`Context::malloc_search`] while allocations are watched.
    pub(super) fn search_watched(&self, req: &Request, search: impl Fn() -> Result<u64>) -> Result<u64> {
        if self.recorder.is_inside() {
            return search();
        }
        let arena = self.arena_number(req);
        let began = self.recorder.now();
        self.recorder.begin_work();
        let done = search();
        match &done {
            Ok(ptr) => {
                self.recorder.end_work(*ptr, self.short_device(req), began, self.recorder.now() - began);
                self.saw_malloc(*ptr, req, arena);
            }
            Err(e) if e.status == Status::OutOfMemory => self.saw_failure(req, arena),
            Err(_) => {}
        }
        done
    }

    /// A request for which there was no memory.
    fn saw_failure(&self, req: &Request, arena: u32) {
        let (stack, other) = (self.recorder.stack(), self.recorder.next_failure());
        self.recorder.push(Event {
            bytes: req.size,
            stream: req.stream.canonical().0 as u64,
            tag: req.tag,
            arena,
            stack,
            other,
            device: self.short_device(req),
            ..Event::new(Kind::OutOfMemory, self.recorder.now())
        });
    }

    /// [`Context::free_hit`] where it is no plain hit: a watched one, or none.
    #[inline(never)]
    pub(super) fn free_hit_watched(&self, ptr: u64, stream: Option<StreamHandle>) -> bool {
        if !self.config.pool || !self.is_watched() {
            return false;
        }
        // As in `saw_hit`.
        let _uncancelled = Uncancelled::new();
        let began = self.recorder.now();
        let hit = self.free_hit_anyhow(ptr, stream.map(StreamHandle::canonical));
        if hit {
            self.saw_free((ptr, self.device_at(ptr)), stream, began);
        }
        hit
    }

    /// [`Context::free_anyhow`] while allocations are watched.
    pub(super) fn free_watched(&self, ptr: u64, stream: Option<StreamHandle>) -> Result<()> {
        // Before the free: its address may belong to another allocation as soon as it is done.
        let (began, device) = (self.recorder.now(), self.device_at(ptr));
        self.free_slowly(ptr, stream)?;
        self.saw_free((ptr, device), stream, began);
        Ok(())
    }

    /// Records a free of a device's memory that takes effect at a time of the recorder's clock.
    pub(super) fn saw_free(&self, (ptr, device): (u64, u8), stream: Option<StreamHandle>, began: u64) {
        if ptr == 0 || self.recorder.is_inside() {
            return;
        }
        let (other, stream) = stream.map_or((0, 0), |s| (1, s.canonical().0 as u64));
        self.recorder.push(Event { address: ptr, stream, other, device, ..Event::new(Kind::Free, began) });
    }

    /// Makes the event for memory that the program frees now and another part of it frees here
    /// later.
    pub fn note_free(&self, ptr: u64, stream: Option<StreamHandle>) {
        if self.is_watched() {
            self.saw_free((ptr, self.device_at(ptr)), stream, self.recorder.now());
        }
    }

    /// [`Context::realloc`] while allocations are watched.
    pub(super) fn realloc_watched(&self, ptr: u64, size: u64, stream: StreamHandle) -> Result<u64> {
        let began = self.recorder.now();
        self.recorder.begin_work();
        let new = match self.resize(ptr, size, stream) {
            // Null is a request as any other, and has been seen as one.
            done if ptr == 0 || self.recorder.is_inside() => return done,
            Ok(new) => new,
            Err(e) => {
                if e.status == Status::OutOfMemory {
                    self.saw_failure(&self.as_request(ptr, size, stream), self.arena_around(ptr));
                }
                return Err(e);
            }
        };
        let took = self.recorder.now() - began;
        let (tag, device) = self.info(new).map_or((0, 0), |i| (i.tag, i.device.0 as u8));
        self.recorder.end_work(new, device, began, took);
        // In place, no other allocation is concerned. Otherwise the old addresses are free from the
        // beginning, and the new ones may have belonged to another allocation until the end.
        let time = if new == ptr { began } else { began + took };
        if new != ptr {
            self.saw_free((ptr, device), Some(stream), began);
        }
        let stack = self.recorder.stack();
        let stream = stream.canonical().0 as u64;
        let arena = self.arena_around(new);
        let event = match new == ptr {
            true => Event { address: new, other: ptr, ..Event::new(Kind::Realloc, time) },
            false => Event { address: new, ..Event::new(Kind::Malloc, time) },
        };
        self.recorder.push(Event { bytes: size, stream, stack, tag, arena, device, ..event });
        Ok(new)
    }

    /// An event of an arena, if they are watched.
    pub(super) fn saw_enter(&self, arena: &Arena) {
        if !self.is_watched() {
            return;
        }
        let name = if arena.name().is_empty() { 0 } else { self.recorder.string(arena.name()) };
        let parent = arena.parent_id().map_or(0, short);
        let event = Event::new(Kind::ArenaEnter, self.recorder.now());
        self.recorder.push(Event { arena: short(arena.id()), bytes: name.into(), other: parent.into(), ..event });
    }

    /// Runs the exit of an arena, which frees what is in it except `keep`, and makes its events if
    /// they are wanted.
    pub(super) fn exit_watched<T>(
        &self,
        arena: &Arc<Arena>,
        keep: &[u64],
        exit: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self.is_watched() {
            return exit();
        }
        // Any address in an allocation names it; the event has its first. What is in another arena
        // stays there.
        let mine = |p: u64| self.arena_of(p).is_ok_and(|a| a.is_some_and(|a| Arc::ptr_eq(&a, arena)));
        let of_arena = keep.iter().filter(|&&p| p != 0 && mine(p));
        let kept: Vec<AllocInfo> = of_arena.filter_map(|&p| self.info_containing(p).ok()).collect();
        let began = self.recorder.now();
        let done = exit()?;
        let to = arena.parent_id().map_or(0, short);
        kept.iter().for_each(|info| self.push_move(info, to, began));
        // As a free: other allocations may have its memory by now.
        let other = self.recorder.now() - began;
        self.recorder.push(Event { arena: short(arena.id()), other, ..Event::new(Kind::ArenaExit, began) });
        Ok(done)
    }

    /// Like [`Self::exit_watched`], for an arena and those open inside it.
    pub(super) fn abort_watched<T>(&self, arena: &Arc<Arena>, abort: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.is_watched() {
            return abort();
        }
        let inside = self.arenas.inside(arena);
        let began = self.recorder.now();
        let done = abort()?;
        let other = self.recorder.now() - began;
        for id in inside {
            self.recorder.push(Event { arena: short(id), other, ..Event::new(Kind::ArenaExit, began) });
        }
        Ok(done)
    }

    /// Runs the abort of a capture, which returns what it frees.
    pub(super) fn abort_capture_watched(&self, event: impl FnOnce(u64) -> Event, abort: impl FnOnce() -> Vec<u64>) {
        let began = self.recorder.now();
        let freed = abort();
        if !self.is_watched() {
            return;
        }
        // At the beginning: other allocations may have their memory by now.
        freed.iter().for_each(|&ptr| self.saw_free((ptr, self.device_at(ptr)), None, began));
        let other = self.recorder.now() - began;
        self.recorder.push(Event { other, ..event(began) });
    }

    /// An allocation has moved to another arena.
    pub(super) fn saw_move(&self, ptr: u64) {
        if !self.is_watched() {
            return;
        }
        if let Ok(info) = self.info_containing(ptr) {
            self.push_move(&info, self.arena_around(ptr), self.recorder.now());
        }
    }

    fn push_move(&self, info: &AllocInfo, arena: u32, time: u64) {
        let device = info.device.0 as u8;
        self.recorder.push(Event { address: info.base, arena, device, ..Event::new(Kind::Move, time) });
    }

    /// Runs a step of the slow path, and makes an event with its duration if events are wanted.
    pub(super) fn timed<T>(&self, event: impl FnOnce(&T) -> Event, run: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.is_watched() {
            return run();
        }
        let began = self.recorder.now();
        let done = run()?;
        let other = self.recorder.now() - began;
        self.recorder.push(Event { time: began, other, ..event(&done) });
        Ok(done)
    }

    /// Called once as the process ends: writes what is recorded, and a snapshot if one is wanted.
    pub fn leave_observers(&self) {
        if self.left.swap(true, Relaxed) {
            return;
        }
        if self.config.snapshot_on.exit {
            self.snapshot_by_itself("exit", None);
        }
        self.recorder.end();
        if let Some(page) = self.page.get() {
            page.withdraw();
        }
    }
}

/// An arena's number in an event. There are fewer than 2^32 in any recording that can be kept.
fn short(arena: u64) -> u32 {
    arena as u32
}

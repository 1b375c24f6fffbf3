//! The scheduler. It has no threads of its own: work makes progress when the driver is called.
//!
//! Each call lets the device take some steps (how many depends on its [`Mood`](super::mood::Mood)),
//! chosen by a seeded generator among the operations whose turn it may be; calls that wait run what
//! they wait for. With `eager` set, everything that can run does so at once. One thread calling in
//! a fixed order gives the same schedule for the same seed. An operation's data is moved, and its
//! body run, with the lock dropped; its lane is marked as running meanwhile.

use super::device::HostDriver;
use super::kernel::KernelCtx;
use super::op::{Op, Source, Work};
use super::report::{Report, ReportKind};
use super::state::State;
use crate::base::{Error, Result, Status};
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::MutexGuard;

thread_local! {
    /// Whether this thread is inside a kernel's body.
    static IN_BODY: Cell<bool> = const { Cell::new(false) };
}

pub(super) type Guard<'a> = MutexGuard<'a, State>;

/// What a lane needs before its next operation can run.
enum Next {
    Ready,
    /// Nothing is queued.
    Idle,
    /// Another thread has to finish something first.
    Busy,
    /// The harness holds the lane.
    Held,
    /// An operation of this lane has to complete first.
    After(usize),
}

impl State {
    fn next_in(&self, lane: usize) -> Next {
        let Some(l) = self.lanes.list.get(lane) else { return Next::Idle };
        if l.running.is_some() {
            return Next::Busy;
        }
        let Some(op) = l.queue.front() else { return Next::Idle };
        if l.held {
            return Next::Held;
        }
        if let Some((dep, _)) = op.deps.iter().find(|(dep, seq)| !self.lanes.done(*dep, *seq)) {
            return Next::After(*dep);
        }
        if let Work::NativeFree { va } = op.work {
            let size = self.memory.mapping_at(va).map_or(0, |(_, m)| m.size);
            if self.busy(&(va..va + size)) {
                return Next::Busy;
            }
        }
        Next::Ready
    }

    /// A lane other than `except` whose next operation can run, chosen at random.
    fn pick(&mut self, except: Option<usize>) -> Option<usize> {
        let n = self.lanes.active.len();
        let start = self.mood.rng.below(n);
        (0..n)
            .filter_map(|i| self.lanes.active.get((start + i) % n).copied())
            .find(|lane| Some(*lane) != except && matches!(self.next_in(*lane), Next::Ready))
    }

    /// Takes a ready operation from its lane. One that moves no data is done at once; any other is
    /// returned for execution, and `finish` must follow.
    fn begin(&mut self, lane: usize) -> Option<Op> {
        let op = self.lanes.list.get_mut(lane)?.queue.pop_front()?;
        let run = match &op.work {
            Work::Mark => false,
            Work::NativeFree { va } => {
                self.native_free_now(&op, *va);
                false
            }
            Work::Kernel(body) => self.check_access(&op, true).unwrap_or(false) && body.is_some(),
            Work::Copy { .. } | Work::Fill { .. } => self.check_access(&op, false).unwrap_or(false),
        };
        if run {
            let touched = op.reads.iter().chain(&op.writes).cloned().collect();
            self.lanes.list.get_mut(lane)?.running = Some(touched);
            return Some(op);
        }
        self.complete(lane);
        None
    }

    fn complete(&mut self, lane: usize) {
        if let Some(l) = self.lanes.list.get_mut(lane) {
            l.running = None;
            l.completed += 1;
            if !self.checking {
                // No order is looked at, so the host need not wait for a lane to serve again.
                self.host.advance(lane, l.completed);
            }
            if l.completed == l.submitted {
                self.lanes.prune_active();
            }
        }
    }

    fn finish(&mut self, op: &Op, problems: Vec<(ReportKind, String)>) {
        for (kind, text) in problems {
            let range = op.writes.iter().chain(&op.reads).next().cloned().unwrap_or(0..0);
            let text = format!("{}: {text}", op.info);
            self.reports.push(Report::new(kind, &[&op.info], range, text));
        }
        self.complete(op.info.lane);
    }

    fn native_free_now(&mut self, op: &Op, va: u64) {
        let Some(size) = self.memory.mapping_at(va).map(|(_, m)| m.size) else { return };
        let r = va..va + size;
        let users = self.users_of(&r);
        self.report_in_use(users, &r, Some(op.info.lane), &op.clock, "native free");
        if let Ok(Some(keys)) = self.memory.remove_block(va) {
            self.shadow.forget(&keys);
        }
    }
}

/// Moves the data of an operation, or runs its kernel. The caller holds no lock; `check_access` has
/// found every declared range mapped and accessible, and unmapping waits while the lane is marked
/// as running.
fn execute(op: &Op) -> Vec<(ReportKind, String)> {
    match &op.work {
        Work::Copy { dst, src, size } => {
            let from = match src {
                Source::Address(a) => *a as *const u8,
                Source::Staged(bytes) => bytes.as_ptr(),
            };
            // SAFETY: device ranges are mapped (see above); pinned ones live until `host_free`,
            // which waits for this; pageable ones are valid because the caller of `copy_async`
            // promised it and is still inside the call. `copy` rather than `copy_nonoverlapping`:
            // two addresses may be aliases of one physical range.
            unsafe { std::ptr::copy(from, *dst as *mut u8, *size as usize) }
        }
        Work::Fill { dst, byte, size } => {
            // SAFETY: the range is mapped, accessible and stays so while the lane is running.
            unsafe { std::ptr::write_bytes(*dst as *mut u8, *byte, *size as usize) }
        }
        Work::Kernel(body) => {
            let Some(body) = body else { return Vec::new() };
            let mut ctx = KernelCtx { reads: op.reads.clone(), writes: op.writes.clone(), problems: Vec::new() };
            let outer = IN_BODY.replace(true);
            let outcome = catch_unwind(AssertUnwindSafe(|| body(&mut ctx)));
            IN_BODY.set(outer);
            let mut problems: Vec<_> = ctx.problems.into_iter().map(|t| (ReportKind::Check, t)).collect();
            if outcome.is_err() {
                problems.push((ReportKind::Panic, "the kernel's body panicked".into()));
            }
            return problems;
        }
        Work::Mark | Work::NativeFree { .. } => {}
    }
    Vec::new()
}

impl HostDriver {
    fn lock(&self) -> Guard<'_> {
        // A panic elsewhere may have left the state half changed, but going on matters more.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The lock without progress on the device, for calls that only look.
    pub(super) fn look(&self) -> Guard<'_> {
        self.lock()
    }

    /// Whether everything that can run does so at once.
    fn keeps_up(&self, st: &State) -> bool {
        self.options.eager || st.mood.prompt
    }

    /// Enters the driver: the device takes a few steps first.
    pub(super) fn enter(&self) -> Guard<'_> {
        let mut st = self.lock();
        if IN_BODY.get() || st.lanes.active.is_empty() {
            return st;
        }
        if self.keeps_up(&st) {
            return self.settle(st);
        }
        let inner = &mut *st;
        let mut steps = inner.mood.steps(&inner.lanes.active);
        while steps > 0 {
            let neglected = st.mood.neglected;
            let Some(lane) = st.pick(neglected) else { break };
            st = self.step(st, lane);
            steps -= 1;
        }
        st
    }

    /// After a submission, runs everything that can run if the device keeps up.
    pub(super) fn settle<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        if self.keeps_up(&st) && !IN_BODY.get() {
            while let Some(lane) = st.pick(None) {
                st = self.step(st, lane);
            }
        }
        st
    }

    /// Runs the next operation of a ready lane.
    fn step<'a>(&'a self, mut st: Guard<'a>, lane: usize) -> Guard<'a> {
        if let Some(mut op) = st.begin(lane) {
            drop(st);
            let problems = execute(&op);
            // Whatever the body owns is dropped outside the lock too.
            op.work = Work::Mark;
            st = self.lock();
            st.finish(&op, problems);
        }
        if st.waiters > 0 {
            self.progress.notify_all();
        }
        st
    }

    pub(super) fn wait_for_progress<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        st.waiters += 1;
        let mut st = self.progress.wait(st).unwrap_or_else(|e| e.into_inner());
        st.waiters -= 1;
        st
    }

    /// Refuses calls that wait for the device from inside a kernel's body, where they could never
    /// return.
    pub(super) fn check_may_wait(&self, call: &str) -> Result<()> {
        if IN_BODY.get() {
            return Err(Error::new(Status::Driver, format!("{call} waits for the device and was called by a kernel")));
        }
        Ok(())
    }

    /// Runs the device until operation `seq` of `lane` is complete. Other operations run in
    /// between, at random.
    pub(super) fn run_until<'a>(&'a self, mut st: Guard<'a>, lane: usize, seq: u64) -> Result<Guard<'a>> {
        while !st.lanes.done(lane, seq) {
            let mut at = lane;
            // Dependencies were submitted before what depends on them, so this walk ends.
            let next = loop {
                match st.next_in(at) {
                    Next::After(dep) => at = dep,
                    other => break other,
                }
            };
            st = match next {
                Next::Ready => {
                    if !self.options.eager && st.mood.rng.below(2) == 0 {
                        if let Some(other) = st.pick(None) {
                            at = other;
                        }
                    }
                    self.step(st, at)
                }
                Next::Busy => self.wait_for_progress(st),
                Next::Held => {
                    let id = st.lanes.get(at)?.id;
                    return Err(Error::new(
                        Status::Driver,
                        format!("stream {id} is held by the test, so waiting for it would never end; release it first"),
                    ));
                }
                Next::Idle | Next::After(_) => return Err(Error::internal("waiting for work that is not queued")),
            };
        }
        Ok(st)
    }

    /// Waits until no thread is executing an operation that touches `[va, va + size)`.
    pub(super) fn wait_unused<'a>(&'a self, mut st: Guard<'a>, va: u64, size: u64) -> Result<Guard<'a>> {
        let r = va..va.saturating_add(size);
        while st.busy(&r) {
            self.check_may_wait("taking away memory that is in use")?;
            st = self.wait_for_progress(st);
        }
        Ok(st)
    }
}

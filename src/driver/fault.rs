//! A driver that fails on request, takes its time, or lies about stream order.
//!
//! The lies ([`Fault::pretend_done`], [`Fault::drop_records`]) are instruments for tests: with
//! either in force the rules of stream order are broken, and a test that claims to check them has
//! to notice.

use super::wrap::{Hook, Wrap};
use super::{Call, Driver};
use crate::base::{Error, Result, Status};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Which calls fail, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Only calls of this kind are counted; `None` counts every call.
    pub call: Option<Call>,
    /// How many of them pass first; 0 fails the very next.
    pub after: u64,
    /// How the failing call answers.
    pub status: Status,
    /// Whether every later call it counts fails too, until the rule is changed.
    pub lasting: bool,
}

impl FaultRule {
    /// Fails one call of any kind, the one that comes after `after` others, with `Status::Driver`.
    pub fn nth(after: u64) -> FaultRule {
        FaultRule { call: None, after, status: Status::Driver, lasting: false }
    }

    /// Fails the call after `after` others of kind `call`, with `Status::Driver`.
    pub fn nth_of(call: Call, after: u64) -> FaultRule {
        FaultRule { call: Some(call), ..FaultRule::nth(after) }
    }

    /// The same rule answering with `status`.
    pub fn with_status(self, status: Status) -> FaultRule {
        FaultRule { status, ..self }
    }

    /// The same rule, failing from there on.
    pub fn lasting(self) -> FaultRule {
        FaultRule { lasting: true, ..self }
    }
}

#[derive(Default)]
struct State {
    rule: Option<FaultRule>,
    /// Calls the rule has counted.
    seen: u64,
    /// Calls that failed because of rules.
    fired: u64,
    record: Option<Vec<Call>>,
    slow: Option<(Call, Duration)>,
}

/// Decides which calls fail, and which lies are told.
#[derive(Default)]
pub struct FaultPlan {
    state: Mutex<State>,
    pretend_done: AtomicBool,
    drop_records: AtomicBool,
}

/// A driver that fails chosen calls. A call that it fails never reaches the driver inside.
pub type Fault = Wrap<FaultPlan>;

impl FaultPlan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Hook for FaultPlan {
    fn before(&self, call: Call) -> Result<()> {
        // A statement of its own, so that the lock is released: other calls are not slow.
        let slow = self.state().slow;
        if let Some((_, time)) = slow.filter(|(slow, _)| *slow == call) {
            std::thread::sleep(time);
        }
        let mut st = self.state();
        if let Some(calls) = st.record.as_mut() {
            calls.push(call);
        }
        let Some(rule) = st.rule.filter(|r| r.call.unwrap_or(call) == call) else { return Ok(()) };
        let n = st.seen;
        st.seen += 1;
        if n < rule.after || (n > rule.after && !rule.lasting) {
            return Ok(());
        }
        st.fired += 1;
        let of = rule.call.map_or("any kind", Call::name);
        Err(Error::new(rule.status, format!("{call} failed on request (call {n} of {of}, counted from 0)")))
    }

    fn drops(&self, _call: Call) -> bool {
        self.drop_records.load(Relaxed)
    }

    fn event_is_done(&self) -> Option<bool> {
        self.pretend_done.load(Relaxed).then_some(true)
    }
}

impl Wrap<FaultPlan> {
    /// Passes every call on to `inner` until told otherwise.
    pub fn new(inner: Arc<dyn Driver>) -> Fault {
        Wrap::around(inner, FaultPlan::default())
    }

    /// Puts a rule in force and starts its count at 0; `None` lets every call pass.
    pub fn set_rule(&self, rule: Option<FaultRule>) {
        let mut st = self.hook.state();
        st.rule = rule;
        st.seen = 0;
    }

    /// A test instrument: calls of one kind take at least this long, as on a busy driver; `None`
    /// ends the delay.
    pub fn slow_down(&self, slow: Option<(Call, Duration)>) {
        self.hook.state().slow = slow;
    }

    /// How many calls have failed because of rules so far.
    pub fn fired(&self) -> u64 {
        self.hook.state().fired
    }

    /// A test instrument: while `on`, `event_query` answers that everything before the mark is
    /// done, without asking the driver inside. Memory then goes to other streams before the device
    /// is done with it.
    pub fn pretend_done(&self, on: bool) {
        self.hook.pretend_done.store(on, Relaxed);
    }

    /// A test instrument: while `on`, `event_record` and `context_record` report success and reach
    /// no driver. An event that was never recorded counts as done, and waiting for it does nothing.
    pub fn drop_records(&self, on: bool) {
        self.hook.drop_records.store(on, Relaxed);
    }

    /// Starts recording calls into an empty list.
    pub fn start_recording(&self) {
        self.hook.state().record = Some(Vec::new());
    }

    /// Stops recording and returns the calls made since it started, in order, failed ones included.
    pub fn stop_recording(&self) -> Vec<Call> {
        self.hook.state().record.take().unwrap_or_default()
    }
}

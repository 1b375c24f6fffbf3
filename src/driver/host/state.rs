//! Everything behind the host device's lock, and how work is entered into it.

#![deny(unsafe_code)]

use super::clock::Clock;
use super::events::{Events, Mark};
use super::graphs::Graphs;
use super::lanes::Lanes;
use super::live::Live;
use super::memory::{Mapping, Memory};
use super::mood::Mood;
use super::op::{Op, OpInfo, Submission};
use super::race::{Conflict, Shadow};
use super::ranges::{overlap, span};
use super::report::{Report, ReportKind, Reports};
use crate::base::{Error, Result, Status};
use std::ops::Range;
use std::sync::Arc;

/// The device's state. Lane numbers in it are always valid: lanes are never removed.
pub(super) struct State {
    pub(super) memory: Memory,
    pub(super) lanes: Lanes,
    pub(super) events: Events,
    pub(super) graphs: Graphs,
    /// The work that the host has seen complete: one clock for all host threads.
    pub(super) host: Clock,
    /// Counts changes of `host`, so that lanes join it only when there is news.
    pub(super) host_version: u64,
    pub(super) shadow: Shadow,
    pub(super) live: Live,
    pub(super) reports: Reports,
    pub(super) mood: Mood,
    /// Whether accesses are checked for races and use after unmapping.
    pub(super) checking: bool,
    /// Threads waiting for an operation that another thread is executing.
    pub(super) waiters: usize,
}

impl State {
    /// The host has seen that a mark is reached.
    pub(super) fn observe(&mut self, mark: &Mark) {
        let mut news = self.host.join(&mark.clock);
        for (lane, seq) in &mark.points {
            news |= self.host.advance(*lane, *seq);
        }
        self.host_version += u64::from(news);
    }

    /// Orders the next operation of `lane` after a mark.
    pub(super) fn order_after(&mut self, lane: usize, mark: &Mark) -> Result<()> {
        let l = self.lanes.get_mut(lane)?;
        l.order_after(&mark.clock);
        for (other, seq) in &mark.points {
            if !l.clock.covers(*other, *seq) {
                Arc::make_mut(&mut l.clock).advance(*other, *seq);
            }
        }
        Ok(())
    }

    /// Queues work in a lane and returns its number there. Work for a lane that is being captured
    /// becomes a node of the graph, and 0 is returned.
    pub(super) fn submit(&mut self, lane: usize, mut s: Submission) -> Result<u64> {
        if let Some(capture) = self.lanes.get_mut(lane)?.capture.as_mut() {
            return capture.note(s).map(|()| 0);
        }
        let mut deps = std::mem::take(&mut s.deps);
        self.legacy_order(lane, &mut deps)?;
        let l = self.lanes.get_mut(lane)?;
        if l.host_seen != self.host_version {
            l.order_after(&self.host);
            l.host_seen = self.host_version;
        }
        l.submitted += 1;
        let at = s.writes.first().or(s.reads.first()).cloned();
        let named = (l.handle, l.dev);
        let info = Arc::new(OpInfo { label: s.label, lane, seq: l.submitted, stream: l.id, named, at });
        let clock = l.clock.clone();
        let op = Op { info, clock, deps, reads: s.reads, writes: s.writes, work: s.work, _ties: s.ties };
        self.note_submission(&op);
        let l = self.lanes.get_mut(lane)?;
        if l.completed + 1 == l.submitted {
            self.lanes.active.push(lane);
        }
        let l = self.lanes.get_mut(lane)?;
        l.queue.push_back(op);
        Ok(l.submitted)
    }

    /// The legacy default stream waits for all blocking streams of its device, and they wait for
    /// it.
    pub(super) fn legacy_order(&mut self, lane: usize, deps: &mut Vec<(usize, u64)>) -> Result<()> {
        let (dev, blocking) = (self.lanes.get(lane)?.dev, self.lanes.get(lane)?.blocking);
        if !blocking {
            return Ok(());
        }
        let legacy = self.lanes.legacy.get(dev.0 as usize).copied().unwrap_or(lane);
        let others: Vec<usize> = if lane == legacy {
            let all = self.lanes.list.iter().enumerate();
            all.filter(|(i, l)| *i != lane && l.blocking && l.dev == dev && (l.submitted > 0 || l.capture.is_some()))
                .map(|(i, _)| i)
                .collect()
        } else {
            vec![legacy]
        };
        let captured = |l: &usize| self.lanes.get(*l).is_ok_and(|l| l.capture.is_some());
        let captured: Vec<usize> = others.iter().copied().filter(captured).collect();
        if lane == legacy && !captured.is_empty() {
            captured.into_iter().for_each(|l| self.invalidate_capture(l));
            return Err(Error::new(
                Status::Capturing,
                "the legacy default stream waits for all blocking streams, and one of them is being captured",
            ));
        }
        let mut clock = Clock::default();
        for other in others {
            let l = self.lanes.get_mut(other)?;
            if l.completed < l.submitted {
                deps.push((other, l.submitted));
            }
            l.add_unseen(other, &self.host, &mut clock);
        }
        self.lanes.get_mut(lane)?.order_after(&clock);
        Ok(())
    }

    /// Makes the checks that are possible at submission, and notes the users of each mapping.
    fn note_submission(&mut self, op: &Op) {
        for r in op.reads.iter().chain(&op.writes) {
            if self.live.on && self.memory.reserved(r.start) {
                if let Some(why) = self.live.objection(r) {
                    let text = format!("{} uses {}, which {why}", op.info, span(r));
                    self.reports.push(Report::new(ReportKind::NotLive, &[&op.info], r.clone(), text));
                }
            }
            if self.checking {
                for (_, m) in self.memory.mappings_in(r) {
                    note_user(m, &op.info);
                }
            }
        }
    }

    /// Resolves every range of an operation that is about to run: faults and races are reported.
    /// Says whether it may run.
    pub(super) fn check_access(&mut self, op: &Op, kernel: bool) -> Result<bool> {
        let dev = self.lanes.get(op.info.lane)?.dev;
        let mut pieces = Vec::new();
        for (r, writes) in op.reads.iter().map(|r| (r, false)).chain(op.writes.iter().map(|r| (r, true))) {
            match self.memory.resolve(r, kernel.then_some(dev)) {
                Ok(p) => pieces.extend(p.into_iter().map(|p| (p, writes))),
                Err(why) => {
                    let verb = if writes { "writes" } else { "reads" };
                    let text = format!("{} {verb} {}, but {why}", op.info, span(r));
                    self.reports.push(Report::new(ReportKind::Fault, &[&op.info], r.clone(), text));
                    return Ok(false);
                }
            }
        }
        if !self.checking {
            return Ok(true);
        }
        for r in op.reads.iter().chain(&op.writes) {
            // Again, because the mapping may be newer than the submission.
            for (_, m) in self.memory.mappings_in(r) {
                note_user(m, &op.info);
            }
        }
        let mut found = Vec::new();
        for (piece, writes) in &pieces {
            if *writes {
                self.shadow.write(&piece.keys, &op.info, &op.clock, &mut found);
            } else {
                self.shadow.read(&piece.keys, &op.info, &op.clock, &mut found);
            }
            for c in found.drain(..) {
                self.report_race(op, *writes, piece.va + (c.keys.start - piece.keys.start), &c);
            }
        }
        if self.shadow.crowded() {
            let floor = self.floor();
            self.shadow.thin(&floor);
        }
        Ok(true)
    }

    fn report_race(&mut self, op: &Op, writes: bool, va: u64, c: &Conflict) {
        let range = va..va + (c.keys.end - c.keys.start);
        let did = |w| if w { "wrote" } else { "read" };
        let text = format!(
            "{} {} and {} {} the same memory, {} as the latter names it, and neither is ordered before the other; \
             make the second wait for an event recorded after the first",
            c.earlier,
            did(c.earlier_writes),
            op.info,
            did(writes),
            span(&range)
        );
        self.reports.push(Report::new(ReportKind::Race, &[&c.earlier, &op.info], range, text));
    }

    /// The clock that everything still to run is ordered after: what the host has seen, less
    /// whatever it saw after submitting work that is still queued. A lane's clock never goes back,
    /// so its oldest operation knows least.
    fn floor(&self) -> Clock {
        let mut floor = self.host.clone();
        for l in &self.lanes.list {
            if let Some(op) = l.queue.front() {
                floor.meet(&op.clock);
            }
        }
        floor
    }

    /// The operations that used the mappings in `r` last.
    pub(super) fn users_of(&mut self, r: &Range<u64>) -> Vec<Arc<OpInfo>> {
        if !self.checking {
            return Vec::new();
        }
        let mut users: Vec<_> = self.memory.mappings_in(r).flat_map(|(_, m)| m.users.iter().cloned()).collect();
        users.sort_by_key(|u| (u.lane, u.seq));
        users.dedup_by_key(|u| (u.lane, u.seq));
        users
    }

    /// Reports those of `users` that may still be using `r`, which has just gone: those that
    /// `after` is not ordered after. `after` is the clock of an operation of `lane`, or without a
    /// lane the host's.
    pub(super) fn report_in_use(
        &mut self,
        users: Vec<Arc<OpInfo>>,
        r: &Range<u64>,
        lane: Option<usize>,
        after: &Clock,
        what: &str,
    ) {
        for u in users {
            if Some(u.lane) == lane || after.covers(u.lane, u.seq) {
                continue;
            }
            let state = if self.lanes.done(u.lane, u.seq) { "was not known to be complete" } else { "had not run" };
            let text = format!("{what} of {} while {u}, which uses it, {state}", span(r));
            self.reports.push(Report::new(ReportKind::UnmapInUse, &[&u], r.clone(), text));
        }
    }

    /// Whether a thread is executing an operation that touches `r`.
    pub(super) fn busy(&self, r: &Range<u64>) -> bool {
        let running = self.lanes.active.iter().filter_map(|l| self.lanes.list.get(*l)?.running.as_ref());
        running.flatten().any(|x| overlap(x, r))
    }
}

/// Records `op` as its lane's last user of a mapping.
fn note_user(m: &mut Mapping, op: &Arc<OpInfo>) {
    match m.users.iter_mut().find(|u| u.lane == op.lane) {
        Some(u) if u.seq >= op.seq => {}
        Some(u) => *u = op.clone(),
        None => m.users.push(op.clone()),
    }
}

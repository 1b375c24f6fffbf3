//! Allocations that arenas have freed and that must not be handed out yet: poisoned memory, or
//! addresses with nothing behind them.
//!
//! A queue of limited size, first in, first out. No lock is held while a thread waits for the
//! device or reads memory: it takes the items it works on out of the queue first.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::pools::Pools;
use super::records::Record;
use crate::base::sync::{lock, Condvar, Mutex, MutexGuard};
use crate::base::{DeviceId, Error, Result, Status};
use crate::driver::process::thread_number;
use crate::pool::{HeldAddresses, Pool, Scope};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

/// The fill of poisoned memory: NaN as a float of any format, so that late reads show, too.
const POISON: u8 = 0xff;

/// One allocation in quarantine.
#[derive(Clone, Debug)]
struct Item {
    dev: DeviceId,
    record: Arc<Record>,
    kept: Kept,
}

/// What is kept of an allocation.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// Its memory, filled unless a capture or an error prevented that.
    Memory { filled: bool },
    /// Its addresses.
    Addresses(HeldAddresses),
}

impl Item {
    /// The bytes it counts for in the quarantine.
    fn bytes(&self) -> u64 {
        match self.kept {
            Kept::Memory { .. } => self.record.usable,
            Kept::Addresses(held) => held.bytes,
        }
    }
}

/// Invariant: `bytes` is the sum over `items`.
#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    items: VecDeque<Item>,
    bytes: u64,
    /// The threads that have taken items out to look at them or to release them.
    working: Vec<u32>,
    /// How many threads wait for those, to have memory.
    emptying: u32,
}

impl State {
    /// Takes the oldest out until no more than `most` bytes are left.
    fn take(&mut self, most: u64) -> Vec<Item> {
        let mut out = Vec::new();
        while self.bytes > most {
            let Some(item) = self.items.pop_front() else { break };
            self.bytes -= item.bytes();
            out.push(item);
        }
        out
    }
}

/// The calling thread's part of [`State::working`].
struct Working<'a>(&'a Quarantine);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let me = thread_number();
        let mut st = lock(&self.0.state);
        st.working.iter().position(|&t| t == me).map(|i| st.working.swap_remove(i));
        drop(st);
        self.0.worked.notify_all();
    }
}

/// A quarantine over the pools of one context.
#[derive(Debug)]
pub(super) struct Quarantine {
    most: u64,
    /// The scope that poisoned allocations belong to.
    scope: Arc<Scope>,
    state: Mutex<State>,
    /// Told when a thread leaves `State::working`.
    worked: Condvar,
    stale_writes: AtomicU64,
    unchecked: AtomicU64,
}

/// What a quarantine keeps and has found: counts, except for `kept_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QuarantineStats {
    pub(super) kept: u64,
    pub(super) kept_bytes: u64,
    pub(super) stale_writes: u64,
    pub(super) unchecked: u64,
}

impl Quarantine {
    /// An empty quarantine for at most `most` bytes.
    pub(super) fn new(most: u64) -> Quarantine {
        Quarantine {
            most,
            scope: Scope::of_reclaimed(),
            state: Mutex::new(State::default()),
            worked: Condvar::new(),
            stale_writes: AtomicU64::new(0),
            unchecked: AtomicU64::new(0),
        }
    }

    /// The scope to move allocations to before they are given to [`Self::poison`].
    pub(super) fn scope(&self) -> &Arc<Scope> {
        &self.scope
    }

    /// Fills allocations of one pool and keeps them. Waits for the device, unless a stream is being
    /// captured. Allocations that do not fit are freed unfilled, and never looked at.
    pub(super) fn poison(&self, pool: &Pool, records: Vec<Arc<Record>>) {
        let (records, beyond) = self.fitting(records);
        self.unchecked.fetch_add(beyond.len() as u64, Relaxed);
        for record in beyond {
            // This only fails when the driver is gone, and the memory with it.
            let _ = pool.free_reclaimed(record.base, record.id);
        }
        if records.is_empty() {
            return;
        }
        let ranges: Vec<(u64, u64)> = records.iter().map(|r| (r.base, r.usable)).collect();
        records.iter().for_each(|r| pool.near_streams(r.base, r.id));
        let passed = matches!(pool.wait_for_device(), Ok(true));
        // For the program they are freed now, so the streams they were recorded on may be gone
        // later.
        records.iter().for_each(|r| pool.forget_streams(r.base, r.id, passed));
        let filled = passed && pool.fill_ranges(&ranges, POISON).is_ok();
        if !filled {
            self.unchecked.fetch_add(records.len() as u64, Relaxed);
        }
        let kept = Kept::Memory { filled };
        self.keep(records.into_iter().map(|record| Item { dev: pool.device(), record, kept }));
    }

    /// Splits allocations, given oldest first, into those that the quarantine will keep once it has
    /// shrunk, and the rest. It keeps the newest that fit together, and passes over any that is too
    /// large on its own.
    fn fitting(&self, records: Vec<Arc<Record>>) -> (Vec<Arc<Record>>, Vec<Arc<Record>>) {
        let mut room = Some(self.most);
        let mut keeps: Vec<bool> = Vec::with_capacity(records.len());
        for record in records.iter().rev() {
            let rest = room.and_then(|room| room.checked_sub(record.usable));
            keeps.push(rest.is_some());
            if record.usable <= self.most {
                // Once one is pushed out, so is everything older.
                room = rest;
            }
        }
        let mut keeps = keeps.into_iter().rev();
        records.into_iter().partition(|_| keeps.next().unwrap_or(false))
    }

    /// Keeps the addresses of one pool's freed allocations, and has their memory unmapped once the
    /// device has passed the free: now, unless a stream is being captured.
    pub(super) fn unmap(&self, pool: &Pool, held: Vec<(Arc<Record>, HeldAddresses)>) {
        if held.is_empty() {
            return;
        }
        // If either fails, the memory is unmapped later, as for other freed allocations.
        if !matches!(pool.wait_for_device(), Ok(true)) || pool.release_graves().is_err() {
            self.unchecked.fetch_add(held.len() as u64, Relaxed);
        }
        let item = |(record, held)| Item { dev: pool.device(), record, kept: Kept::Addresses(held) };
        self.keep(held.into_iter().map(item));
    }

    fn keep(&self, items: impl Iterator<Item = Item>) {
        let mut st = lock(&self.state);
        for item in items {
            st.bytes = st.bytes.saturating_add(item.bytes());
            st.items.push_back(item);
        }
    }

    /// Releases the oldest until the quarantine is within its size. Calls `found` for each that was
    /// written to.
    pub(super) fn shrink(&self, pools: &dyn Pools, found: &mut dyn FnMut(String)) {
        self.shrink_to(self.most, false, pools, found);
    }

    /// Releases everything, and waits until other threads have released what they have in hand.
    /// Returns whether there was anything.
    pub(super) fn empty(&self, pools: &dyn Pools, found: &mut dyn FnMut(String)) -> bool {
        let mut st = lock(&self.state);
        let mut waited = false;
        // A thread that has items in hand itself is in a callback: others may wait for it.
        if !st.working.contains(&thread_number()) {
            st.emptying += 1;
            while !st.working.is_empty() {
                waited = true;
                st = self.worked.wait(st).unwrap_or_else(PoisonError::into_inner);
            }
            st.emptying -= 1;
        }
        // Before anybody else can have them again.
        let out = st.take(0);
        if out.is_empty() {
            return waited;
        }
        let _working = self.work(st);
        // Late writes may still be on their way.
        pools.each(&mut |pool| drop(pool.wait_for_device()));
        self.release(out, true, pools, found) > 0 || waited
    }

    /// Counts the calling thread as one that has items in hand, from before the lock on them is
    /// released.
    fn work(&self, mut st: MutexGuard<'_, State>) -> Working<'_> {
        st.working.push(thread_number());
        Working(self)
    }

    /// Releases the oldest until no more than `most` bytes are kept.
    fn shrink_to(&self, most: u64, anyway: bool, pools: &dyn Pools, found: &mut dyn FnMut(String)) {
        let mut st = lock(&self.state);
        let out = st.take(most);
        if out.is_empty() {
            return;
        }
        let _working = self.work(st);
        self.release(out, anyway, pools, found);
    }

    /// Returns how many were released. Unless `anyway`, poisoned memory stays while a capture keeps
    /// it from being read.
    fn release(&self, out: Vec<Item>, anyway: bool, pools: &dyn Pools, found: &mut dyn FnMut(String)) -> usize {
        let mut stay: Vec<Item> = Vec::new();
        let all = out.len();
        for item in out {
            pools.each(&mut |pool| {
                if pool.device() != item.dev {
                    return;
                }
                match item.kept {
                    Kept::Addresses(held) => pool.let_go(held),
                    Kept::Memory { filled: true } if !anyway && pool.is_capturing() => stay.push(item.clone()),
                    Kept::Memory { filled } => {
                        if filled {
                            self.look(pool, &item.record).into_iter().for_each(&mut *found);
                        }
                        // This only fails when the driver is gone, and the memory with it.
                        let _ = pool.free_reclaimed(item.record.base, item.record.id);
                    }
                }
            });
        }
        let gone = all - stay.len();
        self.put_back(stay);
        gone
    }

    fn put_back(&self, items: Vec<Item>) {
        let mut st = lock(&self.state);
        for item in items.into_iter().rev() {
            st.bytes = st.bytes.saturating_add(item.bytes());
            st.items.push_front(item);
        }
    }

    /// Says what was written to poisoned memory, if anything was.
    fn look(&self, pool: &Pool, record: &Record) -> Option<String> {
        let differs = if pool.is_capturing() { None } else { pool.differs(record.base, record.usable, POISON).ok() };
        let Some(found) = differs else {
            self.unchecked.fetch_add(1, Relaxed);
            return None;
        };
        let (first, last) = found?;
        self.stale_writes.fetch_add(1, Relaxed);
        Some(format!(
            "stale write after {}: {} bytes from offset {first} of {record}, reclaimed {}",
            record.end.how,
            last - first + 1,
            record.by()
        ))
    }

    /// Looks at all poisoned memory now, and refills what was written to. Returns how many
    /// allocations that were. While a stream is being captured, fails with `Capturing` and does
    /// nothing.
    pub(super) fn verify(&self, pools: &dyn Pools, found: &mut dyn FnMut(String)) -> Result<u64> {
        let mut all_done = Ok(true);
        pools.each(&mut |pool| {
            if matches!(all_done, Ok(true)) {
                all_done = pool.wait_for_device();
            }
        });
        if !all_done? {
            let text = "memory cannot be looked at while a stream is being captured; end the capture first";
            return Err(Error::new(Status::Capturing, text));
        }
        let mut st = lock(&self.state);
        let mut items = st.take(0);
        if items.is_empty() {
            return Ok(0);
        }
        let _working = self.work(st);
        let mut changed = 0;
        for item in &mut items {
            pools.each(&mut |pool| {
                if pool.device() != item.dev || !matches!(item.kept, Kept::Memory { filled: true }) {
                    return;
                }
                if let Some(text) = self.look(pool, &item.record) {
                    changed += 1;
                    let filled = pool.fill_ranges(&[(item.record.base, item.record.usable)], POISON).is_ok();
                    item.kept = Kept::Memory { filled };
                    found(text);
                }
            });
        }
        self.put_back(items);
        if lock(&self.state).emptying > 0 {
            self.shrink_to(0, true, pools, found);
        }
        Ok(changed)
    }

    /// The allocations that came in last, newest first.
    pub(super) fn newest(&self, most: usize) -> Vec<Arc<Record>> {
        lock(&self.state).items.iter().rev().take(most).map(|i| i.record.clone()).collect()
    }

    /// Checks that the pools, too, keep what it keeps, and that its bytes add up.
    pub(super) fn validate(&self, pools: &dyn Pools) -> Result<()> {
        let st = lock(&self.state);
        for item in &st.items {
            let mut there = false;
            pools.each(&mut |pool| {
                there |= pool.device() == item.dev
                    && match item.kept {
                        Kept::Memory { .. } => pool.keeps(item.record.base, item.record.id),
                        Kept::Addresses(held) => pool.holds(held),
                    };
            });
            if !there {
                return Err(Error::internal(format!("{} is in quarantine and not kept", item.record)));
            }
        }
        match st.items.iter().map(Item::bytes).sum::<u64>() {
            sum if sum == st.bytes => Ok(()),
            sum => Err(Error::internal(format!("{} bytes in quarantine recorded, {sum} found", st.bytes))),
        }
    }

    pub(super) fn stats(&self) -> QuarantineStats {
        let (kept, kept_bytes) = {
            let st = lock(&self.state);
            (st.items.len() as u64, st.bytes)
        };
        QuarantineStats {
            kept,
            kept_bytes,
            stale_writes: self.stale_writes.load(Relaxed),
            unchecked: self.unchecked.load(Relaxed),
        }
    }
}

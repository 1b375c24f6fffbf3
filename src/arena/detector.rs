//! Finds uses of memory after the arena it belonged to has ended.
//!
//! Off by default: then there is no detector at all. With one, an arena that ends first makes its
//! allocations unreachable, then enters them here, and only then frees them. So an address is in
//! the table before it can be handed out again; the thread that gets it takes it out of the table.
//!
//! Lock order: the table's lock is the last one; nothing is called under it.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::open::Arena;
use super::pools::Pools;
use super::quarantine::Quarantine;
use super::records::{End, How, Record, Records};
use crate::base::sync::{lock, Mutex};
use crate::base::{Error, Result, Status};
use crate::driver::process;
use crate::pool::{AllocInfo, Pool, Reclaimed, Scope};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// How many allocations a hint names.
const CANDIDATES: usize = 16;

/// What the detector does. `Default` is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebugMode {
    /// Remember what arenas have freed, so that uses can be checked. The others imply it.
    pub check: bool,
    /// End the process at the first stale use found.
    pub abort: bool,
    /// Fill memory that arenas free, keep it, and look whether it was written to.
    pub poison: bool,
    /// Give each allocation in an arena addresses of its own, and leave nothing mapped there
    /// afterwards.
    pub unmap: bool,
}

impl DebugMode {
    /// Whether any of them is on.
    pub fn is_on(self) -> bool {
        self.check || self.abort || self.poison || self.unmap
    }
}

/// As `GPUMEM_ARENA_DEBUG` spells it.
impl fmt::Display for DebugMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "check" } else { "off" })?;
        for (_, word) in
            [(self.abort, ",abort"), (self.poison, ",poison"), (self.unmap, ",unmap")].iter().filter(|w| w.0)
        {
            f.write_str(word)?;
        }
        Ok(())
    }
}

/// How a detector works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectorOptions {
    /// The debug mode.
    pub mode: DebugMode,
    /// How much freed memory it keeps from being handed out, in bytes: of memory, or with `unmap`
    /// of addresses.
    pub quarantine: u64,
    /// How much it says on stderr; 0 is nothing.
    pub log: u32,
    /// The most allocations it remembers.
    pub records: usize,
}

impl Default for DetectorOptions {
    fn default() -> DetectorOptions {
        DetectorOptions { mode: DebugMode::default(), quarantine: 0, log: 1, records: 1 << 20 }
    }
}

/// What a detector has seen so far: counts, except for `kept_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetectorStats {
    /// Allocations it remembers now.
    pub remembered: u64,
    /// Checks that found a stale use.
    pub stale_uses: u64,
    /// Allocations in quarantine that were found to have been written to.
    pub stale_writes: u64,
    /// Allocations in quarantine.
    pub kept: u64,
    /// Bytes of memory, or with `unmap` of addresses, in quarantine.
    pub kept_bytes: u64,
    /// Allocations that could not be filled, unmapped or looked at in time, because of a capture or
    /// an error.
    pub unchecked: u64,
}

/// The table of allocations that arenas have freed, and the quarantine that some are in.
#[derive(Debug)]
pub struct Detector {
    options: DetectorOptions,
    records: Mutex<Records>,
    /// There is one with `poison` or `unmap`.
    quarantine: Option<Quarantine>,
    stale_uses: AtomicU64,
    fault_told: AtomicBool,
}

impl Detector {
    /// A detector that remembers nothing yet.
    pub fn new(options: DetectorOptions) -> Detector {
        let DebugMode { poison, unmap, .. } = options.mode;
        Detector {
            options,
            records: Mutex::new(Records::new(options.records.max(1))),
            quarantine: (poison || unmap).then(|| Quarantine::new(options.quarantine)),
            stale_uses: AtomicU64::new(0),
            fault_told: AtomicBool::new(false),
        }
    }

    /// The debug mode.
    pub fn mode(&self) -> DebugMode {
        self.options.mode
    }

    /// Frees the allocations of an arena that has ended, and remembers them.
    pub(super) fn reclaim(&self, arena: &Arena, how: How, pools: &dyn Pools) -> Reclaimed {
        let end = Arc::new(End { arena: arena.id(), name: arena.name().to_string(), depth: arena.depth(), how });
        let mut all = Reclaimed::default();
        pools.each(&mut |pool| {
            let freed = match &self.quarantine {
                Some(quarantine) if self.options.mode.unmap => self.unmap(quarantine, pool, arena.scope(), &end),
                Some(quarantine) => self.poison(quarantine, pool, arena.scope(), &end),
                None => self.free(pool, arena.scope(), &end),
            };
            all.count += freed.count;
            all.bytes += freed.bytes;
        });
        if let Some(quarantine) = &self.quarantine {
            quarantine.shrink(pools, &mut |text| drop(self.stale(None, text)));
        }
        all
    }

    /// Remembers all allocations of a closed scope in one pool, then frees them.
    fn free(&self, pool: &Pool, scope: &Scope, end: &Arc<End>) -> Reclaimed {
        // Makes them unreachable for every other thread.
        let aside = Scope::of_reclaimed();
        let pooled = pool.move_scope(scope, &aside, true);
        let dedicated = pool.hold_scope(scope);
        self.remember(dedicated.iter().map(|d| &d.0).chain(pooled.iter().rev()), end);
        pool.free_held(&dedicated);
        let pooled = pool.free_scope(&aside);
        aside.close();
        let bytes = dedicated.iter().map(|d| d.0.requested).sum::<u64>();
        Reclaimed { count: pooled.count + dedicated.len() as u64, bytes: pooled.bytes + bytes }
    }

    /// Remembers all allocations of a closed scope in one pool. Poisons the pooled ones, and frees
    /// the dedicated ones and those of captures: a graph uses its memory each time it is launched,
    /// even after it was freed.
    fn poison(&self, quarantine: &Quarantine, pool: &Pool, scope: &Scope, end: &Arc<End>) -> Reclaimed {
        let pooled = pool.move_scope(scope, quarantine.scope(), false);
        let records = self.remember(pooled.iter().rev(), end);
        quarantine.poison(pool, records);
        let freed = self.free(pool, scope, end);
        Reclaimed {
            count: freed.count + pooled.len() as u64,
            bytes: freed.bytes + pooled.iter().map(|i| i.requested).sum::<u64>(),
        }
    }

    /// Remembers all allocations of a closed scope in one pool. Unmaps the dedicated ones and frees
    /// the pooled ones.
    fn unmap(&self, quarantine: &Quarantine, pool: &Pool, scope: &Scope, end: &Arc<End>) -> Reclaimed {
        let dedicated = pool.hold_scope(scope);
        let records = self.remember(dedicated.iter().map(|d| &d.0), end);
        let pooled = self.free(pool, scope, end);
        let all = Reclaimed {
            count: pooled.count + dedicated.len() as u64,
            bytes: pooled.bytes + dedicated.iter().map(|d| d.0.requested).sum::<u64>(),
        };
        quarantine.unmap(pool, records.into_iter().zip(dedicated.into_iter().map(|d| d.1)).collect());
        all
    }

    /// Enters allocations into the table, in the order in which they were made as far as it is
    /// known.
    fn remember<'a>(&self, infos: impl Iterator<Item = &'a AllocInfo>, end: &Arc<End>) -> Vec<Arc<Record>> {
        let mut records = lock(&self.records);
        infos
            .map(|info| {
                let record = Arc::new(Record::new(info, end));
                records.add(record.clone());
                record
            })
            .collect()
    }

    /// A range of addresses has been handed out.
    pub fn handed_out(&self, base: u64, bytes: u64) {
        lock(&self.records).cut(base..base.saturating_add(bytes.max(1)));
    }

    /// Fails if `ptr` is in memory that an arena's end has freed and that has not been handed out
    /// since. The error's text names the operation `op` and the `operand` that uses it.
    pub fn check(&self, ptr: u64, op: &str, operand: &str) -> Result<()> {
        let found = lock(&self.records).at(ptr).cloned();
        match found {
            None => Ok(()),
            Some(record) => self.stale(Some(&self.stale_uses), stale_use(op, operand, &record)),
        }
    }

    /// Fails unless the allocation with this id is the one at `ptr`. `live` is the id of the live
    /// allocation there, if any.
    pub fn check_id(&self, ptr: u64, id: u64, live: Option<u64>, op: &str, operand: &str) -> Result<()> {
        if live == Some(id) {
            return Ok(());
        }
        let record = lock(&self.records).of(id).cloned();
        let text = match (record, live) {
            (Some(record), _) => stale_use(op, operand, &record),
            (None, Some(live)) => format!(
                "use-after-free: {op} {operand} is allocation {id} at {ptr:#x}, which is gone; allocation {live} has its \
                 address now"
            ),
            (None, None) => format!("use-after-free: {op} {operand} is allocation {id} at {ptr:#x}, which is gone"),
        };
        self.stale(Some(&self.stale_uses), text)
    }

    /// Reports a stale use or write: counts it in `count`, if that is given, says it on stderr, and
    /// makes an error of it unless the process is to end.
    fn stale(&self, count: Option<&AtomicU64>, text: String) -> Result<()> {
        // Says each of the first 64, then one each time their number doubles.
        let n = count.map_or(1, |count| count.fetch_add(1, Relaxed) + 1);
        if self.options.mode.abort || self.options.log >= 1 && (n <= 64 || n.is_power_of_two()) {
            process::say(&text);
        }
        if self.options.mode.abort {
            std::process::abort();
        }
        Err(Error::new(Status::UseAfterFree, text))
    }

    /// Whether what arenas allocate is to have physical memory of its own.
    #[inline]
    pub fn wants_separate(&self) -> bool {
        self.options.mode.unmap
    }

    /// Looks at all poisoned memory now. Fails if any was written to since it was freed or last
    /// looked at.
    pub fn verify(&self, pools: &dyn Pools) -> Result<()> {
        let Some(quarantine) = &self.quarantine else { return Ok(()) };
        let mut first = None;
        let changed = quarantine.verify(pools, &mut |text| {
            if let Err(e) = self.stale(None, text) {
                first.get_or_insert(e);
            }
        })?;
        match first {
            None => Ok(()),
            Some(e) if changed < 2 => Err(e),
            Some(e) => Err(Error::new(e.status, format!("{}; {} more, each on stderr", e.message, changed - 1))),
        }
    }

    /// Gives up everything in quarantine. Returns whether there was anything.
    pub fn empty(&self, pools: &dyn Pools) -> bool {
        let tell = &mut |text| drop(self.stale(None, text));
        self.quarantine.as_ref().is_some_and(|quarantine| quarantine.empty(pools, tell))
    }

    /// A hint for a driver's error which says that the device has used unmapped memory: the latest
    /// allocations in quarantine, one of which was probably there. Given once.
    pub fn fault_hint(&self, e: &Error) -> Option<String> {
        let is_fault = e.status == Status::Driver && e.message.contains("ILLEGAL_ADDRESS");
        let quarantine = self.quarantine.as_ref().filter(|_| is_fault && self.options.mode.unmap)?;
        let newest = quarantine.newest(CANDIDATES);
        if newest.is_empty() || self.fault_told.swap(true, Relaxed) {
            return None;
        }
        let newest: Vec<String> = newest.iter().map(|r| format!("{r}, {}", r.by())).collect();
        Some(format!("a kernel used memory that is not mapped; reclaimed most recently: {}", newest.join("; ")))
    }

    /// Describes the memory at an address, if an arena's end has freed it.
    pub fn describe(&self, addr: u64) -> Option<String> {
        let records = lock(&self.records);
        let record = records.at(addr)?;
        let offset = addr - record.base;
        Some(format!("{addr:#x} is {offset} bytes into {record}, reclaimed {}", record.by()))
    }

    /// How a range of addresses was reclaimed, if some of it was: `reclaimed by arena_exit at depth
    /// 0 (...)`.
    pub fn reclaimed(&self, base: u64, bytes: u64) -> Option<String> {
        lock(&self.records).inside(&(base..base.saturating_add(bytes.max(1)))).map(|r| r.reclaimed())
    }

    /// Checks the quarantine against the pools; meant for moments when no other thread is in them.
    pub fn validate(&self, pools: &dyn Pools) -> Result<()> {
        self.quarantine.as_ref().map_or(Ok(()), |q| q.validate(pools))
    }

    /// What it has seen so far.
    pub fn stats(&self) -> DetectorStats {
        let quarantine = self.quarantine.as_ref().map(Quarantine::stats).unwrap_or_default();
        DetectorStats {
            remembered: lock(&self.records).len() as u64,
            stale_uses: self.stale_uses.load(Relaxed),
            stale_writes: quarantine.stale_writes,
            kept: quarantine.kept,
            kept_bytes: quarantine.kept_bytes,
            unchecked: quarantine.unchecked,
        }
    }
}

fn stale_use(op: &str, operand: &str, record: &Record) -> String {
    let how = record.reclaimed();
    format!("use-after-arena-free: {op} {operand} was {how}; keep it at the exit, or gpumem_arena_escape it before")
}

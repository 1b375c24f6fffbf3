//! Entering, exiting, attaching, keeping: what arenas do, over the pools' scopes.
//!
//! One mutex guards the tree of open arenas and the number of threads attached to each. Allocating
//! and freeing never take it: a thread finds its current arena in its own list, and looks there
//! only while some thread is attached to an arena. No allocation is touched under it either: a
//! thread closes an arena under the mutex, and frees what is in it afterwards.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::detector::Detector;
use super::open::{exited, Arena, Links, Shared};
use super::pools::Pools;
use super::records::How;
use super::thread;
use crate::base::sync::lock;
use crate::base::{Error, Interest, Result, Status};
use crate::pool::{Pool, Reclaimed, Scope, ScopeChange};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An open arena and every open one inside it, the innermost first.
fn inside(open: &BTreeMap<u64, Links>, arena: &Arena) -> Vec<Arc<Arena>> {
    let mut ids = HashSet::from([arena.id]);
    // Ids grow inwards.
    let all = open.range(arena.id..).map(|(_, links)| &links.arena);
    let mut found: Vec<_> = all
        .filter(|a| a.id == arena.id || a.parent.as_ref().is_some_and(|p| ids.contains(&p.id) && ids.insert(a.id)))
        .cloned()
        .collect();
    found.reverse();
    found
}

/// What an exit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitReport {
    /// Allocations freed.
    pub freed: u64,
    /// Requested bytes of the allocations freed.
    pub freed_bytes: u64,
    /// Allocations kept.
    pub kept: u64,
    /// Requested bytes of the allocations kept.
    pub kept_bytes: u64,
    /// Entries of the keep list that are in no live allocation.
    pub unknown: u64,
    /// Entries that name an allocation for a second time.
    pub duplicate: u64,
    /// Entries that name an allocation of another arena or of none; it stays where it is.
    pub foreign: u64,
    /// The arena's depth.
    pub depth: u32,
}

/// What has happened in an arena so far. Bytes are requested bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Allocations that are in it now.
    pub live: u64,
    /// Bytes of the allocations in it now.
    pub live_bytes: u64,
    /// The most that `live_bytes` has been.
    pub peak_bytes: u64,
    /// Allocations that joined it: made in it, or kept by an arena inside it.
    pub joined: u64,
    /// Allocations that left it before its exit: freed, promoted or escaped.
    pub left: u64,
    /// How many of `left` were promoted or escaped.
    pub promoted: u64,
    /// How many arenas are around it.
    pub depth: u32,
    /// Threads attached to it.
    pub threads: u32,
    /// How long it has been open.
    pub open_for: Duration,
}

/// A process's arenas.
#[derive(Debug, Default)]
pub struct Registry {
    shared: Arc<Shared>,
    detector: Option<Arc<Detector>>,
}

impl Registry {
    /// A registry with no arenas yet. The detector, if any, sees everything its arenas free.
    pub fn new(detector: Option<Arc<Detector>>, interest: Arc<Interest>) -> Registry {
        if detector.is_some() {
            interest.join_arena();
        }
        Registry { shared: Arc::new(Shared { interest, ..Shared::default() }), detector }
    }

    /// The detector of late uses, if any.
    #[inline]
    pub fn detector(&self) -> Option<&Arc<Detector>> {
        self.detector.as_ref()
    }

    /// The numbers of an open arena and of those open inside it, innermost first.
    pub fn inside(&self, arena: &Arena) -> Vec<u64> {
        let open = lock(&self.shared.open);
        inside(&open, arena).iter().map(|a| a.id).collect()
    }

    /// Calls `f` with the scope of the calling thread's current arena. `f` must neither enter nor
    /// leave arenas.
    #[inline]
    pub fn with_scope<R>(&self, f: impl Fn(Option<&Arc<Scope>>) -> R) -> R {
        thread::with_current(&self.shared, |arena| f(arena.map(|a| &a.scope)))
    }

    /// The calling thread's current arena.
    pub fn current(&self) -> Option<Arc<Arena>> {
        thread::current(&self.shared)
    }

    /// Whether there is any arena, open or being ended. May be true for a little longer.
    #[inline]
    pub fn has_any(&self) -> bool {
        // Each arena has a reference.
        Arc::strong_count(&self.shared) > 1
    }

    /// How many arenas are open.
    pub fn open_count(&self) -> usize {
        lock(&self.shared.open).len()
    }

    /// Opens an arena inside the thread's current one and makes it the current one.
    pub fn enter(&self, name: &str) -> Result<Arc<Arena>> {
        let parent = self.current();
        let id = self.shared.last_id.fetch_add(1, Relaxed) + 1;
        let arena = Arc::new(Arena {
            shared: self.shared.clone(),
            id,
            name: name.to_string(),
            depth: parent.as_ref().map_or(0, |p| p.depth + 1),
            scope: Scope::new(id, parent.as_ref().map(|p| p.scope.clone())),
            parent,
            opened: Instant::now(),
            key: AtomicUsize::new(0),
        });
        let mut open = lock(&self.shared.open);
        if let Some(links) = arena.parent.as_ref().and_then(|p| open.get_mut(&p.id)) {
            links.inside += 1;
        }
        open.insert(arena.id, Links { arena: arena.clone(), threads: 0, inside: 0, promoted: 0 });
        drop(open);
        if let Err(e) = self.attach(&arena) {
            // No other thread knows the arena.
            self.close(&arena);
            return Err(e);
        }
        Ok(arena)
    }

    /// Attaches the thread to an open arena, which becomes its current one, inside the one before.
    pub fn attach(&self, arena: &Arc<Arena>) -> Result<()> {
        if thread::has(arena) {
            return Err(Error::invalid(format!(
                "this thread is attached to {} already; detach it first",
                arena.text()
            )));
        }
        let mut open = lock(&self.shared.open);
        let links = open.get_mut(&arena.id).ok_or_else(|| exited(arena))?;
        thread::push(arena.clone())?;
        links.threads += 1;
        self.shared.interest.join_arena();
        Ok(())
    }

    /// Detaches the thread from its current arena, which must be this one. The one before is
    /// current again. The arena stays open.
    pub fn detach(&self, arena: &Arena) -> Result<()> {
        self.must_be_current(arena, "detach")?;
        self.let_go(arena);
        Ok(())
    }

    fn let_go(&self, arena: &Arena) {
        if thread::remove(arena) {
            self.shared.thread_gone(arena);
        }
    }

    fn must_be_current(&self, arena: &Arena, verb: &str) -> Result<()> {
        match self.current() {
            Some(now) if std::ptr::eq(&*now, arena) => Ok(()),
            _ if !lock(&self.shared.open).contains_key(&arena.id) => Err(exited(arena)),
            Some(now) if thread::has(arena) => Err(Error::invalid(format!(
                "{verb}: {} is not this thread's current arena, {} is; exit or detach that first",
                arena.text(),
                now.text()
            ))),
            _ => Err(Error::invalid(format!(
                "{verb}: this thread is not attached to {}; do it on the thread that is, or attach this one",
                arena.text()
            ))),
        }
    }

    /// Ends an arena. The allocations that `keep` names (by any address in them; 0 is passed over)
    /// move to the arena around it, or become ordinary; all others in it are freed. The arena must
    /// be the thread's current one, with no other thread attached to it and no open arena inside.
    /// After an error nothing has changed.
    pub fn exit(&self, arena: &Arc<Arena>, keep: &[u64], pools: &dyn Pools) -> Result<ExitReport> {
        self.must_be_current(arena, "arena_exit")?;
        {
            let mut open = lock(&self.shared.open);
            let links = open.get(&arena.id).ok_or_else(|| exited(arena))?;
            if links.threads > 1 {
                return Err(Error::invalid(format!(
                    "arena_exit: other threads ({}) are attached to {}; they must detach first",
                    links.threads - 1,
                    arena.text()
                )));
            }
            if links.inside > 0 {
                let mut others = open.values().map(|l| &l.arena);
                // None is open if another thread is just ending them.
                let one = others.find(|a| a.parent_id() == Some(arena.id));
                return Err(Error::invalid(format!(
                    "arena_exit: {} still has arenas inside ({}{}); exit them first, or abort this one, which ends \
                     them too",
                    arena.text(),
                    links.inside,
                    one.map_or(String::new(), |a| format!(", {} among them", a.text()))
                )));
            }
            open.remove(&arena.id);
        }
        self.let_go(arena);
        let report = self.empty(arena, How::Exit, keep, pools);
        self.leave_parent(arena);
        Ok(report)
    }

    /// Ends an arena and every open one inside it, keeping nothing. No other thread may be attached
    /// to any of them, nor be ending one; the calling one need not be attached. After an error
    /// nothing has changed.
    pub fn abort(&self, arena: &Arc<Arena>, pools: &dyn Pools) -> Result<ExitReport> {
        let all;
        {
            let mut open = lock(&self.shared.open);
            if !open.contains_key(&arena.id) {
                return Err(exited(arena));
            }
            all = inside(&open, arena);
            let mine = thread::attached();
            let mut known: HashMap<u64, u32> = HashMap::new();
            all.iter().filter_map(|a| a.parent_id()).for_each(|p| *known.entry(p).or_default() += 1);
            for a in &all {
                let others = open.get(&a.id).map_or(0, |l| l.threads) - u32::from(mine.contains(&Arc::as_ptr(a)));
                if others > 0 {
                    return Err(Error::invalid(format!(
                        "arena_abort: other threads ({others}) are attached to {}; they must detach first",
                        a.text()
                    )));
                }
                // What an exit keeps goes to the arena around, which must not end before.
                let known = known.get(&a.id).copied().unwrap_or(0);
                let ending = open.get(&a.id).map_or(0, |l| l.inside).saturating_sub(known);
                if ending > 0 {
                    return Err(Error::invalid(format!(
                        "arena_abort: {ending} arenas inside {} are being ended; wait for that first",
                        a.text()
                    )));
                }
            }
            all.iter().for_each(|a| drop(open.remove(&a.id)));
        }
        let mut report = ExitReport { depth: arena.depth, ..ExitReport::default() };
        for a in &all {
            self.let_go(a);
            let one = self.empty(a, How::Abort, &[], pools);
            report.freed += one.freed;
            report.freed_bytes += one.freed_bytes;
        }
        self.leave_parent(arena);
        Ok(report)
    }

    /// Removes an arena that was just opened and never used.
    fn close(&self, arena: &Arena) {
        lock(&self.shared.open).remove(&arena.id);
        self.leave_parent(arena);
    }

    /// Frees the allocations of an arena that no thread can use any more, except those to keep.
    fn empty(&self, arena: &Arena, how: How, keep: &[u64], pools: &dyn Pools) -> ExitReport {
        let mut report = ExitReport { depth: arena.depth, ..ExitReport::default() };
        arena.scope.close();
        let to = arena.parent.as_ref().map(|p| &p.scope);
        let mut kept = HashSet::new();
        for &ptr in keep.iter().filter(|&&p| p != 0) {
            let mut found = ScopeChange::Unknown;
            pools.each(&mut |pool| {
                if pool.owns(ptr) {
                    found = pool.change_scope(ptr, Some(&arena.scope), to);
                }
            });
            match found {
                ScopeChange::Moved(id, bytes) => {
                    kept.insert(id);
                    report.kept += 1;
                    report.kept_bytes += bytes;
                }
                ScopeChange::Foreign(id) if kept.contains(&id) => report.duplicate += 1,
                ScopeChange::Foreign(_) => report.foreign += 1,
                ScopeChange::Unknown => report.unknown += 1,
            }
        }
        let mut freed = |r: Reclaimed| {
            report.freed += r.count;
            report.freed_bytes += r.bytes;
        };
        match &self.detector {
            None => pools.each(&mut |pool| freed(pool.free_scope(&arena.scope))),
            Some(detector) => freed(detector.reclaim(arena, how, pools)),
        }
        report
    }

    fn leave_parent(&self, arena: &Arena) {
        let mut open = lock(&self.shared.open);
        if let Some(links) = arena.parent.as_ref().and_then(|p| open.get_mut(&p.id)) {
            links.inside -= 1;
        }
    }

    /// Moves the allocation that contains `ptr` from its arena to the one around that. If there is
    /// none, or with `escape`, moves it out of all arenas.
    pub fn promote(&self, ptr: u64, escape: bool, pool: &Pool) -> Result<()> {
        // Until the move, the allocation's arena may change or end.
        for _ in 0..64 {
            let Some(scope) = pool.scope_containing(ptr)? else {
                return match escape {
                    true => Ok(()),
                    false => Err(Error::invalid(format!("promote: {ptr:#x} is in no arena"))),
                };
            };
            let to = scope.parent().filter(|_| !escape);
            match pool.change_scope(ptr, Some(&scope), to) {
                ScopeChange::Moved(..) => {
                    let mut open = lock(&self.shared.open);
                    if let Some(l) = open.get_mut(&scope.number()) {
                        l.promoted += 1;
                    }
                    return Ok(());
                }
                ScopeChange::Foreign(_) => {}
                ScopeChange::Unknown => break,
            }
        }
        Err(Error::new(Status::UnknownPointer, format!("{ptr:#x} is in no live allocation")))
    }

    /// The open arena that a scope belongs to.
    pub fn arena_of(&self, scope: &Scope) -> Option<Arc<Arena>> {
        lock(&self.shared.open).get(&scope.number()).map(|l| l.arena.clone())
    }

    /// The numbers and names of open arenas.
    pub fn names(&self) -> Vec<(u64, String)> {
        lock(&self.shared.open).iter().map(|(id, l)| (*id, l.arena.name.clone())).collect()
    }

    /// The scopes of open arenas.
    pub fn scopes(&self) -> Vec<Arc<Scope>> {
        lock(&self.shared.open).values().map(|l| l.arena.scope.clone()).collect()
    }

    /// What has happened in an open arena so far.
    pub fn stats(&self, arena: &Arena, pools: &dyn Pools) -> Result<ArenaStats> {
        let (threads, promoted) = {
            let open = lock(&self.shared.open);
            let links = open.get(&arena.id).ok_or_else(|| exited(arena))?;
            (links.threads, links.promoted)
        };
        let mut counts = arena.scope.past();
        pools.each(&mut |pool| {
            let more = pool.scope_counts(&arena.scope);
            counts.joined += more.joined;
            counts.left += more.left;
        });
        Ok(ArenaStats {
            // These are counted heap by heap, so the two may be of different moments.
            live: counts.joined.saturating_sub(counts.left),
            live_bytes: arena.scope.live_bytes(),
            peak_bytes: arena.scope.peak_bytes(),
            joined: counts.joined,
            left: counts.left,
            promoted,
            depth: arena.depth,
            threads,
            open_for: arena.age(),
        })
    }
}

//! Arenas over the process's pools.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::{Context, Request};
use crate::arena::{Arena, ArenaStats, ExitReport};
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::pool::{add_to, Pool, ScopeChange, Still, Sums};
use std::num::NonZeroU64;
use std::sync::Arc;

impl Context {
    /// Opens an arena inside the calling thread's current one, and makes it the current one.
    pub fn arena_enter(&self, name: &str) -> Result<Arc<Arena>> {
        self.has_arenas()?;
        self.arenas.enter(name).inspect(|arena| self.saw_enter(arena))
    }

    fn has_arenas(&self) -> Result<()> {
        self.want_pool("arenas need")
    }

    /// Frees everything allocated in an arena except what `keep` names; see
    /// [`crate::arena::Registry::exit`].
    pub fn arena_exit(&self, arena: &Arc<Arena>, keep: &[u64]) -> Result<ExitReport> {
        self.exit_watched(arena, keep, || self.arenas.exit(arena, keep, &self.pools))
    }

    /// Frees all that was allocated in an arena and in those open inside it.
    pub fn arena_abort(&self, arena: &Arc<Arena>) -> Result<ExitReport> {
        // Those inside end first, each with an event of its own.
        self.abort_watched(arena, || self.arenas.abort(arena, &self.pools))
    }

    /// Makes an open arena the calling thread's current one.
    pub fn arena_attach(&self, arena: &Arc<Arena>) -> Result<()> {
        self.arenas.attach(arena)
    }

    /// Detaches the calling thread from its current arena; the one before it is current again.
    pub fn arena_detach(&self, arena: &Arena) -> Result<()> {
        self.arenas.detach(arena)
    }

    /// The calling thread's current arena.
    #[inline]
    pub fn arena_current(&self) -> Option<Arc<Arena>> {
        // One load where no thread is attached to any.
        if self.interest.in_arenas() {
            self.arenas.current()
        } else {
            None
        }
    }

    /// The open arena that the live allocation containing `ptr` is in.
    pub fn arena_of(&self, ptr: u64) -> Result<Option<Arc<Arena>>> {
        self.has_arenas()?;
        let scope = self.owner(ptr, "arena_find")?.scope_containing(ptr)?;
        Ok(scope.and_then(|s| self.arenas.arena_of(&s)))
    }

    /// Moves the allocation that contains `ptr` one arena further out.
    pub fn arena_promote(&self, ptr: u64) -> Result<()> {
        self.has_arenas()?;
        self.arenas.promote(ptr, false, self.owner(ptr, "promote")?).inspect(|()| self.saw_move(ptr))
    }

    /// Moves the allocation that contains `ptr` out of all arenas, and out of what the abort of a
    /// capture frees.
    pub fn arena_escape(&self, ptr: u64) -> Result<()> {
        self.has_arenas()?;
        let pool = self.owner(ptr, "escape")?;
        self.arenas.promote(ptr, true, pool)?;
        pool.outlive_aborts(ptr);
        self.saw_move(ptr);
        Ok(())
    }

    /// What has happened in an open arena so far.
    pub fn arena_stats(&self, arena: &Arena) -> Result<ArenaStats> {
        self.arenas.stats(arena, &self.pools)
    }

    /// How many arenas are open in the process.
    pub fn arena_count(&self) -> usize {
        self.arenas.open_count()
    }

    pub(super) fn validate_arenas(&self) -> Result<()> {
        // Before the pools stand still: a thread that has the arenas' lock may wait for one of
        // them.
        let scopes = self.arenas.scopes();
        let pools: Vec<Still<'_>> = self.pools().map(Pool::hold_still).collect();
        let mut sums = Sums::new();
        scopes.iter().for_each(|scope| add_to(&mut sums, scope, 0));
        pools.iter().try_for_each(|pool| pool.add_scopes(&mut sums))?;
        if let Some((scope, sum)) = sums.values().find(|(scope, sum)| scope.live_bytes() != *sum) {
            return Err(Error::internal(format!("{} bytes in an arena recorded, {sum} found", scope.live_bytes())));
        }
        drop(pools);
        self.detector().map_or(Ok(()), |d| d.validate(&self.pools))
    }

    /// Frees `ptr` if the allocation with this id lives there; whether it did. See
    /// [`Pool::free_id`].
    pub fn free_id(&self, ptr: u64, id: u64, stream: Option<StreamHandle>) -> Result<bool> {
        let (began, device) = if self.is_watched() { (self.recorder().now(), self.device_at(ptr)) } else { (0, 0) };
        let freed = match self.config.pool {
            true => self.owner(ptr, "free_id").inspect_err(|_| self.note_unknown()).and_then(|pool| {
                let after = stream.map(|s| self.stream_after(pool, s)).transpose()?;
                pool.free_id(ptr, id, after)
            }),
            false => self
                .native_order(stream)
                .and_then(|s| self.native.free(&*self.driver, (ptr, Some(id)), s))
                .map(|()| true),
        };
        let freed = match freed {
            // The process is ending and the driver is gone; so is the memory.
            Err(e) if e.status == Status::ShuttingDown => Ok(true),
            // Without a pool it is not known which addresses were gpumem's.
            Err(e) if e.status == Status::UnknownPointer && !self.config.pool => Ok(false),
            other => other,
        };
        if self.is_watched() && matches!(freed, Ok(true)) {
            self.saw_free((ptr, device), stream, began);
        }
        freed
    }

    /// The id by which an owner must free `ptr`, which was just allocated on `stream`: the end of
    /// an arena or the abort of a capture may come before. 0 where neither can.
    pub fn owner_id(&self, ptr: u64, stream: StreamHandle) -> Result<u64> {
        // The thread's arena, one that the request has named, or the one that it was in before it
        // was resized.
        let in_an_arena = || match self.may_have_arenas() {
            true => Ok(self.owner(ptr, "owner_id")?.scope_containing(ptr)?.is_some()),
            false => Ok(false),
        };
        match self.may_be_in_a_capture(stream.canonical()) || in_an_arena()? {
            true => self.info(ptr).map(|i| i.id),
            false => Ok(0),
        }
    }

    /// Whether there may be an arena. One load.
    #[inline]
    pub fn may_have_arenas(&self) -> bool {
        self.arenas.has_any()
    }

    fn may_be_in_a_capture(&self, stream: StreamHandle) -> bool {
        let claimed = || self.pool(self.device_of(None, stream)?)?.is_claimed(stream);
        self.config.pool && !matches!(claimed(), Ok(false))
    }

    /// [`Context::malloc_hit`] while any thread is attached to an arena, there is a detector, or
    /// the tiers are in use.
    #[inline(never)]
    pub(super) fn malloc_hit_in_arena(&self, size: u64, stream: StreamHandle) -> Option<NonZeroU64> {
        if !self.is_watched() {
            return self.hit_in_arena(size, stream);
        }
        // Who only watches has no arena to be found.
        let hit = match self.interest.is_events_only() {
            true => self.malloc_hit_of(size, stream, None)?,
            false => self.hit_in_arena(size, stream)?,
        };
        self.saw_hit(hit.get(), size, stream, None);
        Some(hit)
    }

    /// [`Context::malloc_hit_on`] where it is no plain hit: a watched one, or none.
    #[inline(never)]
    pub(super) fn malloc_hit_on_watched(
        &self,
        device: DeviceId,
        size: u64,
        stream: StreamHandle,
    ) -> Option<NonZeroU64> {
        if !self.config.pool || !self.interest.is_events_only() {
            return None;
        }
        let hit = self.made_pool(device)?.malloc_hit(size, stream.canonical())?;
        self.saw_hit(hit.get(), size, stream, Some(device));
        Some(hit)
    }

    #[inline(always)]
    fn hit_in_arena(&self, size: u64, stream: StreamHandle) -> Option<NonZeroU64> {
        if self.tiers.get().is_some() {
            // It has to be counted.
            return None;
        }
        let separate = self.detector().is_some_and(|d| d.wants_separate());
        let hit = self.arenas.with_scope(|scope| match scope {
            Some(_) if separate => None,
            scope => self.malloc_hit_of(size, stream, scope),
        })?;
        self.handed_out(hit.get());
        Some(hit)
    }

    /// [`Context::malloc_search`] while a thread is attached to an arena, there is a detector or
    /// the tiers are in use, or for a request that names an arena.
    pub(super) fn malloc_search_in_arena(&self, req: &Request) -> Result<u64> {
        let arena = match req.arena {
            Some(arena) => Some(arena.clone()),
            None => self.arenas.current(),
        };
        let req = &Request { flags: self.flags_in(req, arena.is_some()), ..*req };
        let ptr = self.or_from_quarantine(|| match req.arena {
            Some(arena) => self.malloc_in_named(req, arena),
            None => self.malloc_search_of(req, arena.as_ref().map(|a| a.scope())),
        })?;
        self.handed_out(ptr);
        Ok(ptr)
    }

    /// Allocates in an arena that need not be the thread's own, so it may be exited meanwhile.
    fn malloc_in_named(&self, req: &Request, arena: &Arc<Arena>) -> Result<u64> {
        let gone = || Error::invalid(format!("arena {} has been exited already", arena.id()));
        if arena.scope().is_closed() {
            return Err(gone());
        }
        // Made outside of the arena, where nobody else frees it, and moved into it: so its id is
        // known before an exit can free it and hand its address to another allocation.
        let ptr = self.malloc_search_of(req, None)?;
        let kept = self.owner(ptr, "malloc")?.change_scope(ptr, None, Some(arena.scope()));
        if !arena.scope().is_closed() {
            return Ok(ptr);
        }
        match kept {
            // In its own stream's order, which needs no other device and so cannot fail.
            ScopeChange::Moved(id, _) => self.free_id(ptr, id, None).and(Err(gone())),
            // Only a stray free can have taken it.
            ScopeChange::Foreign(_) | ScopeChange::Unknown => Err(gone()),
        }
    }
}

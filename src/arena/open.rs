//! One arena, and how open arenas nest.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::{lock, Mutex};
use crate::base::{Error, Interest};
use crate::pool::Scope;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One arena, open or not.
#[derive(Debug)]
pub struct Arena {
    pub(super) shared: Arc<Shared>,
    /// No other arena ever has it.
    pub(super) id: u64,
    pub(super) name: String,
    /// How many arenas are around it: 0 for an outermost one.
    pub(super) depth: u32,
    pub(super) parent: Option<Arc<Arena>>,
    pub(super) scope: Arc<Scope>,
    pub(super) opened: Instant,
    pub(super) key: AtomicUsize,
}

/// An open arena's relations to threads and to other arenas. Under the registry's mutex.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) arena: Arc<Arena>,
    /// Threads attached.
    pub(super) threads: u32,
    /// Arenas directly inside: open ones, and those whose end has not emptied them yet.
    pub(super) inside: u32,
    pub(super) promoted: u64,
}

/// What the arenas of one registry share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Told of every thread that is attached to an arena.
    pub(super) interest: Arc<Interest>,
    /// Open arenas by id.
    pub(super) open: Mutex<BTreeMap<u64, Links>>,
    pub(super) last_id: AtomicU64,
}

impl Arena {
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    #[inline]
    pub(super) fn is_of(&self, shared: &Shared) -> bool {
        std::ptr::eq(&*self.shared, shared)
    }

    /// A number that no other arena of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of the arena around it.
    pub fn parent_id(&self) -> Option<u64> {
        self.parent.as_ref().map(|p| p.id)
    }

    /// The name it was entered with; may be empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many arenas are around it.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The scope the pools know it by.
    #[inline]
    pub fn scope(&self) -> &Arc<Scope> {
        &self.scope
    }

    /// How long ago it was opened.
    pub fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// The key given to [`Self::set_key`]; 0 before.
    pub fn key(&self) -> usize {
        self.key.load(Relaxed)
    }

    /// Notes the key its opener knows it by.
    pub fn set_key(&self, key: usize) {
        self.key.store(key, Relaxed);
    }

    /// What messages call it.
    pub(super) fn text(&self) -> String {
        match self.name.as_str() {
            "" => format!("arena {} (depth {})", self.id, self.depth),
            name => format!("arena {} {name:?} (depth {})", self.id, self.depth),
        }
    }
}

impl Shared {
    /// Uncounts a thread that has ended or left an arena that it was attached to.
    pub(super) fn thread_gone(&self, arena: &Arena) {
        if let Some(links) = lock(&self.open).get_mut(&arena.id) {
            links.threads -= 1;
        }
        self.interest.leave_arena();
    }
}

/// The error of a call that names an arena which is not open any more.
pub(super) fn exited(arena: &Arena) -> Error {
    Error::invalid(format!("{} has been exited already", arena.text()))
}

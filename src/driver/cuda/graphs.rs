//! The table of captured graphs.

use crate::base::{DeviceId, Error, Result};
use crate::driver::graph::Gone;
use crate::driver::GraphHandle;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// CUDA's objects of one graph, as addresses.
#[derive(Clone, Copy)]
pub(super) struct Objects {
    pub(super) graph: usize,
    pub(super) exec: usize,
}

/// One graph; `None` once it has been destroyed.
pub(super) struct Entry {
    pub(super) dev: DeviceId,
    pub(super) objects: Mutex<Option<Objects>>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) list: HashMap<u64, Arc<Entry>>,
    last: u64,
}

/// The graphs that were captured through this driver, and the tokens of any that are gone.
#[derive(Default)]
pub(super) struct Graphs {
    pub(super) table: Mutex<Table>,
    pub(super) gone: Arc<Gone>,
}

pub(super) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn stale(g: GraphHandle) -> Error {
    Error::invalid(format!("graph {} was never made, or has been destroyed", g.0))
}

impl Graphs {
    pub(super) fn add(&self, dev: DeviceId, objects: Objects) -> GraphHandle {
        let mut table = lock(&self.table);
        table.last += 1;
        let handle = table.last;
        table.list.insert(handle, Arc::new(Entry { dev, objects: Mutex::new(Some(objects)) }));
        GraphHandle(handle)
    }

    pub(super) fn get(&self, g: GraphHandle) -> Result<Arc<Entry>> {
        lock(&self.table).list.get(&g.0).cloned().ok_or_else(|| stale(g))
    }

    pub(super) fn of(&self, dev: DeviceId, g: GraphHandle) -> Result<Arc<Entry>> {
        let entry = self.get(g)?;
        if entry.dev != dev {
            return Err(Error::invalid(format!("graph {} was captured on device {}, not {dev}", g.0, entry.dev)));
        }
        Ok(entry)
    }
}

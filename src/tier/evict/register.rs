//! Which evictable allocations there are, and which of them may go first.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::{lock, Mutex};
use crate::tier::SpaceId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What can be registered.
pub(super) trait Listed {
    /// Where it starts.
    fn base(&self) -> u64;
    /// No other entry ever has it.
    fn id(&self) -> u64;
    /// Whether it is held. May be called under the register's lock.
    fn is_held(&self) -> bool;
}

/// All evictable allocations.
#[derive(Debug)]
pub(super) struct Register<T> {
    books: Mutex<Books<T>>,
}

/// `shelves` holds the last use and address of each entry that may move automatically, under the
/// space it is in. Held entries may be missing there: their next unhold puts them back.
#[derive(Debug)]
struct Books<T> {
    entries: BTreeMap<u64, Entry<T>>,
    /// Oldest use first.
    shelves: HashMap<SpaceId, BTreeSet<(u64, u64)>>,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct Entry<T> {
    item: Arc<T>,
    space: SpaceId,
    /// When it was last used, by `clock`. 0: never unheld, so it does not move automatically.
    used: u64,
}

impl<T> Default for Register<T> {
    fn default() -> Register<T> {
        let books = Books { entries: BTreeMap::new(), shelves: HashMap::new(), clock: 0 };
        Register { books: Mutex::new(books) }
    }
}

impl<T> Books<T> {
    fn take_off(&mut self, base: u64) {
        if let Some(e) = self.entries.get(&base).filter(|e| e.used > 0) {
            if let Some(shelf) = self.shelves.get_mut(&e.space) {
                shelf.remove(&(e.used, base));
            }
        }
    }

    fn put_on(&mut self, base: u64) {
        if let Some(e) = self.entries.get(&base).filter(|e| e.used > 0) {
            self.shelves.entry(e.space).or_default().insert((e.used, base));
        }
    }
}

impl<T: Listed> Register<T> {
    pub(super) fn add(&self, item: &Arc<T>, space: SpaceId) {
        let mut books = lock(&self.books);
        // An address may be handed out again before its last item is known here to have ended.
        books.take_off(item.base());
        let old = books.entries.insert(item.base(), Entry { item: item.clone(), space, used: 0 });
        drop(books);
        drop(old);
    }

    pub(super) fn remove(&self, item: &T) {
        let mut books = lock(&self.books);
        if books.entries.get(&item.base()).is_some_and(|e| e.item.id() == item.id()) {
            books.take_off(item.base());
            let entry = books.entries.remove(&item.base());
            drop(books);
            drop(entry);
        }
    }

    /// The item that starts at `base`.
    pub(super) fn find(&self, base: u64) -> Option<Arc<T>> {
        lock(&self.books).entries.get(&base).map(|e| e.item.clone())
    }

    /// Notes where an item is.
    pub(super) fn shelve(&self, item: &T, space: SpaceId) {
        let mut books = lock(&self.books);
        let Some(e) = books.entries.get(&item.base()).filter(|e| e.item.id() == item.id()) else { return };
        if e.space == space {
            return;
        }
        books.take_off(item.base());
        if let Some(e) = books.entries.get_mut(&item.base()) {
            e.space = space;
        }
        books.put_on(item.base());
    }

    /// Takes an item off its shelf until it is used again, if it is held. Its unhold ends the hold
    /// before it notes the use, so no idle item is lost.
    pub(super) fn set_aside(&self, item: &T) {
        let mut books = lock(&self.books);
        if item.is_held() && books.entries.get(&item.base()).is_some_and(|e| e.item.id() == item.id()) {
            books.take_off(item.base());
        }
    }

    /// Notes that an item has just been used. From its first use on it may move automatically.
    pub(super) fn touch(&self, item: &T) {
        let mut books = lock(&self.books);
        if books.entries.get(&item.base()).is_none_or(|e| e.item.id() != item.id()) {
            return;
        }
        books.take_off(item.base());
        books.clock += 1;
        let now = books.clock;
        if let Some(e) = books.entries.get_mut(&item.base()) {
            e.used = now;
        }
        books.put_on(item.base());
    }

    /// Up to `most` items in a space that may move automatically, behind `after`, oldest use first,
    /// each with its last use.
    pub(super) fn oldest(&self, space: SpaceId, after: (u64, u64), most: usize) -> Vec<(u64, Arc<T>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let books = lock(&self.books);
        let Some(shelf) = books.shelves.get(&space) else { return Vec::new() };
        let keys = shelf.range((Excluded(after), Unbounded)).take(most);
        keys.filter_map(|&(used, base)| books.entries.get(&base).map(|e| (used, e.item.clone()))).collect()
    }

    /// All items, by address.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        lock(&self.books).entries.values().map(|e| e.item.clone()).collect()
    }

    /// Checks the equation above, and each item with `fault`, which gets the space the item is said
    /// to be in.
    pub(super) fn validate(&self, fault: impl Fn(&T, SpaceId) -> Option<String>) -> Result<(), String> {
        let books = lock(&self.books);
        let shelved: usize = books.shelves.values().map(BTreeSet::len).sum();
        let mut listed = 0;
        for (&base, e) in &books.entries {
            let is_listed = books.shelves.get(&e.space).is_some_and(|s| s.contains(&(e.used, base)));
            listed += usize::from(is_listed);
            if (e.used > 0 && !is_listed && !e.item.is_held()) || e.used > books.clock {
                return Err(format!("{base:#x} is not in the order of use, or ahead of it"));
            }
            if let Some(fault) = fault(&e.item, e.space) {
                return Err(format!("{base:#x}: {fault}"));
            }
        }
        if shelved != listed {
            return Err(format!("{shelved} evictable allocations are in order of use, {listed} of them live"));
        }
        Ok(())
    }
}

//! Opaque handles: C holds a number in the shape of a pointer, and only this table turns it into an
//! object.
//!
//! Nothing is ever read through a handle, so one that is stale, destroyed twice or was never a
//! handle is an error.
//!
//! Objects belong to the process that made them. A forked child starts with a table of its own: in
//! the inherited one, a thread that does not exist in the child may hold a lock for ever. The child
//! never looks into that table, so none of its calls waits for the parent.

use crate::base::sync::lock;
use crate::base::{Error, Result, Status};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex};

/// Bits of a handle that hold its generation; the slot is above them, the kind at the top.
const GENERATION_BITS: u32 = 32;
/// Bits that hold the slot.
const SLOT_BITS: u32 = 24;
/// The most objects of one kind at one time.
const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// The live objects of one kind.
///
/// A handle is `kind << 56 | slot << 32 | generation`. The kind is not 0 and differs from every
/// other table's, and the top byte of an address is 0, so another kind's handle or a pointer to
/// memory is recognised as wrong. A slot's generation goes up each time its object goes, and a slot
/// that has used them all is retired, so no handle is given out twice. Forked children start behind
/// their parent's slots, so they do not reuse its handles either.
pub(in crate::capi) struct Handles<T: 'static> {
    kind: u8,
    /// The C name of the type, for texts.
    name: &'static str,
    /// What ends an object, for texts: "destroyed", for instance.
    ended: &'static str,
    /// This process's table; after a fork the parent's until the first call; null before the very
    /// first call.
    table: AtomicPtr<OfProcess<T>>,
}

/// The table of one process. Never freed.
struct OfProcess<T: 'static> {
    process: u32,
    /// Slots below belong to the processes that this one was forked from.
    first: usize,
    /// How many slots of its own this process has used, readable without the lock by forked
    /// children.
    used: AtomicU32,
    table: Mutex<Table<T>>,
    /// The parent's table. Nothing looks into it; this only keeps it from being leaked.
    _before: Option<&'static OfProcess<T>>,
}

struct Table<T> {
    slots: Vec<Slot<T>>,
    /// Slots without an object whose generation can still go up, as indices into `slots`.
    free: Vec<u32>,
}

struct Slot<T> {
    /// The generation of the object in it, or of the next one.
    generation: u32,
    object: Option<Arc<T>>,
}

impl<T> Table<T> {
    /// Takes the object out of a slot, if there is one: its handle is stale from now on.
    fn take(&mut self, index: usize) -> Option<Arc<T>> {
        let slot = self.slots.get_mut(index)?;
        let object = slot.object.take()?;
        slot.generation = slot.generation.saturating_add(1);
        if slot.generation < u32::MAX {
            self.free.push(index as u32);
        }
        Some(object)
    }
}

impl<T: 'static> Handles<T> {
    /// An empty table.
    pub(in crate::capi) const fn new(kind: u8, name: &'static str) -> Handles<T> {
        Handles::ended_by(kind, name, "destroyed")
    }

    /// An empty table of objects that are not "destroyed" but, for instance, "exited".
    pub(in crate::capi) const fn ended_by(kind: u8, name: &'static str, ended: &'static str) -> Handles<T> {
        assert!(kind != 0);
        Handles { kind, name, ended, table: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Keeps an object, and gives the handle to it.
    pub(in crate::capi) fn insert(&self, object: T) -> Result<usize> {
        self.insert_in(self.of(std::process::id()), object)
    }

    /// The object of a handle. It lives as long as this reference is held, even if it is removed.
    pub(in crate::capi) fn get(&self, handle: usize) -> Result<Arc<T>> {
        self.get_in(self.of(std::process::id()), handle)
    }

    /// Takes the object of a handle out: the handle is stale from now on. The object is dropped by
    /// the caller, outside of the table's lock.
    pub(in crate::capi) fn remove(&self, handle: usize) -> Result<Arc<T>> {
        self.remove_in(self.of(std::process::id()), handle)
    }

    /// The table of `process`, which is the one that runs. Takes no lock.
    fn of(&self, process: u32) -> &'static OfProcess<T> {
        let mut found = self.table.load(Acquire);
        loop {
            // SAFETY: null, or a table that was made below and is never freed once it is found
            // here.
            let there: Option<&'static OfProcess<T>> = unsafe { found.as_ref() };
            if let Some(own) = there.filter(|t| t.process == process) {
                return own;
            }
            let fresh = Box::into_raw(Box::new(OfProcess {
                process,
                first: there.map_or(0, |t| t.first + t.used.load(Acquire) as usize),
                used: AtomicU32::new(0),
                table: Mutex::new(Table { slots: Vec::new(), free: Vec::new() }),
                _before: there,
            }));
            match self.table.compare_exchange(found, fresh, AcqRel, Acquire) {
                // SAFETY: made above, and from now on never freed.
                Ok(_) => return unsafe { &*fresh },
                Err(other) => {
                    // SAFETY: made above, and nobody has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    found = other;
                }
            }
        }
    }

    fn insert_in(&self, own: &OfProcess<T>, object: T) -> Result<usize> {
        let object = Arc::new(object);
        let mut table = lock(&own.table);
        let table = &mut *table;
        let index = match table.free.pop() {
            Some(index) => index,
            None if own.first + table.slots.len() < MAX_SLOTS => {
                table.slots.push(Slot { generation: 1, object: None });
                own.used.store(table.slots.len() as u32, Release);
                table.slots.len() as u32 - 1
            }
            None => {
                return Err(Error::invalid(format!(
                    "there are already {MAX_SLOTS} objects of type {}; destroy some",
                    self.name
                )));
            }
        };
        let Some(slot) = table.slots.get_mut(index as usize) else {
            return Err(Error::internal(format!("{}: slot {index} is free and does not exist", self.name)));
        };
        slot.object = Some(object);
        Ok(self.pack(own.first + index as usize, slot.generation))
    }

    fn get_in(&self, own: &OfProcess<T>, handle: usize) -> Result<Arc<T>> {
        let (index, generation) = self.unpack(own, handle)?;
        let table = lock(&own.table);
        match table.slots.get(index) {
            Some(Slot { generation: now, object: Some(object) }) if *now == generation => Ok(object.clone()),
            slot => Err(self.stale(handle, generation, slot.map(|s| s.generation))),
        }
    }

    fn remove_in(&self, own: &OfProcess<T>, handle: usize) -> Result<Arc<T>> {
        let (index, generation) = self.unpack(own, handle)?;
        let mut table = lock(&own.table);
        let now = table.slots.get(index).map(|s| s.generation);
        let taken = if now == Some(generation) { table.take(index) } else { None };
        taken.ok_or_else(|| self.stale(handle, generation, now))
    }

    /// Takes out every object for which `gone` is true.
    pub(in crate::capi) fn sweep(&self, gone: impl Fn(&T) -> bool) {
        let mut swept = Vec::new();
        let own = self.of(std::process::id());
        let mut table = lock(&own.table);
        for index in 0..table.slots.len() {
            let object = table.slots.get(index).and_then(|slot| slot.object.as_deref());
            if object.is_some_and(&gone) {
                swept.extend(table.take(index));
            }
        }
        drop(table);
        // The objects are dropped here, outside the lock.
        drop(swept);
    }

    fn pack(&self, slot: usize, generation: u32) -> usize {
        usize::from(self.kind) << (GENERATION_BITS + SLOT_BITS) | slot << GENERATION_BITS | generation as usize
    }

    /// The slot's index in `own`, and the generation.
    fn unpack(&self, own: &OfProcess<T>, handle: usize) -> Result<(usize, u32)> {
        if handle == 0 {
            return Err(Error::invalid(format!("{} is NULL", self.name)));
        }
        if handle >> (GENERATION_BITS + SLOT_BITS) != usize::from(self.kind) {
            return Err(Error::invalid(format!("{handle:#x} is no {}; pass a handle as it was created", self.name)));
        }
        match ((handle >> GENERATION_BITS) & (MAX_SLOTS - 1)).checked_sub(own.first) {
            Some(index) => Ok((index, handle as u32)),
            None => Err(Error::new(
                Status::Forked,
                format!(
                    "{} {handle:#x} was made before this process was forked; only the parent can use it",
                    self.name
                ),
            )),
        }
    }

    fn stale(&self, handle: usize, generation: u32, now: Option<u32>) -> Error {
        Error::invalid(match now {
            Some(now) if (1..now).contains(&generation) => {
                format!("{} {handle:#x} has been {}", self.name, self.ended)
            }
            _ => format!("{} {handle:#x} was never given out", self.name),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::base::Status;
    use std::collections::BTreeSet;

    #[track_caller]
    fn refused<T>(got: Result<Arc<T>>, says: &str) {
        let e = got.err().expect("taken for a live handle");
        assert_eq!(e.status, Status::Invalid);
        assert!(e.message.contains(says), "{}", e.message);
    }

    #[test]
    fn objects_are_found_until_they_are_removed() {
        let table = Handles::new(7, "thing");
        let (a, b) = (table.insert('a').unwrap(), table.insert('b').unwrap());
        assert_eq!((*table.get(a).unwrap(), *table.get(b).unwrap()), ('a', 'b'));
        let held = table.get(a).unwrap();
        assert_eq!(*table.remove(a).unwrap(), 'a');
        assert_eq!(*held, 'a');
        refused(table.get(a), "destroyed");
        refused(table.remove(a), "destroyed");
        assert_eq!(*table.get(b).unwrap(), 'b');

        // The slot is reused, the handle is not.
        let c = table.insert('c').unwrap();
        assert_eq!(c >> 32, a >> 32);
        assert_ne!(c, a);
        refused(table.get(a), "destroyed");
        assert_eq!(*table.get(c).unwrap(), 'c');
    }

    #[test]
    fn numbers_that_are_no_handles_are_refused() {
        let (table, other) = (Handles::new(7, "thing"), Handles::new(8, "other"));
        let (mine, theirs) = (table.insert(1).unwrap(), other.insert(2).unwrap());
        let local = 0;
        refused(table.get(0), "thing is NULL");
        refused(table.get(theirs), "is no thing");
        refused(table.get(std::ptr::from_ref(&local) as usize), "is no thing");
        refused(table.get(usize::MAX), "is no thing");
        refused(table.get(mine + 1), "never given out");
        refused(table.get(mine - 1), "never given out");
        refused(table.get(mine + (1 << 32)), "never given out");
        refused(table.remove(mine | 0xff_ffff << 32), "never given out");
        assert_eq!(*table.get(mine).unwrap(), 1);
    }

    #[test]
    fn swept_objects_are_gone_and_the_others_stay() {
        let table = Handles::ended_by(7, "thing", "exited");
        let handles = [1, 2, 3, 4].map(|n| table.insert(n).unwrap());
        table.sweep(|n| n % 2 == 0);
        refused(table.get(handles[1]), "has been exited");
        refused(table.remove(handles[3]), "has been exited");
        assert_eq!((*table.get(handles[0]).unwrap(), *table.get(handles[2]).unwrap()), (1, 3));
        // Their slots are used again, with other handles.
        let again = [5, 6].map(|n| table.insert(n).unwrap());
        assert!(again.iter().all(|h| !handles.contains(h)));
        assert_eq!(table.of(std::process::id()).table.lock().unwrap().slots.len(), 4);
    }

    #[test]
    fn no_handle_is_given_out_twice() {
        let table = Handles::new(7, "thing");
        let mut seen = BTreeSet::new();
        for i in 0..1000 {
            let (a, b) = (table.insert(i).unwrap(), table.insert(i).unwrap());
            assert!(seen.insert(a) && seen.insert(b));
            table.remove(if i % 3 == 0 { a } else { b }).unwrap();
        }

        // A slot that has used up its generations is left alone.
        let table = Handles::new(7, "thing");
        let first = table.insert(0).unwrap();
        table.remove(first).unwrap();
        lock(&table.of(std::process::id()).table).slots[0].generation = u32::MAX - 1;
        let last = table.insert(1).unwrap();
        assert_eq!(last >> 32, first >> 32);
        table.remove(last).unwrap();
        refused(table.get(last), "destroyed");
        assert_ne!(table.insert(2).unwrap() >> 32, first >> 32);
    }

    #[test]
    fn a_forked_process_has_a_table_of_its_own() {
        let table = Handles::new(7, "thing");
        let parent = table.of(1);
        let (a, b) = (table.insert_in(parent, 'a').unwrap(), table.insert_in(parent, 'b').unwrap());
        table.remove_in(parent, b).unwrap();
        // A thread of the parent's holds the lock when the process forks: in the child it never
        // lets go.
        let _inside = lock(&parent.table);
        let child = table.of(2);
        let c = table.insert_in(child, 'c').unwrap();
        for theirs in [a, b] {
            for got in [table.get_in(child, theirs), table.remove_in(child, theirs)] {
                let e = got.unwrap_err();
                assert_eq!(e.status, Status::Forked);
                assert!(e.message.contains("before this process was forked"), "{}", e.message);
            }
            assert_ne!(theirs >> 32, c >> 32);
        }
        assert_eq!(*table.get_in(child, c).unwrap(), 'c');
        refused(table.get_in(child, c + (1 << 32)), "never given out");

        let grandchild = table.of(3);
        let d = table.insert_in(grandchild, 'd').unwrap();
        for (theirs, what) in [(a, "a"), (c, "c")] {
            assert_eq!(table.get_in(grandchild, theirs).unwrap_err().status, Status::Forked, "{what}");
        }
        assert_eq!(*table.remove_in(grandchild, d).unwrap(), 'd');
        assert!(std::ptr::eq(table.of(3), grandchild));
    }

    #[test]
    fn one_of_many_removals_wins_and_readers_keep_what_they_hold() {
        let table = Handles::new(7, "thing");
        for round in 0..200 {
            let handle = table.insert(vec![round; 100]).unwrap();
            let wins = std::thread::scope(|s| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        s.spawn(|| {
                            let held = table.get(handle);
                            let won = table.remove(handle).is_ok();
                            assert!(held.is_err() || held.unwrap().iter().all(|x| *x == round));
                            usize::from(won)
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).sum::<usize>()
            });
            assert_eq!(wins, 1);
        }
    }
}

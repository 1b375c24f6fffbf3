//! Opaque handles: C holds a number in the shape of a pointer, and only this table makes an object of it.
//!
//! Nothing is ever read through a handle, so one that is stale, destroyed twice or was never a handle is an error.

use crate::base::sync::lock;
use crate::base::{Error, Result};
use std::sync::{Arc, Mutex};

/// Bits of a handle that hold its generation; the slot is above them, the kind at the top.
const GENERATION_BITS: u32 = 32;
/// Bits that hold the slot.
const SLOT_BITS: u32 = 24;
/// Most objects of one kind at one time.
const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// The live objects of one kind.
///
/// A handle is `kind << 56 | slot << 32 | generation`. The kind is not 0 and differs from every other table's, and the
/// top byte of an address is 0, so neither another kind's handle nor a pointer to memory is taken for one. A slot's
/// generation goes up each time that its object goes; a slot that has used them all is not used again, so no handle is
/// given out twice.
pub(super) struct Handles<T> {
    kind: u8,
    /// The C name of the type, for texts.
    name: &'static str,
    /// What has been done to one that is gone, for texts.
    ended: &'static str,
    table: Mutex<Table<T>>,
}

struct Table<T> {
    slots: Vec<Slot<T>>,
    /// Slots without an object whose generation can still go up.
    free: Vec<u32>,
}

struct Slot<T> {
    /// That of the object in it, or of the next one.
    generation: u32,
    object: Option<Arc<T>>,
}

impl<T> Handles<T> {
    /// An empty table.
    pub(super) const fn new(kind: u8, name: &'static str) -> Handles<T> {
        Handles::ended_by(kind, name, "destroyed")
    }

    /// An empty table of what is not destroyed at its end, but for instance "exited".
    pub(super) const fn ended_by(kind: u8, name: &'static str, ended: &'static str) -> Handles<T> {
        assert!(kind != 0);
        Handles { kind, name, ended, table: Mutex::new(Table { slots: Vec::new(), free: Vec::new() }) }
    }

    /// Keeps an object, and gives the handle to it.
    pub(super) fn insert(&self, object: T) -> Result<usize> {
        let object = Arc::new(object);
        let mut table = lock(&self.table);
        let table = &mut *table;
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.slots.len() < MAX_SLOTS => {
                table.slots.push(Slot { generation: 1, object: None });
                table.slots.len() as u32 - 1
            }
            None => {
                return Err(Error::invalid(format!(
                    "there are {MAX_SLOTS} of {} already; end what is not needed",
                    self.name
                )));
            }
        };
        let Some(slot) = table.slots.get_mut(index as usize) else {
            return Err(Error::internal(format!("{}: slot {index} is free and does not exist", self.name)));
        };
        slot.object = Some(object);
        Ok(self.pack(index, slot.generation))
    }

    /// The object of a handle. It stays whole as long as this reference to it is held, also when it is removed.
    pub(super) fn get(&self, handle: usize) -> Result<Arc<T>> {
        let (index, generation) = self.unpack(handle)?;
        let table = lock(&self.table);
        match table.slots.get(index) {
            Some(Slot { generation: now, object: Some(object) }) if *now == generation => Ok(object.clone()),
            slot => Err(self.stale(handle, generation, slot.map(|s| s.generation))),
        }
    }

    /// Takes the object of a handle out: the handle is stale from now on. The object is dropped by the caller, outside
    /// of the table's lock.
    pub(super) fn remove(&self, handle: usize) -> Result<Arc<T>> {
        let (index, generation) = self.unpack(handle)?;
        let mut table = lock(&self.table);
        let table = &mut *table;
        let taken = match table.slots.get_mut(index) {
            Some(slot) if slot.generation == generation => slot.object.take().map(|object| {
                slot.generation = slot.generation.saturating_add(1);
                (object, slot.generation < u32::MAX)
            }),
            _ => None,
        };
        match taken {
            Some((object, reusable)) => {
                if reusable {
                    table.free.push(index as u32);
                }
                Ok(object)
            }
            None => Err(self.stale(handle, generation, table.slots.get(index).map(|s| s.generation))),
        }
    }

    /// Takes out every object that `gone` is said of.
    pub(super) fn sweep(&self, gone: impl Fn(&T) -> bool) {
        let mut swept = Vec::new();
        let mut table = lock(&self.table);
        let Table { slots, free } = &mut *table;
        for (index, slot) in slots.iter_mut().enumerate() {
            if slot.object.as_deref().is_some_and(&gone) {
                swept.extend(slot.object.take());
                slot.generation = slot.generation.saturating_add(1);
                if slot.generation < u32::MAX {
                    free.push(index as u32);
                }
            }
        }
        drop(table);
        // What was swept is dropped here, outside of the lock.
        drop(swept);
    }

    fn pack(&self, slot: u32, generation: u32) -> usize {
        usize::from(self.kind) << (GENERATION_BITS + SLOT_BITS)
            | (slot as usize) << GENERATION_BITS
            | generation as usize
    }

    fn unpack(&self, handle: usize) -> Result<(usize, u32)> {
        if handle == 0 {
            return Err(Error::invalid(format!("{} is NULL", self.name)));
        }
        if handle >> (GENERATION_BITS + SLOT_BITS) != usize::from(self.kind) {
            return Err(Error::invalid(format!("{handle:#x} is no {}; pass what created it gave", self.name)));
        }
        Ok(((handle >> GENERATION_BITS) & (MAX_SLOTS - 1), handle as u32))
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

        // The slot comes again, the handle does not.
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
        lock(&table.table).slots[0].generation = u32::MAX - 1;
        let last = table.insert(1).unwrap();
        assert_eq!(last >> 32, first >> 32);
        table.remove(last).unwrap();
        refused(table.get(last), "destroyed");
        assert_ne!(table.insert(2).unwrap() >> 32, first >> 32);
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

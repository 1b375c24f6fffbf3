//! The claims of `memory/index.rs`: a thread that finds an entry finds all that was written before
//! it, and no entry is lost.

use super::explore;
use crate::base::sync::AtomicU64;
use crate::pool::memory::{Entry, Index, SLOT};
use loom::thread;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

const BASE: u64 = 1 << 40;

fn entry(n: u32) -> Entry {
    Entry::Block { heap: 1, region: n }
}

/// Fails when second-level tables are made with a `get` and then a `set`, which may come second.
#[test]
fn two_threads_that_need_one_table_share_it() {
    explore(|| {
        let index = Arc::new(Index::of_pages(SLOT));
        index.add_root(BASE, 64 * SLOT);
        let other = thread::spawn({
            let index = index.clone();
            move || index.set(BASE, entry(1))
        });
        index.set(BASE + SLOT, entry(2));
        assert_eq!(index.get(BASE + SLOT), entry(2));
        other.join().unwrap();
        assert_eq!((index.get(BASE), index.get(BASE + SLOT)), (entry(1), entry(2)));
    });
}

/// Fails when `Index::set` stores, or `Index::get` loads, with relaxed order.
#[test]
fn an_entry_brings_what_was_written_before_it() {
    explore(|| {
        let index = Arc::new(Index::of_pages(SLOT));
        index.add_root(BASE, 64 * SLOT);
        index.set(BASE, entry(0));
        let written = Arc::new(AtomicU64::new(0));
        let other = thread::spawn({
            let (index, written) = (index.clone(), written.clone());
            move || {
                written.store(7, Relaxed);
                index.set(BASE + SLOT, entry(1));
            }
        });
        match index.get(BASE + SLOT) {
            Entry::Empty => {}
            found => assert_eq!((found, written.load(Relaxed)), (entry(1), 7)),
        }
        other.join().unwrap();
    });
}

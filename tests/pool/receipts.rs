//! Receipts, as the pool keeps them for its callers, who count: each is dropped once, when its
//! allocation ends, and nothing is live without one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::pool_support;

use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Error, Result, Status, StreamHandle};
use gpumem::driver::{Call, Driver, FaultRule};
use gpumem::pool::{AllocFlags, AllocRequest, Counter, PoolOptions, Receipt, Slip};
use pool_support::{checked, request, Rig, D, PAGE};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// What receipts add up to.
#[derive(Debug, Default)]
struct Books {
    bytes: AtomicI64,
    receipts: AtomicI64,
    /// Made by the pool's wish.
    counted: AtomicU64,
    /// The most bytes one may have.
    most: AtomicU64,
    renewed: Mutex<Vec<StreamHandle>>,
}

#[derive(Debug)]
struct Bytes {
    books: Arc<Books>,
    bytes: u64,
    /// By how much it has grown, if the allocation has not.
    grown: u64,
}

impl Books {
    fn new() -> Arc<Books> {
        Arc::new(Books { most: AtomicU64::new(u64::MAX), ..Books::default() })
    }

    fn receipt(self: &Arc<Books>, bytes: u64) -> Box<dyn Receipt> {
        self.bytes.fetch_add(bytes as i64, SeqCst);
        self.receipts.fetch_add(1, SeqCst);
        Box::new(Bytes { books: self.clone(), bytes, grown: 0 })
    }

    /// Receipts and their bytes.
    fn now(&self) -> (i64, i64) {
        (self.receipts.load(SeqCst), self.bytes.load(SeqCst))
    }
}

impl Receipt for Bytes {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn resize(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes && bytes > self.books.most.load(SeqCst) {
            return Err(Error::new(Status::OutOfMemory, "too many"));
        }
        self.books.bytes.fetch_add(bytes as i64 - self.bytes as i64, SeqCst);
        self.grown = bytes.saturating_sub(self.bytes);
        self.bytes = bytes;
        Ok(())
    }

    fn undo_growth(&mut self) {
        self.books.bytes.fetch_sub(self.grown as i64, SeqCst);
        self.bytes -= std::mem::take(&mut self.grown);
    }

    fn made(&mut self) {
        self.grown = 0;
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.books.bytes.fetch_sub(self.bytes as i64, SeqCst);
        self.books.receipts.fetch_sub(1, SeqCst);
    }
}

struct By(Arc<Books>);

impl Counter for By {
    fn count(&self, bytes: u64, _: StreamHandle) -> Box<dyn Receipt> {
        self.0.counted.fetch_add(1, SeqCst);
        self.0.receipt(bytes)
    }

    fn stream_renewed(&self, stream: StreamHandle) {
        self.0.renewed.lock().unwrap().push(stream);
    }
}

#[track_caller]
fn agree(rig: &Rig, books: &Books, receipts: i64) {
    rig.pool.validate().unwrap();
    assert_eq!((rig.pool.counted().unwrap() as i64, receipts), (books.now().1, books.now().0));
}

#[test]
fn nothing_is_live_without_a_receipt_once_somebody_counts() {
    let rig = Rig::small();
    let books = Books::new();
    let [s, t] = [(); 2].map(|()| rig.stream());
    let before = [rig.malloc(300, s), rig.malloc(MIB, s), rig.malloc_with(1, s, AllocFlags::GUARD)];
    agree(&rig, &books, 0);
    rig.pool.count_live(Arc::new(By(books.clone())));
    assert_eq!(books.now(), (3, 512 + (MIB + PAGE) as i64));
    agree(&rig, &books, 3);
    // Would be hits, in a heap that there was and in one that is new.
    let after = [(300, s), (300, s), (MIB, s), (300, t), (300, t), (MIB, t)].map(|(n, s)| rig.malloc(n, s));
    agree(&rig, &books, 9);
    before.into_iter().chain(after).for_each(|p| rig.free(p, s));
    let again = rig.malloc(MIB, s);
    agree(&rig, &books, 1);
    rig.free(again, s);
    assert_eq!((books.now(), books.counted.load(SeqCst)), ((0, 0), 10));
    rig.sync();
}

#[test]
fn a_receipt_that_comes_with_a_request_is_kept_unless_that_fails() {
    let rig = Rig::small();
    let books = Books::new();
    let s = rig.stream();
    let malloc = |size: u64, flags| {
        let slip = Slip::new(books.receipt(rig.pool.counted_bytes(size, flags)));
        rig.pool.malloc(&AllocRequest { flags, slip: Some(&slip), ..request(size, s) })
    };
    // Also while nobody counts, and after.
    for round in 0..2 {
        let all: Vec<u64> = [300, 100 * KIB, 3 * MIB].map(|n| malloc(n, AllocFlags::default()).unwrap()).into();
        let own = malloc(3, AllocFlags::SINGLE_HANDLE).unwrap();
        assert_eq!(books.now(), (4, (512 + 100 * KIB + 3 * MIB + PAGE) as i64));
        rig.pool.count_live(Arc::new(By(books.clone())));
        agree(&rig, &books, 4);
        assert_eq!(malloc(2 * GIB, AllocFlags::default()).unwrap_err().status, Status::OutOfMemory);
        for call in [Call::Map, Call::SetAccess, Call::PhysCreate] {
            for flags in [AllocFlags::SINGLE_HANDLE, AllocFlags::default()] {
                rig.fault.set_rule(Some(FaultRule::nth_of(call, 0).with_status(Status::Driver)));
                let failed = malloc(600 * MIB, flags);
                rig.fault.set_rule(None);
                assert!(failed.is_err(), "{call:?}");
            }
        }
        agree(&rig, &books, 4);
        all.into_iter().chain([own]).for_each(|p| rig.free(p, s));
        assert_eq!((round, books.now()), (round, (0, 0)));
    }
    assert_eq!(books.counted.load(SeqCst), 0);
    rig.sync();
}

#[test]
fn a_receipt_changes_with_its_allocation_or_moves_it() {
    let rig = Rig::small();
    let books = Books::new();
    let s = rig.stream();
    rig.pool.count_live(Arc::new(By(books.clone())));
    let p = rig.malloc(MIB, s);
    let p2 = rig.pool.realloc(p, 2 * MIB, s).unwrap();
    assert_eq!((p2, books.now()), (p, (1, 2 * MIB as i64)));
    // There is room to grow in place, but not by leave of its receipt: another one, of a new
    // allocation.
    books.most.store(2 * MIB, SeqCst);
    let q = rig.pool.realloc(p, 2 * MIB + 1, s).unwrap();
    assert_ne!(q, p);
    assert_eq!(books.now(), (1, (2 * MIB + 256) as i64));
    // It could grow by leave of the receipt, but there is nothing behind it.
    books.most.store(u64::MAX, SeqCst);
    let behind = rig.malloc(8 * MIB, s);
    let r = rig.pool.realloc(q, 600 * MIB, s).unwrap();
    assert_eq!(books.now(), (2, 608 * MIB as i64));
    agree(&rig, &books, 2);
    // Nor anywhere.
    assert_eq!(rig.pool.realloc(r, GIB - MIB, s).unwrap_err().status, Status::OutOfMemory);
    assert_eq!(books.now(), (2, 608 * MIB as i64));
    agree(&rig, &books, 2);
    [r, behind].into_iter().for_each(|p| rig.free(p, s));
    assert_eq!(books.now(), (0, 0));
    rig.sync();
}

/// A caller that counts hears that a handle stands for another stream.
#[test]
fn a_handle_that_goes_to_another_stream_is_told() {
    let rig = Rig::new(checked(GIB), PoolOptions::default());
    let books = Books::new();
    rig.pool.count_live(Arc::new(By(books.clone())));
    let s = rig.stream();
    let p = rig.malloc(300, s);
    rig.free(p, s);
    rig.pool.meet(s).unwrap();
    rig.host.stream_destroy(D, s).unwrap();
    assert_eq!(rig.stream(), s, "the handle comes back");
    assert!(books.renewed.lock().unwrap().is_empty());
    rig.pool.meet(s).unwrap();
    assert_eq!(*books.renewed.lock().unwrap(), [s]);
    assert_eq!(books.now(), (0, 0));
}

//! The whole pool on the host device: what its locks and counters promise together.

use super::explore;
use crate::base::size::{GIB, MIB};
use crate::base::{DeviceId, Status, StreamHandle};
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::Driver;
use crate::pool::{AllocRequest, Pool, PoolOptions, Scope};
use loom::thread;
use std::sync::Arc;

const D: DeviceId = DeviceId(0);
const PAGE: u64 = 2 * MIB;

fn pool(limit: u64) -> (Arc<HostDriver>, Arc<Pool>) {
    let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..HostOptions::default() }).unwrap();
    let options = PoolOptions { va_size: GIB, limit, ..PoolOptions::default() };
    let pool = Pool::new(host.clone(), D, options).unwrap();
    (host, Arc::new(pool))
}

fn malloc(pool: &Pool, size: u64, stream: StreamHandle) -> u64 {
    pool.malloc(&AllocRequest { size, stream, ..AllocRequest::default() }).unwrap()
}

/// Fails when `Pool::claim` loads the bytes mapped, compares and adds in three steps.
#[test]
fn claims_of_two_threads_stay_within_the_limit() {
    explore(|| {
        let (_host, pool) = pool(3 * PAGE);
        let claim = |pool: &Pool| u32::from(pool.claim(2 * PAGE).is_ok());
        let other = thread::spawn({
            let pool = pool.clone();
            move || claim(&pool)
        });
        let mine = claim(&pool);
        assert_eq!(mine + other.join().unwrap(), 1, "one of two claims fits");
        assert!(pool.stats().mapped <= 3 * PAGE);
    });
}

/// Two threads free the same pointers; of each pair of frees one wins and the other is told. Fails
/// when `Pool::find` trusts what it read from the index without the heap's lock.
#[test]
fn of_two_frees_of_a_pointer_one_wins() {
    explore(|| {
        let (host, pool) = pool(0);
        let stream = host.stream_create(D).unwrap();
        let blocks = [malloc(&pool, MIB, stream), malloc(&pool, 256, stream)];
        let free = move |pool: &Pool| blocks.map(|b| pool.free(b, Some(stream)).map_err(|e| e.status));
        let other = thread::spawn({
            let pool = pool.clone();
            move || free(&pool)
        });
        let mine = free(&pool);
        for pair in mine.into_iter().zip(other.join().unwrap()) {
            let lost = Err(Status::DoubleFree);
            assert!(pair == (Ok(()), lost) || pair == (lost, Ok(())), "{pair:?}");
        }
        pool.validate().unwrap();
        assert_eq!(pool.stats().allocations, 0);
    });
}

/// A thread that does not own the heap frees, while the owner allocates. Fails when `Pool::malloc`
/// gives its lock up between taking memory and entering it into the heap's books.
#[test]
fn a_free_from_another_thread_meets_an_allocation() {
    explore(|| {
        let (host, pool) = pool(0);
        let stream = host.stream_create(D).unwrap();
        let block = malloc(&pool, MIB, stream);
        let other = thread::spawn({
            let pool = pool.clone();
            move || pool.free(block, Some(stream)).unwrap()
        });
        let mine = malloc(&pool, MIB, stream);
        other.join().unwrap();
        pool.free(mine, Some(stream)).unwrap();
        pool.validate().unwrap();
        assert_eq!(pool.stats().allocations, 0);
    });
}

/// The first use of a stream by two threads at once gives it one heap. Fails when
/// `Pool::register_as` looks into the registry and adds to it under two holds of its lock.
#[test]
fn two_first_uses_of_a_stream_make_one_heap() {
    explore(|| {
        let (host, pool) = pool(0);
        let stream = host.stream_create(D).unwrap();
        let other = thread::spawn({
            let pool = pool.clone();
            move || pool.heap_for(stream).unwrap().number
        });
        let mine = pool.heap_for(stream).unwrap().number;
        assert_eq!(mine, other.join().unwrap());
        assert_eq!(pool.stats().streams, 1);
    });
}

/// An exit frees a scope of two while another thread frees both: one by its pointer, one by its id.
/// Each is freed once, and the books balance. Fails when `Pool::free_some` gives the heap's lock up
/// between finding an allocation of the scope and taking it back.
#[test]
fn an_exit_meets_the_frees_of_what_it_frees() {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (host, pool) = pool(0);
        let stream = host.stream_create(D).unwrap();
        let scope = Scope::new(1, None);
        let request = |size| AllocRequest { size, stream, scope: Some(&scope), ..AllocRequest::default() };
        let blocks = [MIB, 256].map(|size| pool.malloc(&request(size)).unwrap());
        let id = pool.info(blocks[1]).unwrap().id;
        let other = thread::spawn({
            let pool = pool.clone();
            move || {
                let by_pointer = pool.free(blocks[0], Some(stream)).map_err(|e| e.status);
                (by_pointer, pool.free_id(blocks[1], id, Some(stream)).unwrap())
            }
        });
        scope.close();
        let by_exit = pool.free_scope(&scope).count;
        let (by_pointer, by_id) = other.join().unwrap();
        assert!(by_pointer.is_ok() || by_pointer == Err(Status::DoubleFree), "{by_pointer:?}");
        assert_eq!(by_exit + u64::from(by_pointer.is_ok()) + u64::from(by_id), 2, "each is freed once");
        pool.validate().unwrap();
        let stats = pool.stats();
        assert_eq!((stats.allocations, stats.requested, scope.live_bytes()), (0, 0, 0));
        assert_eq!((stats.mallocs, stats.frees, stats.late_frees), (2, 2, u64::from(!by_id)));
        let (past, here) = (scope.past(), pool.scope_counts(&scope));
        assert_eq!((past.joined + here.joined, past.left + here.left), (2, 2));
    });
}

/// A finalizer that comes late, when the address may be live again, frees nothing of the new
/// owner's. Fails when `Pool::free_found` frees what it finds at the address, whatever its id.
#[test]
fn a_late_free_by_id_leaves_the_next_owner_alone() {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (host, pool) = pool(0);
        let stream = host.stream_create(D).unwrap();
        let scope = Scope::new(1, None);
        let request = AllocRequest { size: 256, stream, scope: Some(&scope), ..AllocRequest::default() };
        let old = pool.malloc(&request).unwrap();
        let id = pool.info(old).unwrap().id;
        let finalizer = thread::spawn({
            let pool = pool.clone();
            move || pool.free_id(old, id, Some(stream)).unwrap()
        });
        scope.close();
        let by_exit = pool.free_scope(&scope).count;
        let new = malloc(&pool, 256, stream);
        let by_id = finalizer.join().unwrap();
        assert_eq!(by_exit + u64::from(by_id), 1);
        pool.free(new, Some(stream)).unwrap();
        pool.validate().unwrap();
        assert_eq!((pool.stats().allocations, pool.stats().frees), (0, 2));
    });
}

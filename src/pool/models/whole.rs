//! The whole pool on the host device: what its locks and counters promise together.

use super::explore;
use crate::base::size::{GIB, MIB};
use crate::base::{DeviceId, Status, StreamHandle};
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::Driver;
use crate::pool::{AllocRequest, Pool, PoolOptions};
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

/// Two threads free the same pointers; of each pair of frees one wins and the other is told. Fails when `Pool::find`
/// trusts what it read from the index without the heap's lock.
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

/// A thread that does not own the heap frees, while the owner allocates. Fails when `Pool::malloc` gives its lock up
/// between taking memory and entering it into the heap's books.
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

/// The first use of a stream by two threads at once gives it one heap. Fails when `Pool::register_as` looks into the
/// registry and adds to it under two holds of its lock.
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

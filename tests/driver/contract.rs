//! What every driver must do, written once against `dyn Driver` and run on each: the host device
//! (at once and in simulation), the same through the wrappers, and CUDA where there is a GPU.
//!
//! Every function of the suite gets a driver and panics when a promise is broken. They hold for
//! CUDA as it is: what CUDA leaves undefined (calls with dead streams, say) is in `host_device`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod graphs;

use gpumem::base::{size::MIB, DeviceId, Status, StreamHandle};
use gpumem::driver::cuda;
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::{Counted, Driver, EventHandle, Fault, PhysFlags, PhysHandle};
use graphs::*;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const D: DeviceId = DeviceId(0);
const LEGACY: StreamHandle = StreamHandle::LEGACY;
const PER_THREAD: StreamHandle = StreamHandle::PER_THREAD;
const PLAIN: PhysFlags = PhysFlags { posix_fd: false, rdma: false };
const EXPORTABLE: PhysFlags = PhysFlags { posix_fd: true, rdma: false };

type Dut = Arc<dyn Driver>;

// ---- tools --------------------------------------------------------------------------------------

fn granule(d: &Dut) -> u64 {
    d.device_props(D).unwrap().granularity
}

fn reserve(d: &Dut, size: u64) -> u64 {
    d.va_reserve(D, size, granule(d)).unwrap()
}

/// `n` granules mapped and accessible, each a handle of its own; the handles stay open.
struct Block {
    va: u64,
    size: u64,
    handles: Vec<PhysHandle>,
}

fn block(d: &Dut, n: u64) -> Block {
    let g = granule(d);
    let (va, size) = (reserve(d, n * g), n * g);
    let handles: Vec<_> = (0..n).map(|_| d.phys_create(D, g, PLAIN).unwrap()).collect();
    for (i, h) in handles.iter().enumerate() {
        d.map(D, va + i as u64 * g, g, *h).unwrap();
    }
    d.set_access(va, size, &[D]).unwrap();
    Block { va, size, handles }
}

impl Block {
    fn drop(self, d: &Dut) {
        d.device_sync(D).unwrap();
        d.unmap(self.va, self.size).unwrap();
        for h in self.handles {
            d.phys_release(h).unwrap();
        }
        d.va_free(D, self.va, self.size).unwrap();
    }
}

fn write(d: &Dut, at: u64, data: &[u8], s: StreamHandle) {
    d.copy_async(D, at, data.as_ptr() as u64, data.len() as u64, s).unwrap();
}

fn read(d: &Dut, at: u64, len: usize, s: StreamHandle) -> Vec<u8> {
    let mut out = vec![0xEE; len];
    d.copy_async(D, out.as_mut_ptr() as u64, at, len as u64, s).unwrap();
    d.stream_sync(D, s).unwrap();
    out
}

fn recorded(d: &Dut, s: StreamHandle) -> EventHandle {
    let e = d.event_create(D).unwrap();
    d.event_record(D, e, s).unwrap();
    e
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

// ---- devices ------------------------------------------------------------------------------------

fn devices_are_described(d: &Dut) {
    assert!(["host", "cuda"].contains(&d.backend()));
    assert!(!d.version().is_empty());
    assert!(d.device_count() >= 1);
    for dev in (0..d.device_count()).map(DeviceId) {
        let p = d.device_props(dev).unwrap();
        assert!(!p.name.is_empty());
        assert!(p.granularity.is_power_of_two() && p.granularity >= 4096, "{p:?}");
        let m = d.mem_info(dev).unwrap();
        assert!(m.free <= m.total && m.total > 0 && m.total <= p.total_bytes, "{m:?} {p:?}");
    }
    let beyond = DeviceId(d.device_count());
    assert!(d.device_props(beyond).is_err());
    assert!(d.mem_info(beyond).is_err());
    assert!(d.can_access(D, beyond).is_err());
}

fn current_device_is_per_thread(d: &Dut) {
    let last = DeviceId(d.device_count() - 1);
    d.set_current_device(last).unwrap();
    assert_eq!(d.current_device().unwrap(), last);
    assert_eq!(d.stream_device(LEGACY).unwrap(), last);
    assert_eq!(d.stream_device(PER_THREAD).unwrap(), last);
    let other = d.clone();
    let theirs = std::thread::spawn(move || other.current_device().unwrap()).join().unwrap();
    assert_eq!(theirs, D, "a thread that set nothing is on device 0");
    assert!(d.set_current_device(DeviceId(d.device_count())).is_err());
    assert_eq!(d.current_device().unwrap(), last, "a refused change changes nothing");
    d.set_current_device(D).unwrap();
}

fn any_thread_may_call_and_keeps_its_device(d: &Dut) {
    let b = block(d, 1);
    let (other, va, last) = (d.clone(), b.va, DeviceId(d.device_count() - 1));
    std::thread::spawn(move || {
        other.set_current_device(last).unwrap();
        let s = other.stream_create(D).unwrap();
        write(&other, va, &bytes(1, 100), s);
        assert_eq!(read(&other, va, 100, s), bytes(1, 100));
        other.stream_destroy(D, s).unwrap();
        assert_eq!(other.current_device().unwrap(), last);
    })
    .join()
    .unwrap();
    b.drop(d);
}

fn peers_share_memory(d: &Dut) {
    let n = d.device_count();
    for dev in (0..n).map(DeviceId) {
        assert!(d.can_access(dev, dev).unwrap());
    }
    let peer = DeviceId(1);
    if n < 2 || !d.can_access(peer, D).unwrap() {
        return;
    }
    let b = block(d, 2);
    d.set_access(b.va, b.size, &[D, peer]).unwrap();
    let s = d.stream_create(peer).unwrap();
    d.set_async(peer, b.va + 5, 0x5A, 1000, s).unwrap();
    d.stream_sync(peer, s).unwrap();
    assert_eq!(read(d, b.va + 5, 1000, LEGACY), [0x5A; 1000]);
    d.stream_destroy(peer, s).unwrap();
    b.drop(d);
}

// ---- virtual memory -----------------------------------------------------------------------------

fn reservations_are_aligned_and_disjoint(d: &Dut) {
    let g = granule(d);
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for (size, align) in [(g, g), (3 * g, 8 * g), (64 * g, 256 * g), (1 << 40, g), (g, 1)] {
        let va = d.va_reserve(D, size, align).unwrap();
        assert_eq!(va % align.max(g), 0, "{size} aligned to {align}");
        assert!(seen.iter().all(|(v, s)| va + size <= *v || v + s <= va), "{va:#x} overlaps {seen:x?}");
        seen.push((va, size));
    }
    for (va, size) in seen {
        d.va_free(D, va, size).unwrap();
    }
}

fn reservation_rules(d: &Dut) {
    let g = granule(d);
    assert!(d.va_reserve(D, 0, g).is_err(), "no bytes");
    assert!(d.va_reserve(D, g + 4096, g).is_err(), "not a multiple of the granularity");
    assert!(d.va_reserve(D, g, 3 * g).is_err(), "alignment no power of two");
    assert!(d.va_reserve(D, 1 << 62, g).is_err(), "more than there are addresses");
    let va = reserve(d, 2 * g);
    assert!(d.va_free(D, va + g, g).is_err(), "not the start of a reservation");
    d.va_free(D, va, 2 * g).unwrap();
}

fn physical_memory_has_sizes_and_an_end(d: &Dut) {
    let g = granule(d);
    assert!(d.phys_create(D, 0, PLAIN).is_err(), "no bytes");
    assert!(d.phys_create(D, g + 4096, PLAIN).is_err(), "not a multiple of the granularity");
    let total = d.mem_info(D).unwrap().total / g * g;
    let e = d.phys_create(D, total + g, PLAIN).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    let e = d.phys_create(D, 1 << 60, PLAIN).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    let h = d.phys_create(D, g, PLAIN).unwrap();
    d.phys_release(h).unwrap();
}

fn memory_is_accounted(d: &Dut) {
    let g = granule(d);
    let size = (64 * MIB).next_multiple_of(g);
    let before = d.mem_info(D).unwrap();
    let h = d.phys_create(D, size, PLAIN).unwrap();
    let during = d.mem_info(D).unwrap();
    assert!(before.free - during.free >= size, "{before:?} {during:?}");
    assert_eq!(before.total, during.total);
    let va = reserve(d, size);
    d.map(D, va, size, h).unwrap();
    d.phys_release(h).unwrap();
    assert!(d.mem_info(D).unwrap().free <= before.free - size, "a mapping keeps the memory");
    d.unmap(va, size).unwrap();
    assert!(d.mem_info(D).unwrap().free >= during.free + size, "the last mapping gave it back");
    d.va_free(D, va, size).unwrap();
}

fn map_rules(d: &Dut) {
    let g = granule(d);
    let va = reserve(d, 4 * g);
    let two = d.phys_create(D, 2 * g, PLAIN).unwrap();
    let one = d.phys_create(D, g, PLAIN).unwrap();
    assert!(d.map(D, va, g, two).is_err(), "part of a handle");
    assert!(d.map(D, va, 4 * g, two).is_err(), "more than the handle");
    assert!(d.map(D, va + 4096, 2 * g, two).is_err(), "not at a multiple of the granularity");
    assert!(d.map(D, g, g, one).is_err(), "outside any reservation");
    d.map(D, va + g, 2 * g, two).unwrap();
    assert!(d.map(D, va + g, g, one).is_err(), "over the start of a mapping");
    assert!(d.map(D, va + 2 * g, g, one).is_err(), "inside a mapping");
    assert!(d.map(D, va, 2 * g, two).is_err(), "into a mapping");
    // The refusals left everything as it was: the free places can be mapped, the rest works.
    d.map(D, va, g, one).unwrap();
    d.map(D, va + 3 * g, g, one).unwrap();
    d.set_access(va, 4 * g, &[D]).unwrap();
    d.set_async(D, va, 3, 4 * g, LEGACY).unwrap();
    assert_eq!(read(d, va + 2 * g - 8, 16, LEGACY), [3; 16]);
    d.unmap(va, 4 * g).unwrap();
    d.phys_release(one).unwrap();
    d.phys_release(two).unwrap();
    d.va_free(D, va, 4 * g).unwrap();
}

fn access_rules(d: &Dut) {
    let g = granule(d);
    let va = reserve(d, 4 * g);
    let two = d.phys_create(D, 2 * g, PLAIN).unwrap();
    let one = d.phys_create(D, g, PLAIN).unwrap();
    assert!(d.set_access(va, g, &[D]).is_err(), "nothing mapped");
    d.map(D, va, 2 * g, two).unwrap();
    d.map(D, va + 3 * g, g, one).unwrap();
    assert!(d.set_access(va, g, &[D]).is_err(), "part of a mapping");
    assert!(d.set_access(va + g, g, &[D]).is_err(), "the other part");
    assert!(d.set_access(va, 2 * g, &[DeviceId(d.device_count())]).is_err(), "no such device");
    d.set_access(va, 2 * g, &[D]).unwrap();
    d.set_access(va + 3 * g, g, &[D]).unwrap();
    d.set_access(va, 2 * g, &[D]).expect("setting it again is harmless");
    d.set_async(D, va, 1, 2 * g, LEGACY).unwrap();
    d.set_async(D, va + 3 * g, 1, g, LEGACY).unwrap();
    d.device_sync(D).unwrap();
    d.unmap(va, 2 * g).unwrap();
    d.unmap(va + 3 * g, g).unwrap();
    d.phys_release(one).unwrap();
    d.phys_release(two).unwrap();
    d.va_free(D, va, 4 * g).unwrap();
}

fn unmap_rules(d: &Dut) {
    let g = granule(d);
    let va = reserve(d, 4 * g);
    let two = d.phys_create(D, 2 * g, PLAIN).unwrap();
    let one = d.phys_create(D, g, PLAIN).unwrap();
    d.map(D, va, 2 * g, two).unwrap();
    d.map(D, va + 3 * g, g, one).unwrap();
    d.set_access(va, 2 * g, &[D]).unwrap();
    d.set_access(va + 3 * g, g, &[D]).unwrap();
    write(d, va + g - 50, &bytes(9, 100), LEGACY);
    write(d, va + 3 * g, &bytes(8, 100), LEGACY);
    d.device_sync(D).unwrap();
    assert!(d.unmap(va, g).is_err(), "part of a mapping");
    assert!(d.unmap(va + g, g).is_err(), "the other part");
    assert!(d.unmap(va, 0).is_err(), "no bytes");
    assert_eq!(read(d, va + g - 50, 100, LEGACY), bytes(9, 100), "a refused unmapping changes nothing");
    assert_eq!(read(d, va + 3 * g, 100, LEGACY), bytes(8, 100));
    d.unmap(va, 2 * g).unwrap();
    d.unmap(va + 3 * g, g).unwrap();
    d.phys_release(one).unwrap();
    d.phys_release(two).unwrap();
    d.va_free(D, va, 4 * g).unwrap();
}

fn a_reservation_in_use_stays(d: &Dut) {
    let b = block(d, 1);
    assert!(d.va_free(D, b.va, b.size).is_err());
    write(d, b.va, &bytes(4, 64), LEGACY);
    assert_eq!(read(d, b.va, 64, LEGACY), bytes(4, 64));
    b.drop(d);
}

fn one_call_covers_many_mappings(d: &Dut) {
    let b = block(d, 16);
    d.set_async(D, b.va, 0x11, b.size, LEGACY).unwrap();
    assert!(read(d, b.va, b.size as usize, LEGACY).iter().all(|x| *x == 0x11));
    b.drop(d);
}

fn double_mapping_shows_the_same_bytes(d: &Dut) {
    let b = block(d, 2);
    let g = granule(d);
    let alias = reserve(d, 2 * g);
    // The other way round, so that an alias cannot be mistaken for a copy at the same offset.
    d.map(D, alias, g, b.handles[1]).unwrap();
    d.map(D, alias + g, g, b.handles[0]).unwrap();
    d.set_access(alias, 2 * g, &[D]).unwrap();
    for round in 0..50u8 {
        write(d, b.va + 100, &bytes(round, 5000), LEGACY);
        assert_eq!(read(d, alias + g + 100, 5000, LEGACY), bytes(round, 5000));
        d.set_async(D, alias + 7, round, 999, LEGACY).unwrap();
        assert_eq!(read(d, b.va + g + 7, 999, LEGACY), [round; 999]);
    }
    d.device_sync(D).unwrap();
    d.unmap(alias, 2 * g).unwrap();
    d.va_free(D, alias, 2 * g).unwrap();
    assert_eq!(read(d, b.va + g + 7, 999, LEGACY), [49; 999], "the first mapping is still there");
    b.drop(d);
}

fn memory_moves_to_another_address(d: &Dut) {
    let b = block(d, 2);
    let g = granule(d);
    write(d, b.va, &bytes(1, 3000), LEGACY);
    write(d, b.va + g, &bytes(2, 3000), LEGACY);
    d.device_sync(D).unwrap();
    d.unmap(b.va, b.size).unwrap();
    d.map(D, b.va, g, b.handles[1]).unwrap();
    d.map(D, b.va + g, g, b.handles[0]).unwrap();
    d.set_access(b.va, b.size, &[D]).unwrap();
    assert_eq!(read(d, b.va, 3000, LEGACY), bytes(2, 3000));
    assert_eq!(read(d, b.va + g, 3000, LEGACY), bytes(1, 3000));
    b.drop(d);
}

fn a_mapping_outlives_its_handle(d: &Dut) {
    let mut b = block(d, 1);
    write(d, b.va, &bytes(6, 4000), LEGACY);
    for h in b.handles.drain(..) {
        d.phys_release(h).unwrap();
    }
    assert_eq!(read(d, b.va, 4000, LEGACY), bytes(6, 4000));
    b.drop(d);
}

fn exported_memory_is_the_same_memory(d: &Dut) {
    if !d.device_props(D).unwrap().posix_fd {
        return;
    }
    let g = granule(d);
    let (va, alias) = (reserve(d, 2 * g), reserve(d, 2 * g));
    let h = d.phys_create(D, 2 * g, EXPORTABLE).unwrap();
    d.map(D, va, 2 * g, h).unwrap();
    d.set_access(va, 2 * g, &[D]).unwrap();
    let fd = d.phys_export(h).unwrap();
    let again = d.phys_export(h).expect("exporting twice is allowed");
    let imported = d.phys_import(D, &fd).unwrap();
    drop((fd, again));
    d.map(D, alias, 2 * g, imported).unwrap();
    d.set_access(alias, 2 * g, &[D]).unwrap();
    write(d, va + g - 100, &bytes(3, 200), LEGACY);
    assert_eq!(read(d, alias + g - 100, 200, LEGACY), bytes(3, 200));
    d.device_sync(D).unwrap();
    d.phys_release(h).unwrap();
    d.unmap(va, 2 * g).unwrap();
    assert_eq!(read(d, alias + g - 100, 200, LEGACY), bytes(3, 200), "the import keeps it");
    d.device_sync(D).unwrap();
    d.unmap(alias, 2 * g).unwrap();
    d.phys_release(imported).unwrap();
    d.va_free(D, va, 2 * g).unwrap();
    d.va_free(D, alias, 2 * g).unwrap();
}

fn export_rules(d: &Dut) {
    let g = granule(d);
    let plain = d.phys_create(D, g, PLAIN).unwrap();
    assert!(d.phys_export(plain).is_err(), "not created exportable");
    d.phys_release(plain).unwrap();
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    assert!(d.phys_import(D, &null).is_err(), "not an exported allocation");
}

// ---- streams and order --------------------------------------------------------------------------

fn stream_identities_are_never_reused(d: &Dut) {
    let mut ids = HashSet::new();
    ids.insert(d.stream_id(D, LEGACY).unwrap());
    let mut handles = HashSet::new();
    for _ in 0..100 {
        let s = d.stream_create(D).unwrap();
        handles.insert(s);
        let id = d.stream_id(D, s).unwrap();
        assert_eq!(id, d.stream_id(D, s).unwrap());
        assert!(ids.insert(id), "identity {id} was used before");
        d.stream_destroy(D, s).unwrap();
    }
    assert!(!ids.contains(&0));
    assert!(!handles.contains(&LEGACY) && !handles.contains(&StreamHandle(1)) && !handles.contains(&PER_THREAD));
}

fn default_streams_have_identities(d: &Dut) {
    let legacy = d.stream_id(D, LEGACY).unwrap();
    assert_eq!(d.stream_id(D, StreamHandle(1)).unwrap(), legacy, "1 is another spelling of 0");
    let mine = d.stream_id(D, PER_THREAD).unwrap();
    assert_eq!(d.stream_id(D, PER_THREAD).unwrap(), mine);
    let other = d.clone();
    let theirs = std::thread::spawn(move || other.stream_id(D, PER_THREAD).unwrap()).join().unwrap();
    let mut ids = vec![legacy, mine, theirs];
    for dev in (1..d.device_count()).map(DeviceId) {
        ids.extend([d.stream_id(dev, LEGACY).unwrap(), d.stream_id(dev, PER_THREAD).unwrap()]);
    }
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "{ids:?}");
    assert!(!ids.contains(&0));
}

fn streams_know_their_device_and_are_not_captured(d: &Dut) {
    for dev in (0..d.device_count()).map(DeviceId) {
        let s = d.stream_create(dev).unwrap();
        assert_eq!(d.stream_device(s).unwrap(), dev);
        assert!(!d.stream_is_capturing(dev, s).unwrap());
        assert!(!d.stream_is_capturing(dev, LEGACY).unwrap());
        assert!(!d.stream_is_capturing(dev, PER_THREAD).unwrap());
        d.stream_destroy(dev, s).unwrap();
    }
}

fn a_stream_runs_in_order(d: &Dut) {
    let b = block(d, 2);
    let (x, y) = (b.va, b.va + granule(d));
    let s = d.stream_create(D).unwrap();
    for round in 0..20u8 {
        d.set_async(D, x, round, 4096, s).unwrap();
        d.copy_async(D, y, x, 4096, s).unwrap();
        d.set_async(D, x, 0xFF, 4096, s).unwrap();
        assert_eq!(read(d, y, 4096, s), [round; 4096]);
    }
    d.stream_destroy(D, s).unwrap();
    b.drop(d);
}

fn an_event_orders_two_streams(d: &Dut) {
    let b = block(d, 2);
    let (x, y) = (b.va, b.va + granule(d));
    let (s, t) = (d.stream_create(D).unwrap(), d.stream_create(D).unwrap());
    for round in 0..20u8 {
        d.set_async(D, x, round, 100_000, s).unwrap();
        let e = recorded(d, s);
        d.stream_wait(D, t, e).unwrap();
        d.copy_async(D, y, x, 100_000, t).unwrap();
        let back = recorded(d, t);
        d.stream_wait(D, s, back).unwrap();
        // Destroying pending events takes nothing back.
        d.event_destroy(D, e).unwrap();
        d.event_destroy(D, back).unwrap();
        d.set_async(D, x, 0xFF, 100_000, s).unwrap();
        assert!(read(d, y, 100_000, t).iter().all(|v| *v == round), "round {round}");
    }
    d.device_sync(D).unwrap();
    d.stream_destroy(D, s).unwrap();
    d.stream_destroy(D, t).unwrap();
    b.drop(d);
}

fn events_complete(d: &Dut) {
    let b = block(d, 1);
    let s = d.stream_create(D).unwrap();
    let e = d.event_create(D).unwrap();
    assert!(d.event_query(D, e).unwrap(), "never recorded is done");
    d.event_sync(D, e).unwrap();
    d.stream_wait(D, s, e).unwrap();
    for round in 0..10u8 {
        d.set_async(D, b.va, round, b.size, s).unwrap();
        d.event_record(D, e, s).expect("recording again moves the mark");
        while !d.event_query(D, e).unwrap() {
            std::thread::yield_now();
        }
        d.set_async(D, b.va, round, b.size, s).unwrap();
        d.event_record(D, e, s).unwrap();
        d.event_sync(D, e).unwrap();
        assert!(d.event_query(D, e).unwrap());
    }
    assert_eq!(read(d, b.va, 10, s), [9; 10]);
    d.event_destroy(D, e).unwrap();
    d.stream_destroy(D, s).unwrap();
    b.drop(d);
}

fn a_context_mark_covers_every_stream(d: &Dut) {
    let b = block(d, 3);
    let g = granule(d);
    let streams: Vec<_> = (0..3).map(|_| d.stream_create(D).unwrap()).collect();
    for (i, s) in streams.iter().enumerate() {
        d.set_async(D, b.va + i as u64 * g, 0x40 + i as u8, g, *s).unwrap();
    }
    d.stream_destroy(D, streams[2]).unwrap();
    let e = d.event_create(D).unwrap();
    match d.context_record(D, e) {
        Err(x) if x.status == Status::Unsupported => d.device_sync(D).unwrap(),
        done => {
            done.unwrap();
            d.event_sync(D, e).unwrap();
            assert!(d.event_query(D, e).unwrap());
        }
    }
    let reader = d.stream_create(D).unwrap();
    for i in 0..3u8 {
        let got = read(d, b.va + u64::from(i) * g, g as usize, reader);
        assert!(got.iter().all(|v| *v == 0x40 + i), "stream {i}");
    }
    d.event_destroy(D, e).unwrap();
    for s in [streams[0], streams[1], reader] {
        d.stream_destroy(D, s).unwrap();
    }
    b.drop(d);
}

fn a_destroyed_stream_finishes_its_work(d: &Dut) {
    let b = block(d, 1);
    for round in 0..20u8 {
        let s = d.stream_create(D).unwrap();
        d.set_async(D, b.va, round, b.size, s).unwrap();
        d.stream_destroy(D, s).unwrap();
        d.device_sync(D).unwrap();
        assert_eq!(read(d, b.va + b.size - 9, 9, LEGACY), [round; 9]);
    }
    b.drop(d);
}

fn the_legacy_stream_waits_for_blocking_streams(d: &Dut) {
    let b = block(d, 2);
    let (x, y) = (b.va, b.va + granule(d));
    for round in 0..10u8 {
        d.set_async(D, x, round, 100_000, PER_THREAD).unwrap();
        d.copy_async(D, y, x, 100_000, LEGACY).unwrap();
        d.set_async(D, x, 0xFF, 100_000, PER_THREAD).unwrap();
        assert!(read(d, y, 100_000, LEGACY).iter().all(|v| *v == round), "round {round}");
    }
    b.drop(d);
}

// ---- data ---------------------------------------------------------------------------------------

fn copies_go_both_ways_at_any_alignment(d: &Dut) {
    let b = block(d, 2);
    let g = granule(d) as usize;
    for (at, len) in [(0, 1), (3, 17), (4095, 2), (g - 5, 10), (g - 1000, 70_001)] {
        let data = bytes(at as u8, len);
        d.set_async(D, b.va, 0xAA, b.size, LEGACY).unwrap();
        write(d, b.va + at as u64, &data, LEGACY);
        let all = read(d, b.va, b.size as usize, LEGACY);
        assert_eq!(all[at..at + len], data, "{len} bytes at {at}");
        assert!(all[..at].iter().chain(&all[at + len..]).all(|v| *v == 0xAA), "{len} bytes at {at}: spilt");
    }
    b.drop(d);
}

fn pageable_memory_can_be_reused_at_once(d: &Dut) {
    let b = block(d, 1);
    let s = d.stream_create(D).unwrap();
    for round in 0..20u8 {
        let mut data = bytes(round, 50_000);
        write(d, b.va, &data, s);
        data.fill(0xFF);
        let mut out = vec![0; 50_000];
        d.copy_async(D, out.as_mut_ptr() as u64, b.va, 50_000, s).unwrap();
        assert_eq!(out, bytes(round, 50_000), "a copy to pageable memory is complete on return");
    }
    d.stream_destroy(D, s).unwrap();
    b.drop(d);
}

fn fills_touch_what_they_are_told(d: &Dut) {
    let b = block(d, 2);
    let g = granule(d);
    d.set_async(D, b.va, 0, b.size, LEGACY).unwrap();
    for (at, len) in [(0, 1), (1, 3), (511, 514), (g - 1, 2)] {
        d.set_async(D, b.va + at, 0x77, len, LEGACY).unwrap();
        let all = read(d, b.va, b.size as usize, LEGACY);
        let hit = all.iter().filter(|v| **v == 0x77).count() as u64;
        assert_eq!(hit, len, "{len} bytes at {at}");
        assert!(all[at as usize..(at + len) as usize].iter().all(|v| *v == 0x77));
        d.set_async(D, b.va + at, 0, len, LEGACY).unwrap();
    }
    b.drop(d);
}

fn pinned_memory_is_memory(d: &Dut) {
    let b = block(d, 1);
    let s = d.stream_create(D).unwrap();
    for near in [false, true] {
        let p = if near { d.host_alloc_on(D, 100_000, Some(0)) } else { d.host_alloc(D, 100_000) }.unwrap();
        // SAFETY: `p` is host memory of that size, used by nobody else while the slice is.
        unsafe { std::slice::from_raw_parts_mut(p as *mut u8, 100_000) }.copy_from_slice(&bytes(5, 100_000));
        d.copy_async(D, b.va, p, 100_000, s).unwrap();
        d.copy_async(D, p, b.va + 1, 99_999, s).unwrap();
        d.stream_sync(D, s).unwrap();
        // SAFETY: as above; the copies are complete.
        assert_eq!(unsafe { std::slice::from_raw_parts(p as *const u8, 99_999) }, &bytes(5, 100_000)[1..]);
        d.host_free(D, p).unwrap();
    }
    d.stream_destroy(D, s).unwrap();
    b.drop(d);
}

fn pinned_memory_near_a_node_is_aligned(d: &Dut) {
    for (size, align) in [(1, 4096), (5000, 8192), (1 << 20, 1 << 20), ((3 << 20) + 1, 2 << 20)] {
        // One after the other, so that what is left between them is not always as good.
        let all: Vec<u64> = [None, Some(0), Some(9), Some(u32::MAX)]
            .into_iter()
            .map(|numa| d.host_alloc_on(D, size, numa).unwrap())
            .collect();
        for p in all {
            assert!(p.is_multiple_of(align), "{size} bytes at {p:#x}");
            d.host_free(D, p).unwrap();
        }
    }
    assert_eq!(d.host_alloc_on(D, 0, None).unwrap_err().status, Status::Invalid);
}

fn native_memory_follows_stream_order(d: &Dut) {
    let s = d.stream_create(D).unwrap();
    for round in 0..10u8 {
        let p = d.native_alloc(D, 1_000_000, s).unwrap();
        let q = d.native_alloc(D, 5000, s).unwrap();
        assert!(p + 1_000_000 <= q || q + 5000 <= p);
        d.set_async(D, p, round, 1_000_000, s).unwrap();
        d.copy_async(D, q, p + 999_000, 1000, s).unwrap();
        d.native_free(D, p, s).unwrap();
        assert_eq!(read(d, q, 1000, s), [round; 1000]);
        d.native_free(D, q, s).unwrap();
    }
    d.stream_sync(D, s).unwrap();
    d.stream_destroy(D, s).unwrap();
}

// ---- the suite and its instances ----------------------------------------------------------------

macro_rules! suite {
    ($($name:ident,)*) => {
        const SUITE: &[(&str, fn(&Dut))] = &[$((stringify!($name), $name)),*];

        mod host {
            $(#[test] fn $name() { super::on_host(super::$name) })*
        }
    };
}

suite! {
    devices_are_described,
    current_device_is_per_thread,
    any_thread_may_call_and_keeps_its_device,
    peers_share_memory,
    reservations_are_aligned_and_disjoint,
    reservation_rules,
    physical_memory_has_sizes_and_an_end,
    memory_is_accounted,
    map_rules,
    access_rules,
    unmap_rules,
    a_reservation_in_use_stays,
    one_call_covers_many_mappings,
    double_mapping_shows_the_same_bytes,
    memory_moves_to_another_address,
    a_mapping_outlives_its_handle,
    exported_memory_is_the_same_memory,
    export_rules,
    stream_identities_are_never_reused,
    default_streams_have_identities,
    streams_know_their_device_and_are_not_captured,
    a_stream_runs_in_order,
    an_event_orders_two_streams,
    events_complete,
    a_context_mark_covers_every_stream,
    a_destroyed_stream_finishes_its_work,
    the_legacy_stream_waits_for_blocking_streams,
    copies_go_both_ways_at_any_alignment,
    pageable_memory_can_be_reused_at_once,
    fills_touch_what_they_are_told,
    pinned_memory_is_memory,
    pinned_memory_near_a_node_is_aligned,
    native_memory_follows_stream_order,
    a_graph_does_its_work_at_each_launch,
    a_graph_copies_pinned_memory_as_it_is_at_each_launch,
    launches_of_a_graph_follow_each_other_on_whatever_streams,
    a_capture_is_seen_while_it_lasts,
    capture_rules,
    a_spoilt_capture_gives_no_graph,
    a_relaxed_capture_minds_no_call_on_other_streams,
    nodes_are_counted,
    a_destroyed_graph_finishes_its_launches,
    tokens_come_back_when_their_graph_is_gone,
}

/// The host device for users, then in simulation under several seeds, then with one device and no
/// peers, through the wrappers. Nothing in the suite is a mistake, so nothing may be reported.
fn on_host(check: fn(&Dut)) {
    let two = |o: HostOptions| HostOptions { devices: 2, ..o };
    let mut variants = vec![two(HostOptions::default())];
    variants.extend((0..4).map(|seed| two(HostOptions::simulation(seed))));
    for options in variants {
        let host = HostDriver::new(options.clone()).unwrap();
        check(&(host.clone() as Dut));
        assert_eq!(host.take_reports(), [], "{options:?}");
        for dev in [DeviceId(0), DeviceId(1)] {
            host.device_sync(dev).unwrap();
            let left = host.mem_info(dev).unwrap();
            assert_eq!(left.free, left.total, "memory left over with {options:?}");
        }
    }
    let host = HostDriver::new(HostOptions { peers: false, ..HostOptions::simulation(9) }).unwrap();
    check(&(Arc::new(Counted::new(Arc::new(Fault::new(host.clone())))) as Dut));
    assert_eq!(host.take_reports(), []);
}

#[test]
fn cuda() {
    let driver = match cuda::open() {
        Ok(driver) => driver,
        Err(e) if e.status == Status::NoDevice => {
            println!("skipped: the driver contract on CUDA: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    let driver = driver as Dut;
    let failed: Vec<_> = SUITE
        .iter()
        .filter(|(_, check)| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&driver))).is_err())
        .map(|(name, _)| name)
        .collect();
    assert!(failed.is_empty(), "broken on CUDA: {failed:?}");
}

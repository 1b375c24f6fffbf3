//! What memory costs, and that it goes back.

use super::*;

#[test]
fn capacity_is_exact() {
    let d = HostDriver::new(HostOptions { bytes_per_device: 10 * M2 + 5, ..HostOptions::simulation(1) }).unwrap();
    assert_eq!(d.mem_info(D).unwrap().total, 10 * M2);
    let a = d.phys_create(D, 6 * M2, PhysFlags::default()).unwrap();
    let b = d.phys_create(D, 3 * M2, PhysFlags { posix_fd: true, rdma: false }).unwrap();
    assert_eq!(d.mem_info(D).unwrap().free, M2);
    let e = d.phys_create(D, 2 * M2, PhysFlags::default()).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory);
    assert!(e.message.contains("4.00 MiB") && e.message.contains("2.00 MiB"), "asked and available: {e}");
    let imported = d.phys_import(D, &d.phys_export(b).unwrap()).unwrap();
    assert_eq!(d.mem_info(D).unwrap().free, M2, "an import of one's own costs nothing");
    d.phys_release(b).unwrap();
    assert_eq!(d.mem_info(D).unwrap().free, M2, "the import keeps the memory");
    d.phys_release(imported).unwrap();
    assert_eq!(d.mem_info(D).unwrap().free, 4 * M2);
    let c = d.phys_create(D, 4 * M2, PhysFlags::default()).unwrap();
    assert_eq!(d.mem_info(D).unwrap().free, 0);
    d.phys_release(a).unwrap();
    d.phys_release(c).unwrap();
    assert_eq!(d.mem_info(D).unwrap().free, 10 * M2);
}

#[test]
fn native_memory_waits_for_frees_on_their_way() {
    let d = HostDriver::new(HostOptions { bytes_per_device: M2, ..HostOptions::simulation(1) }).unwrap();
    let s = stream(&d);
    for _ in 0..10 {
        let p = d.native_alloc(D, M2, s).unwrap();
        d.set_async(D, p, 1, M2, s).unwrap();
        d.native_free(D, p, s).unwrap();
    }
    let p = d.native_alloc(D, M2, s).unwrap();
    assert_eq!(d.native_alloc(D, 1, s).unwrap_err().status, Status::OutOfMemory);
    d.native_free(D, p, s).unwrap();
    d.device_sync(D).unwrap();
    assert_eq!(d.mem_info(D).unwrap().free, M2);
    assert_eq!(d.take_reports(), []);
}

#[test]
fn released_memory_really_goes_back() {
    let d = eager();
    let (va, h) = mapped(&d, 32 * MIB);
    let (vb, hb) = mapped(&d, 4 * MIB);
    assert_eq!(d.resident_bytes(D).unwrap(), 0, "nothing touched yet");
    d.set_async(D, va, 1, 32 * MIB, LEGACY).unwrap();
    d.set_async(D, vb, 2, 4 * MIB, LEGACY).unwrap();
    d.device_sync(D).unwrap();
    assert!(d.resident_bytes(D).unwrap() >= 36 * MIB);
    d.phys_release(h).unwrap();
    assert!(d.resident_bytes(D).unwrap() >= 36 * MIB, "still mapped");
    d.unmap(va, 32 * MIB).unwrap();
    let left = d.resident_bytes(D).unwrap();
    assert!((4 * MIB..5 * MIB).contains(&left), "{left} bytes left");
    d.unmap(vb, 4 * MIB).unwrap();
    d.phys_release(hb).unwrap();
    assert_eq!(d.resident_bytes(D).unwrap(), 0);
}

#[test]
fn adjacent_extents_coalesce_into_one_mapping() {
    let n = 8192;
    let d = eager();
    let va = d.va_reserve(D, n * M2, M2).unwrap();
    let mut handles = Vec::new();
    for i in 0..n {
        let h = d.phys_create(D, M2, PhysFlags::default()).unwrap();
        d.map(D, va + i * M2, M2, h).unwrap();
        handles.push(h);
    }
    d.set_access(va, n * M2, &[D]).unwrap();
    let count = mappings_within(va..va + n * M2);
    assert!(count <= 4, "{count} mappings for {n} adjacent extents");
    // Also when each gets its access by itself.
    let vb = d.va_reserve(D, n * M2, M2).unwrap();
    for (i, h) in handles.iter().enumerate() {
        d.map(D, vb + i as u64 * M2, M2, *h).unwrap();
        d.set_access(vb + i as u64 * M2, M2, &[D]).unwrap();
    }
    let count = mappings_within(vb..vb + n * M2);
    assert!(count <= 4, "{count} mappings for {n} adjacent extents mapped one by one");
    d.unmap(va, n * M2).unwrap();
    let count = mappings_within(va..va + n * M2);
    assert!(count <= 4, "{count} mappings for {n} unmapped extents");
}

#[test]
fn blocks_can_be_taken_and_given_back_for_ever() {
    // 128 PiB one after another, twice what a device has keys for.
    let d = eager();
    for _ in 0..16 << 10 {
        let p = d.host_alloc(D, 8 * TIB).unwrap();
        d.host_free(D, p).unwrap();
    }
}

#[test]
fn large_reservations_and_untouched_memory_cost_nothing() {
    let d = eager();
    let va = d.va_reserve(D, 8 * TIB, GIB).unwrap();
    let h = d.phys_create(D, 16 * GIB, PhysFlags::default()).unwrap();
    d.map(D, va + 4 * TIB, 16 * GIB, h).unwrap();
    d.set_access(va + 4 * TIB, 16 * GIB, &[D]).unwrap();
    d.set_async(D, va + 4 * TIB + 16 * GIB - 8, 1, 8, LEGACY).unwrap();
    d.device_sync(D).unwrap();
    assert!(d.resident_bytes(D).unwrap() <= M2);
    d.unmap(va + 4 * TIB, 16 * GIB).unwrap();
    d.phys_release(h).unwrap();
    d.va_free(D, va, 8 * TIB).unwrap();
}

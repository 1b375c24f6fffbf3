//! Rules that CUDA has but cannot test for: calls with dead or foreign handles, and options.

use super::*;

#[test]
fn dead_and_bogus_streams_are_told_apart_from_live_ones() {
    let d = eager();
    let (va, _) = mapped(&d, M2);
    let s = stream(&d);
    let id = d.stream_id(D, s).unwrap();
    let e = d.event_create(D).unwrap();
    d.stream_destroy(D, s).unwrap();
    for bad in [s, StreamHandle(12345), StreamHandle(s.0 + 1), StreamHandle(s.0 + (1 << 30))] {
        let all = [
            d.stream_id(D, bad).err(),
            d.stream_device(bad).err(),
            d.stream_is_capturing(D, bad).err(),
            d.stream_destroy(D, bad).err(),
            d.stream_sync(D, bad).err(),
            d.stream_wait(D, bad, e).err(),
            d.event_record(D, e, bad).err(),
            d.copy_async(D, va, va + 64, 8, bad).err(),
            d.set_async(D, va, 0, 8, bad).err(),
            d.native_alloc(D, 8, bad).err(),
        ];
        for (i, e) in all.into_iter().enumerate() {
            assert_eq!(e.map(|e| e.status), Some(Status::InvalidStream), "call {i} with {bad}");
        }
    }
    let again = stream(&d);
    assert_eq!(again, s, "the handle is given out again at once");
    assert_ne!(d.stream_id(D, again).unwrap(), id);
    assert_eq!(d.stream_destroy(D, LEGACY).unwrap_err().status, Status::Invalid);
    assert_eq!(d.stream_destroy(D, PER_THREAD).unwrap_err().status, Status::Invalid);
    assert!(d.event_query(D, e).unwrap());
}

#[test]
fn stream_handles_are_reused_last_in_first_out() {
    let d = eager();
    let s: Vec<_> = (0..3).map(|_| stream(&d)).collect();
    for i in [0, 2, 1] {
        d.stream_destroy(D, s[i]).unwrap();
    }
    assert_eq!([stream(&d), stream(&d), stream(&d)], [s[1], s[2], s[0]]);
}

#[test]
fn thousands_of_streams_come_and_go() {
    let d = simulation(1);
    let (va, _) = mapped(&d, M2);
    for i in 0..5000 {
        let s = stream(&d);
        d.launch(D, s, writer("short", va..va + 8)).unwrap();
        if i % 2 == 0 {
            d.stream_destroy(D, s).unwrap();
            d.device_sync(D).unwrap();
        } else {
            d.stream_sync(D, s).unwrap();
            d.stream_destroy(D, s).unwrap();
        }
    }
    assert_eq!(d.take_reports(), []);
}

#[test]
fn dropped_things_stay_dropped() {
    let d = eager();
    let h = d.phys_create(D, M2, PhysFlags::default()).unwrap();
    d.phys_release(h).unwrap();
    let before = d.mem_info(D).unwrap();
    assert_eq!(d.phys_release(h).unwrap_err().status, Status::Invalid);
    assert_eq!(d.phys_release(PhysHandle(999)).unwrap_err().status, Status::Invalid);
    let va = d.va_reserve(D, M2, M2).unwrap();
    assert_eq!(d.map(D, va, M2, h).unwrap_err().status, Status::Invalid);
    d.va_free(D, va, M2).unwrap();
    assert_eq!(d.va_free(D, va, M2).unwrap_err().status, Status::Invalid);
    let e = d.event_create(D).unwrap();
    d.event_destroy(D, e).unwrap();
    for bad in [e, EventHandle(999)] {
        assert!(d.event_query(D, bad).is_err() && d.event_sync(D, bad).is_err() && d.event_destroy(D, bad).is_err());
        assert!(d.event_record(D, bad, LEGACY).is_err() && d.stream_wait(D, LEGACY, bad).is_err());
        assert!(d.context_record(D, bad).is_err());
    }
    let p = d.host_alloc(D, 100).unwrap();
    d.host_free(D, p).unwrap();
    assert!(d.host_free(D, p).is_err() && d.host_free(D, 0).is_err());
    let p = d.native_alloc(D, 100, LEGACY).unwrap();
    assert!(d.unmap(p, 4096).is_err(), "not the caller's to unmap");
    d.native_free(D, p, LEGACY).unwrap();
    assert!(d.native_free(D, p, LEGACY).is_err());
    assert_eq!(d.mem_info(D).unwrap(), before);
}

#[test]
fn a_native_free_is_final_once_submitted() {
    let d = simulation(1);
    let s = stream(&d);
    let p = d.native_alloc(D, MIB, s).unwrap();
    d.hold(D, s).unwrap();
    d.native_free(D, p, s).unwrap();
    assert!(d.native_free(D, p, s).unwrap_err().message.contains("already"));
    d.release(D, s).unwrap();
    // Use that is not ordered before the free.
    let (p, t) = (d.native_alloc(D, MIB, s).unwrap(), stream(&d));
    d.launch(D, t, writer("unordered", p..p + 8)).unwrap();
    d.stream_sync(D, s).unwrap();
    for _ in 0..1000 {
        d.mem_info(D).unwrap();
    }
    d.native_free(D, p, s).unwrap();
    d.device_sync(D).unwrap();
    assert_eq!(kinds(&d.take_reports()), [ReportKind::UnmapInUse]);
}

#[test]
fn streams_and_events_keep_to_their_devices() {
    let d = HostDriver::new(HostOptions { devices: 2, ..HostOptions::simulation(1) }).unwrap();
    let s = d.stream_create(E).unwrap();
    let e = d.event_create(D).unwrap();
    assert!(d.stream_id(D, s).is_err() && d.stream_sync(D, s).is_err() && d.event_record(E, e, s).is_err());
    // Waiting across devices is allowed.
    d.event_record(D, e, LEGACY).unwrap();
    d.stream_wait(E, s, e).unwrap();
    d.stream_sync(E, s).unwrap();
    assert!(d.event_query(D, e).unwrap());
}

#[test]
fn options_are_checked() {
    for bad in [
        HostOptions { devices: 0, ..HostOptions::default() },
        HostOptions { devices: 65, ..HostOptions::default() },
        HostOptions { granularity: 1000, ..HostOptions::default() },
        HostOptions { granularity: 0, ..HostOptions::default() },
        HostOptions { bytes_per_device: 4096, ..HostOptions::default() },
        HostOptions { bytes_per_device: u64::MAX, ..HostOptions::default() },
    ] {
        assert_eq!(HostDriver::new(bad.clone()).err().map(|e| e.status), Some(Status::Invalid), "{bad:?}");
    }
    let small = HostDriver::new(HostOptions { granularity: 65536, ..HostOptions::default() }).unwrap();
    let va = small.va_reserve(D, 65536, 65536).unwrap();
    let h = small.phys_create(D, 65536, PhysFlags::default()).unwrap();
    small.map(D, va, 65536, h).unwrap();
}

/// CUDA's documentation forbids these, and its driver lets them pass (seen on driver 580.159).
#[test]
fn ranges_end_where_mappings_and_reservations_do() {
    let d = eager();
    let va = d.va_reserve(D, 4 * M2, M2).unwrap();
    let [one, two] = [M2, 2 * M2].map(|size| d.phys_create(D, size, PhysFlags::default()).unwrap());
    assert!(d.map(D, va + 3 * M2, 2 * M2, two).is_err(), "over the end of the reservation");
    assert!(d.unmap(va, M2).is_err(), "nothing mapped");
    d.map(D, va, 2 * M2, two).unwrap();
    d.map(D, va + 3 * M2, M2, one).unwrap();
    assert!(d.set_access(va, 3 * M2, &[D]).is_err(), "runs into a gap");
    assert!(d.set_access(va, 4 * M2, &[D]).is_err(), "across a gap");
    assert!(d.unmap(va, 4 * M2).is_err(), "across a gap");
    d.unmap(va, 2 * M2).expect("a refused unmapping changes nothing");
    assert!(d.unmap(va, 2 * M2).is_err(), "unmapped already");
    d.unmap(va + 3 * M2, M2).expect("a refused unmapping changes nothing");
    d.phys_release(one).unwrap();
    d.phys_release(two).unwrap();
    d.va_free(D, va, 4 * M2).unwrap();
}

//! Accesses to memory that is not there, not accessible, not live or not declared.

use super::*;

#[test]
fn stale_access_is_a_report_not_a_crash() {
    for d in [simulation(1), eager()] {
        let (va, _) = mapped(&d, M2);
        let s = stream(&d);
        d.unmap(va, M2).unwrap();
        d.launch(D, s, Kernel::write_pattern("stale", va..va + 64, 1, 8)).unwrap();
        d.stream_sync(D, s).unwrap();
        let reports = d.take_reports();
        assert_eq!(kinds(&reports), [ReportKind::Fault], "{reports:#?}");
        assert_eq!(
            (reports[0].labels.as_slice(), &reports[0].range),
            (["stale".to_string()].as_slice(), &(va..va + 64))
        );
        // What the driver can see at submission it refuses.
        assert!(d.set_async(D, va, 0, 64, s).unwrap_err().message.contains("not mapped"));
        let buffer = [0u8; 64];
        assert!(d.copy_async(D, va, buffer.as_ptr() as u64, 64, s).is_err());
        assert!(d.copy_async(D, 8, va, 64, s).is_err());
    }
}

#[test]
fn access_is_per_device_and_per_set_access() {
    let d = HostDriver::new(HostOptions { devices: 2, ..HostOptions::simulation(1) }).unwrap();
    let va = d.va_reserve(D, M2, M2).unwrap();
    let h = d.phys_create(D, M2, PhysFlags::default()).unwrap();
    d.map(D, va, M2, h).unwrap();
    d.launch(D, LEGACY, writer("too early", va..va + 8)).unwrap();
    d.device_sync(D).unwrap();
    d.set_access(va, M2, &[D]).unwrap();
    d.launch(E, LEGACY, writer("from elsewhere", va..va + 8)).unwrap();
    d.device_sync(E).unwrap();
    let reports = d.take_reports();
    assert_eq!(kinds(&reports), [ReportKind::Fault; 2]);
    assert!(reports[0].text.contains("set_access") && reports[1].text.contains("device 1"), "{reports:#?}");
    d.set_access(va, M2, &[E]).unwrap();
    d.launch(E, LEGACY, writer("from elsewhere", va..va + 8)).unwrap();
    d.device_sync(E).unwrap();
    d.launch(D, LEGACY, writer("still", va..va + 8)).unwrap();
    d.device_sync(D).unwrap();
    assert_eq!(d.take_reports(), []);

    let d = HostDriver::new(HostOptions { devices: 2, peers: false, ..HostOptions::simulation(1) }).unwrap();
    assert!(!d.can_access(E, D).unwrap());
    let (va, _) = mapped(&d, M2);
    assert!(d.set_access(va, M2, &[D, E]).is_err());
}

#[test]
fn unmapping_under_running_work_is_reported() {
    let d = simulation(1);
    // Not run yet.
    let (va, _) = mapped(&d, M2);
    let s = stream(&d);
    d.hold(D, s).unwrap();
    d.launch(D, s, writer("pending", va..va + 8)).unwrap();
    d.unmap(va, M2).unwrap();
    d.release(D, s).unwrap();
    d.device_sync(D).unwrap();
    assert_eq!(kinds(&d.take_reports()), [ReportKind::UnmapInUse, ReportKind::Fault]);
    // Run, but the host cannot know.
    let (va, _) = mapped(&d, M2);
    let (a, b) = (stream(&d), stream(&d));
    d.launch(D, a, writer("unobserved", va..va + 8)).unwrap();
    order(&d, a, b);
    let e = recorded(&d, b);
    for _ in 0..1000 {
        d.mem_info(D).unwrap();
    }
    d.unmap(va, M2).unwrap();
    let reports = d.take_reports();
    assert_eq!(kinds(&reports), [ReportKind::UnmapInUse], "{reports:#?}");
    assert_eq!(reports[0].labels, ["unobserved"]);
    // Run, and the host knows through an event of another stream.
    let (va, _) = mapped(&d, M2);
    d.launch(D, a, writer("observed", va..va + 8)).unwrap();
    order(&d, a, b);
    d.event_record(D, e, b).unwrap();
    d.event_sync(D, e).unwrap();
    d.unmap(va, M2).unwrap();
    assert_eq!(d.take_reports(), []);
}

#[test]
fn only_the_alias_that_was_used_counts_when_unmapping() {
    let d = simulation(1);
    let (va, h) = mapped(&d, M2);
    let alias = d.va_reserve(D, M2, M2).unwrap();
    d.map(D, alias, M2, h).unwrap();
    d.set_access(alias, M2, &[D]).unwrap();
    let s = stream(&d);
    d.launch(D, s, writer("at the old address", va..va + 8)).unwrap();
    d.stream_sync(D, s).unwrap();
    d.hold(D, s).unwrap();
    d.launch(D, s, writer("at the new address", alias..alias + 8)).unwrap();
    d.unmap(va, M2).unwrap();
    assert_eq!(d.take_reports(), []);
    d.unmap(alias, M2).unwrap();
    assert_eq!(kinds(&d.take_reports()), [ReportKind::UnmapInUse]);
}

#[test]
fn use_outside_live_ranges_is_reported() {
    let d = simulation(1);
    let (va, _) = mapped(&d, M2);
    let s = stream(&d);
    d.mark_live(va..va + 1000, "x");
    d.mark_live(va + 1024..va + 2000, "y");
    d.launch(D, s, writer("inside", va + 10..va + 1000)).unwrap();
    assert_eq!(d.reports(), []);
    for (label, r) in [("overrun", va..va + 1001), ("across", va..va + 2000), ("nowhere", va + 3000..va + 3001)] {
        d.launch(D, s, writer(label, r.clone())).unwrap();
        let reports = d.take_reports();
        assert_eq!(kinds(&reports), [ReportKind::NotLive], "{label}: {reports:#?}");
        assert_eq!(reports[0].range, r);
    }
    // Submitted while live, freed before it runs: that is what stream-ordered free is for.
    d.hold(D, s).unwrap();
    d.launch(D, s, writer("before the free", va..va + 1000)).unwrap();
    assert!(d.mark_dead(va));
    d.launch(D, s, writer("after the free", va..va + 1000)).unwrap();
    d.release(D, s).unwrap();
    d.device_sync(D).unwrap();
    let reports = d.take_reports();
    assert_eq!(kinds(&reports), [ReportKind::NotLive]);
    assert_eq!(reports[0].labels, ["after the free"]);
    assert!(!d.mark_dead(va));
    d.mark_live(va + 1999..va + 3000, "z");
    assert_eq!(kinds(&d.take_reports()), [ReportKind::LiveOverlap]);
}

#[test]
fn patterns_catch_overwritten_memory() {
    let d = eager();
    let (va, _) = mapped(&d, M2);
    let s = stream(&d);
    let r = va + 24..va + 100_000;
    d.launch(D, s, Kernel::write_pattern("w", r.clone(), 7, 4096)).unwrap();
    d.copy_async(D, va + MIB, r.start, r.end - r.start, s).unwrap();
    d.launch(D, s, Kernel::check_pattern("c", r.clone(), 7, 4096)).unwrap();
    d.launch(D, s, Kernel::check_pattern("copy", va + MIB..va + MIB + (r.end - r.start), 7, 4096)).unwrap();
    assert_eq!(d.take_reports(), []);
    d.launch(D, s, Kernel::check_pattern("other", r.clone(), 8, 4096)).unwrap();
    d.set_async(D, r.end - 1, 0, 1, s).unwrap();
    d.launch(D, s, Kernel::check_pattern("spoilt", r, 7, 4096)).unwrap();
    let reports = d.take_reports();
    assert_eq!(kinds(&reports), [ReportKind::Check; 2]);
    assert_eq!((reports[0].labels[0].as_str(), reports[1].labels[0].as_str()), ("other", "spoilt"));
}

#[test]
fn a_kernel_touches_only_what_it_declared() {
    let d = eager();
    let (va, _) = mapped(&d, M2);
    let k = Kernel::new("sneaky").reads(va..va + 8).writes(va + 8..va + 16).body(move |k| {
        let mut b = [0; 8];
        k.load(va, &mut b);
        k.load(va + 8, &mut b);
        k.store(va + 8, &b);
        k.store(va, &b);
        k.load(va + 12, &mut b);
    });
    d.launch(D, LEGACY, k).unwrap();
    let reports = d.take_reports();
    assert_eq!(kinds(&reports), [ReportKind::Check; 2], "{reports:#?}");
}

//! The race checker.

use super::*;

#[test]
fn unordered_writes_race_and_an_event_cures_it() {
    always(ReportKind::Race, |d, va, a, b| {
        d.launch(D, a, writer("first", va..va + 4096)).unwrap();
        d.launch(D, b, writer("second", va + 4000..va + 5000)).unwrap();
    });
    never(|d, va, a, b| {
        d.launch(D, a, writer("first", va..va + 4096)).unwrap();
        order(d, a, b);
        d.launch(D, b, writer("second", va + 4000..va + 5000)).unwrap();
    });
}

#[test]
fn a_race_report_tells_the_whole_story() {
    let d = simulation(5);
    let (va, _) = mapped(&d, M2);
    let (a, b) = (stream(&d), stream(&d));
    d.launch(D, a, writer("producer", va..va + 4096)).unwrap();
    d.stream_sync(D, b).unwrap();
    d.launch(D, b, reader("consumer", va + 4000..va + 5000)).unwrap();
    d.device_sync(D).unwrap();
    let r = d.take_reports().pop().unwrap();
    let mut parties: Vec<_> = r.labels.iter().cloned().zip(r.streams.clone()).collect();
    parties.sort();
    let ids = (d.stream_id(D, a).unwrap(), d.stream_id(D, b).unwrap());
    assert_eq!(parties, [("consumer".to_string(), ids.1), ("producer".to_string(), ids.0)]);
    assert_eq!(r.range, va + 4000..va + 4096);
    assert!(r.text.contains("producer") && r.text.contains("consumer"), "{r}");
    for stream in [a, b] {
        assert!(r.text.contains(&format!("(operation 1 of stream {stream} of device 0)")), "{r}");
    }
}

#[test]
fn reads_race_with_writes_only() {
    never(|d, va, a, b| {
        d.launch(D, a, reader("one", va..va + 4096)).unwrap();
        d.launch(D, b, reader("two", va..va + 4096)).unwrap();
    });
    always(ReportKind::Race, |d, va, a, b| {
        d.launch(D, a, reader("one", va..va + 4096)).unwrap();
        d.launch(D, b, writer("two", va..va + 1)).unwrap();
    });
    never(|d, va, a, b| {
        d.launch(D, a, writer("one", va..va + 4096)).unwrap();
        d.launch(D, b, writer("neighbour", va + 4096..va + 8192)).unwrap();
    });
}

#[test]
fn copies_and_fills_race_like_kernels() {
    always(ReportKind::Race, |d, va, a, b| {
        d.set_async(D, va, 1, 100, a).unwrap();
        d.copy_async(D, va + M2, va + 50, 100, b).unwrap();
    });
    never(|d, va, a, b| {
        d.set_async(D, va, 1, 100, a).unwrap();
        order(d, a, b);
        d.copy_async(D, va + M2, va + 50, 100, b).unwrap();
    });
    let pinned = |ordered: bool| {
        move |d: &HostDriver, va: u64, a: StreamHandle, b: StreamHandle| {
            let p = d.host_alloc(D, 4096).unwrap();
            d.copy_async(D, p, va, 4096, a).unwrap();
            if ordered {
                order(d, a, b);
            }
            d.copy_async(D, va + M2, p, 4096, b).unwrap();
        }
    };
    always(ReportKind::Race, pinned(false));
    never(pinned(true));
}

#[test]
fn aliases_of_one_handle_race() {
    let through_alias = |ordered: bool| {
        move |d: &HostDriver, _: u64, a: StreamHandle, b: StreamHandle| {
            let (va, h) = mapped(d, M2);
            let alias = d.va_reserve(D, M2, M2).unwrap();
            d.map(D, alias, M2, h).unwrap();
            d.set_access(alias, M2, &[D]).unwrap();
            d.launch(D, a, writer("old address", va + 64..va + 128)).unwrap();
            if ordered {
                order(d, a, b);
            }
            d.launch(D, b, reader("new address", alias + 100..alias + 200)).unwrap();
        }
    };
    always(ReportKind::Race, through_alias(false));
    never(through_alias(true));
}

#[test]
fn imported_memory_is_an_alias() {
    always(ReportKind::Race, |d, _, a, b| {
        let (va, alias) = (d.va_reserve(D, M2, M2).unwrap(), d.va_reserve(D, M2, M2).unwrap());
        let h = d.phys_create(D, M2, PhysFlags { posix_fd: true, rdma: false }).unwrap();
        let imported = d.phys_import(D, &d.phys_export(h).unwrap()).unwrap();
        d.map(D, va, M2, h).unwrap();
        d.map(D, alias, M2, imported).unwrap();
        d.set_access(va, M2, &[D]).unwrap();
        d.set_access(alias, M2, &[D]).unwrap();
        d.launch(D, a, writer("exporter", va..va + 8)).unwrap();
        d.launch(D, b, writer("importer", alias..alias + 8)).unwrap();
    });
}

#[test]
fn what_the_host_saw_complete_is_ordered() {
    type Observe = fn(&HostDriver, StreamHandle, EventHandle);
    let ways: [Observe; 4] = [
        |d, a, _| d.stream_sync(D, a).unwrap(),
        |d, _, _| d.device_sync(D).unwrap(),
        |d, _, e| d.event_sync(D, e).unwrap(),
        |d, _, e| while !d.event_query(D, e).unwrap() {},
    ];
    for observe in ways {
        never(|d, va, a, b| {
            d.launch(D, a, writer("first", va..va + 8)).unwrap();
            let e = recorded(d, a);
            observe(d, a, e);
            d.launch(D, b, writer("second", va..va + 8)).unwrap();
        });
        // Work submitted before the host looked is not ordered by it.
        always(ReportKind::Race, |d, va, a, b| {
            d.hold(D, b).unwrap();
            d.launch(D, a, writer("first", va..va + 8)).unwrap();
            d.launch(D, b, writer("second", va..va + 8)).unwrap();
            let e = recorded(d, a);
            d.release(D, b).unwrap();
            observe(d, a, e);
        });
    }
    // An unfinished look orders nothing.
    always(ReportKind::Race, |d, va, a, b| {
        d.hold(D, a).unwrap();
        d.launch(D, a, writer("first", va..va + 8)).unwrap();
        let e = recorded(d, a);
        assert!(!d.event_query(D, e).unwrap());
        d.launch(D, b, writer("second", va..va + 8)).unwrap();
        d.release(D, a).unwrap();
    });
}

#[test]
fn waiting_uses_the_mark_of_the_moment() {
    // The event moves on after the wait: the wait still covers only the first kernel.
    always(ReportKind::Race, |d, va, a, b| {
        let e = d.event_create(D).unwrap();
        d.launch(D, a, writer("one", va..va + 8)).unwrap();
        d.event_record(D, e, a).unwrap();
        d.stream_wait(D, b, e).unwrap();
        d.launch(D, a, writer("two", va + 8..va + 16)).unwrap();
        d.event_record(D, e, a).unwrap();
        d.launch(D, b, writer("three", va..va + 16)).unwrap();
    });
    // What comes after the mark is not covered.
    always(ReportKind::Race, |d, va, a, b| {
        let e = recorded(d, a);
        d.launch(D, a, writer("late", va..va + 8)).unwrap();
        d.stream_wait(D, b, e).unwrap();
        d.launch(D, b, writer("other", va..va + 8)).unwrap();
    });
}

#[test]
fn order_is_transitive() {
    never(|d, va, a, b| {
        let c = stream(d);
        d.launch(D, a, writer("first", va..va + 8)).unwrap();
        order(d, a, b);
        order(d, b, c);
        d.launch(D, c, writer("third", va..va + 8)).unwrap();
    });
}

#[test]
fn the_legacy_stream_orders_blocking_streams_only() {
    never(|d, va, _, _| {
        let s = d.stream_create_blocking(D).unwrap();
        d.launch(D, s, writer("blocking", va..va + 8)).unwrap();
        d.launch(D, LEGACY, writer("legacy", va..va + 8)).unwrap();
        d.launch(D, PER_THREAD, writer("per-thread", va..va + 8)).unwrap();
    });
    always(ReportKind::Race, |d, va, a, _| {
        d.launch(D, a, writer("non-blocking", va..va + 8)).unwrap();
        d.launch(D, LEGACY, writer("legacy", va..va + 8)).unwrap();
    });
    always(ReportKind::Race, |d, va, _, _| {
        let s = d.stream_create_blocking(D).unwrap();
        d.launch(D, s, writer("blocking", va..va + 8)).unwrap();
        d.launch(D, PER_THREAD, writer("per-thread", va..va + 8)).unwrap();
    });
}

#[test]
fn the_stream_of_a_thread_that_has_ended_races_with_the_next_threads() {
    let run = |seen: bool| {
        move |d: &HostDriver, va: u64, _: StreamHandle, _: StreamHandle| {
            for label in ["first thread", "second thread"] {
                let work = || {
                    d.launch(D, PER_THREAD, writer(label, va..va + 8)).unwrap();
                    if seen {
                        d.stream_sync(D, PER_THREAD).unwrap();
                    }
                };
                // Joined by hand: a scope's end does not wait for the thread's.
                std::thread::scope(|s| s.spawn(work).join().unwrap());
            }
        }
    };
    always(ReportKind::Race, run(false));
    never(run(true));
}

#[test]
fn the_legacy_stream_orders_what_a_complete_stream_waited_for() {
    // The wait is no operation of the blocking stream's: its work is complete, and the host has
    // seen that.
    never(|d, va, a, _| {
        let s = d.stream_create_blocking(D).unwrap();
        d.launch(D, s, writer("blocking", va + 8..va + 16)).unwrap();
        d.stream_sync(D, s).unwrap();
        d.launch(D, a, writer("waited for", va..va + 8)).unwrap();
        d.keep_up(true);
        let e = d.event_create(D).unwrap();
        d.context_record(D, e).unwrap();
        d.stream_wait(D, s, e).unwrap();
        d.launch(D, LEGACY, writer("legacy", va..va + 8)).unwrap();
    });
}

#[test]
fn a_context_mark_orders_what_a_complete_stream_waited_for() {
    // The wait is no operation of the complete stream's, and what it waited for is on another
    // device.
    for (waited, expected) in [(false, &[ReportKind::Race][..]), (true, &[])] {
        let d = HostDriver::new(HostOptions { devices: 2, ..HostOptions::simulation(1) }).unwrap();
        d.keep_up(true);
        let (va, _) = mapped(&d, M2);
        let (a, b, other) = (stream(&d), stream(&d), d.stream_create(E).unwrap());
        d.set_async(E, va, 1, 8, other).unwrap();
        let (there, here) = (d.event_create(E).unwrap(), d.event_create(D).unwrap());
        d.context_record(E, there).unwrap();
        if waited {
            d.stream_wait(D, a, there).unwrap();
        }
        d.context_record(D, here).unwrap();
        d.stream_wait(D, b, here).unwrap();
        d.launch(D, b, writer("ordered by the mark", va..va + 8)).unwrap();
        assert_eq!(kinds(&d.take_reports()), expected);
    }
}

#[test]
fn a_context_mark_orders_dead_streams_too() {
    let run = |marked: bool| {
        move |d: &HostDriver, va: u64, a: StreamHandle, b: StreamHandle| {
            d.launch(D, a, writer("last words", va..va + 8)).unwrap();
            d.stream_destroy(D, a).unwrap();
            // Takes over the handle, and must not take over the order.
            let c = stream(d);
            assert_eq!(c, a);
            if marked {
                let e = d.event_create(D).unwrap();
                d.context_record(D, e).unwrap();
                d.stream_wait(D, b, e).unwrap();
                d.stream_wait(D, c, e).unwrap();
            }
            d.launch(D, c, writer("heir", va..va + 8)).unwrap();
            order(d, c, b);
            d.launch(D, b, writer("bystander", va..va + 8)).unwrap();
        }
    };
    always(ReportKind::Race, run(false));
    never(run(true));
}

#[test]
fn checking_forgets_what_cannot_race_any_more() {
    // Many more segments than are kept: thinning must neither lose a race nor invent one.
    let d = simulation(2);
    let (va, _) = mapped(&d, 64 * MIB);
    let (a, b) = (stream(&d), stream(&d));
    d.launch(D, b, writer("early", va + 64 * MIB - 8..va + 64 * MIB)).unwrap();
    for i in 0..20_000u64 {
        let at = va + i * 1024;
        d.launch(D, a, writer("one of many", at..at + 512)).unwrap();
        if i % 500 == 0 {
            d.stream_sync(D, a).unwrap();
        }
    }
    d.stream_sync(D, a).unwrap();
    assert_eq!(d.take_reports(), []);
    d.launch(D, a, writer("late", va + 64 * MIB - 8..va + 64 * MIB)).unwrap();
    d.launch(D, b, writer("all", va..va + 32 * MIB)).unwrap();
    d.device_sync(D).unwrap();
    let reports = d.take_reports();
    assert_eq!(kinds(&reports), [ReportKind::Race], "{reports:#?}");
    assert_eq!(reports[0].labels, ["early", "late"]);
}

#[test]
fn checking_remembers_what_queued_work_may_race_with() {
    let d = simulation(2);
    let (va, _) = mapped(&d, 64 * MIB);
    let (a, b) = (stream(&d), stream(&d));
    d.hold(D, b).unwrap();
    d.launch(D, b, reader("submitted before the host saw the write", va..va + 512)).unwrap();
    for i in 0..20_000u64 {
        let at = va + i * 1024;
        d.launch(D, a, writer("one of many", at..at + 512)).unwrap();
        if i % 500 == 0 {
            d.stream_sync(D, a).unwrap();
        }
    }
    d.release(D, b).unwrap();
    d.device_sync(D).unwrap();
    assert_eq!(kinds(&d.take_reports()), [ReportKind::Race]);
}

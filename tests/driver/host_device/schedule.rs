//! The scheduler.

use super::*;

/// The order in which 40 kernels on four streams run under a seed.
fn schedule(seed: u64) -> Vec<u32> {
    let d = simulation(seed);
    let log = Arc::new(Mutex::new(Vec::new()));
    let streams: Vec<_> = (0..4).map(|_| stream(&d)).collect();
    for i in 0..40u32 {
        let log = log.clone();
        let k = Kernel::new("log").body(move |_| log.lock().unwrap().push(i));
        d.launch(D, streams[i as usize % 4], k).unwrap();
        if i % 10 == 9 {
            order(&d, streams[0], streams[1]);
        }
    }
    d.device_sync(D).unwrap();
    let order = log.lock().unwrap().clone();
    order
}

#[test]
fn a_seed_decides_the_schedule() {
    let orders: Vec<_> = (0..20).map(schedule).collect();
    for (seed, order) in orders.iter().enumerate() {
        assert_eq!(order, &schedule(seed as u64), "seed {seed} gave two schedules");
        for s in 0..4 {
            let of_stream: Vec<_> = order.iter().filter(|i| **i % 4 == s).collect();
            assert!(of_stream.is_sorted() && of_stream.len() == 10, "seed {seed} broke stream order: {order:?}");
        }
    }
    let mut distinct = orders.clone();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() >= 15, "only {} schedules from 20 seeds", distinct.len());
    assert!(orders.iter().any(|o| !o.is_sorted()), "work always ran in the order of submission");
}

#[test]
fn work_runs_late_in_simulation_and_at_once_when_eager() {
    let ran = |d: &HostDriver| {
        let flag = Arc::new(Mutex::new(false));
        let f = flag.clone();
        d.launch(D, stream(d), Kernel::new("flag").body(move |_| *f.lock().unwrap() = true)).unwrap();
        let ran = *flag.lock().unwrap();
        ran
    };
    assert!((0..8).all(|seed| !ran(&simulation(seed))), "a launch runs nothing that it submitted itself");
    assert!(ran(&eager()));
}

#[test]
fn a_held_stream_stands_still() {
    for d in [simulation(1), eager()] {
        let (va, _) = mapped(&d, M2);
        let (a, b) = (stream(&d), stream(&d));
        d.hold(D, a).unwrap();
        d.set_async(D, va, 1, 64, a).unwrap();
        let e = recorded(&d, a);
        d.stream_wait(D, b, e).unwrap();
        d.set_async(D, va, 2, 64, b).unwrap();
        assert!((0..100).all(|_| !d.event_query(D, e).unwrap()));
        for stuck in [d.stream_sync(D, a), d.stream_sync(D, b), d.event_sync(D, e), d.device_sync(D)] {
            assert!(stuck.unwrap_err().message.contains("held"));
        }
        let mut out = [0u8; 4];
        let copy = d.copy_async(D, out.as_mut_ptr() as u64, va, 4, b);
        assert!(copy.is_err(), "a copy to pageable memory has to wait, and cannot");
        d.release(D, a).unwrap();
        d.device_sync(D).unwrap();
        assert!(d.event_query(D, e).unwrap());
        assert_eq!(out, [0; 4], "the refused copy did not happen after all");
        d.copy_async(D, out.as_mut_ptr() as u64, va, 4, b).unwrap();
        assert_eq!(out, [2; 4]);
        assert_eq!(d.take_reports(), []);
    }
}

#[test]
fn threads_share_the_device() {
    for d in [simulation(3), eager()] {
        let (va, _) = mapped(&d, 4 * M2);
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let d = &d;
                scope.spawn(move || {
                    let r = va + t * M2..va + (t + 1) * M2;
                    let s = stream(d);
                    for id in 0..200 {
                        d.launch(D, s, Kernel::write_pattern("write", r.clone(), id, 4096)).unwrap();
                        d.launch(D, s, Kernel::check_pattern("check", r.clone(), id, 4096)).unwrap();
                    }
                    d.stream_sync(D, s).unwrap();
                    d.stream_destroy(D, s).unwrap();
                });
            }
        });
        assert_eq!(d.take_reports(), []);
    }
}

#[test]
fn a_kernel_may_call_the_driver_but_not_wait_for_it() {
    let d = eager();
    let s = stream(&d);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (inner, log) = (d.clone(), seen.clone());
    let k = Kernel::new("nosy").body(move |_| {
        let mut log = log.lock().unwrap();
        log.push(inner.mem_info(D).map(|_| ()).map_err(|e| e.message));
        log.push(inner.stream_sync(D, s).map_err(|e| e.message));
        log.push(inner.device_sync(D).map_err(|e| e.message));
    });
    d.launch(D, s, k).unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen[0].is_ok() && seen[1].is_err() && seen[2].is_err(), "{seen:?}");
}

#[test]
fn a_panicking_kernel_is_reported_and_the_stream_goes_on() {
    let d = eager();
    let s = stream(&d);
    d.launch(D, s, Kernel::new("bad").body(|_| panic!("on purpose"))).unwrap();
    d.launch(D, s, Kernel::new("good")).unwrap();
    d.stream_sync(D, s).unwrap();
    let reports = d.take_reports();
    assert_eq!(kinds(&reports), [ReportKind::Panic]);
    assert_eq!(reports[0].labels, ["bad"]);
}

#[test]
fn pageable_memory_is_taken_over_by_a_copy_that_runs_later() {
    let d = simulation(1);
    let (va, _) = mapped(&d, M2);
    let s = stream(&d);
    d.hold(D, s).unwrap();
    let mut data = vec![5u8; 1000];
    d.copy_async(D, va, data.as_ptr() as u64, 1000, s).expect("needs no waiting");
    data.fill(6);
    d.release(D, s).unwrap();
    d.copy_async(D, data.as_mut_ptr() as u64, va, 1000, s).unwrap();
    assert_eq!(data, [5; 1000]);
}

#[test]
fn events_lag_behind_and_streams_overtake_each_other() {
    let (mut pending, mut overtaken) = (0, 0);
    for seed in 0..50 {
        let d = simulation(seed);
        let (a, b) = (stream(&d), stream(&d));
        (0..10).for_each(|_| d.launch(D, a, Kernel::new("work")).unwrap());
        let e = recorded(&d, a);
        (0..10).for_each(|_| d.launch(D, b, Kernel::new("work")).unwrap());
        let f = recorded(&d, b);
        let (first, second) = (d.event_query(D, e).unwrap(), d.event_query(D, f).unwrap());
        pending += u32::from(!first);
        overtaken += u32::from(second && !first);
    }
    assert!(pending >= 10 && overtaken >= 2, "of 50 runs {pending} were pending and {overtaken} overtaken");
}

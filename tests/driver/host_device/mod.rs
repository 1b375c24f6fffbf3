//! The host device's own promises: its scheduler, its checks, the rules that CUDA has but cannot
//! test for, and its economy. What it shares with CUDA is in `contract.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod addresses;
mod capture;
mod economy;
mod graphs;
mod processes;
mod races;
mod rules;
mod schedule;

use gpumem::base::size::{GIB, MIB, TIB};
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel, Report, ReportKind};
use gpumem::driver::{Driver, EventHandle, PhysFlags, PhysHandle};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

const D: DeviceId = DeviceId(0);
const E: DeviceId = DeviceId(1);
const M2: u64 = 2 * MIB;
const LEGACY: StreamHandle = StreamHandle::LEGACY;
const PER_THREAD: StreamHandle = StreamHandle::PER_THREAD;

fn simulation(seed: u64) -> Arc<HostDriver> {
    HostDriver::new(HostOptions::simulation(seed)).unwrap()
}

fn eager() -> Arc<HostDriver> {
    HostDriver::new(HostOptions { check: true, ..HostOptions::default() }).unwrap()
}

/// New memory of its own reservation; the handle is returned too.
fn mapped(d: &HostDriver, size: u64) -> (u64, PhysHandle) {
    let va = d.va_reserve(D, size, M2).unwrap();
    let h = d.phys_create(D, size, PhysFlags::default()).unwrap();
    d.map(D, va, size, h).unwrap();
    d.set_access(va, size, &[D]).unwrap();
    (va, h)
}

fn stream(d: &HostDriver) -> StreamHandle {
    d.stream_create(D).unwrap()
}

fn recorded(d: &HostDriver, s: StreamHandle) -> EventHandle {
    let e = d.event_create(D).unwrap();
    d.event_record(D, e, s).unwrap();
    e
}

fn order(d: &HostDriver, first: StreamHandle, second: StreamHandle) {
    let e = recorded(d, first);
    d.stream_wait(D, second, e).unwrap();
    d.event_destroy(D, e).unwrap();
}

fn writer(label: &'static str, r: Range<u64>) -> Kernel {
    Kernel::new(label).writes(r)
}

fn reader(label: &'static str, r: Range<u64>) -> Kernel {
    Kernel::new(label).reads(r)
}

fn kinds(reports: &[Report]) -> Vec<ReportKind> {
    reports.iter().map(|r| r.kind).collect()
}

/// What the device reports about `work` once everything has run, under each of some seeds.
fn reported(work: impl Fn(&HostDriver, u64, StreamHandle, StreamHandle)) -> Vec<Vec<Report>> {
    (0..16)
        .map(|seed| {
            let d = simulation(seed);
            let (va, _) = mapped(&d, 2 * M2);
            let (a, b) = (stream(&d), stream(&d));
            work(&d, va, a, b);
            d.device_sync(D).unwrap();
            d.take_reports()
        })
        .collect()
}

fn always(kind: ReportKind, work: impl Fn(&HostDriver, u64, StreamHandle, StreamHandle)) {
    for (seed, reports) in reported(work).into_iter().enumerate() {
        assert!(!reports.is_empty() && reports.iter().all(|r| r.kind == kind), "seed {seed}: {reports:#?}");
    }
}

fn never(work: impl Fn(&HostDriver, u64, StreamHandle, StreamHandle)) {
    for (seed, reports) in reported(work).into_iter().enumerate() {
        assert_eq!(reports, [], "seed {seed}");
    }
}

fn mappings_within(r: Range<u64>) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|l| {
            let (start, end) = l.split_whitespace().next().unwrap().split_once('-').unwrap();
            let start = u64::from_str_radix(start, 16).unwrap();
            let end = u64::from_str_radix(end, 16).unwrap();
            start < r.end && r.start < end
        })
        .count()
}

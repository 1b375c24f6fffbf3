//! The host device's own promises: its scheduler, its checker and its economy. What it shares with CUDA is in
//! `driver_contract.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::base::{size::MIB, DeviceId, StreamHandle};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel, ReportKind};
use gpumem::driver::{Driver, PhysFlags};

const D: DeviceId = DeviceId(0);
const M2: u64 = 2 * MIB;

fn mapped(d: &HostDriver, size: u64) -> u64 {
    let va = d.va_reserve(D, size, M2).unwrap();
    let h = d.phys_create(D, size, PhysFlags::default()).unwrap();
    d.map(D, va, size, h).unwrap();
    d.set_access(va, size, &[D]).unwrap();
    d.phys_release(h).unwrap();
    va
}

#[test]
fn a_cross_stream_race_is_found_and_an_event_cures_it() {
    for (with_event, want) in [(false, vec![ReportKind::Race]), (true, vec![])] {
        for seed in 0..20 {
            let d = HostDriver::new(HostOptions::simulation(seed)).unwrap();
            let va = mapped(&d, M2);
            let (a, b) = (d.stream_create(D).unwrap(), d.stream_create(D).unwrap());
            d.launch(D, a, Kernel::write_pattern("first", va..va + 4096, 1, 64)).unwrap();
            if with_event {
                let e = d.event_create(D).unwrap();
                d.event_record(D, e, a).unwrap();
                d.stream_wait(D, b, e).unwrap();
                d.event_destroy(D, e).unwrap();
            }
            d.launch(D, b, Kernel::write_pattern("second", va..va + 4096, 2, 64)).unwrap();
            d.device_sync(D).unwrap();
            let reports = d.take_reports();
            assert_eq!(reports.iter().map(|r| r.kind).collect::<Vec<_>>(), want, "seed {seed}: {reports:#?}");
        }
    }
}

#[test]
fn data_moves() {
    let d = HostDriver::new(HostOptions::default()).unwrap();
    let va = mapped(&d, M2);
    let src = [7u8; 100];
    let mut dst = [0u8; 100];
    d.copy_async(D, va, src.as_ptr() as u64, 100, StreamHandle::LEGACY).unwrap();
    d.copy_async(D, dst.as_mut_ptr() as u64, va, 100, StreamHandle::LEGACY).unwrap();
    assert_eq!(src, dst);
    d.set_async(D, va, 9, M2, StreamHandle::LEGACY).unwrap();
    // SAFETY: mapped and accessible, and the device is eager.
    assert_eq!(unsafe { *((va + M2 - 1) as *const u8) }, 9);
    assert!(d.reports().is_empty());
}

//! Things that take a process of their own: sharing, faults, and what is left after a driver.

use super::*;
use test_support::{alone, child, role};

#[test]
fn exports_reach_other_processes() {
    let d = eager();
    let va = d.va_reserve(D, 2 * M2, M2).unwrap();
    if role().is_some() {
        let fd: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        let h = d.phys_import(D, &fd).unwrap();
        d.map(D, va, 2 * M2, h).unwrap();
        d.set_access(va, 2 * M2, &[D]).unwrap();
        d.launch(D, LEGACY, Kernel::check_pattern("from the parent", va..va + M2, 1, 4096)).unwrap();
        d.launch(D, LEGACY, Kernel::write_pattern("to the parent", va + M2..va + 2 * M2, 2, 4096)).unwrap();
        assert_eq!(d.take_reports(), []);
        let own = d.phys_create(D, M2, PhysFlags::default()).unwrap();
        let total = d.mem_info(D).unwrap().total;
        assert_eq!(d.mem_info(D).unwrap().free, total - M2, "the import is the exporter's memory");
        d.unmap(va, 2 * M2).unwrap();
        d.phys_release(h).unwrap();
        assert_eq!(d.mem_info(D).unwrap().free, total - M2);
        d.phys_release(own).unwrap();
        return;
    }
    let h = d.phys_create(D, 2 * M2, PhysFlags { posix_fd: true, rdma: false }).unwrap();
    d.map(D, va, 2 * M2, h).unwrap();
    d.set_access(va, 2 * M2, &[D]).unwrap();
    d.launch(D, LEGACY, Kernel::write_pattern("to the child", va..va + M2, 1, 4096)).unwrap();
    let fd = d.phys_export(h).unwrap();
    let out = child("host_device::processes::exports_reach_other_processes", "importer", Stdio::from(fd));
    assert!(out.status.success(), "{out:?}");
    d.launch(D, LEGACY, Kernel::check_pattern("from the child", va + M2..va + 2 * M2, 2, 4096)).unwrap();
    assert_eq!(d.take_reports(), []);
}

#[test]
fn stale_access_by_the_processor_faults() {
    if let Some(role) = role() {
        let d = eager();
        let (va, _) = mapped(&d, M2);
        // SAFETY: mapped and accessible.
        unsafe { std::ptr::write_volatile(va as *mut u8, 1) };
        match role.as_str() {
            "unmapped" => d.unmap(va, M2).unwrap(),
            "fine" => {}
            _ => unreachable!(),
        }
        // SAFETY: none when unmapped; that is the point, and the process is expendable.
        assert_eq!(unsafe { std::ptr::read_volatile(va as *const u8) }, 1);
        return;
    }
    let test = "host_device::processes::stale_access_by_the_processor_faults";
    assert!(child(test, "fine", Stdio::null()).status.success());
    assert_eq!(child(test, "unmapped", Stdio::null()).status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_dropped_driver_gives_everything_back() {
    // Where nobody else maps and opens things.
    alone!("a_dropped_driver_gives_everything_back");
    let open_files = || {
        let links =
            std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|f| std::fs::read_link(f.path()).ok());
        links.filter(|l| l.to_string_lossy().contains("gpumem-host-device")).count()
    };
    for d in [eager(), simulation(1)] {
        let (va, _) = mapped(&d, M2);
        let exported = d.phys_create(D, M2, PhysFlags { posix_fd: true, rdma: false }).unwrap();
        drop(d.phys_export(exported).unwrap());
        let p = d.host_alloc(D, MIB).unwrap();
        let q = d.native_alloc(D, MIB, LEGACY).unwrap();
        d.set_async(D, va, 1, M2, LEGACY).unwrap();
        assert_ne!(open_files(), 0);
        for at in [va, p, q] {
            assert_ne!(mappings_within(at..at + MIB), 0);
        }
        drop(d);
        for at in [va, p, q] {
            assert_eq!(mappings_within(at..at + MIB), 0, "{at:#x} is still mapped");
        }
    }
    assert_eq!(open_files(), 0);
}

#[test]
fn running_out_of_mappings_names_the_limit() {
    let limit: u64 = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if limit > 200_000 {
        println!("skipped: running out of mappings: vm.max_map_count is {limit}");
        return;
    }
    // It uses up the mappings of its process.
    alone!("running_out_of_mappings_names_the_limit");
    const PAGE: u64 = 4096;
    let d = HostDriver::new(HostOptions { granularity: PAGE, ..HostOptions::default() }).unwrap();
    let n = limit + 100;
    let va = d.va_reserve(D, n * PAGE, PAGE).unwrap();
    let mut handles: Vec<_> = (0..n).map(|_| d.phys_create(D, PAGE, PhysFlags::default()).unwrap()).collect();
    // Backwards, so that no two can be one mapping of the kernel's.
    handles.reverse();
    let refused = handles.iter().enumerate().find_map(|(i, h)| {
        let at = va + i as u64 * PAGE;
        d.map(D, at, PAGE, *h).err().map(|e| (i as u64, e))
    });
    let (i, e) = refused.expect("more mappings than the limit");
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    assert!(e.message.contains("vm.max_map_count"), "{e}");
    // Nothing happened to the refused one, and the others are as before.
    let h = handles[i as usize];
    assert!(d.unmap(va + i * PAGE, PAGE).is_err(), "it is not mapped");
    d.unmap(va + PAGE, PAGE).expect("unmapping works at the limit");
    d.unmap(va + 2 * PAGE, (i - 2) * PAGE).unwrap();
    d.map(D, va + i * PAGE, PAGE, h).unwrap();
    d.set_access(va + i * PAGE, PAGE, &[D]).unwrap();
    d.set_async(D, va + i * PAGE, 1, PAGE, LEGACY).unwrap();
    assert_eq!(d.take_reports(), []);
}

/// Beyond `ulimit -f` the kernel would end the process.
#[test]
fn the_longest_file_of_the_process_is_an_error() {
    alone!("the_longest_file_of_the_process_is_an_error");
    let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..HostOptions::default() }).unwrap();
    let limit = libc::rlimit { rlim_cur: 64 * MIB, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is this test's own; the process is this test's alone.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    for posix_fd in [false, true] {
        let flags = PhysFlags { posix_fd, ..PhysFlags::default() };
        let small = host.phys_create(D, 32 * MIB, flags).unwrap();
        let e = host.phys_create(D, 128 * MIB, flags).unwrap_err();
        assert!(e.status == Status::Driver && e.message.contains("ulimit -f"), "{e}");
        host.phys_release(small).unwrap();
    }
    assert_eq!(host.mem_info(D).unwrap().free, GIB);
}

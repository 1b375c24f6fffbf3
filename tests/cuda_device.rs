//! What the CUDA driver boundary promises and only a real GPU can show: that no call ends anybody's stream capture,
//! that stream identities are unique, that memory moved between addresses keeps its bytes. Skipped without a GPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::undocumented_unsafe_blocks)]

use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::driver::cuda::{self, CudaDriver};
use gpumem::driver::{Driver, PhysFlags};
use std::collections::HashSet;
use std::ffi::{c_void, CString};
use std::sync::Arc;

const D0: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;

fn gpu() -> Option<Arc<CudaDriver>> {
    match cuda::open() {
        Ok(driver) => Some(driver),
        Err(e) if e.status == Status::NoDevice => {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// The driver calls for captures, which the boundary does not have.
struct Capture {
    begin: unsafe extern "C" fn(usize, u32) -> u32,
    end: unsafe extern "C" fn(usize, *mut *mut c_void) -> u32,
    destroy: unsafe extern "C" fn(*mut c_void) -> u32,
}

impl Capture {
    fn load(driver: &CudaDriver) -> Capture {
        let library = CString::new(driver.library()).unwrap();
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY) };
        let symbol = |name: &str| {
            let name = CString::new(name).unwrap();
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!symbol.is_null(), "{name:?}");
            symbol
        };
        unsafe {
            Capture {
                begin: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, u32) -> u32>(symbol(
                    "cuStreamBeginCapture_v2",
                )),
                end: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, *mut *mut c_void) -> u32>(symbol(
                    "cuStreamEndCapture",
                )),
                destroy: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> u32>(symbol(
                    "cuGraphDestroy",
                )),
            }
        }
    }
}

/// Everything a pool may do while some stream is being captured. `capturing` is that stream.
fn what_is_legal_during_capture(d: &CudaDriver, capturing: StreamHandle) -> Vec<(&'static str, Result<(), String>)> {
    let mut done = Vec::new();
    let mut step = |name: &'static str, result: gpumem::base::Result<()>| {
        done.push((name, result.map_err(|e| e.to_string())));
    };
    step("stream_is_capturing", d.stream_is_capturing(D0, capturing).map(|yes| assert!(yes)));
    let refused = d.stream_id(D0, capturing).expect_err("there is no identity to be had during a capture");
    assert_eq!(refused.status, Status::Capturing, "{refused}");
    step("stream_device of the capturing stream", d.stream_device(capturing).map(drop));
    step("stream_id per thread", d.stream_id(D0, StreamHandle::PER_THREAD).map(drop));
    step("mem_info", d.mem_info(D0).map(drop));
    step("current_device", d.current_device().map(drop));
    let s = d.stream_create(D0).unwrap();
    let e = d.event_create(D0).unwrap();
    step("stream_id", d.stream_id(D0, s).map(drop));
    step("event_record", d.event_record(D0, e, s));
    step("event_query", d.event_query(D0, e).map(drop));
    step("event_sync", d.event_sync(D0, e));
    step("stream_wait", d.stream_wait(D0, s, e));
    step("stream_sync", d.stream_sync(D0, s));
    let native = d.native_alloc(D0, MIB, s);
    step("native_alloc", native.clone().map(drop));
    if let Ok(p) = native {
        step("set_async", d.set_async(D0, p, 1, MIB, s));
        step("native_free", d.native_free(D0, p, s));
    }
    let host = d.host_alloc(D0, MIB);
    step("host_alloc", host.clone().map(drop));
    if let Ok(p) = host {
        step("host_free", d.host_free(D0, p));
    }
    let size = d.device_props(D0).unwrap().granularity;
    let va = d.va_reserve(D0, size, size).unwrap();
    let h = d.phys_create(D0, size, PhysFlags::default()).unwrap();
    step("map", d.map(D0, va, size, h));
    step("set_access", d.set_access(va, size, &[D0]));
    step("unmap", d.unmap(va, size));
    step("phys_release", d.phys_release(h));
    step("va_free", d.va_free(D0, va, size));
    step("event_destroy", d.event_destroy(D0, e));
    step("stream_destroy", d.stream_destroy(D0, s));
    done
}

#[test]
fn no_call_ends_a_capture() {
    let Some(d) = gpu() else { return };
    let capture = Capture::load(&d);
    d.set_current_device(D0).unwrap();
    let mut failures = Vec::new();
    for (mode, mode_name) in [(0, "global"), (1, "thread-local"), (2, "relaxed")] {
        for elsewhere in [false, true] {
            let s = d.stream_create(D0).unwrap();
            assert_eq!(unsafe { (capture.begin)(s.0, mode) }, 0);
            let steps = if elsewhere {
                std::thread::scope(|t| t.spawn(|| what_is_legal_during_capture(&d, s)).join().unwrap())
            } else {
                what_is_legal_during_capture(&d, s)
            };
            let whose = if elsewhere { "another thread's" } else { "the thread's own" };
            for (step, result) in steps {
                if let Err(e) = result {
                    failures.push(format!("{step} during {whose} {mode_name} capture: {e}"));
                }
            }
            let mut graph = std::ptr::null_mut();
            let end = unsafe { (capture.end)(s.0, &mut graph) };
            if end != 0 {
                failures.push(format!("{whose} {mode_name} capture ended with CUDA error {end}"));
            } else {
                unsafe { (capture.destroy)(graph) };
            }
            d.stream_destroy(D0, s).unwrap();
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn stream_identities_are_never_reused_and_never_shared_by_devices() {
    let Some(d) = gpu() else { return };
    let mut seen = HashSet::new();
    for dev in (0..d.device_count()).map(DeviceId) {
        assert!(seen.insert(d.stream_id(dev, StreamHandle::LEGACY).unwrap()));
        assert_eq!(d.stream_id(dev, StreamHandle(1)), d.stream_id(dev, StreamHandle::LEGACY));
        for _ in 0..200 {
            let s = d.stream_create(dev).unwrap();
            assert_eq!(d.stream_device(s), Ok(dev));
            assert!(seen.insert(d.stream_id(dev, s).unwrap()), "an identity came twice");
            d.stream_destroy(dev, s).unwrap();
        }
    }
    let mine = d.stream_id(D0, StreamHandle::PER_THREAD).unwrap();
    assert_eq!(d.stream_id(D0, StreamHandle::PER_THREAD), Ok(mine));
    let theirs = std::thread::scope(|t| t.spawn(|| d.stream_id(D0, StreamHandle::PER_THREAD).unwrap()).join().unwrap());
    assert_ne!(mine, theirs);
}

#[test]
fn memory_mapped_at_two_addresses_is_one() {
    let Some(d) = gpu() else { return };
    let props = d.device_props(D0).unwrap();
    println!("{props:?}, {}, {}", d.version(), d.library());
    let size = 4 * props.granularity;
    let s = d.stream_create(D0).unwrap();
    let va = d.va_reserve(D0, 2 * size, props.granularity).unwrap();
    let h = d.phys_create(D0, size, PhysFlags::default()).unwrap();
    d.map(D0, va, size, h).unwrap();
    d.map(D0, va + size, size, h).unwrap();
    d.set_access(va, 2 * size, &[D0]).unwrap();
    d.phys_release(h).unwrap();
    d.set_async(D0, va, 0x5a, size, s).unwrap();
    let host = d.host_alloc(D0, size).unwrap();
    d.copy_async(D0, host, va + size, size, s).unwrap();
    d.stream_sync(D0, s).unwrap();
    let bytes = unsafe { std::slice::from_raw_parts(host as usize as *const u8, size as usize) };
    assert!(bytes.iter().all(|b| *b == 0x5a));
    d.host_free(D0, host).unwrap();
    d.unmap(va, 2 * size).unwrap();
    d.va_free(D0, va, 2 * size).unwrap();
    d.stream_destroy(D0, s).unwrap();
}

#[test]
fn exported_memory_comes_back() {
    let Some(d) = gpu() else { return };
    let props = d.device_props(D0).unwrap();
    if !props.posix_fd {
        println!("skipped: the device cannot export memory as a descriptor");
        return;
    }
    let size = props.granularity;
    let h = d.phys_create(D0, size, PhysFlags { posix_fd: true, rdma: props.rdma }).unwrap();
    let fd = d.phys_export(h).unwrap();
    let again = d.phys_import(D0, &fd).unwrap();
    d.phys_release(again).unwrap();
    d.phys_release(h).unwrap();
    let not_memory = std::fs::File::open("/dev/null").unwrap().into();
    let e = d.phys_import(D0, &not_memory).unwrap_err();
    assert!(e.message.contains("cuMemImportFromShareableHandle"), "{e}");
}

#[test]
fn asking_for_more_than_there_is_says_what_there_was() {
    let Some(d) = gpu() else { return };
    let props = d.device_props(D0).unwrap();
    let size = (props.total_bytes / props.granularity + 1) * props.granularity;
    let e = d.phys_create(D0, size, PhysFlags::default()).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory);
    assert!(e.message.contains("is free"), "{e}");
    assert!(d.mem_info(D0).is_ok(), "the next call works");
}

//! What the CUDA driver boundary promises and only a real GPU can show: that no call ends anybody's
//! stream capture, that stream identities are unique, that memory moved between addresses keeps its
//! bytes. Skipped without a GPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::undocumented_unsafe_blocks)]

use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::driver::cuda::{self, CudaDriver};
use gpumem::driver::{Driver, PhysFlags, Watch};
use gpumem::pool::{AllocRequest, Pool, PoolOptions};
use std::collections::HashSet;
use std::ffi::{c_void, CString};
use std::sync::{Arc, Mutex};

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

/// Held by tests that capture: what one does in the open would end another's capture.
static CAPTURING: Mutex<()> = Mutex::new(());

/// The driver calls for captures, which the boundary does not have.
struct Capture {
    create: unsafe extern "C" fn(*mut usize, u32) -> u32,
    sync: unsafe extern "C" fn(usize) -> u32,
    begin: unsafe extern "C" fn(usize, u32) -> u32,
    end: unsafe extern "C" fn(usize, *mut *mut c_void) -> u32,
    destroy: unsafe extern "C" fn(*mut c_void) -> u32,
    /// CUDA 12.3.
    to_graph: Option<ToGraph>,
    graph: unsafe extern "C" fn(*mut *mut c_void, u32) -> u32,
}

type ToGraph = unsafe extern "C" fn(usize, *mut c_void, *const c_void, *const c_void, usize, u32) -> u32;

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
                create: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut usize, u32) -> u32>(symbol(
                    "cuStreamCreate",
                )),
                sync: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> u32>(symbol(
                    "cuStreamSynchronize",
                )),
                begin: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, u32) -> u32>(symbol(
                    "cuStreamBeginCapture_v2",
                )),
                end: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, *mut *mut c_void) -> u32>(symbol(
                    "cuStreamEndCapture",
                )),
                destroy: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> u32>(symbol(
                    "cuGraphDestroy",
                )),
                to_graph: std::mem::transmute::<*mut c_void, Option<ToGraph>>(libc::dlsym(
                    handle,
                    c"cuStreamBeginCaptureToGraph".as_ptr(),
                )),
                graph: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut c_void, u32) -> u32>(symbol(
                    "cuGraphCreate",
                )),
            }
        }
    }
}

impl Capture {
    /// Ends the capture of a stream; the driver's answer.
    fn end(&self, s: StreamHandle) -> u32 {
        let mut graph = std::ptr::null_mut();
        let code = unsafe { (self.end)(s.0, &mut graph) };
        if code == 0 && !graph.is_null() {
            unsafe { (self.destroy)(graph) };
        }
        code
    }

    /// Begins a capture in a mode, into a new graph or into one that is there; which is to be
    /// destroyed after the end.
    fn start(&self, s: StreamHandle, mode: u32, to_graph: bool) -> Option<*mut c_void> {
        let Some(begin) = self.to_graph.filter(|_| to_graph) else {
            assert_eq!(unsafe { (self.begin)(s.0, mode) }, 0);
            return None;
        };
        let mut graph = std::ptr::null_mut();
        assert_eq!(unsafe { (self.graph)(&mut graph, 0) }, 0);
        assert_eq!(unsafe { begin(s.0, graph, std::ptr::null(), std::ptr::null(), 0, mode) }, 0);
        Some(graph)
    }

    /// Ends what [`Capture::start`] began; the driver's answer.
    fn finish(&self, s: StreamHandle, made: Option<*mut c_void>) -> u32 {
        let Some(made) = made else { return self.end(s) };
        let mut graph = std::ptr::null_mut();
        let code = unsafe { (self.end)(s.0, &mut graph) };
        assert!(code != 0 || graph == made);
        // A capture that was lost takes the graph along: driver 580 hangs in cuGraphDestroy on it.
        if code == 0 {
            unsafe { (self.destroy)(made) };
        }
        code
    }

    /// A stream that synchronises with the legacy stream.
    fn blocking_stream(&self) -> StreamHandle {
        let mut s = 0;
        assert_eq!(unsafe { (self.create)(&mut s, 0) }, 0);
        StreamHandle(s)
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
    let _alone = CAPTURING.lock().unwrap_or_else(|e| e.into_inner());
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

/// The watch, if this driver has one; said either way.
fn watch_of(d: &CudaDriver) -> Option<Watch> {
    let watch = d.stream_watch(D0);
    match &watch {
        Watch::Fields(f) => {
            println!("{}: a stream's id is at byte {}, its capture at {}", d.version(), f.id, f.capture);
            if !f.blocking {
                println!("places never seen before: if the tests here pass, enter them in PROVEN of src/driver/cuda/watch.rs");
            }
        }
        _ => println!("skipped: {} does not show its streams; the pool asks on every allocation", d.version()),
    }
    matches!(watch, Watch::Fields(_)).then_some(watch)
}

#[test]
fn what_is_seen_of_a_stream_is_what_the_driver_says() {
    let Some(d) = gpu() else { return };
    let _alone = CAPTURING.lock().unwrap_or_else(|e| e.into_inner());
    let Some(watch) = watch_of(&d) else { return };
    d.set_current_device(D0).unwrap();
    let capture = Capture::load(&d);
    let make = |i: usize| if i.is_multiple_of(2) { d.stream_create(D0).unwrap() } else { capture.blocking_stream() };
    let mut streams: Vec<StreamHandle> = (0..64).map(make).collect();
    let agrees = |s: StreamHandle| assert_eq!(watch.look(s), Some(d.stream_id(D0, s).unwrap()), "{s}");
    streams.iter().for_each(|&s| agrees(s));
    // One of its handles comes back with each new stream; whichever it is, it shows the new one.
    let mut came_back = 0;
    for round in 0..200 {
        let n = (round * 7) % streams.len();
        let old = streams[n];
        d.stream_destroy(D0, old).unwrap();
        streams[n] = make(n);
        came_back += u32::from(streams[n] == old);
        agrees(streams[n]);
        agrees(streams[(n + 1) % streams.len()]);
    }
    println!("{came_back} of 200 handles came back at once");
    streams.iter().for_each(|&s| agrees(s));
    for special in [StreamHandle::LEGACY, StreamHandle(1), StreamHandle::PER_THREAD] {
        assert_eq!(watch.look(special), None);
    }
    streams.into_iter().for_each(|s| d.stream_destroy(D0, s).unwrap());
}

#[test]
fn a_stream_that_is_being_captured_is_seen_to_be() {
    let Some(d) = gpu() else { return };
    let _alone = CAPTURING.lock().unwrap_or_else(|e| e.into_inner());
    let Some(watch) = watch_of(&d) else { return };
    d.set_current_device(D0).unwrap();
    let capture = Capture::load(&d);
    let event = d.event_create(D0).unwrap();
    for (mode, name) in [(0, "global"), (1, "thread-local"), (2, "relaxed")] {
        for (blocking, to_graph) in [(false, false), (true, false), (false, true), (true, true)] {
            if to_graph && capture.to_graph.is_none() {
                println!("skipped: {} has no cuStreamBeginCaptureToGraph", d.version());
                continue;
            }
            let make = || if blocking { capture.blocking_stream() } else { d.stream_create(D0).unwrap() };
            let (s, joined, bystander) = (make(), make(), make());
            let ids = [s, joined, bystander].map(|s| watch.look(s));
            let what = format!("{name} mode, blocking streams: {blocking}, into a graph that is there: {to_graph}");
            println!("{what}");
            assert!(ids.iter().all(Option::is_some), "{what}");
            for _ in 0..3 {
                let graph = capture.start(s, mode, to_graph);
                assert_eq!((watch.look(s), watch.look_captured(s)), (None, ids[0]), "{what}");
                assert!(ids[0].is_none_or(|id| watch.idle(s, id) != Some(true)), "{what}");
                let elsewhere = std::thread::scope(|t| t.spawn(|| watch.look(s)).join().unwrap());
                assert_eq!(elsewhere, None, "{what}: another thread looks");
                assert_eq!(watch.look(joined), ids[1], "{what}: not yet joined");
                d.event_record(D0, event, s).unwrap();
                d.stream_wait(D0, joined, event).unwrap();
                assert_eq!(watch.look(joined), None, "{what}: joined through an event");
                assert_eq!(watch.look(bystander), ids[2], "{what}: no part in it");
                d.event_record(D0, event, joined).unwrap();
                d.stream_wait(D0, s, event).unwrap();
                assert_eq!(capture.finish(s, graph), 0, "{what}");
                assert_eq!([s, joined, bystander].map(|s| watch.look(s)), ids, "{what}: after the end");
                assert!(ids[0].is_some_and(|id| watch.idle(s, id) == Some(true)), "{what}: after the end");
            }
            // Waiting for a stream that is being captured ends the capture.
            let graph = capture.start(s, mode, to_graph);
            assert_ne!(unsafe { (capture.sync)(s.0) }, 0, "{what}");
            assert!(d.stream_is_capturing(D0, s).unwrap(), "{what}: lost, and not ended yet");
            assert_eq!(watch.look(s), None, "{what}: lost, and not ended yet");
            assert_ne!(capture.finish(s, graph), 0, "{what}");
            assert_eq!(watch.look(s), ids[0], "{what}: after a lost capture");
            assert_eq!(d.stream_id(D0, s).ok(), ids[0], "{what}");
            [s, joined, bystander].into_iter().for_each(|s| d.stream_destroy(D0, s).unwrap());
        }
    }
    d.event_destroy(D0, event).unwrap();
}

/// A stream that was forked into a capture may be destroyed, and the capture goes on. It does not
/// look idle then. And the device cannot be waited for during a capture, whatever its mode.
#[test]
fn what_is_gone_says_nothing_about_a_capture_but_a_wait_does() {
    let Some(d) = gpu() else { return };
    let _alone = CAPTURING.lock().unwrap_or_else(|e| e.into_inner());
    let Some(watch) = watch_of(&d) else { return };
    d.set_current_device(D0).unwrap();
    let capture = Capture::load(&d);
    let event = d.event_create(D0).unwrap();
    for mode in 0..3 {
        let s = d.stream_create(D0).unwrap();
        for _ in 0..50 {
            let forks: Vec<StreamHandle> = (0..5).map(|_| d.stream_create(D0).unwrap()).collect();
            let graph = capture.start(s, mode, false);
            d.event_record(D0, event, s).unwrap();
            forks.iter().for_each(|&f| d.stream_wait(D0, f, event).unwrap());
            let ids: Vec<u64> = forks.iter().map(|&f| watch.look_captured(f).unwrap()).collect();
            for &f in &forks {
                d.event_record(D0, event, f).unwrap();
                d.stream_wait(D0, s, event).unwrap();
            }
            for n in 0..forks.len() {
                d.stream_destroy(D0, forks[n]).unwrap();
                assert!(!forks.iter().zip(&ids).any(|(&f, &id)| watch.idle(f, id) == Some(true)), "mode {mode}");
            }
            assert_eq!(capture.finish(s, graph), 0, "mode {mode}: the capture was lost");
        }
        let graph = capture.start(s, mode, false);
        assert!(d.device_sync(D0).is_err(), "mode {mode}");
        assert!(std::thread::scope(|t| t.spawn(|| d.device_sync(D0)).join().unwrap()).is_err(), "mode {mode}");
        capture.finish(s, graph);
        d.stream_destroy(D0, s).unwrap();
    }
    d.event_destroy(D0, event).unwrap();
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

/// A thread that has no context and allocates can use the memory with calls that need one, as after
/// cudaMallocAsync.
#[test]
fn a_thread_that_allocates_has_a_context_afterwards() {
    let Some(d) = gpu() else { return };
    let library = CString::new(d.library()).unwrap();
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY) };
    let symbol = |name: &std::ffi::CStr| {
        let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    };
    let current: unsafe extern "C" fn(*mut *mut c_void) -> u32 =
        unsafe { std::mem::transmute(symbol(c"cuCtxGetCurrent")) };
    let attribute: unsafe extern "C" fn(*mut c_void, i32, u64) -> u32 =
        unsafe { std::mem::transmute(symbol(c"cuPointerGetAttribute")) };
    let options = PoolOptions { va_size: 1 << 36, ..PoolOptions::default() };
    let pool = Pool::new(d.clone() as Arc<dyn Driver>, D0, options).unwrap();
    let s = d.stream_create(D0).unwrap();
    for stream in [StreamHandle::LEGACY, StreamHandle::PER_THREAD, s] {
        std::thread::scope(|t| {
            t.spawn(|| {
                let mut context = std::ptr::null_mut();
                assert_eq!(unsafe { current(&mut context) }, 0);
                assert!(context.is_null(), "a new thread has no context");
                let p = pool.malloc(&AllocRequest { size: MIB, stream, ..AllocRequest::default() }).unwrap();
                assert_eq!(unsafe { current(&mut context) }, 0);
                assert!(!context.is_null(), "{stream}: the primary context is current");
                // CU_POINTER_ATTRIBUTE_MEMORY_TYPE: CU_MEMORYTYPE_DEVICE is 2.
                let mut kind = 0u32;
                assert_eq!(unsafe { attribute((&raw mut kind).cast(), 2, p) }, 0);
                assert_eq!(kind, 2, "{stream}: device memory");
                pool.free(p, Some(stream)).unwrap();
            });
        });
    }
    d.stream_destroy(D0, s).unwrap();
}

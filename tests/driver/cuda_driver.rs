//! The CUDA driver's own logic (loading, contexts, capture modes, identities, errors) against a
//! library that stands in for libcuda and enforces the rules that a real driver punishes with a
//! crash. No GPU is needed; a C compiler is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::undocumented_unsafe_blocks)]

use gpumem::base::{DeviceId, Result, Status, StreamHandle};
use gpumem::driver::cuda::CudaDriver;
use gpumem::driver::{Driver, EventHandle, PhysFlags, PhysHandle};
use std::ffi::{c_char, c_int, c_long, c_uint, c_void, CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use test_support::{alone, c_compiler};

const D0: DeviceId = DeviceId(0);
const D1: DeviceId = DeviceId(1);
const EVENT: EventHandle = EventHandle(0x99);

/// Builds a variant of the stand-in under its own name: each test has its own library, hence its
/// own state.
fn build(name: &str, defines: &[&str]) -> Option<PathBuf> {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/driver/fake_cuda/libcuda.c");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcuda_{name}.so"));
    let mut cc = c_compiler();
    match cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(&out).arg(source).args(defines).status() {
        Err(e) => {
            println!("skipped: no C compiler ({cc:?}: {e})");
            None
        }
        Ok(status) => {
            assert!(status.success(), "the stand-in does not compile");
            Some(out)
        }
    }
}

fn open(path: &Path) -> Result<Arc<CudaDriver>> {
    CudaDriver::open_from(&[path.to_str().unwrap()])
}

/// The stand-in's own controls.
struct Fake(*mut c_void);

// A handle of the loader's, and what it names keeps its state per thread or behind calls of one
// test.
unsafe impl Sync for Fake {}

impl Fake {
    fn new(path: &Path) -> Fake {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
        assert!(!handle.is_null());
        Fake(handle)
    }
    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }
    fn int(&self, name: &str) -> i64 {
        let f: extern "C" fn() -> c_int = unsafe { std::mem::transmute(self.symbol(name)) };
        f().into()
    }
    fn long(&self, name: &str) -> i64 {
        let f: extern "C" fn() -> c_long = unsafe { std::mem::transmute(self.symbol(name)) };
        f()
    }
    fn set_mode(&self, mode: u32) {
        let f: extern "C" fn(c_uint) = unsafe { std::mem::transmute(self.symbol("fake_set_mode")) };
        f(mode);
    }
    fn primary(&self, device: i32) -> usize {
        let f: extern "C" fn(c_int) -> usize = unsafe { std::mem::transmute(self.symbol("fake_primary")) };
        f(device)
    }
    fn other(&self) -> usize {
        let f: extern "C" fn() -> usize = unsafe { std::mem::transmute(self.symbol("fake_other")) };
        f()
    }
    fn current(&self) -> usize {
        let f: extern "C" fn() -> usize = unsafe { std::mem::transmute(self.symbol("fake_current")) };
        f()
    }
    fn set_current(&self, context: usize) {
        let f: extern "C" fn(usize) = unsafe { std::mem::transmute(self.symbol("fake_set_current")) };
        f(context);
    }
    fn fail(&self, call: &str, code: i32) {
        let call = CString::new(call).unwrap();
        let f: extern "C" fn(*const c_char, c_int) = unsafe { std::mem::transmute(self.symbol("fake_fail")) };
        f(call.as_ptr(), code);
    }
    fn deinitialise(&self, on: i32) {
        let f: extern "C" fn(c_int) = unsafe { std::mem::transmute(self.symbol("fake_deinitialise")) };
        f(on);
    }
    fn threshold(&self, device: i32) -> u64 {
        let f: extern "C" fn(c_int) -> u64 = unsafe { std::mem::transmute(self.symbol("fake_threshold")) };
        f(device)
    }
    fn last_call(&self) -> String {
        let f: extern "C" fn() -> *const c_char = unsafe { std::mem::transmute(self.symbol("fake_last_call")) };
        unsafe { CStr::from_ptr(f()) }.to_str().unwrap().into()
    }
}

/// Every call of the boundary on a device, by name.
fn every_call(d: &CudaDriver, dev: DeviceId) -> Vec<(&'static str, Result<()>)> {
    let s = StreamHandle(0x3000);
    let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let host = d.host_alloc(dev, 64);
    let near = d.host_alloc_on(dev, 64, Some(0));
    vec![
        ("device_props", d.device_props(dev).map(drop)),
        ("can_access", d.can_access(dev, D1).map(drop)),
        ("mem_info", d.mem_info(dev).map(drop)),
        ("device_sync", d.device_sync(dev)),
        ("va_reserve", d.va_reserve(dev, 4096, 4096).map(drop)),
        ("va_free", d.va_free(dev, 4096, 4096)),
        ("phys_create", d.phys_create(dev, 4096, PhysFlags::default()).map(drop)),
        ("phys_release", d.phys_release(PhysHandle(77))),
        ("phys_export", d.phys_export(PhysHandle(77)).map(drop)),
        ("phys_import", d.phys_import(dev, &fd()).map(drop)),
        ("map", d.map(dev, 4096, 4096, PhysHandle(77))),
        ("set_access", d.set_access(4096, 4096, &[dev])),
        ("unmap", d.unmap(4096, 4096)),
        ("stream_device", d.stream_device(s).map(drop)),
        ("stream_id", d.stream_id(dev, s).map(drop)),
        ("stream_id per thread", d.stream_id(dev, StreamHandle::PER_THREAD).map(drop)),
        ("stream_is_capturing", d.stream_is_capturing(dev, s).map(drop)),
        ("stream_is_capturing legacy", d.stream_is_capturing(dev, StreamHandle::LEGACY).map(drop)),
        ("stream_create", d.stream_create(dev).map(drop)),
        ("stream_destroy", d.stream_destroy(dev, s)),
        ("stream_sync", d.stream_sync(dev, s)),
        ("stream_wait", d.stream_wait(dev, s, EVENT)),
        ("event_create", d.event_create(dev).map(drop)),
        ("event_destroy", d.event_destroy(dev, EVENT)),
        ("event_record", d.event_record(dev, EVENT, StreamHandle::LEGACY)),
        ("context_record", d.context_record(dev, EVENT)),
        ("event_query", d.event_query(dev, EVENT).map(drop)),
        ("event_sync", d.event_sync(dev, EVENT)),
        ("copy_async", d.copy_async(dev, 1, 2, 3, s)),
        ("set_async", d.set_async(dev, 1, 2, 3, s)),
        ("host_alloc", host.clone().map(drop)),
        ("host_free", host.and_then(|p| d.host_free(dev, p))),
        ("host_alloc_on", near.clone().map(drop)),
        ("host_free of registered memory", near.and_then(|p| d.host_free(dev, p))),
        ("native_alloc", d.native_alloc(dev, 64, s).map(drop)),
        ("native_free", d.native_free(dev, 0x42000, s)),
    ]
}

#[test]
fn a_missing_library_is_no_device_and_says_what_to_do() {
    let e = CudaDriver::open_from(&["libcuda_nowhere.so.9", "libcuda_nowhere.so"]).err().unwrap();
    assert_eq!(e.status, Status::NoDevice);
    for part in ["libcuda_nowhere.so.9", "libcuda_nowhere.so", "install"] {
        assert!(e.message.contains(part), "{part}: {e}");
    }
}

#[test]
fn a_library_that_does_not_load_is_not_taken_for_a_missing_one() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libcuda_broken.so");
    std::fs::write(&path, "not a library").unwrap();
    let e = open(&path).err().unwrap();
    assert_eq!(e.status, Status::Unsupported);
    assert!(e.message.contains("libcuda_broken.so"), "{e}");
}

#[test]
fn drivers_that_cannot_be_used_say_why() {
    for (name, defines, status, parts) in [
        ("old", &["-DVERSION=11040"][..], Status::Unsupported, &["CUDA 11.4", "CUDA 12.0", "libcuda_old"][..]),
        ("lacking", &["-DWITHOUT_MAP"], Status::Unsupported, &["cuMemMap", "CUDA 13.0", "libcuda_lacking"]),
        ("absent", &["-DINIT=100"], Status::NoDevice, &["no device", "CUDA_VISIBLE_DEVICES"]),
        ("stub", &["-DINIT=34"], Status::NoDevice, &["stub", "libcuda_stub"]),
        ("empty", &["-DDEVICES=0"], Status::NoDevice, &["no device"]),
        ("failing", &["-DINIT=999"], Status::Driver, &["cuInit", "CUDA_ERROR_UNKNOWN", "nvidia-smi"]),
    ] {
        let Some(path) = build(name, defines) else { return };
        let e = open(&path).err().unwrap_or_else(|| panic!("{name} opened"));
        assert_eq!(e.status, status, "{name}: {e}");
        for part in parts {
            assert!(e.message.contains(part), "{name}: {part:?} is not in {e}");
        }
    }
}

#[test]
fn every_call_leaves_the_threads_context_and_capture_mode_as_they_were() {
    let Some(path) = build("guards", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    for current in [0, fake.primary(0), fake.primary(1), fake.other()] {
        for mode in [0, 1, 2] {
            for dev in [D0, D1] {
                fake.set_current(current);
                fake.set_mode(mode);
                for (call, result) in every_call(&d, dev) {
                    result.unwrap_or_else(|e| panic!("{call} with {current:#x} current, mode {mode}: {e}"));
                }
                assert_eq!(fake.current(), current);
                assert_eq!(fake.int("fake_depth"), i64::from(current != 0));
                assert_eq!(fake.int("fake_mode"), i64::from(mode));
            }
        }
    }
    assert_eq!(fake.int("fake_retains"), 2, "each primary context is retained once");
}

#[test]
fn errors_too_leave_the_thread_as_it_was_and_name_call_code_and_sizes() {
    let Some(path) = build("errors", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    fake.set_mode(1);
    let check = |call: &str, code: i32, status: Status, parts: &[&str], f: &dyn Fn() -> Option<gpumem::base::Error>| {
        fake.fail(call, code);
        let e = f().unwrap_or_else(|| panic!("{call} with {code} passed"));
        fake.fail("", 0);
        assert_eq!(e.status, status, "{e}");
        for part in parts {
            assert!(e.message.contains(part), "{part:?} is not in {e}");
        }
        assert_eq!((fake.int("fake_depth"), fake.int("fake_mode")), (0, 1), "{call}");
    };
    let create = || d.phys_create(D1, 3 << 30, PhysFlags::default()).err();
    let oom =
        ["cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY (out of memory)", "3.00 GiB", "device 1", "1.00 MiB of 1.00 GiB"];
    check("cuMemCreate", 2, Status::OutOfMemory, &oom, &create);
    check("cuMemCreate", 801, Status::Unsupported, &["cuMemCreate"], &create);
    check("cuMemCreate", 123_456, Status::Driver, &["CUDA error 123456"], &create);
    check("cuMemCreate", 709, Status::ShuttingDown, &["exiting"], &create);
    check("cuDevicePrimaryCtxRetain", 2, Status::OutOfMemory, &["device 0"], &|| d.mem_info(D0).err());
    check("cuCtxPushCurrent_v2", 999, Status::Driver, &["cuCtxPushCurrent"], &create);
    check("cuThreadExchangeStreamCaptureMode", 999, Status::Driver, &["relaxed"], &|| d.event_query(D0, EVENT).err());
    check("cuEventQuery", 700, Status::Driver, &["ILLEGAL_ADDRESS", "earlier work"], &|| {
        d.event_query(D0, EVENT).err()
    });
    check("cuEventRecord", 400, Status::InvalidStream, &["0x3000"], &|| {
        d.event_record(D0, EVENT, StreamHandle(0x3000)).err()
    });
    check("cuCtxRecordEvent", 900, Status::Capturing, &["capture"], &|| d.context_record(D0, EVENT).err());
    fake.fail("cuEventQuery", 600);
    assert_eq!(d.event_query(D0, EVENT), Ok(false));
    fake.fail("", 0);
    assert_eq!(d.event_query(D0, EVENT), Ok(true));
}

/// Whether an address is mapped.
fn is_mapped(addr: u64) -> bool {
    let mut there = 0;
    unsafe { libc::mincore(addr as *mut c_void, 4096, &mut there) == 0 }
}

#[test]
fn pages_are_registered_and_go_when_they_are_freed() {
    let Some(path) = build("register", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    let large = d.host_alloc_on(D1, 300 << 20, Some(0)).unwrap();
    assert_eq!(fake.int("fake_registered"), 1);
    assert_eq!((fake.long("fake_last_size"), fake.long("fake_last_flags")), (300 << 20, 1), "portable");
    assert!(large.is_multiple_of(2 << 20));
    let small = d.host_alloc_on(D0, 1, None).unwrap();
    assert_eq!((fake.long("fake_last_size"), fake.int("fake_registered")), (4096, 2));
    let plain = d.host_alloc(D0, 64).unwrap();
    assert_eq!(fake.int("fake_registered"), 2);
    fake.fail("cuMemHostUnregister", 999);
    let e = d.host_free(D0, large).unwrap_err();
    assert!(e.message.contains("cuMemHostUnregister") && e.message.contains("300.00 MiB"), "{e}");
    fake.fail("", 0);
    assert!(is_mapped(large), "as before");
    for p in [large, plain, small] {
        d.host_free(D0, p).unwrap();
    }
    assert!(!is_mapped(large) && !is_mapped(small) && fake.int("fake_registered") == 0);
    let e = d.host_alloc_on(D0, 0, None).unwrap_err();
    assert_eq!(e.status, Status::Invalid);
    assert_eq!(d.host_alloc_on(D0, u64::MAX, None).unwrap_err().status, Status::Invalid);
    assert_eq!(d.host_alloc_on(D0, 1 << 60, None).unwrap_err().status, Status::OutOfMemory);
}

/// Bytes of address space that this process has.
fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn memory_that_cannot_be_registered_is_given_back() {
    alone!("memory_that_cannot_be_registered_is_given_back");
    let Some(path) = build("refuse", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    d.mem_info(D0).unwrap();
    fake.fail("cuMemHostRegister_v2", 2);
    let before = address_space();
    for _ in 0..8 {
        let e = d.host_alloc_on(D0, 256 << 20, Some(0)).unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory);
        assert!(e.message.contains("cuMemHostRegister") && e.message.contains("256.00 MiB"), "{e}");
        assert!(!e.message.contains("is free"), "that would be the device's memory: {e}");
    }
    assert!(address_space().saturating_sub(before) < 1 << 30, "{before}");
}

#[test]
fn a_driver_that_refuses_to_register_pins_memory_of_its_own() {
    alone!("a_driver_that_refuses_to_register_pins_memory_of_its_own");
    let Some(path) = build("unregistering", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    d.mem_info(D0).unwrap();
    let before = address_space();
    // CUDA_ERROR_INVALID_VALUE, _NOT_PERMITTED, _NOT_SUPPORTED.
    for refusal in [1, 800, 801] {
        fake.fail("cuMemHostRegister_v2", refusal);
        for _ in 0..8 {
            let p = d.host_alloc_on(D0, 64 << 20, Some(0)).unwrap();
            assert_eq!(fake.int("fake_registered"), 0);
            d.host_free(D0, p).unwrap();
        }
    }
    assert!(address_space().saturating_sub(before) < 256 << 20, "{before}");
}

#[test]
fn a_driver_that_cannot_register_pins_memory_of_its_own() {
    let Some(path) = build("unregistered", &["-DWITHOUT_REGISTER"]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    fake.fail("cuMemHostAlloc", 2);
    let e = d.host_alloc_on(D0, 4096, Some(0)).unwrap_err();
    assert!(e.status == Status::OutOfMemory && e.message.contains("cuMemHostAlloc"), "{e}");
    fake.fail("", 0);
    let p = d.host_alloc_on(D0, 4096, Some(0)).unwrap();
    d.host_free(D0, p).unwrap();
}

#[test]
fn stream_identities() {
    let Some(path) = build("ids", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    assert_eq!(d.stream_id(D0, StreamHandle(0x3000)), Ok(3));
    let calls = fake.int("fake_calls");
    assert_eq!(d.stream_id(D0, StreamHandle(0x5000)), Ok(5));
    assert_eq!(fake.int("fake_calls"), calls + 2, "whether it is being captured, and its id; no context work");
    let (legacy, legacy_1) = (d.stream_id(D0, StreamHandle(0)).unwrap(), d.stream_id(D1, StreamHandle(0)).unwrap());
    assert_eq!(fake.int("fake_calls"), calls + 2, "no driver call");
    assert_eq!(d.stream_id(D0, StreamHandle(1)), Ok(legacy));
    assert!(legacy != legacy_1 && legacy > u64::from(u32::MAX) && legacy_1 > u64::from(u32::MAX));
    assert_eq!(d.stream_id(D0, StreamHandle::PER_THREAD), Ok(500));
    assert_eq!(d.stream_id(D0, StreamHandle(0x3001)).unwrap_err().status, Status::InvalidStream);
    assert_eq!(d.stream_is_capturing(D0, StreamHandle(0x8000)), Ok(true));
    assert_eq!(d.stream_is_capturing(D0, StreamHandle(0x3000)), Ok(false));
    fake.fail("cuStreamIsCapturing", 906);
    assert_eq!(d.stream_is_capturing(D0, StreamHandle::LEGACY), Ok(true));
}

#[test]
fn streams_know_their_device() {
    for (name, defines) in [("devices", &[][..]), ("devices_old", &["-DWITHOUT_NEWER"])] {
        let Some(path) = build(name, defines) else { return };
        let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
        for current in [0, 1] {
            fake.set_current(if current == 0 { 0 } else { fake.primary(1) });
            assert_eq!(d.current_device(), Ok(DeviceId(current)));
            assert_eq!(d.stream_device(StreamHandle::LEGACY), Ok(DeviceId(current)));
            assert_eq!(d.stream_device(StreamHandle::PER_THREAD), Ok(DeviceId(current)));
            assert_eq!(d.stream_device(StreamHandle(0x8000)), Ok(DeviceId(current)), "{name}: capturing");
            assert_eq!(d.stream_device(StreamHandle(0x4000)), Ok(D0), "{name}");
            assert_eq!(d.stream_device(StreamHandle(0x3000)), Ok(D1), "{name}");
            assert_eq!(d.stream_device(StreamHandle(0x7000)), Ok(D1), "{name}: not the primary context");
        }
        d.set_current_device(D0).unwrap();
        assert_eq!(fake.current(), fake.primary(0));
        let e = d.set_current_device(DeviceId(2)).unwrap_err();
        assert!(e.status == Status::Invalid && e.message.contains("device 2"), "{e}");
        assert_eq!(d.mem_info(DeviceId(9)).unwrap_err().status, Status::Invalid);
        for special in [0, 1, 2] {
            assert_eq!(d.stream_destroy(D0, StreamHandle(special)).unwrap_err().status, Status::Invalid);
        }
        let record = d.context_record(D0, EVENT);
        match defines.is_empty() {
            true => assert_eq!(record, Ok(())),
            false => assert_eq!(record.unwrap_err().status, Status::Unsupported),
        }
    }
}

#[test]
fn parameters_reach_the_driver() {
    let Some(path) = build("parameters", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    assert_eq!((d.backend(), d.version().as_str(), d.device_count()), ("cuda", "CUDA 13.0", 2));
    assert!(d.library().contains("libcuda_parameters"), "{}", d.library());
    let props = d.device_props(D1).unwrap();
    assert_eq!((props.name.as_str(), props.total_bytes, props.granularity), ("Fake 1", 2 << 30, 2 << 20));
    assert_eq!(props.numa, None, "the system has no such device");
    assert_eq!((props.vmm, props.posix_fd, props.rdma, props.compute), (true, true, false, (9, 0)));
    assert_eq!((d.can_access(D0, D1), d.can_access(D1, D0), d.can_access(D1, D1)), (Ok(true), Ok(false), Ok(true)));
    for (flags, want) in
        [((false, false), 20001), ((true, false), 21001), ((false, true), 20101), ((true, true), 21101)]
    {
        d.phys_create(D1, 5 << 20, PhysFlags { posix_fd: flags.0, rdma: flags.1 }).unwrap();
        assert_eq!((fake.long("fake_last_flags"), fake.long("fake_last_size")), (want, 5 << 20));
    }
    d.set_access(4096, 4096, &[D1, D0]).unwrap();
    assert_eq!(fake.long("fake_last_flags"), 21);
    let fd = d.phys_export(PhysHandle(77)).unwrap();
    assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) } & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    assert_eq!(d.phys_import(D0, &fd).unwrap(), PhysHandle(1000 + fd.as_raw_fd() as u64));
    d.set_async(D0, 1, 0xab, 3 << 32, StreamHandle(0x4000)).unwrap();
    assert_eq!((fake.long("fake_last_flags"), fake.long("fake_last_size")), (0xab, 3 << 32));
    assert_eq!(fake.long("fake_last_stream"), 0x4000);
    assert_eq!((fake.threshold(0), fake.threshold(1)), (0, 0));
    d.native_alloc(D1, 64, StreamHandle(0x3000)).unwrap();
    assert_eq!((fake.threshold(0), fake.threshold(1)), (0, u64::MAX));
}

#[test]
fn after_shutdown_no_call_reaches_the_driver() {
    let Some(path) = build("shutdown", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    every_call(&d, D0);
    fake.deinitialise(1);
    assert_eq!(d.stream_id(D0, StreamHandle(0x3000)).unwrap_err().status, Status::ShuttingDown);
    let calls = fake.int("fake_calls");
    // Facts that need no call are still given.
    for (call, result) in every_call(&d, D1).into_iter().filter(|(call, _)| *call != "device_props") {
        match (call, result) {
            ("can_access" | "stream_device", Ok(())) => {}
            (_, result) => assert_eq!(result.expect_err(call).status, Status::ShuttingDown, "{call}"),
        }
    }
    assert_eq!(fake.int("fake_calls"), calls, "{}", fake.last_call());
}

#[test]
fn asking_and_pinning_make_no_context_beyond_the_one_that_is_there() {
    let Some(path) = build("contexts", &[]) else { return };
    let d = open(&path).unwrap();
    let fake = Fake::new(&path);
    // Somebody else's context of device 1, as the CUDA runtime makes it.
    fake.set_current(fake.primary(1));
    for dev in [D0, D1] {
        assert_eq!(d.device_props(dev).unwrap().granularity, 2 << 20);
        let near = d.host_alloc_on(dev, 64, Some(0)).unwrap();
        d.host_free(dev, near).unwrap();
    }
    fake.set_current(0);
    // On a thread without any.
    let near = d.host_alloc_on(D0, 64, Some(0)).unwrap();
    assert_eq!(fake.int("fake_retains"), 1);
    d.mem_info(D1).unwrap();
    assert_eq!(fake.int("fake_retains"), 1, "device 1 has had it");
    d.mem_info(D0).unwrap();
    d.host_free(D1, near).unwrap();
    assert_eq!((fake.int("fake_retains"), fake.int("fake_depth")), (2, 0));
}

/// A thread of gpumem's own, without a context, gives back what is of a device that is not the
/// first.
#[test]
fn giving_back_makes_no_context_on_the_first_device() {
    let Some(path) = build("giving", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    let handle = d.phys_create(D1, 2 << 20, PhysFlags::default()).unwrap();
    let va = d.va_reserve(D1, 2 << 20, 2 << 20).unwrap();
    fake.set_current(0);
    d.map(D1, va, 2 << 20, handle).unwrap();
    d.set_access(va, 2 << 20, &[D0, D1]).unwrap();
    drop(d.phys_export(handle));
    d.unmap(va, 2 << 20).unwrap();
    d.phys_release(handle).unwrap();
    assert_eq!((fake.int("fake_retains"), fake.int("fake_depth")), (1, 0));
}

#[test]
fn asking_for_all_devices_makes_one_context() {
    let Some(path) = build("asking", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    let names = [D1, D0].map(|dev| d.device_props(dev).unwrap().name);
    assert_eq!((names, fake.int("fake_retains")), (["Fake 1".to_string(), "Fake 0".to_string()], 1));
}

#[test]
fn memory_can_be_decompressed_into_unless_the_driver_refuses_that() {
    let Some(path) = build("decompress", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    let refuse: extern "C" fn(c_int) = unsafe { std::mem::transmute(fake.symbol("fake_refuse_usage")) };
    let create = |dev| {
        let before = fake.int("fake_calls");
        d.phys_create(dev, 2 << 20, PhysFlags::default()).unwrap();
        (fake.long("fake_last_flags") / 10000, fake.int("fake_calls") - before)
    };
    create(D0);
    let (usage, calls) = create(D0);
    assert_eq!(usage, 2);
    refuse(1);
    assert_eq!(create(D0), (0, calls + 1), "asked for without");
    assert_eq!(create(D0), (0, calls), "and not asked for again");
}

/// A thread that begins to allocate gets the context that the CUDA runtime would give it, and no
/// other call gives it one.
#[test]
fn a_thread_without_a_context_gets_the_runtimes() {
    let Some(path) = build("adopt", &[]) else { return };
    let (d, fake) = (open(&path).unwrap(), Fake::new(&path));
    let on_a_thread = |dev: DeviceId, before: usize| {
        std::thread::scope(|t| {
            let look = || {
                fake.set_current(before);
                d.adopt_thread(dev);
                fake.current()
            };
            t.spawn(look).join().unwrap()
        })
    };
    // Device 0 has no context yet, and work on device 1 makes none there.
    assert_eq!((on_a_thread(D1, 0), fake.int("fake_retains")), (0, 0));
    assert_eq!((on_a_thread(D0, 0), fake.int("fake_retains")), (fake.primary(0), 1));
    assert_eq!(on_a_thread(D1, 0), fake.primary(0), "the current device stays device 0");
    for context in [fake.primary(0), fake.primary(1), fake.other()] {
        assert_eq!(on_a_thread(D0, context), context, "who has one keeps it");
    }
    // What a pool does on its own.
    let driver: Arc<dyn Driver> = d.clone();
    let options = gpumem::pool::PoolOptions { va_size: 1 << 36, ..Default::default() };
    let pool = gpumem::pool::Pool::new(driver, D0, options).unwrap();
    for stream in [StreamHandle::LEGACY, StreamHandle(0x4000)] {
        let current = std::thread::scope(|t| {
            let allocate = || {
                assert_eq!(fake.current(), 0);
                let request = gpumem::pool::AllocRequest { size: 1000, stream, ..Default::default() };
                pool.malloc(&request).unwrap();
                fake.current()
            };
            t.spawn(allocate).join().unwrap()
        });
        assert_eq!(current, fake.primary(0), "{stream}");
    }
}

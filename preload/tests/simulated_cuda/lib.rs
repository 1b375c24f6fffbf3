//! A `libcuda.so.1` with no GPU behind it: gpumem's host device behind the driver API, as far as
//! gpumem and the test programs use that. Memory is real, so data can be checked; work of streams
//! is done late with `SIM_SEED`; a process can import another's memory.
//!
//! Environment: `SIM_DEVICES`, `SIM_BYTES` (of each), `SIM_SEED`, `SIM_STUBS` (names that are not
//! here get a function that does nothing), `SIM_LOOKUPS` (a line on stderr for each look-up),
//! `SIM_OTHER` (`cuGetProcAddress` gives functions that are not those of the symbol table).

#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    clippy::too_many_arguments,
    missing_docs
)]
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, unsafe_op_in_unsafe_fn)]

use gpumem::base::{DeviceId, Error, Status, StreamHandle};
use gpumem::driver::host::{HostDriver, HostOptions, Tell};
use gpumem::driver::{CaptureMode, Driver, EventHandle, GraphHandle, PhysFlags, PhysHandle};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

type Code = u32;

struct Sim {
    host: Arc<HostDriver>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Created contexts, and the device of each.
    contexts: HashMap<usize, u32>,
    next_context: usize,
    /// Holds on primary contexts, by device. A reset leaves them as they are.
    retained: HashMap<u32, i64>,
    /// Devices that were reset, and not retained since.
    reset: HashSet<u32>,
    /// The context that streams were made in.
    streams: HashMap<usize, usize>,
    /// The driver's own allocations: bytes and device.
    native: HashMap<u64, (usize, u32)>,
    /// Mappings: bytes.
    mapped: HashMap<u64, usize>,
    /// Pools of the program's.
    pools: usize,
    current_pool: HashMap<u32, usize>,
    /// By pool.
    thresholds: HashMap<usize, u64>,
    /// By pool and device.
    access: HashMap<(usize, c_int), c_int>,
}

/// A primary context's number.
const PRIMARY: usize = 0x1000;
const CREATED: usize = 0x2000;
/// A green context's number.
const GREEN: usize = 0x3000;
/// A default pool's number, and a created one's.
const POOL: usize = 0x5000;
const MADE_POOL: usize = 0x6000;

/// A thread's contexts, the current one last. Without a destructor: programs call while they end.
struct Stack([Cell<usize>; 8], Cell<usize>);

impl Stack {
    fn last(&self) -> usize {
        self.1.get().checked_sub(1).map_or(0, |i| self.0[i].get())
    }
    fn push(&self, c: usize) {
        self.0[self.1.get()].set(c);
        self.1.set(self.1.get() + 1);
    }
    fn pop(&self) -> Option<usize> {
        let last = self.last();
        self.1.set(self.1.get().saturating_sub(1));
        (last != 0).then_some(last)
    }
}

thread_local! {
    static STACK: Stack = const { Stack([const { Cell::new(0) }; 8], Cell::new(0)) };
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn sim() -> &'static Sim {
    static SIM: OnceLock<Sim> = OnceLock::new();
    SIM.get_or_init(|| {
        let seed = number("SIM_SEED");
        let options = HostOptions {
            devices: number("SIM_DEVICES").unwrap_or(1) as u32,
            bytes_per_device: number("SIM_BYTES").unwrap_or(1 << 30),
            seed: seed.unwrap_or(1),
            eager: seed.is_none(),
            check: seed.is_some(),
            tell: Tell::Stderr,
            ..HostOptions::default()
        };
        Sim { host: HostDriver::new(options).expect("options"), state: Mutex::default() }
    })
}

fn code(r: Result<(), Error>) -> Code {
    match r {
        Ok(()) => 0,
        Err(e) => match e.status {
            Status::OutOfMemory => 2,
            Status::InvalidStream => 400,
            Status::Capturing => 900,
            Status::Unsupported => 801,
            Status::Driver | Status::Internal => 999,
            _ => 1,
        },
    }
}

unsafe fn give<T>(out: *mut T, r: Result<T, Error>) -> Code {
    r.map(|v| unsafe { out.write(v) }).map_or_else(|e| code(Err(e)), |()| 0)
}

fn current() -> usize {
    STACK.with(Stack::last)
}

fn device_of(ctx: usize) -> Option<DeviceId> {
    match ctx {
        0 => None,
        c if (PRIMARY..PRIMARY + 64).contains(&c) => Some(DeviceId((c - PRIMARY) as u32)),
        c => sim().state.lock().unwrap().contexts.get(&c).map(|d| DeviceId(*d)),
    }
}

fn here() -> Result<DeviceId, Code> {
    let dev = device_of(current()).ok_or(201u32)?;
    let _ = sim().host.set_current_device(dev);
    Ok(dev)
}

macro_rules! here {
    () => {
        match here() {
            Ok(dev) => dev,
            Err(code) => return code,
        }
    };
}

/// The device of a stream: its own, or the current one.
fn home(s: usize) -> Result<DeviceId, Code> {
    let dev = here()?;
    if s <= 2 {
        return Ok(dev);
    }
    sim().host.stream_device(StreamHandle(s)).map_err(|_| 400)
}

macro_rules! home {
    ($s:expr) => {
        match home($s) {
            Ok(dev) => dev,
            Err(code) => return code,
        }
    };
}

fn own(s: usize) -> usize {
    if s == 0 {
        2
    } else {
        s
    }
}

macro_rules! cuda {
    ($( fn $name:ident($($arg:ident: $ty:ty),*) $body:block )*) => {
        $( #[no_mangle] pub unsafe extern "C" fn $name($($arg: $ty),*) -> Code $body )*
        fn exported(name: &str) -> usize {
            match name {
                $( stringify!($name) => $name as *const () as usize, )*
                _ => 0,
            }
        }
        /// The same functions at other addresses.
        mod again {
            use super::*;
            $( pub unsafe extern "C" fn $name($($arg: $ty),*) -> Code { std::hint::black_box(stringify!($name)); super::$name($($arg),*) } )*
            pub fn exported(name: &str) -> usize {
                match name {
                    $( stringify!($name) => $name as *const () as usize, )*
                    _ => 0,
                }
            }
        }
    };
}

unsafe extern "C" fn stub() -> Code {
    801
}

/// What a name means: the latest variant, of the thread's own default stream where that is asked
/// for.
unsafe fn resolve(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) -> Code {
    if name.is_null() || out.is_null() {
        return 1;
    }
    let name = CStr::from_ptr(name).to_str().unwrap_or("");
    if std::env::var_os("SIM_LOOKUPS").is_some() {
        eprintln!("sim: {name} {version} {flags}");
    }
    let find = |name: &str| match std::env::var_os("SIM_OTHER") {
        Some(_) => again::exported(name),
        None => exported(name),
    };
    let suffixes: &[&str] = match flags {
        0 | 1 => &["_v3", "_v2", ""],
        2 => &["_v3_ptsz", "_v2_ptsz", "_ptsz", "_v3", "_v2", ""],
        _ => return 1,
    };
    let found = match (name, version) {
        ("cuGetProcAddress", 11030..12000) => find("cuGetProcAddress"),
        ("cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxReset", 7000..11000) => find(name),
        ("cuGraphAddNode", 12020..12030) => find(name),
        _ if version < 2000 => 0,
        _ => suffixes.iter().map(|s| find(&format!("{name}{s}"))).find(|a| *a != 0).unwrap_or(0),
    };
    match (found, std::env::var_os("SIM_STUBS")) {
        (0, None) => {
            out.write(std::ptr::null_mut());
            500
        }
        (0, Some(_)) => {
            out.write(stub as *mut c_void);
            0
        }
        (a, _) => {
            out.write(a as *mut c_void);
            0
        }
    }
}

/// What is at an address: its start, its bytes, and whether the driver allocated it. Else it is
/// mapped.
fn at(p: u64) -> Option<(u64, usize, bool)> {
    let st = sim().state.lock().unwrap();
    let native = st.native.iter().map(|(at, (len, _))| (*at, *len, true));
    let mut all = native.chain(st.mapped.iter().map(|(at, len)| (*at, *len, false)));
    all.find(|(at, len, _)| (*at..*at + *len as u64).contains(&p))
}

unsafe fn native(out: *mut u64, bytes: usize, s: usize) -> Code {
    if out.is_null() || bytes == 0 {
        return 1;
    }
    let dev = home!(s);
    match sim().host.native_alloc(dev, bytes as u64, StreamHandle(s)) {
        Ok(p) => {
            sim().state.lock().unwrap().native.insert(p, (bytes, dev.0));
            out.write(p);
            0
        }
        Err(e) => code(Err(e)),
    }
}

unsafe fn native_free(ptr: u64, s: usize) -> Code {
    let dev = home!(s);
    if sim().state.lock().unwrap().native.remove(&ptr).is_none() {
        return 1;
    }
    code(sim().host.native_free(dev, ptr, StreamHandle(s)))
}

#[repr(C)]
pub struct Prop {
    kind: c_int,
    handles: c_int,
    location: c_int,
    id: c_int,
    win: usize,
    compression: u8,
    rdma: u8,
    usage: u16,
    rest: [u8; 4],
}

#[repr(C)]
pub struct Desc {
    location: c_int,
    id: c_int,
    flags: c_int,
}

#[repr(C)]
pub struct Ipc([u8; 64]);

fn copy(d: u64, s: u64, n: usize, stream: usize) -> Code {
    let dev = home!(stream);
    code(sim().host.copy_async(dev, d, s, n as u64, StreamHandle(stream)))
}

fn copy_now(d: u64, s: u64, n: usize) -> Code {
    let dev = here!();
    match copy(d, s, n, 0) {
        0 => code(sim().host.stream_sync(dev, StreamHandle::LEGACY)),
        c => c,
    }
}

/// What is captured in a context ends with it.
fn end_captures(ctx: usize, d: u32) {
    let there: Vec<usize> =
        sim().state.lock().unwrap().streams.iter().filter(|(_, c)| **c == ctx).map(|s| *s.0).collect();
    for s in there {
        let captured = sim().host.stream_is_capturing(DeviceId(d), StreamHandle(s)).unwrap_or(false);
        if captured {
            let _ = sim().host.capture_end(DeviceId(d), StreamHandle(s));
        }
    }
}

fn begin(s: usize, mode: c_int) -> Code {
    let mode = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed].get(mode as usize).copied();
    let Some(mode) = mode else { return 1 };
    let dev = home!(s);
    code(sim().host.capture_begin(dev, StreamHandle(s), mode))
}

/// Whether the gate is closed, and how many threads wait for it to open.
static GATE: (Mutex<(bool, Code)>, Condvar) = (Mutex::new((false, 0)), Condvar::new());

/// What every wait for a context or an event gives, as after a failure of the device.
static FAILURE: AtomicU32 = AtomicU32::new(0);

/// Waits: passes the gate first.
fn wait(run: impl FnOnce() -> Code) -> Code {
    pass_gate();
    match FAILURE.load(SeqCst) {
        0 => run(),
        code => code,
    }
}

fn pass_gate() {
    let mut gate = GATE.0.lock().unwrap();
    gate.1 += 1;
    gate = GATE.1.wait_while(gate, |g| g.0).unwrap();
    gate.1 -= 1;
}

/// Needs half the device for a moment, for want of code and of local memory.
fn needs_half() -> Code {
    let dev = here!();
    let half = sim().host.mem_info(dev).map(|m| m.total / 2).unwrap_or(0);
    code(sim().host.phys_create(dev, half, PhysFlags::default()).and_then(|h| sim().host.phys_release(h)))
}

/// Whether calls that take a little of the device for themselves need half of it.
static GREEDY: AtomicBool = AtomicBool::new(false);

fn needs_some() -> Code {
    if GREEDY.load(Relaxed) {
        needs_half()
    } else {
        0
    }
}

macro_rules! needs_some {
    () => {
        match needs_some() {
            0 => {}
            code => return code,
        }
    };
}

cuda! {
    fn cuInit(_flags: c_uint) { sim(); 0 }
    fn cuDriverGetVersion(v: *mut c_int) { v.write(13000); 0 }
    fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) { resolve(name, out, version, flags) }
    fn cuGetProcAddress_v2(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) {
        let code = resolve(name, out, version, flags);
        if !status.is_null() { status.write(c_int::from(code != 0)); }
        code
    }
    fn cuGetErrorName(_c: c_int, s: *mut *const c_char) { s.write(c"CUDA_ERROR_SIMULATED".as_ptr()); 0 }
    fn cuGetErrorString(_c: c_int, s: *mut *const c_char) { s.write(c"simulated".as_ptr()); 0 }
    fn cuDeviceGetCount(n: *mut c_int) { n.write(sim().host.device_count() as c_int); 0 }
    fn cuDeviceGet(d: *mut c_int, i: c_int) { if i < 0 || i as u32 >= sim().host.device_count() { return 101; } d.write(i); 0 }
    fn cuDeviceGetName(s: *mut c_char, _n: c_int, _d: c_int) { s.write(b'S' as c_char); s.add(1).write(0); 0 }
    fn cuDeviceTotalMem_v2(n: *mut usize, d: c_int) { give(n, sim().host.device_props(DeviceId(d as u32)).map(|p| p.total_bytes as usize)) }
    fn cuDeviceGetAttribute(v: *mut c_int, a: c_int, _d: c_int) { if a == 110 || a == 136 { return 1; } v.write(if a == 75 { 9 } else { 1 }); 0 }
    fn cuDeviceCanAccessPeer(y: *mut c_int, _a: c_int, _b: c_int) { y.write(1); 0 }
    fn cuDevicePrimaryCtxRetain(c: *mut usize, d: c_int) {
        let mut st = sim().state.lock().unwrap();
        *st.retained.entry(d as u32).or_default() += 1;
        st.reset.remove(&(d as u32));
        c.write(PRIMARY + d as usize);
        0
    }
    fn cuDevicePrimaryCtxRelease_v2(d: c_int) {
        let mut st = sim().state.lock().unwrap();
        let n = st.retained.entry(d as u32).or_default();
        if *n == 0 { return 201; }
        *n -= 1;
        0
    }
    fn cuDevicePrimaryCtxReset_v2(d: c_int) {
        let gone: Vec<u64> = {
            let mut st = sim().state.lock().unwrap();
            st.reset.insert(d as u32);
            let gone = st.native.iter().filter(|(_, (_, dev))| *dev == d as u32).map(|(p, _)| *p).collect();
            st.native.retain(|_, (_, dev)| *dev != d as u32);
            gone
        };
        for p in gone { let _ = sim().host.native_free(DeviceId(d as u32), p, StreamHandle::LEGACY); }
        end_captures(PRIMARY + d as usize, d as u32);
        0
    }
    fn cuDevicePrimaryCtxRelease(d: c_int) { cuDevicePrimaryCtxRelease_v2(d) }
    fn cuDevicePrimaryCtxReset(d: c_int) { cuDevicePrimaryCtxReset_v2(d) }
    fn cuGreenCtxCreate(g: *mut usize, _desc: *mut c_void, d: c_int, _f: c_uint) {
        // Half of the device; making memory would be a cancellation point.
        if sim().host.mem_info(DeviceId(d as u32)).is_ok_and(|m| m.free < m.total / 2) { return 2; }
        g.write(GREEN + d as usize);
        cuDevicePrimaryCtxRetain(&mut 0, d)
    }
    fn cuGreenCtxStreamCreate(s: *mut usize, _g: usize, f: c_uint, _priority: c_int) { needs_some!(); cuStreamCreate(s, f) }
    fn cuGreenCtxDestroy(g: usize) { cuDevicePrimaryCtxRelease_v2((g - GREEN) as c_int) }
    fn cuDevicePrimaryCtxGetState(d: c_int, f: *mut c_uint, a: *mut c_int) {
        f.write(0);
        let st = sim().state.lock().unwrap();
        let held = st.retained.get(&(d as u32)).is_some_and(|n| *n > 0);
        a.write(c_int::from(held && !st.reset.contains(&(d as u32))));
        0
    }
    fn cuCtxCreate_v2(c: *mut usize, _f: c_uint, d: c_int) {
        let made = {
            let mut st = sim().state.lock().unwrap();
            st.next_context += 1;
            let made = CREATED + st.next_context;
            st.contexts.insert(made, d as u32);
            made
        };
        STACK.with(|s| s.push(made));
        c.write(made);
        0
    }
    fn cuCtxDestroy_v2(c: usize) {
        let Some(d) = sim().state.lock().unwrap().contexts.remove(&c) else { return 201 };
        end_captures(c, d);
        STACK.with(|s| if s.last() == c { s.pop(); });
        0
    }
    fn cuCtxGetCurrent(c: *mut usize) { c.write(current()); 0 }
    fn cuCtxSetCurrent(c: usize) { STACK.with(|s| { s.pop(); if c != 0 { s.push(c); } }); 0 }
    fn cuCtxPushCurrent_v2(c: usize) { if device_of(c).is_none() { return 201; } STACK.with(|s| s.push(c)); 0 }
    fn cuCtxPopCurrent_v2(c: *mut usize) { match STACK.with(Stack::pop) { Some(p) => { c.write(p); 0 } None => 201 } }
    fn cuCtxGetDevice(d: *mut c_int) { d.write(here!().0 as c_int); 0 }
    fn cuCtxSynchronize() { let dev = here!(); wait(|| code(sim().host.device_sync(dev))) }
    fn cuCtxEnablePeerAccess(c: usize, f: c_uint) { here!(); if f != 0 || device_of(c).is_none() { return 1; } 0 }
    fn cuThreadExchangeStreamCaptureMode(m: *mut c_uint) { m.write(0); 0 }
    fn cuMemGetInfo_v2(f: *mut usize, t: *mut usize) {
        let dev = here!();
        match sim().host.mem_info(dev) { Ok(m) => { f.write(m.free as usize); t.write(m.total as usize); 0 } Err(e) => code(Err(e)) }
    }
    fn cuMemAddressReserve(p: *mut u64, n: usize, a: usize, _at: u64, _f: u64) { let dev = here!(); give(p, sim().host.va_reserve(dev, n as u64, (a as u64).max(1))) }
    fn cuMemAddressFree(p: u64, n: usize) { let dev = here!(); code(sim().host.va_free(dev, p, n as u64)) }
    fn cuMemCreate(h: *mut u64, n: usize, p: *const Prop, _f: u64) {
        here!();
        let flags = PhysFlags { posix_fd: (*p).handles & 1 != 0, rdma: false };
        give(h, sim().host.phys_create(DeviceId((*p).id as u32), n as u64, flags).map(|h| h.0))
    }
    fn cuMemRelease(h: u64) { code(sim().host.phys_release(PhysHandle(h))) }
    fn cuMemExportToShareableHandle(fd: *mut c_int, h: u64, _t: c_int, _f: u64) { give(fd, sim().host.phys_export(PhysHandle(h)).map(|f| f.into_raw_fd())) }
    fn cuMemImportFromShareableHandle(h: *mut u64, fd: usize, _t: c_int) {
        let dev = here!();
        let fd = std::mem::ManuallyDrop::new(OwnedFd::from_raw_fd(fd as c_int));
        give(h, sim().host.phys_import(dev, &fd).map(|h| h.0))
    }
    fn cuMemMap(p: u64, n: usize, _o: usize, h: u64, _f: u64) {
        let dev = here!();
        needs_some!();
        let c = code(sim().host.map(dev, p, n as u64, PhysHandle(h)));
        if c == 0 { sim().state.lock().unwrap().mapped.insert(p, n); }
        c
    }
    fn cuMemSetAccess(p: u64, n: usize, d: *const Desc, count: usize) {
        needs_some!();
        let devs: Vec<DeviceId> = (0..count).map(|i| DeviceId((*d.add(i)).id as u32)).collect();
        code(sim().host.set_access(p, n as u64, &devs))
    }
    fn cuMemUnmap(p: u64, n: usize) {
        sim().state.lock().unwrap().mapped.retain(|at, _| !(p..p + n as u64).contains(at));
        code(sim().host.unmap(p, n as u64))
    }
    fn cuMemGetAllocationGranularity(g: *mut usize, _p: *const Prop, _o: c_int) { g.write(2 << 20); 0 }
    fn cuStreamGetId(s: usize, id: *mut u64) { let dev = home!(s); give(id, sim().host.stream_id(dev, StreamHandle(s))) }
    fn cuStreamGetCtx(s: usize, c: *mut usize) {
        let dev = home!(s);
        let made = sim().state.lock().unwrap().streams.get(&s).copied();
        c.write(if s <= 2 { current() } else { made.unwrap_or(PRIMARY + dev.0 as usize) });
        0
    }
    fn cuStreamIsCapturing(s: usize, st: *mut c_int) {
        let dev = home!(s);
        give(st, sim().host.stream_is_capturing(dev, StreamHandle(s)).map(c_int::from))
    }
    fn cuStreamCreate(s: *mut usize, f: c_uint) {
        let dev = here!();
        pass_gate();
        let made = if f & 1 == 0 { sim().host.stream_create_blocking(dev) } else { sim().host.stream_create(dev) };
        let c = give(s, made.map(|h| h.0));
        if c == 0 {
            let mut st = sim().state.lock().unwrap();
            st.streams.insert(*s, current());
        }
        c
    }
    fn cuStreamDestroy_v2(s: usize) { let dev = home!(s); code(sim().host.stream_destroy(dev, StreamHandle(s))) }
    fn cuStreamSynchronize(s: usize) { let dev = home!(s); code(sim().host.stream_sync(dev, StreamHandle(s))) }
    fn cuStreamWaitEvent(s: usize, e: u64, _f: c_uint) { let dev = home!(s); code(sim().host.stream_wait(dev, StreamHandle(s), EventHandle(e))) }
    fn cuEventCreate(e: *mut u64, _f: c_uint) { let dev = here!(); needs_some!(); give(e, sim().host.event_create(dev).map(|e| e.0)) }
    fn cuEventDestroy_v2(e: u64) { let dev = here!(); code(sim().host.event_destroy(dev, EventHandle(e))) }
    fn cuEventRecord(e: u64, s: usize) { let dev = home!(s); code(sim().host.event_record(dev, EventHandle(e), StreamHandle(s))) }
    fn cuEventQuery(e: u64) {
        let dev = here!();
        match sim().host.event_query(dev, EventHandle(e)) { Ok(true) => 0, Ok(false) => 600, Err(e) => code(Err(e)) }
    }
    fn cuEventSynchronize(e: u64) { let dev = here!(); wait(|| code(sim().host.event_sync(dev, EventHandle(e)))) }
    fn cuCtxRecordEvent(c: usize, e: u64) { match device_of(c) { Some(dev) => code(sim().host.context_record(dev, EventHandle(e))), None => 201 } }
    fn cuMemcpyAsync(d: u64, s: u64, n: usize, st: usize) { copy(d, s, n, st) }
    fn cuMemcpyHtoD_v2(d: u64, s: u64, n: usize) { copy_now(d, s, n) }
    fn cuMemcpyDtoH_v2(d: u64, s: u64, n: usize) { copy_now(d, s, n) }
    fn cuMemsetD8Async(d: u64, b: u8, n: usize, st: usize) { let dev = home!(st); code(sim().host.set_async(dev, d, b, n as u64, StreamHandle(st))) }
    fn cuMemsetD8_v2(d: u64, b: u8, n: usize) { let dev = here!(); match cuMemsetD8Async(d, b, n, 0) { 0 => code(sim().host.stream_sync(dev, StreamHandle::LEGACY)), c => c } }
    fn cuMemHostAlloc(p: *mut u64, n: usize, _f: c_uint) { let dev = here!(); give(p, sim().host.host_alloc(dev, n as u64)) }
    fn cuMemFreeHost(p: u64) { let dev = here!(); code(sim().host.host_free(dev, p)) }
    fn cuMemAlloc_v2(out: *mut u64, n: usize) { native(out, n, 0) }
    fn cuMemAllocPitch_v2(out: *mut u64, pitch: *mut usize, w: usize, h: usize, e: c_uint) {
        if pitch.is_null() || !matches!(e, 4 | 8 | 16) { return 1; }
        pitch.write(w.next_multiple_of(512));
        native(out, w.next_multiple_of(512) * h, 0)
    }
    fn cuMemFree_v2(p: u64) { here!(); if p == 0 { return 0; } match cuCtxSynchronize() { 0 => native_free(p, 0), c => c } }
    fn cuMemAllocAsync(out: *mut u64, n: usize, s: usize) { native(out, n, s) }
    fn cuMemAllocAsync_ptsz(out: *mut u64, n: usize, s: usize) { native(out, n, own(s)) }
    fn cuMemFreeAsync(p: u64, s: usize) { native_free(p, s) }
    fn cuMemFreeAsync_ptsz(p: u64, s: usize) { native_free(p, own(s)) }
    fn cuMemAllocFromPoolAsync(out: *mut u64, n: usize, pool: usize, s: usize) { if pool < POOL { return 1; } native(out, n, s) }
    fn cuMemAllocFromPoolAsync_ptsz(out: *mut u64, n: usize, pool: usize, s: usize) { if pool < POOL { return 1; } native(out, n, own(s)) }
    fn cuDeviceGetDefaultMemPool(p: *mut usize, d: c_int) { p.write(POOL + d as usize); 0 }
    fn cuDeviceGetMemPool(p: *mut usize, d: c_int) { p.write(sim().state.lock().unwrap().current_pool.get(&(d as u32)).copied().unwrap_or(POOL + d as usize)); 0 }
    fn cuDeviceSetMemPool(d: c_int, p: usize) { if p < POOL { return 1; } sim().state.lock().unwrap().current_pool.insert(d as u32, p); 0 }
    fn cuMemPoolCreate(p: *mut usize, _props: *const c_void) { needs_some!(); let mut st = sim().state.lock().unwrap(); st.pools += 1; p.write(MADE_POOL + st.pools); 0 }
    fn cuMemPoolDestroy(p: usize) { if p < MADE_POOL { return 1; } sim().state.lock().unwrap().current_pool.retain(|_, current| *current != p); 0 }
    fn cuMemPoolTrimTo(p: usize, _n: usize) { if p < POOL { 1 } else { 0 } }
    fn cuMemPoolGetAttribute(p: usize, a: c_int, v: *mut u64) { if p < POOL || !(1..=8).contains(&a) || v.is_null() { return 1; }
        if a <= 3 { v.cast::<c_int>().write(1); return 0; }
        v.write(if a == 4 { sim().state.lock().unwrap().thresholds.get(&p).copied().unwrap_or(0) } else { 0 }); 0 }
    fn cuMemPoolSetAttribute(p: usize, a: c_int, v: *mut u64) { if p < POOL || !matches!(a, 1..=4 | 6 | 8) || v.is_null() { return 1; }
        if a == 4 { sim().state.lock().unwrap().thresholds.insert(p, v.read()); } 0 }
    fn cuMemPoolSetAccess(p: usize, m: *const Desc, n: usize) {
        if p < POOL { return 1; }
        for one in std::slice::from_raw_parts(m, n) { sim().state.lock().unwrap().access.insert((p, one.id), one.flags); }
        0
    }
    fn cuMemPoolGetAccess(f: *mut c_int, p: usize, at: *const [c_int; 2]) { f.write(sim().state.lock().unwrap().access.get(&(p, (*at)[1])).copied().unwrap_or(0)); 0 }
    fn cuMemGetAddressRange_v2(b: *mut u64, n: *mut usize, p: u64) {
        match at(p) {
            Some((at, len, _)) => { if !b.is_null() { b.write(at); }
                if !n.is_null() { n.write(len); } 0 }
            None => 500,
        }
    }
    fn cuMemRetainAllocationHandle(h: *mut u64, p: u64) {
        match at(p) { Some((_, _, false)) => { h.write(77); 0 } _ => 1 }
    }
    fn cuPointerGetAttribute(out: *mut c_void, a: c_int, p: u64) {
        if out.is_null() || at(p).is_none() { return 1; }
        match a {
            2 => { out.cast::<c_uint>().write(2); 0 }
            9 => { out.cast::<c_int>().write(0); 0 }
            11 => cuMemGetAddressRange_v2(out.cast(), std::ptr::null_mut(), p),
            12 => cuMemGetAddressRange_v2(std::ptr::null_mut(), out.cast(), p),
            14 => { out.cast::<u64>().write(cuMemRetainAllocationHandle(&mut 0, p) as u64 ^ 1); 0 }
            _ => 1,
        }
    }
    fn cuPointerGetAttributes(n: c_uint, what: *mut c_int, out: *mut *mut c_void, p: u64) {
        if n == 0 || what.is_null() || out.is_null() { return 1; }
        let kind = if at(p).is_some() { 2 } else { 0 };
        for i in 0..n as usize { if *what.add(i) == 2 { (*out.add(i)).cast::<c_uint>().write(kind); } }
        0
    }
    fn cuPointerSetAttribute(_v: *const c_void, _a: c_int, _p: u64) { 801 }
    fn cuIpcGetMemHandle(_h: *mut Ipc, _p: u64) { 1 }
    fn cuIpcOpenMemHandle_v2(_o: *mut u64, _h: Ipc, _f: c_uint) { 1 }
    fn cuIpcCloseMemHandle(_p: u64) { 1 }
    fn cuStreamBeginCapture_v2(s: usize, m: c_int) { begin(s, m) }
    fn cuStreamBeginCapture_v2_ptsz(s: usize, m: c_int) { begin(own(s), m) }
    fn cuStreamBeginRecaptureToGraph(s: usize, m: c_int, _g: u64, _mismatch: *const c_void, _data: *const c_void) { begin(s, m) }
    fn cuStreamBeginRecaptureToGraph_ptsz(s: usize, m: c_int, _g: u64, _mismatch: *const c_void, _data: *const c_void) { begin(own(s), m) }
    fn cuStreamEndCapture(s: usize, g: *mut u64) { let dev = home!(s); give(g, sim().host.capture_end(dev, StreamHandle(s)).map(|g| g.0)) }
    fn cuStreamEndCapture_ptsz(s: usize, g: *mut u64) { cuStreamEndCapture(own(s), g) }
    fn cuStreamBeginCaptureToCig(s: usize, _params: *mut c_void) { begin(s, 2) }
    fn cuStreamBeginCaptureToCig_ptsz(s: usize, _params: *mut c_void) { begin(own(s), 2) }
    fn cuStreamEndCaptureToCig(s: usize) { cuStreamEndCapture(s, &mut 0) }
    fn cuStreamEndCaptureToCig_ptsz(s: usize) { cuStreamEndCapture(own(s), &mut 0) }
    fn cuGraphLaunch(g: u64, s: usize) { let dev = home!(s); code(sim().host.graph_launch(dev, GraphHandle(g), StreamHandle(s))) }
    fn cuGraphAddNode(out: *mut usize, g: usize, from: *const usize, n: usize, p: *mut u64) { cuGraphAddNode_v2(out, g, from, std::ptr::null(), n, p) }
    fn cuGraphAddNode_v2(out: *mut usize, _g: usize, _from: *const usize, _edges: *const c_void, _n: usize, p: *mut u64) {
        if out.is_null() { return 1; }
        out.write(1);
        cuGraphNodeSetParams(1, p)
    }
    fn cuGraphNodeSetParams(_node: usize, p: *mut u64) {
        if p.is_null() { return 1; }
        if *p as u32 == 0 { return needs_half(); }
        // A memset that names no context takes that of its memory, which only the driver's own has.
        let (kind, memory, context) = (*p as u32, *p.add(2), *p.add(7));
        u32::from(kind == 2 && context == 0 && !sim().state.lock().unwrap().native.contains_key(&memory))
    }
    fn cuGraphExecNodeSetParams(_exec: usize, node: usize, p: *mut u64) { cuGraphNodeSetParams(node, p) }
    fn cuArrayCreate_v2(out: *mut usize, _d: *const c_void) {
        // A block of half the device, for want of an array.
        let dev = here!();
        let half = sim().host.mem_info(dev).map(|m| m.total / 2).unwrap_or(0);
        give(out, sim().host.phys_create(dev, half, PhysFlags::default()).map(|h| h.0 as usize))
    }
    fn cuLaunchKernel(_f: usize, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint, _shared: c_uint, _s: usize, _p: *const c_void, _x: *const c_void) {
        needs_half()
    }
    fn cuFuncGetAttribute(_out: *mut c_int, _what: c_int, _f: usize) { needs_half() }
    /* While it is closed, threads that wait for a context or an event, or make a stream, wait on; says how many do. */
    fn simGate(closed: c_int) {
        let mut gate = GATE.0.lock().unwrap();
        gate.0 = closed != 0;
        GATE.1.notify_all();
        gate.1
    }
    fn simFail(c: c_int) { FAILURE.store(c as Code, SeqCst); 0 }
    /* For tests: keeps a stream from making progress, lets it go on, counts the driver's own live allocations. */
    fn simHold(s: usize) { let dev = home!(s); code(sim().host.hold(dev, StreamHandle(s))) }
    fn simRelease(s: usize) { let dev = home!(s); code(sim().host.release(dev, StreamHandle(s))) }
    fn simGreedy(on: c_int) { GREEDY.store(on != 0, Relaxed); 0 }
    fn simNative() { sim().state.lock().unwrap().native.len() as Code }
    fn simRetained(d: c_int) { sim().state.lock().unwrap().retained.get(&(d as u32)).copied().unwrap_or(0) as Code }
}

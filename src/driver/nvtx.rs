//! NVTX: what the slow path does, on the timeline of Nsight Systems and of other tools that listen.
//!
//! NVTX has no library of its own. A tool names its library in `NVTX_INJECTION64_PATH`; the program
//! loads it and hands it tables of function pointers to fill in. This is the part of that protocol
//! that ranges need, because NVIDIA's crate needs libclang to build. The numbers are those of
//! version 3 of NVTX's headers.

use crate::base::{Error, Result, Status};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStringExt;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::OnceLock;

/// The variable that names the tool's library.
pub const VARIABLE: &str = "NVTX_INJECTION64_PATH";

const VERSION: u16 = 3;
/// How many functions each module has, by its number: none, core, CUDA, OpenCL, CUDA runtime, core
/// 2, synchronisation.
const FUNCTIONS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const CORE2: usize = 5;
const MARK: usize = 1;
const PUSH: usize = 4;
const POP: usize = 5;
const CREATE_DOMAIN: usize = 12;

/// Where the tool puts its functions. One that it leaves out stays null.
static SLOTS: [[AtomicPtr<c_void>; 16]; 7] = [const { [const { AtomicPtr::new(null_mut()) }; 16] }; 7];
/// The domain "gpumem"; null until a tool listens.
static DOMAIN: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

type TableOf = unsafe extern "C" fn(c_int, *mut *const *const AtomicPtr<c_void>, *mut c_uint) -> c_int;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    table_of: TableOf,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set: extern "C" fn(u32),
}

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}
const _: () = assert!(size_of::<Attributes>() == 48);

/// An unsigned 64-bit payload.
const PAYLOAD_U64: i32 = 1;
/// A message of bytes.
const MESSAGE_ASCII: i32 = 1;

impl Attributes {
    fn new(name: &'static CStr, bytes: u64) -> Attributes {
        Attributes {
            version: VERSION,
            size: size_of::<Attributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: PAYLOAD_U64,
            reserved: 0,
            payload: bytes,
            message_type: MESSAGE_ASCII,
            message: name.as_ptr(),
        }
    }
}

/// Lets the tool of `NVTX_INJECTION64_PATH` listen, once in the process. Without the variable no
/// tool listens, which is no error.
pub fn start() -> Result<()> {
    static DONE: OnceLock<Result<()>> = OnceLock::new();
    DONE.get_or_init(|| match std::env::var_os(VARIABLE) {
        Some(path) if !path.is_empty() => load(path.into_vec()),
        _ => Ok(()),
    })
    .clone()
}

fn load(path: Vec<u8>) -> Result<()> {
    let shown = String::from_utf8_lossy(&path).into_owned();
    let failed = |why: &str| {
        Error::new(Status::Unsupported, format!("there are no NVTX ranges: {shown}, which {VARIABLE} names, {why}"))
    };
    let path = CString::new(path).map_err(|_| failed("is no path"))?;
    // SAFETY: a C string. The library's constructors run, as the user of the tool wants.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return Err(failed("does not load"));
    }
    // SAFETY: an open library, which is never closed, and a C string.
    let start = unsafe { libc::dlsym(library, c"InitializeInjectionNvtx2".as_ptr()) };
    if start.is_null() {
        return Err(failed("is no tool for NVTX: it has no InitializeInjectionNvtx2"));
    }
    type Start = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    // SAFETY: not null, and NVTX says that a tool exports this name with this signature.
    let start: Start = unsafe { std::mem::transmute(start) };
    // SAFETY: the function that it is to be called with.
    if unsafe { start(export_table) } == 0 {
        return Err(failed("does not want to listen"));
    }
    type CreateDomain = unsafe extern "C" fn(*const c_char) -> *mut c_void;
    if let Some(create) = function(CREATE_DOMAIN) {
        // SAFETY: the tool put it where this function belongs.
        let create: CreateDomain = unsafe { std::mem::transmute(create) };
        // SAFETY: a C string.
        DOMAIN.store(unsafe { create(c"gpumem".as_ptr()) }, Release);
    }
    Ok(())
}

/// Called by the tool while it starts.
extern "C" fn export_table(number: u32) -> *const c_void {
    extern "C" fn set(_: u32) {}
    static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), table_of };
    static VERSIONS: VersionInfo =
        VersionInfo { size: size_of::<VersionInfo>(), version: VERSION as u32, reserved: 0, set };
    match number {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSIONS).cast(),
        _ => null(),
    }
}

/// Called by the tool to learn where a module's functions go. The first place has no function.
unsafe extern "C" fn table_of(module: c_int, out: *mut *const *const AtomicPtr<c_void>, size: *mut c_uint) -> c_int {
    let module = usize::try_from(module).unwrap_or(0);
    let (Some(slots), Some(&n)) = (SLOTS.get(module), FUNCTIONS.get(module).filter(|&&n| n > 0)) else { return 0 };
    let places = slots.iter().take(n).enumerate().map(|(i, slot)| if i == 0 { null() } else { &raw const *slot });
    // The tool keeps it for as long as it likes.
    let table: &'static [*const AtomicPtr<c_void>] = Vec::leak(places.chain([null()]).collect());
    // SAFETY: the tool passes NULL or a place to write to.
    unsafe {
        if !out.is_null() {
            *out = table.as_ptr();
        }
        if !size.is_null() {
            *size = n as c_uint;
        }
    }
    1
}

fn function(number: usize) -> Option<*mut c_void> {
    let function = SLOTS.get(CORE2)?.get(number)?.load(Acquire);
    (!function.is_null()).then_some(function)
}

/// Calls one of the functions that take a domain and attributes.
fn call(number: usize, domain: *mut c_void, name: &'static CStr, bytes: u64) {
    type Call = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
    if let Some(f) = function(number) {
        // SAFETY: the tool put it where a function of this signature belongs. A mark returns
        // nothing, and no result is looked at.
        let f: Call = unsafe { std::mem::transmute(f) };
        let attributes = Attributes::new(name, bytes);
        // SAFETY: the tool's own domain, and attributes that live through the call.
        let _ = unsafe { f(domain, &attributes) };
    }
}

/// A range that ends when this is dropped, on the thread that it began on.
#[must_use]
pub struct Range(*mut c_void, PhantomData<*const ()>);

/// Begins a range of the calling thread. Where nobody listens, it looks at one word.
pub fn range(name: &'static CStr, bytes: u64) -> Range {
    let domain = DOMAIN.load(Acquire);
    if !domain.is_null() {
        call(PUSH, domain, name, bytes);
    }
    Range(domain, PhantomData)
}

impl Drop for Range {
    fn drop(&mut self) {
        type Pop = unsafe extern "C" fn(*mut c_void) -> c_int;
        if let Some(pop) = function(POP).filter(|_| !self.0.is_null()) {
            // SAFETY: the tool put it where this function belongs.
            let pop: Pop = unsafe { std::mem::transmute(pop) };
            // SAFETY: the tool's own domain.
            let _ = unsafe { pop(self.0) };
        }
    }
}

/// Marks a moment.
pub fn mark(name: &'static CStr, bytes: u64) {
    let domain = DOMAIN.load(Acquire);
    if !domain.is_null() {
        call(MARK, domain, name, bytes);
    }
}

//! The driver library: finding it, judging its version, and the table of its entry points.
//!
//! cudarc's own loader is not used, for three reasons: it panics when the library or a symbol is missing; it looks for
//! the unversioned `libcuda.so` first, which may be the toolkit's link-time stub; and it returns `CUresult` as a Rust
//! `enum`, which an error code newer than the bindings would make undefined behaviour. Its bindings still give every
//! type and constant, and each signature below is checked against them when this file is compiled.

use super::error::{describe, Code, CODE_NO_DEVICE, CODE_STUB_LIBRARY, CODE_SUCCESS};
use crate::base::{Error, Result, Status};
use cudarc::driver::sys;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void, CStr, CString};
use std::sync::OnceLock;
use sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode,
    CUgraphNodeType, CUhostFn, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuserObject,
};

/// The oldest driver that has every required entry point: CUDA 12.0 (`cuStreamGetId`).
pub(super) const OLDEST: c_int = 12_000;

/// Where the driver is looked for. The first is the name the driver installs; the second is often only a stub that
/// exists for linking, which `cuInit` then reports.
pub const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

macro_rules! entry_points {
    (required { $( $name:ident($($arg:ty),*); )* } optional { $( $opt:ident($($oarg:ty),*); )* }) => {
        /// The driver's entry points, by their exported names. They return the raw code, never a Rust `enum`.
        #[allow(non_snake_case)]
        pub(super) struct Api {
            $( pub $name: unsafe extern "C" fn($($arg),*) -> Code, )*
            $( pub $opt: Option<unsafe extern "C" fn($($oarg),*) -> Code>, )*
        }

        // The signatures above are those of the bindings.
        $( const _: unsafe fn($($arg),*) -> CUresult = sys::$name; )*
        $( const _: unsafe fn($($oarg),*) -> CUresult = sys::$opt; )*

        impl Api {
            /// Fills the table, or gives the names that the library lacks.
            fn resolve(library: &Library) -> std::result::Result<Api, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    #[allow(non_snake_case)]
                    let $name = library.symbol(stringify!($name));
                    if $name.is_null() {
                        missing.push(stringify!($name));
                    }
                )*
                if !missing.is_empty() {
                    return Err(missing);
                }
                Ok(Api {
                    // SAFETY: not null, and the driver exports this name with this C signature, whose CUresult is an
                    // unsigned int.
                    $( $name: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Code>($name) }, )*
                    // SAFETY: as above; null becomes `None`, which has the same representation.
                    $( $opt: unsafe {
                        std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($oarg),*) -> Code>>(
                            library.symbol(stringify!($opt)))
                    }, )*
                })
            }
        }
    };
}

entry_points! {
    required {
        cuInit(c_uint);
        cuGetErrorName(CUresult, *mut *const c_char);
        cuGetErrorString(CUresult, *mut *const c_char);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuCtxGetCurrent(*mut CUcontext);
        cuCtxSetCurrent(CUcontext);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxGetDevice(*mut CUdevice);
        cuCtxSynchronize();
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        cuMemAddressFree(CUdeviceptr, usize);
        cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
        cuMemRelease(CUmemGenericAllocationHandle);
        cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
        cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        cuMemUnmap(CUdeviceptr, usize);
        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
        cuStreamGetId(CUstream, *mut c_ulonglong);
        cuStreamGetCtx(CUstream, *mut CUcontext);
        cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamSynchronize(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventSynchronize(CUevent);
        cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemAllocAsync(*mut CUdeviceptr, usize, CUstream);
        cuMemFreeAsync(CUdeviceptr, CUstream);
        cuDeviceGetDefaultMemPool(*mut CUmemoryPool, CUdevice);
        cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
    }
    optional {
        cuCtxRecordEvent(CUcontext, CUevent);   // 12.5
        cuStreamGetDevice(CUstream, *mut CUdevice); // 12.8
        // Every driver has these; without them, less is known and pinning is slower.
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        // Captures and graphs: every driver has them, and a program that captures nothing can do without.
        cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
        cuStreamBeginCaptureToGraph(CUstream, CUgraph, *const CUgraphNode, *const CUgraphEdgeData, usize, CUstreamCaptureMode); // 12.3
        cuStreamGetFlags(CUstream, *mut c_uint);
        cuGraphCreate(*mut CUgraph, c_uint);
        cuStreamEndCapture(CUstream, *mut CUgraph);
        cuStreamGetCaptureInfo_v2(CUstream, *mut CUstreamCaptureStatus, *mut c_ulonglong, *mut CUgraph, *mut *const CUgraphNode,
            *mut usize);
        cuStreamGetCaptureInfo_v3(CUstream, *mut CUstreamCaptureStatus, *mut c_ulonglong, *mut CUgraph, *mut *const CUgraphNode,
            *mut *const CUgraphEdgeData, *mut usize); // 12.3
        cuGraphDestroy(CUgraph);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphExecDestroy(CUgraphExec);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphGetNodes(CUgraph, *mut CUgraphNode, *mut usize);
        cuGraphNodeGetType(CUgraphNode, *mut CUgraphNodeType);
        cuUserObjectCreate(*mut CUuserObject, *mut c_void, CUhostFn, c_uint, c_uint);
        cuUserObjectRelease(CUuserObject, c_uint);
        cuGraphRetainUserObject(CUgraph, CUuserObject, c_uint, c_uint);
    }
}

/// `dlsym`.
pub type LookUp = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static LOOK_UP: OnceLock<LookUp> = OnceLock::new();

/// Names are looked up with `f` from now on: for a library that puts a `dlsym` of its own in front of the process, and must not
/// be answered by it. The first call decides.
pub fn look_up_with(f: LookUp) {
    let _ = LOOK_UP.set(f);
}

/// A shared library, never unloaded.
struct Library {
    handle: *mut c_void,
    name: String,
}

impl Library {
    /// Opens the first of `names` that is there. One that is there and does not load ends the search with an error.
    fn open(names: &[&str]) -> Result<Library> {
        for name in names {
            let c_name = CString::new(*name).map_err(|_| Error::invalid(format!("{name:?} is not a library name")))?;
            // SAFETY: the name is a C string. Loading runs the library's constructors; the CUDA driver is made for it.
            let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library { handle, name: name.to_string() });
            }
            let why = last_dl_error();
            if !(why.starts_with(name) && why.contains("No such file")) {
                return Err(Error::new(
                    Status::Unsupported,
                    format!("the CUDA driver library {name} exists but does not load: {why}; repair the driver's installation"),
                ));
            }
        }
        Err(Error::new(
            Status::NoDevice,
            format!(
                "no CUDA driver: none of {} is in the library search path; install the NVIDIA driver, or set \
                 GPUMEM_BACKEND=host to work without a GPU",
                names.join(", ")
            ),
        ))
    }

    /// The address of an exported name, or null.
    fn symbol(&self, name: &str) -> *mut c_void {
        match CString::new(name) {
            Ok(c_name) => {
                let look_up = LOOK_UP.get().copied().unwrap_or(libc::dlsym);
                // SAFETY: the handle is open for the life of the process and the name is a C string.
                unsafe { look_up(self.handle, c_name.as_ptr()) }
            }
            Err(_) => std::ptr::null_mut(),
        }
    }

    /// The file that `symbol` came from, as far as the loader can tell.
    fn path_of(&self, symbol: *mut c_void) -> String {
        // SAFETY: all-zero is a valid Dl_info (null pointers).
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr accepts any address and fills `info` when it returns non-zero.
        if unsafe { libc::dladdr(symbol, &mut info) } != 0 && !info.dli_fname.is_null() {
            // SAFETY: the loader's own C string, which lives as long as the library: for ever.
            return unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
        }
        self.name.clone()
    }
}

fn last_dl_error() -> String {
    // SAFETY: dlerror has no preconditions; its text is this thread's and is copied before the next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown reason".into();
    }
    // SAFETY: not null, hence a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A loaded and initialised driver with at least one device.
pub(super) struct Loaded {
    pub api: Api,
    /// `1000 * major + 10 * minor`.
    pub version: c_int,
    /// The file it came from.
    pub path: String,
    pub devices: Vec<CUdevice>,
}

/// `CUDA 12.4` from 12040.
pub(super) fn version_text(version: c_int) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

/// Loads and initialises the driver. `NoDevice` means that there is no driver or no device; a driver that is there
/// and cannot be used is `Unsupported` or `Driver`.
pub(super) fn load(names: &[&str]) -> Result<Loaded> {
    let library = Library::open(names)?;
    let get_version = library.symbol("cuDriverGetVersion");
    let path = library.path_of(get_version);
    if get_version.is_null() {
        return Err(lacking(&path, &["cuDriverGetVersion"], "of unknown version"));
    }
    const _: unsafe fn(*mut c_int) -> CUresult = sys::cuDriverGetVersion;
    // SAFETY: not null, and the driver exports this name with this signature.
    let get_version: unsafe extern "C" fn(*mut c_int) -> Code = unsafe { std::mem::transmute(get_version) };
    let mut version = 0;
    // SAFETY: the one call that is legal before cuInit; it writes one int.
    let code = unsafe { get_version(&mut version) };
    if code == CODE_STUB_LIBRARY {
        return Err(stub(&path));
    }
    if code != CODE_SUCCESS {
        return Err(Error::new(Status::Driver, format!("cuDriverGetVersion in {path} failed with CUDA error {code}")));
    }
    if version < OLDEST {
        return Err(Error::new(
            Status::Unsupported,
            format!(
                "the driver in {path} is for {}, gpumem needs {} or later: update the NVIDIA driver",
                version_text(version),
                version_text(OLDEST)
            ),
        ));
    }
    let api =
        Api::resolve(&library).map_err(|names| lacking(&path, &names, &format!("for {}", version_text(version))))?;

    // SAFETY: flags must be 0; callable any number of times from any thread.
    let code = unsafe { (api.cuInit)(0) };
    match code {
        CODE_SUCCESS => {}
        CODE_STUB_LIBRARY => return Err(stub(&path)),
        CODE_NO_DEVICE => return Err(no_device(&path, version)),
        _ => {
            return Err(Error::new(
                Status::Driver,
                format!(
                    "cuInit in {path} ({}) failed: {}; check that nvidia-smi works and that the kernel module and the \
                     library have the same version",
                    version_text(version),
                    describe(&api, code)
                ),
            ))
        }
    }
    let mut count = 0;
    // SAFETY: initialised; writes one int.
    check(&api, unsafe { (api.cuDeviceGetCount)(&mut count) }, "cuDeviceGetCount")?;
    let mut devices = Vec::new();
    for ordinal in 0..count {
        let mut device = 0;
        // SAFETY: writes one CUdevice; the ordinal is below the count.
        check(&api, unsafe { (api.cuDeviceGet)(&mut device, ordinal) }, "cuDeviceGet")?;
        devices.push(device);
    }
    if devices.is_empty() {
        return Err(no_device(&path, version));
    }
    Ok(Loaded { api, version, path, devices })
}

fn check(api: &Api, code: Code, call: &str) -> Result<()> {
    if code == CODE_SUCCESS {
        return Ok(());
    }
    Err(Error::new(Status::Driver, format!("{call} failed: {}", describe(api, code))))
}

fn no_device(path: &str, version: c_int) -> Error {
    Error::new(
        Status::NoDevice,
        format!(
            "the driver in {path} ({}) sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES, or set \
             GPUMEM_BACKEND=host to work without a GPU",
            version_text(version)
        ),
    )
}

fn stub(path: &str) -> Error {
    Error::new(
        Status::NoDevice,
        format!(
            "{path} is the CUDA toolkit's stub for linking, not a driver; install the NVIDIA driver and take the stubs \
             folder out of LD_LIBRARY_PATH, or set GPUMEM_BACKEND=host"
        ),
    )
}

fn lacking(path: &str, names: &[&str], what: &str) -> Error {
    Error::new(
        Status::Unsupported,
        format!(
            "the driver in {path}, {what}, lacks {}, which every driver for {} or later has: update or repair the \
             NVIDIA driver, or remove what replaces it",
            names.join(", "),
            version_text(OLDEST)
        ),
    )
}

//! The driver's functions, and the table of hooks in front of them.

use crate::guard::Inside;
use crate::look_up::own_dlsym;
use crate::{alloc, captures, contexts, facts, guard, ipc, mempool, ordered, pressure, resolve};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// A `CUresult`, any number.
pub type Code = u32;
/// A `CUdeviceptr`.
pub type Ptr = u64;
/// A `CUstream`, by number: 0 and 1 the legacy stream, 2 the per-thread one.
pub type Stream = usize;
/// A `CUcontext`.
pub type Ctx = usize;
/// A `CUmemoryPool`.
pub type MemPool = usize;

pub const SUCCESS: Code = 0;
pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NOT_INITIALIZED: Code = 3;
pub const INVALID_CONTEXT: Code = 201;
pub const MAP_FAILED: Code = 205;

/// A `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle(pub [u8; 64]);

/// Which default stream a look-up asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thread {
    /// The function has one variant.
    Any,
    /// The variant for the legacy default stream,
    Legacy,
    /// and that for the per-thread one.
    Own,
}

/// One function that is hooked.
pub struct Hook {
    /// As `cuGetProcAddress` knows it.
    pub base: &'static str,
    /// The CUDA version that introduced this variant,
    pub since: c_int,
    /// and the first with another one.
    pub until: c_int,
    pub thread: Thread,
    /// As the library exports it.
    pub export: &'static str,
    /// The driver's.
    pub real: fn(&Real) -> usize,
}

macro_rules! functions {
    (
        hooked { $( $base:literal, $since:literal .. $until:literal, $thread:ident: $name:ident($($arg:ident: $ty:ty),*) = $hook:path; )* }
        others { $( $other:ident($($oty:ty),*); )* }
    ) => {
        /// The driver's functions that are called from here; `None` where the driver is older.
        #[allow(non_snake_case)]
        pub struct Real {
            $( pub $name: Option<unsafe extern "C" fn($($ty),*) -> Code>, )*
            $( pub $other: Option<unsafe extern "C" fn($($oty),*) -> Code>, )*
        }

        impl Real {
            /// # Safety
            /// `library` is the driver's.
            unsafe fn read(library: *mut c_void) -> Real {
                // SAFETY: the driver exports these names with these types; null is `None`.
                unsafe {
                    Real {
                        $( $name: std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($ty),*) -> Code>>(
                            own_dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast())), )*
                        $( $other: std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($oty),*) -> Code>>(
                            own_dlsym(library, concat!(stringify!($other), "\0").as_ptr().cast())), )*
                    }
                }
            }

            $(
                /// The driver's function; its absence is an error of CUDA's.
                #[allow(non_snake_case, clippy::too_many_arguments)]
                #[inline]
                pub fn $name(&self, $($arg: $ty),*) -> Code {
                    match self.$name {
                        // SAFETY: what the program passed on, or out-parameters of the caller's own.
                        Some(f) => unsafe { f($($arg),*) },
                        None => NOT_INITIALIZED,
                    }
                }
            )*
        }

        /// What stands in for each function, under its own name: programs that are linked to the driver find it first.
        mod exports {
            use super::*;
            $(
                #[no_mangle]
                #[allow(non_snake_case)]
                unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
                    let Some(real) = Real::get() else { return NOT_INITIALIZED };
                    // SAFETY: the program's arguments, which are the driver function's by contract.
                    guard::run(|| unsafe { $hook(real, $($arg),*) }, || real.$name($($arg),*))
                }
            )*
            pub static HOOKS: &[Hook] = &[
                $( Hook {
                    base: $base, since: $since, until: $until, thread: Thread::$thread, export: stringify!($name),
                    real: |r| r.$name.map_or(0, |f| f as usize),
                }, )*
            ];
            /// In the order of `HOOKS`.
            pub fn address(i: usize) -> usize {
                [ $( $name as *const () as usize, )* ].get(i).copied().unwrap_or(0)
            }
        }
    };
}

functions! {
    hooked {
        "cuGetProcAddress", 11030 .. 12000, Any: cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) = resolve::v1;
        "cuGetProcAddress", 12000 .. 99999, Any: cuGetProcAddress_v2(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) = resolve::v2;
        "cuMemAlloc", 3020 .. 99999, Any: cuMemAlloc_v2(out: *mut Ptr, bytes: usize) = alloc::alloc;
        "cuMemAllocPitch", 3020 .. 99999, Any: cuMemAllocPitch_v2(out: *mut Ptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) = alloc::pitch;
        "cuMemFree", 3020 .. 99999, Any: cuMemFree_v2(ptr: Ptr) = alloc::free;
        "cuMemAllocAsync", 11020 .. 99999, Legacy: cuMemAllocAsync(out: *mut Ptr, bytes: usize, stream: Stream) = ordered::alloc;
        "cuMemAllocAsync", 11020 .. 99999, Own: cuMemAllocAsync_ptsz(out: *mut Ptr, bytes: usize, stream: Stream) = ordered::alloc_own;
        "cuMemFreeAsync", 11020 .. 99999, Legacy: cuMemFreeAsync(ptr: Ptr, stream: Stream) = ordered::free;
        "cuMemFreeAsync", 11020 .. 99999, Own: cuMemFreeAsync_ptsz(ptr: Ptr, stream: Stream) = ordered::free_own;
        "cuMemAllocFromPoolAsync", 11020 .. 99999, Legacy: cuMemAllocFromPoolAsync(out: *mut Ptr, bytes: usize, pool: MemPool, stream: Stream) = ordered::from_pool;
        "cuMemAllocFromPoolAsync", 11020 .. 99999, Own: cuMemAllocFromPoolAsync_ptsz(out: *mut Ptr, bytes: usize, pool: MemPool, stream: Stream) = ordered::from_pool_own;
        "cuMemPoolTrimTo", 11020 .. 99999, Any: cuMemPoolTrimTo(pool: MemPool, keep: usize) = mempool::trim;
        "cuMemPoolGetAttribute", 11020 .. 99999, Any: cuMemPoolGetAttribute(pool: MemPool, what: c_int, out: *mut c_void) = mempool::get;
        "cuMemPoolSetAttribute", 11020 .. 99999, Any: cuMemPoolSetAttribute(pool: MemPool, what: c_int, value: *mut c_void) = mempool::set;
        "cuMemPoolSetAccess", 11020 .. 99999, Any: cuMemPoolSetAccess(pool: MemPool, map: *const mempool::Access, count: usize) = mempool::access;
        "cuDeviceSetMemPool", 11020 .. 99999, Any: cuDeviceSetMemPool(device: c_int, pool: MemPool) = mempool::choose;
        "cuMemSetMemPool", 13000 .. 99999, Any: cuMemSetMemPool(location: *mut mempool::Location, kind: c_int, pool: MemPool) = mempool::choose_at;
        "cuMemGetInfo", 3020 .. 99999, Any: cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = facts::memory;
        "cuMemGetAddressRange", 3020 .. 99999, Any: cuMemGetAddressRange_v2(base: *mut Ptr, bytes: *mut usize, ptr: Ptr) = facts::range;
        "cuPointerGetAttribute", 4000 .. 99999, Any: cuPointerGetAttribute(out: *mut c_void, what: c_int, ptr: Ptr) = facts::attribute;
        "cuPointerGetAttributes", 7000 .. 99999, Any: cuPointerGetAttributes(count: c_uint, what: *mut c_int, out: *mut *mut c_void, ptr: Ptr) = facts::attributes;
        "cuPointerSetAttribute", 6000 .. 99999, Any: cuPointerSetAttribute(value: *const c_void, what: c_int, ptr: Ptr) = facts::set_attribute;
        "cuIpcGetMemHandle", 4010 .. 99999, Any: cuIpcGetMemHandle(out: *mut IpcHandle, ptr: Ptr) = ipc::export;
        "cuIpcOpenMemHandle", 11000 .. 99999, Any: cuIpcOpenMemHandle_v2(out: *mut Ptr, handle: IpcHandle, flags: c_uint) = ipc::open;
        "cuIpcOpenMemHandle", 4010 .. 11000, Any: cuIpcOpenMemHandle(out: *mut Ptr, handle: IpcHandle, flags: c_uint) = ipc::open_1;
        "cuIpcCloseMemHandle", 4010 .. 99999, Any: cuIpcCloseMemHandle(ptr: Ptr) = ipc::close;
        "cuCtxEnablePeerAccess", 4000 .. 99999, Any: cuCtxEnablePeerAccess(peer: Ctx, flags: c_uint) = contexts::enable_peer;
        "cuCtxDestroy", 4000 .. 99999, Any: cuCtxDestroy_v2(ctx: Ctx) = contexts::destroy;
        "cuDevicePrimaryCtxRetain", 7000 .. 99999, Any: cuDevicePrimaryCtxRetain(out: *mut Ctx, device: c_int) = contexts::retain;
        "cuDevicePrimaryCtxRelease", 11000 .. 99999, Any: cuDevicePrimaryCtxRelease_v2(device: c_int) = contexts::release;
        "cuDevicePrimaryCtxRelease", 7000 .. 11000, Any: cuDevicePrimaryCtxRelease(device: c_int) = contexts::release_1;
        "cuDevicePrimaryCtxReset", 7000 .. 11000, Any: cuDevicePrimaryCtxReset(device: c_int) = contexts::reset_1;
        "cuDevicePrimaryCtxReset", 11000 .. 99999, Any: cuDevicePrimaryCtxReset_v2(device: c_int) = contexts::reset;
        "cuStreamBeginCapture", 10010 .. 99999, Legacy: cuStreamBeginCapture_v2(stream: Stream, mode: c_int) = captures::begin;
        "cuStreamBeginCapture", 10010 .. 99999, Own: cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: c_int) = captures::begin_own;
        "cuStreamBeginCapture", 10000 .. 10010, Legacy: cuStreamBeginCapture(stream: Stream) = captures::begin_1;
        "cuStreamBeginCapture", 10000 .. 10010, Own: cuStreamBeginCapture_ptsz(stream: Stream) = captures::begin_1_own;
        "cuStreamBeginCaptureToGraph", 12030 .. 99999, Legacy: cuStreamBeginCaptureToGraph(stream: Stream, graph: usize, nodes: usize, edges: usize, count: usize, mode: c_int) = captures::begin_graph;
        "cuStreamBeginCaptureToGraph", 12030 .. 99999, Own: cuStreamBeginCaptureToGraph_ptsz(stream: Stream, graph: usize, nodes: usize, edges: usize, count: usize, mode: c_int) = captures::begin_graph_own;
        "cuStreamEndCapture", 10000 .. 99999, Legacy: cuStreamEndCapture(stream: Stream, graph: *mut usize) = captures::end;
        "cuStreamEndCapture", 10000 .. 99999, Own: cuStreamEndCapture_ptsz(stream: Stream, graph: *mut usize) = captures::end_own;
        "cuStreamDestroy", 4000 .. 99999, Any: cuStreamDestroy_v2(stream: Stream) = captures::destroy;
        "cuMemCreate", 10020 .. 99999, Any: cuMemCreate(out: *mut u64, bytes: usize, prop: *const c_void, flags: u64) = pressure::create;
        "cuMemAllocManaged", 6000 .. 99999, Any: cuMemAllocManaged(out: *mut Ptr, bytes: usize, flags: c_uint) = pressure::managed;
        "cuArrayCreate", 3020 .. 99999, Any: cuArrayCreate_v2(out: *mut usize, desc: *const c_void) = pressure::array;
        "cuArray3DCreate", 3020 .. 99999, Any: cuArray3DCreate_v2(out: *mut usize, desc: *const c_void) = pressure::array_3d;
        "cuMipmappedArrayCreate", 5000 .. 99999, Any: cuMipmappedArrayCreate(out: *mut usize, desc: *const c_void, levels: c_uint) = pressure::mipmapped;
    }
    others {
        cuCtxGetCurrent(*mut Ctx);
        cuCtxGetDevice(*mut c_int);
        cuCtxPushCurrent_v2(Ctx);
        cuCtxPopCurrent_v2(*mut Ctx);
        cuCtxSynchronize();
        cuDeviceGetDefaultMemPool(*mut MemPool, c_int);
        cuDeviceGetMemPool(*mut MemPool, c_int);
        cuStreamIsCapturing(Stream, *mut c_int);
        cuStreamGetCtx(Stream, *mut Ctx);
        cuStreamSynchronize(Stream);
    }
}

/// Calls one of the `others`: its code, or an error of CUDA's where the driver lacks it.
macro_rules! other {
    ($real:expr, $name:ident($($arg:expr),*)) => {
        match $real.$name {
            // SAFETY: out-parameters are locals of the caller's, handles are the program's.
            Some(f) => unsafe { f($($arg),*) },
            None => $crate::real::NOT_INITIALIZED,
        }
    };
}
pub(crate) use other;

pub use exports::{address, HOOKS};

static REAL: AtomicPtr<Real> = AtomicPtr::new(std::ptr::null_mut());

impl Real {
    /// The driver, which the program has loaded; `None` when there is none.
    #[inline]
    pub fn get() -> Option<&'static Real> {
        // SAFETY: null, or a table that is never freed.
        match unsafe { REAL.load(Acquire).as_ref() } {
            Some(real) => Some(real),
            None => Real::find(),
        }
    }

    #[cold]
    fn find() -> Option<&'static Real> {
        let _inside = Inside::enter();
        // The program has loaded the driver, or it could not have asked for a function of it.
        // SAFETY: a C string; nothing is loaded that is not loaded already.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        gpumem::driver::cuda::look_up_with(own_dlsym);
        // SAFETY: the driver's library, which stays loaded by the reference just taken.
        let mine = Box::into_raw(Box::new(unsafe { Real::read(library) }));
        match REAL.compare_exchange(std::ptr::null_mut(), mine, AcqRel, Acquire) {
            // SAFETY: never freed.
            Ok(_) => unsafe { mine.as_ref() },
            Err(theirs) => {
                // SAFETY: made above and given to nobody; the other's is never freed.
                unsafe {
                    drop(Box::from_raw(mine));
                    theirs.as_ref()
                }
            }
        }
    }

    /// The calling thread's current context, 0 when it has none.
    #[inline]
    pub fn current(&self) -> Ctx {
        let mut ctx = 0;
        match other!(self, cuCtxGetCurrent(&mut ctx)) {
            SUCCESS => ctx,
            _ => 0,
        }
    }

    /// Whether the stream is being captured; an error is one too.
    pub fn is_captured(&self, stream: Stream) -> bool {
        let mut state = 0;
        other!(self, cuStreamIsCapturing(stream, &mut state)) != SUCCESS || state != 0
    }

    /// The device that a context is on.
    pub fn device_of(&self, ctx: Ctx) -> Option<c_int> {
        let mut device = -1;
        if self.current() == ctx {
            return (other!(self, cuCtxGetDevice(&mut device)) == SUCCESS).then_some(device);
        }
        self.within(ctx, || other!(self, cuCtxGetDevice(&mut device)) == SUCCESS)?.then_some(device)
    }

    /// Runs something with a context current.
    pub fn within<T>(&self, ctx: Ctx, run: impl FnOnce() -> T) -> Option<T> {
        if other!(self, cuCtxPushCurrent_v2(ctx)) != SUCCESS {
            return None;
        }
        let result = run();
        let mut popped = 0;
        other!(self, cuCtxPopCurrent_v2(&mut popped));
        Some(result)
    }
}

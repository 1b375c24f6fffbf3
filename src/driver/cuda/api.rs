//! The table of the driver's entry points.
//!
//! cudarc's own loader is not used, for three reasons: it panics when the library or a symbol is
//! missing; it looks for the unversioned `libcuda.so` first, which may be the toolkit's link-time
//! stub; and it returns `CUresult` as a Rust `enum`, which an error code newer than the bindings
//! would make undefined behaviour. Its bindings still give every type and constant, and each
//! signature below is checked against them when this file is compiled.

use super::code::Code;
use super::library::Library;
use cudarc::driver::sys;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode,
    CUgraphNodeType, CUhostFn, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuserObject,
};

macro_rules! entry_points {
    (required { $( $name:ident($($arg:ty),*); )* } optional { $( $opt:ident($($oarg:ty),*); )* }) => {
        /// The driver's entry points, by their exported names. They return the raw code, never a
        /// Rust `enum`.
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
            pub(super) fn resolve(library: &Library) -> std::result::Result<Api, Vec<&'static str>> {
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
                    // SAFETY: not null, and the driver exports this name with this C signature,
                    // whose CUresult is an unsigned int.
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
        // Captures and graphs: every driver has them, and a program that captures nothing can do
        // without.
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

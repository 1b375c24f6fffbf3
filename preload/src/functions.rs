//! The driver's functions that are hooked, and the others that are called from here. Those without
//! a hook of their own are only tried again if memory is short (`pressure.rs`).

/// Hands the list to a macro.
macro_rules! functions {
    ($take:ident) => {
        $take! {
            hooked {
                "cuGetProcAddress", 11030 .. 12000, Any: cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) = v1;
                "cuGetProcAddress", 12000 .. 99999, Any: cuGetProcAddress_v2(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) = v2;
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
                "cuMemPoolSetAccess", 11020 .. 99999, Any: cuMemPoolSetAccess(pool: MemPool, map: *const Access, count: usize) = mempool::access;
                "cuDeviceSetMemPool", 11020 .. 99999, Any: cuDeviceSetMemPool(device: c_int, pool: MemPool) = mempool::choose;
                "cuMemPoolDestroy", 11020 .. 99999, Any: cuMemPoolDestroy(pool: MemPool) = mempool::destroy;
                "cuMemSetMemPool", 13000 .. 99999, Any: cuMemSetMemPool(location: *mut Location, kind: c_int, pool: MemPool) = mempool::choose_at;
                "cuMemGetInfo", 3020 .. 99999, Any: cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = facts::memory;
                "cuDeviceTotalMem", 3020 .. 99999, Any: cuDeviceTotalMem_v2(out: *mut usize, device: c_int) = facts::total;
                "cuMemGetAddressRange", 3020 .. 99999, Any: cuMemGetAddressRange_v2(base: *mut Ptr, bytes: *mut usize, ptr: Ptr) = facts::range;
                "cuMemRetainAllocationHandle", 11000 .. 99999, Any: cuMemRetainAllocationHandle(out: *mut u64, ptr: Ptr) = facts::retain;
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
                "cuGreenCtxCreate", 12040 .. 99999, Any: cuGreenCtxCreate(out: *mut usize, desc: *mut c_void, device: c_int, flags: c_uint) = contexts::create_green;
                "cuGreenCtxDestroy", 12040 .. 99999, Any: cuGreenCtxDestroy(green: usize) = contexts::destroy_green;
                "cuStreamBeginCapture", 10010 .. 99999, Legacy: cuStreamBeginCapture_v2(stream: Stream, mode: c_int) = captures::begin;
                "cuStreamBeginCapture", 10010 .. 99999, Own: cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: c_int) = captures::begin_own;
                "cuStreamBeginCapture", 10000 .. 10010, Legacy: cuStreamBeginCapture(stream: Stream) = captures::begin_1;
                "cuStreamBeginCapture", 10000 .. 10010, Own: cuStreamBeginCapture_ptsz(stream: Stream) = captures::begin_1_own;
                "cuStreamBeginCaptureToGraph", 12030 .. 99999, Legacy: cuStreamBeginCaptureToGraph(stream: Stream, graph: usize, nodes: usize, edges: usize, count: usize, mode: c_int) = captures::begin_graph;
                "cuStreamBeginCaptureToGraph", 12030 .. 99999, Own: cuStreamBeginCaptureToGraph_ptsz(stream: Stream, graph: usize, nodes: usize, edges: usize, count: usize, mode: c_int) = captures::begin_graph_own;
                "cuStreamBeginRecaptureToGraph", 13030 .. 99999, Legacy: cuStreamBeginRecaptureToGraph(stream: Stream, mode: c_int, graph: usize, mismatch: *mut c_void, data: *mut c_void) = captures::begin_again;
                "cuStreamBeginRecaptureToGraph", 13030 .. 99999, Own: cuStreamBeginRecaptureToGraph_ptsz(stream: Stream, mode: c_int, graph: usize, mismatch: *mut c_void, data: *mut c_void) = captures::begin_again_own;
                "cuStreamBeginCaptureToCig", 13020 .. 99999, Legacy: cuStreamBeginCaptureToCig(stream: Stream, params: *mut c_void) = captures::begin_cig;
                "cuStreamBeginCaptureToCig", 13020 .. 99999, Own: cuStreamBeginCaptureToCig_ptsz(stream: Stream, params: *mut c_void) = captures::begin_cig_own;
                "cuStreamEndCaptureToCig", 13020 .. 99999, Legacy: cuStreamEndCaptureToCig(stream: Stream) = captures::end_cig;
                "cuStreamEndCaptureToCig", 13020 .. 99999, Own: cuStreamEndCaptureToCig_ptsz(stream: Stream) = captures::end_cig_own;
                "cuStreamEndCapture", 10000 .. 99999, Legacy: cuStreamEndCapture(stream: Stream, graph: *mut usize) = captures::end;
                "cuStreamEndCapture", 10000 .. 99999, Own: cuStreamEndCapture_ptsz(stream: Stream, graph: *mut usize) = captures::end_own;
                "cuStreamDestroy", 4000 .. 99999, Any: cuStreamDestroy_v2(stream: Stream) = captures::destroy;
                "cuGraphAddNode", 12020 .. 12030, Any: cuGraphAddNode(out: *mut usize, graph: usize, from: *const usize, count: usize, params: *mut NodeParams) = graphs::add_1;
                "cuGraphAddNode", 12030 .. 13040, Any: cuGraphAddNode_v2(out: *mut usize, graph: usize, from: *const usize, edges: *const c_void, count: usize, params: *mut NodeParams) = graphs::add;
                "cuGraphNodeSetParams", 12020 .. 13040, Any: cuGraphNodeSetParams(node: usize, params: *mut NodeParams) = graphs::set;
                "cuGraphExecNodeSetParams", 12020 .. 99999, Any: cuGraphExecNodeSetParams(exec: usize, node: usize, params: *mut NodeParams) = graphs::set_in;

                "cuMemCreate", 10020 .. 99999, Any: cuMemCreate(out: *mut u64, bytes: usize, prop: *const c_void, flags: u64);
                "cuMemMap", 10020 .. 99999, Any: cuMemMap(ptr: Ptr, bytes: usize, offset: usize, handle: u64, flags: u64);
                "cuMemSetAccess", 10020 .. 99999, Any: cuMemSetAccess(ptr: Ptr, bytes: usize, map: *const Access, count: usize);
                "cuMemPoolCreate", 11020 .. 99999, Any: cuMemPoolCreate(out: *mut MemPool, props: *const c_void);
                "cuMemAllocManaged", 6000 .. 99999, Any: cuMemAllocManaged(out: *mut Ptr, bytes: usize, flags: c_uint);
                "cuArrayCreate", 3020 .. 99999, Any: cuArrayCreate_v2(out: *mut usize, desc: *const c_void);
                "cuArray3DCreate", 3020 .. 99999, Any: cuArray3DCreate_v2(out: *mut usize, desc: *const c_void);
                "cuMipmappedArrayCreate", 5000 .. 99999, Any: cuMipmappedArrayCreate(out: *mut usize, desc: *const c_void, levels: c_uint);
                "cuCtxCreate", 3020 .. 11040, Any: cuCtxCreate_v2(out: *mut Ctx, flags: c_uint, device: c_int);
                "cuCtxCreate", 11040 .. 12050, Any: cuCtxCreate_v3(out: *mut Ctx, affinity: *mut c_void, count: c_int, flags: c_uint, device: c_int);
                "cuCtxCreate", 12050 .. 99999, Any: cuCtxCreate_v4(out: *mut Ctx, params: *mut c_void, flags: c_uint, device: c_int);
                "cuStreamCreate", 2000 .. 99999, Any: cuStreamCreate(out: *mut Stream, flags: c_uint);
                "cuStreamCreateWithPriority", 5050 .. 99999, Any: cuStreamCreateWithPriority(out: *mut Stream, flags: c_uint, priority: c_int);
                "cuGreenCtxStreamCreate", 12050 .. 99999, Any: cuGreenCtxStreamCreate(out: *mut Stream, green: usize, flags: c_uint, priority: c_int);
                "cuEventCreate", 2000 .. 99999, Any: cuEventCreate(out: *mut usize, flags: c_uint);
                "cuModuleLoad", 2000 .. 99999, Any: cuModuleLoad(out: *mut usize, file: *const c_char);
                "cuModuleLoadData", 2000 .. 99999, Any: cuModuleLoadData(out: *mut usize, image: *const c_void);
                "cuModuleLoadDataEx", 2010 .. 99999, Any: cuModuleLoadDataEx(out: *mut usize, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
                "cuModuleLoadFatBinary", 2000 .. 99999, Any: cuModuleLoadFatBinary(out: *mut usize, image: *const c_void);
                "cuModuleGetFunction", 2000 .. 99999, Any: cuModuleGetFunction(out: *mut usize, module: usize, name: *const c_char);
                "cuModuleGetGlobal", 3020 .. 99999, Any: cuModuleGetGlobal_v2(out: *mut Ptr, bytes: *mut usize, module: usize, name: *const c_char);
                "cuLibraryLoadData", 12000 .. 99999, Any: cuLibraryLoadData(out: *mut usize, code: *const c_void, options: *mut c_int, values: *mut *mut c_void, count: c_uint, library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint);
                "cuLibraryLoadFromFile", 12000 .. 99999, Any: cuLibraryLoadFromFile(out: *mut usize, file: *const c_char, options: *mut c_int, values: *mut *mut c_void, count: c_uint, library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint);
                "cuLibraryGetGlobal", 12000 .. 99999, Any: cuLibraryGetGlobal(out: *mut Ptr, bytes: *mut usize, library: usize, name: *const c_char);
                "cuLibraryGetManaged", 12000 .. 99999, Any: cuLibraryGetManaged(out: *mut Ptr, bytes: *mut usize, library: usize, name: *const c_char);
                "cuFuncLoad", 12040 .. 99999, Any: cuFuncLoad(f: usize);
                "cuLibraryGetModule", 12000 .. 99999, Any: cuLibraryGetModule(out: *mut usize, library: usize);
                "cuKernelGetFunction", 12000 .. 99999, Any: cuKernelGetFunction(out: *mut usize, kernel: usize);
                "cuKernelGetAttribute", 12000 .. 99999, Any: cuKernelGetAttribute(out: *mut c_int, what: c_int, kernel: usize, device: c_int);
                "cuKernelSetAttribute", 12000 .. 99999, Any: cuKernelSetAttribute(what: c_int, value: c_int, kernel: usize, device: c_int);
                "cuFuncGetAttribute", 2020 .. 99999, Any: cuFuncGetAttribute(out: *mut c_int, what: c_int, f: usize);
                "cuFuncSetAttribute", 9000 .. 99999, Any: cuFuncSetAttribute(f: usize, what: c_int, value: c_int);
                "cuFuncSetCacheConfig", 3000 .. 99999, Any: cuFuncSetCacheConfig(f: usize, config: c_int);
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050 .. 99999, Any: cuOccupancyMaxActiveBlocksPerMultiprocessor(out: *mut c_int, f: usize, block: c_int, shared: usize);
                "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000 .. 99999, Any: cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: *mut c_int, f: usize, block: c_int, shared: usize, flags: c_uint);
                "cuOccupancyMaxPotentialBlockSize", 6050 .. 99999, Any: cuOccupancyMaxPotentialBlockSize(grid: *mut c_int, block: *mut c_int, f: usize, shared_of: *const c_void, shared: usize, most: c_int);
                "cuOccupancyMaxPotentialBlockSizeWithFlags", 7000 .. 99999, Any: cuOccupancyMaxPotentialBlockSizeWithFlags(grid: *mut c_int, block: *mut c_int, f: usize, shared_of: *const c_void, shared: usize, most: c_int, flags: c_uint);
                "cuOccupancyAvailableDynamicSMemPerBlock", 10020 .. 99999, Any: cuOccupancyAvailableDynamicSMemPerBlock(out: *mut usize, f: usize, blocks: c_int, block: c_int);
                "cuOccupancyMaxPotentialClusterSize", 11070 .. 99999, Any: cuOccupancyMaxPotentialClusterSize(out: *mut c_int, f: usize, config: *const c_void);
                "cuOccupancyMaxActiveClusters", 11070 .. 99999, Any: cuOccupancyMaxActiveClusters(out: *mut c_int, f: usize, config: *const c_void);
                "cuCtxSetLimit", 3010 .. 99999, Any: cuCtxSetLimit(limit: c_int, value: usize);
                "cuLaunchKernel", 4000 .. 99999, Legacy: cuLaunchKernel(f: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, params: *mut *mut c_void, extra: *mut *mut c_void);
                "cuLaunchKernelEx", 11060 .. 99999, Legacy: cuLaunchKernelEx(config: *const c_void, f: usize, params: *mut *mut c_void, extra: *mut *mut c_void);
                "cuLaunchCooperativeKernel", 9000 .. 99999, Legacy: cuLaunchCooperativeKernel(f: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, params: *mut *mut c_void);
                "cuGraphLaunch", 10000 .. 99999, Legacy: cuGraphLaunch(exec: usize, stream: Stream);
                "cuGraphUpload", 11010 .. 99999, Legacy: cuGraphUpload(exec: usize, stream: Stream);
                "cuGraphInstantiateWithParams", 12000 .. 99999, Legacy: cuGraphInstantiateWithParams(out: *mut usize, graph: usize, params: *mut c_void);
                "cuLaunchKernel", 4000 .. 99999, Own: cuLaunchKernel_ptsz(f: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, params: *mut *mut c_void, extra: *mut *mut c_void);
                "cuLaunchKernelEx", 11060 .. 99999, Own: cuLaunchKernelEx_ptsz(config: *const c_void, f: usize, params: *mut *mut c_void, extra: *mut *mut c_void);
                "cuLaunchCooperativeKernel", 9000 .. 99999, Own: cuLaunchCooperativeKernel_ptsz(f: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, params: *mut *mut c_void);
                "cuGraphLaunch", 10000 .. 99999, Own: cuGraphLaunch_ptsz(exec: usize, stream: Stream);
                "cuGraphUpload", 11010 .. 99999, Own: cuGraphUpload_ptsz(exec: usize, stream: Stream);
                "cuGraphInstantiateWithParams", 12000 .. 99999, Own: cuGraphInstantiateWithParams_ptsz(out: *mut usize, graph: usize, params: *mut c_void);
                "cuGraphInstantiate", 11000 .. 12000, Any: cuGraphInstantiate_v2(out: *mut usize, graph: usize, wrong: *mut usize, log: *mut c_char, bytes: usize);
                "cuGraphExecUpdate", 10020 .. 12000, Any: cuGraphExecUpdate(exec: usize, graph: usize, wrong: *mut usize, result: *mut c_int);
                "cuGraphExecUpdate", 12000 .. 99999, Any: cuGraphExecUpdate_v2(exec: usize, graph: usize, result: *mut c_void);
                "cuGraphAddKernelNode", 10000 .. 12000, Any: cuGraphAddKernelNode(out: *mut usize, graph: usize, from: *const usize, count: usize, params: *const c_void);
                "cuGraphAddKernelNode", 12000 .. 99999, Any: cuGraphAddKernelNode_v2(out: *mut usize, graph: usize, from: *const usize, count: usize, params: *const c_void);
                "cuGraphKernelNodeSetParams", 10000 .. 12000, Any: cuGraphKernelNodeSetParams(node: usize, params: *const c_void);
                "cuGraphKernelNodeSetParams", 12000 .. 99999, Any: cuGraphKernelNodeSetParams_v2(node: usize, params: *const c_void);
                "cuGraphExecKernelNodeSetParams", 10010 .. 12000, Any: cuGraphExecKernelNodeSetParams(exec: usize, node: usize, params: *const c_void);
                "cuGraphExecKernelNodeSetParams", 12000 .. 99999, Any: cuGraphExecKernelNodeSetParams_v2(exec: usize, node: usize, params: *const c_void);
                "cuGraphAddMemAllocNode", 11040 .. 99999, Any: cuGraphAddMemAllocNode(out: *mut usize, graph: usize, from: *const usize, count: usize, params: *mut c_void);
                "cuGraphInstantiate", 12000 .. 99999, Any: cuGraphInstantiateWithFlags(out: *mut usize, graph: usize, flags: u64);
            }
            others {
                cuCtxGetCurrent(*mut Ctx);
                cuCtxGetDevice(*mut c_int);
                cuCtxPushCurrent_v2(Ctx);
                cuCtxPopCurrent_v2(*mut Ctx);
                cuCtxRecordEvent(Ctx, usize);
                cuCtxSynchronize();
                cuDevicePrimaryCtxGetState(c_int, *mut c_uint, *mut c_int);
                cuDeviceGetDefaultMemPool(*mut MemPool, c_int);
                cuDeviceGetMemPool(*mut MemPool, c_int);
                cuMemPoolGetAccess(*mut c_int, MemPool, *mut Location);
                cuEventDestroy_v2(usize);
                cuEventSynchronize(usize);
                cuStreamIsCapturing(Stream, *mut c_int);
                cuStreamGetCtx(Stream, *mut Ctx);
                cuStreamSynchronize(Stream);
                cuThreadExchangeStreamCaptureMode(*mut c_uint);
            }

        }
    };
}
pub(crate) use functions;

/* As much of the CUDA runtime, put in front of the real one, as PyTorch needs to allocate
 * tensors without a GPU. Nothing runs. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static __thread int device;
int cudaGetDevice(int *d) { *d = device; return 0; }
int cudaSetDevice(int d) { device = d; return 0; }
int cudaGetDeviceCount(int *d) { *d = 1; return 0; }
int cudaDeviceSynchronize(void) { return 0; }
int cudaMemGetInfo(size_t *f, size_t *t) { *f = (size_t)1 << 30; *t = (size_t)4 << 30; return 0; }
/* What a test sets: whether every stream is being captured. */
static int capturing;
void stub_capturing(int yes) { capturing = yes; }
int cudaStreamIsCapturing(void *s, int *status) { (void)s; *status = capturing; return 0; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
int cudaDeviceGetStreamPriorityRange(int *a, int *b) { *a = 0; *b = -1; return 0; }
int cudaDriverGetVersion(int *v) { *v = 13000; return 0; }
int cudaRuntimeGetVersion(int *v) { *v = 13000; return 0; }
int cudaGetDeviceProperties(void *p, int d) { (void)d; memset(p, 0, 700); strcpy(p, "stub"); return 0; }
int cudaGetDeviceProperties_v2(void *p, int d) { return cudaGetDeviceProperties(p, d); }
int cudaDeviceGetAttribute(int *v, int a, int d) { (void)a; (void)d; *v = 0; return 0; }
int cudaStreamSynchronize(void *s) { (void)s; return 0; }
int cudaStreamQuery(void *s) { (void)s; return 0; }
int cudaDeviceCanAccessPeer(int *c, int a, int b) { (void)a; (void)b; *c = 0; return 0; }
int cudaEventCreateWithFlags(void **e, unsigned flags) { static uintptr_t next; (void)flags; *e = (void *)(next += 16); return 0; }
int cudaEventCreate(void **e) { return cudaEventCreateWithFlags(e, 0); }
int cudaEventDestroy(void *e) { (void)e; return 0; }
int cudaEventRecord(void *e, void *s) { (void)e; (void)s; return 0; }
int cudaEventRecordWithFlags(void *e, void *s, unsigned flags) { (void)e; (void)s; (void)flags; return 0; }
int cudaEventQuery(void *e) { (void)e; return 0; }
int cudaEventSynchronize(void *e) { (void)e; return 0; }
int cudaStreamWaitEvent(void *s, void *e, unsigned flags) { (void)s; (void)e; (void)flags; return 0; }
typedef struct { char bytes[64]; } ipc_handle;
int cudaIpcGetEventHandle(ipc_handle *h, void *e) { (void)e; memset(h, 0, sizeof *h); return 0; }
int cudaIpcOpenEventHandle(void **e, ipc_handle h) { (void)h; return cudaEventCreateWithFlags(e, 0); }
/* Of the driver. */
int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { (void)d; *flags = 0; *active = 1; return 0; }
/* Of cuBLAS, as much as PyTorch calls before the first product. */
static void *workspace;
void *stub_cublas_workspace(void) { return workspace; }
int cublasCreate_v2(void **h) { *h = &workspace; return 0; }
int cublasDestroy_v2(void *h) { (void)h; return 0; }
int cublasSetStream_v2(void *h, void *s) { (void)h; (void)s; return 0; }
int cublasSetWorkspace_v2(void *h, void *p, size_t n) { (void)h; (void)n; workspace = p; return 0; }
int cublasSetMathMode(void *h, int mode) { (void)h; (void)mode; return 0; }
int cublasGetMathMode(void *h, int *mode) { (void)h; *mode = 0; return 0; }
int cublasSetPointerMode_v2(void *h, int mode) { (void)h; (void)mode; return 0; }
int cuCtxGetCurrent(void **c) { *c = &workspace; return 0; }

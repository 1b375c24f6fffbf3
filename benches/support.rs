//! What the benchmarks share: gpumem on the host device, through its Rust and its C face, and
//! mimalloc beside them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use gpumem::base::size::GIB;
use gpumem::base::{DeviceId, StreamHandle};
use gpumem::capi::everyday::malloc::{gpumem_free_async, gpumem_malloc_async};
use gpumem::capi::gpumem_stream;
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use libmimalloc_sys::{mi_free, mi_malloc};
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::Arc;

/// A context of one's own on a host device of its own, and a stream there.
pub struct OwnContext {
    /// The context.
    pub context: Context,
    /// A stream of its device.
    pub stream: StreamHandle,
}

impl OwnContext {
    /// With 256 GiB.
    #[allow(clippy::new_without_default)]
    pub fn new() -> OwnContext {
        let options = HostOptions { bytes_per_device: 256 * GIB, ..HostOptions::default() };
        let driver = HostDriver::new(options).expect("a host device");
        let stream = driver.stream_create(DeviceId(0)).expect("a stream");
        let driver: Arc<dyn Driver> = driver;
        OwnContext { context: Context::new(driver, Config::default()).expect("a context"), stream }
    }

    /// Allocates in order of the stream.
    #[inline]
    pub fn malloc(&self, size: u64) -> u64 {
        self.context.malloc(&Request { size, stream: self.stream, ..Request::default() }).expect("memory")
    }

    /// Frees in order of the stream.
    #[inline]
    pub fn free(&self, ptr: u64) {
        self.context.free_async(ptr, self.stream).expect("a live pointer");
    }

    /// Allocates and frees.
    #[inline]
    pub fn pair(&self, size: u64) {
        let ptr = self.malloc(black_box(size));
        self.free(black_box(ptr));
    }
}

/// The process's context through the C ABI, on the host device, and a stream there.
pub struct CFace {
    stream: gpumem_stream,
}

impl CFace {
    /// Before anything else in the process starts gpumem.
    #[allow(clippy::new_without_default)]
    pub fn new() -> CFace {
        std::env::set_var("GPUMEM_BACKEND", "host");
        std::env::set_var("GPUMEM_HOST_BYTES", "256G");
        let driver = Context::global().expect("a context").driver();
        let stream = driver.stream_create(DeviceId(0)).expect("a stream");
        CFace { stream: stream.0 as gpumem_stream }
    }

    /// Allocates in order of the stream.
    #[inline]
    pub fn malloc(&self, size: usize) -> *mut c_void {
        let mut ptr = null_mut();
        // SAFETY: `ptr` is a writable pointer.
        let made = unsafe { gpumem_malloc_async(size, self.stream, &mut ptr) };
        assert_eq!(made, 0);
        ptr
    }

    /// Allocates and frees.
    #[inline]
    pub fn pair(&self, size: usize) {
        let ptr = self.malloc(black_box(size));
        assert_eq!(gpumem_free_async(black_box(ptr), self.stream), 0);
    }
}

/// mimalloc's allocation and free of host memory through the crate's allocator type. Called by
/// name: the benchmark's own allocations do not go through it.
pub fn mimalloc_alloc(size: usize) -> *mut u8 {
    // SAFETY: the benchmarks' sizes are not 0.
    unsafe { MiMalloc.alloc(layout(size)) }
}

/// mimalloc's malloc and free through the crate's allocator type.
#[inline]
pub fn mimalloc_pair(size: usize) {
    // SAFETY: as above, and the memory is given back with the layout it was made with.
    unsafe {
        let ptr = MiMalloc.alloc(layout(black_box(size)));
        assert!(!ptr.is_null());
        MiMalloc.dealloc(black_box(ptr), layout(size));
    }
}

/// The same through mimalloc's C functions, a shorter way in than that of the allocator type, which
/// hands on an alignment.
#[inline]
pub fn mi_malloc_pair(size: usize) {
    // SAFETY: the pointer freed is the one that was handed out.
    unsafe {
        let ptr = mi_malloc(black_box(size));
        assert!(!ptr.is_null());
        mi_free(black_box(ptr));
    }
}

#[inline]
fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).expect("a layout")
}

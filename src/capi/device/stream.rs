//! Streams
//!
//! A gpumem_stream is a cudaStream_t or CUstream of the program's. These helpers create streams
//! where there is no CUDA runtime. A handle must be a live stream whenever it is passed. For a
//! destroyed one, the host device returns GPUMEM_ERROR_INVALID_STREAM, except from a free on a
//! thread that has allocated on it; CUDA crashes or takes it for another stream.

use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::types::{gpumem_stream, not_null, stream};
use crate::context::Context;
use crate::driver::{wait_for_stream, Driver};

/// Creates a stream on the current device that does not synchronise with the legacy default stream.
///
/// out receives the stream, which the caller owns until gpumem_stream_destroy. On a GPU it is a
/// true CUDA stream.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_stream_create(out: *mut gpumem_stream) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let driver = Context::global()?.driver();
        let s = driver.stream_create(driver.current_device()?)?;
        // SAFETY: not null, so a writable handle by the contract.
        unsafe { out.write(s.0 as gpumem_stream) };
        Ok(())
    })
}

/// Destroys a stream. Work already submitted to it still runs, and memory freed on it is still
/// reused in its order.
///
/// The handle must not be used afterwards: CUDA gives the same value to the next stream at once.
/// Memory allocated on it and not yet freed stays valid; free it with gpumem_free_async on a stream
/// that is ordered after its last use, or with gpumem_free, after which its reuse waits for the
/// whole device. Reservations attached to it are detached.
/// Errors: GPUMEM_ERROR_INVALID for a default stream, GPUMEM_ERROR_CAPTURING while it is being
/// captured, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_stream_destroy(s: gpumem_stream) -> gpumem_status {
    guard(|| {
        let handle = stream(s);
        if handle == StreamHandle::LEGACY || handle == StreamHandle::PER_THREAD {
            return Err(Error::invalid(format!("the {handle} stream is CUDA's and cannot be destroyed")));
        }
        let ctx = Context::global()?;
        let device = not_capturing(ctx.driver(), handle, "end the capture first")?;
        // Before its handle can be another stream's.
        ctx.forget_stream(handle);
        ctx.driver().stream_destroy(device, handle)
    })
}

/// Waits until everything submitted to a stream is done. Blocks; not legal while the stream is
/// being captured. Memory of its device freed in the order of s before this call is free for every
/// stream after it.
///
/// Errors: GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_stream_sync(s: gpumem_stream) -> gpumem_status {
    guard(|| Context::global()?.stream_sync(stream(s)))
}

/// Makes later work on stream s wait, on the device, for everything submitted so far to stream on.
///
/// Does not block the caller. The streams may belong to different devices. Errors:
/// GPUMEM_ERROR_CAPTURING when either is being captured (use CUDA's own events there),
/// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_stream_wait(s: gpumem_stream, on: gpumem_stream) -> gpumem_status {
    guard(|| {
        let (s, on) = (stream(s), stream(on));
        let driver = Context::global()?.driver();
        let advice = "order it with cudaEventRecord and cudaStreamWaitEvent";
        let dev = not_capturing(driver, s, advice)?;
        let on_dev = not_capturing(driver, on, advice)?;
        wait_for_stream(driver, (dev, s), (on_dev, on))
    })
}

fn not_capturing(driver: &dyn Driver, s: StreamHandle, advice: &str) -> Result<DeviceId> {
    let dev = driver.stream_device(s)?;
    if driver.stream_is_capturing(dev, s)? {
        return Err(Error::new(Status::Capturing, format!("stream {s} is being captured into a graph; {advice}")));
    }
    Ok(dev)
}

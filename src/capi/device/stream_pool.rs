//! Pools of streams
//!
//! A stream pool lends streams of one device, each to one borrower at a time. It makes them on
//! demand, up to its size, and keeps them. When all are lent, a borrower waits its turn or has one
//! more made.
//!
//! A stream goes back with whatever work it still has; the next borrower's work runs after that.
//! Reservations attached to it are detached.

use crate::base::sync::lock;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::handles::Handles;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{gpumem_stream, not_null, stream, wait};
use crate::context::Context;
use crate::tier::stream_pool::DEFAULT_STREAMS;
use crate::tier::{Borrowed, Exhausted, StreamPool, Streams};
use std::collections::HashMap;
use std::sync::Mutex;

/// A wait without a limit, where a parameter is a time in milliseconds.
pub const GPUMEM_WAIT_FOREVER: u64 = u64::MAX;

/// The type that a gpumem_stream_pool points to: opaque, never defined.
#[allow(non_camel_case_types)]
pub struct gpumem_stream_pool_st(());

/// A handle to a stream pool. It is opaque: compare it only with NULL and other handles.
#[allow(non_camel_case_types)]
pub type gpumem_stream_pool = *mut gpumem_stream_pool_st;

/// The counters of a stream pool.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_stream_pool_stats {
    /// sizeof(gpumem_stream_pool_stats), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// The device of its streams.
    pub device: i32,
    /// Streams that exist or are being made, a count.
    pub made: u64,
    /// Streams not lent, a count.
    pub idle: u64,
    /// Streams lent, a count.
    pub borrowed: u64,
    /// Calls that are waiting for a stream, a count.
    pub waiters: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_stream_pool_stats, 40, 2 * 4 + 4 * 8);

static POOLS: Handles<Lender> = Handles::ended_by(b'S', "gpumem_stream_pool", "closed");

/// A pool, and what it has lent.
struct Lender {
    device: DeviceId,
    pool: StreamPool,
    state: Mutex<Lent>,
}

#[derive(Default)]
struct Lent {
    streams: HashMap<StreamHandle, Borrowed>,
    closed: bool,
}

/// The streams of a device.
struct OfDevice(DeviceId);

impl Streams for OfDevice {
    fn create(&self) -> Result<u64> {
        Ok(Context::global()?.driver().stream_create(self.0)?.0 as u64)
    }

    fn destroy(&self, stream: u64) -> Result<()> {
        let (ctx, stream) = (Context::global()?, StreamHandle(stream as usize));
        // Before its handle can be another stream's.
        ctx.forget_stream(stream);
        ctx.driver().stream_destroy(self.0, stream)
    }
}

/// Makes a pool of streams of the current device.
///
/// size is the most streams that it makes on demand; 0 means 16. It makes none yet. out receives
/// the pool; the caller owns it until gpumem_stream_pool_destroy.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_stream_pool_create(size: usize, out: *mut gpumem_stream_pool) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let device = Context::global()?.driver().current_device()?;
        let size = match size {
            0 => DEFAULT_STREAMS,
            size => size,
        };
        let pool = StreamPool::new(size, Box::new(OfDevice(device)))?;
        let handle = POOLS.insert(Lender { device, pool, state: Mutex::default() })?;
        // SAFETY: not null, so a writable handle by the contract.
        unsafe { out.write(handle as gpumem_stream_pool) };
        Ok(())
    })
}

/// Borrows a stream that is not lent, or waits its turn for one.
///
/// timeout_ms is the longest wait in milliseconds; 0 means no wait, GPUMEM_WAIT_FOREVER no limit.
/// out receives the stream, which is the caller's until gpumem_stream_pool_return. The caller must
/// not destroy it.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL or there is no such pool,
/// GPUMEM_ERROR_OUT_OF_MEMORY when all streams are lent and timeout_ms is 0,
/// GPUMEM_ERROR_TIMED_OUT, GPUMEM_ERROR_SHUTTING_DOWN when the pool is closed meanwhile,
/// GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_stream_pool_borrow(
    pool: gpumem_stream_pool,
    timeout_ms: u64,
    out: *mut gpumem_stream,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    guard(|| unsafe { borrow(pool, Exhausted::Wait(wait(timeout_ms)), out) })
}

/// Like gpumem_stream_pool_borrow, but makes one more stream when all are lent. It stays in the
/// pool.
///
/// Does not wait. Errors: those of gpumem_stream_pool_borrow, without those of a wait.
#[no_mangle]
pub unsafe extern "C" fn gpumem_stream_pool_borrow_or_grow(
    pool: gpumem_stream_pool,
    out: *mut gpumem_stream,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    guard(|| unsafe { borrow(pool, Exhausted::Grow, out) })
}

/// Gives a borrowed stream back, on any thread. Does not wait for its work.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such pool, or it has not lent this stream.
#[no_mangle]
pub extern "C" fn gpumem_stream_pool_return(pool: gpumem_stream_pool, s: gpumem_stream) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        let lender = POOLS.get(pool as usize)?;
        let s = stream(s);
        let mut lent = lock(&lender.state);
        let Some(back) = lent.streams.remove(&s) else {
            return Err(Error::invalid(format!(
                "stream {s} is not borrowed from this pool; it may have been returned"
            )));
        };
        let last = lent.closed && lent.streams.is_empty();
        drop(lent);
        let detached = ctx.detach_stream(s);
        drop(back);
        if last {
            POOLS.remove(pool as usize)?;
        }
        detached
    })
}

/// Closes a pool: it lends no more, and calls that wait get GPUMEM_ERROR_SHUTTING_DOWN.
///
/// Streams that are not lent are destroyed now, and each of the others when it is returned. The
/// handle becomes stale when the last stream is gone: at once if none is lent. Until then the pool
/// still gives its counters, and closing it again does nothing.
/// Errors: GPUMEM_ERROR_INVALID when there is no such pool; those of gpumem_stream_destroy when a
/// stream could not be destroyed; the pool is closed all the same.
#[no_mangle]
pub extern "C" fn gpumem_stream_pool_destroy(pool: gpumem_stream_pool) -> gpumem_status {
    guard(|| {
        Context::global()?;
        let lender = POOLS.get(pool as usize)?;
        let mut lent = lock(&lender.state);
        // The return of the last stream ends the handle.
        let now = !lent.closed && lent.streams.is_empty();
        lent.closed = true;
        drop(lent);
        let closed = lender.pool.close();
        if now {
            POOLS.remove(pool as usize)?;
        }
        closed
    })
}

/// Gets the counters of a pool.
///
/// out->size must be set (GPUMEM_INIT).
/// Errors: GPUMEM_ERROR_INVALID when there is no such pool, out is NULL or its size impossible.
#[no_mangle]
pub unsafe extern "C" fn gpumem_stream_pool_stats_get(
    pool: gpumem_stream_pool,
    out: *mut gpumem_stream_pool_stats,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let lender = POOLS.get(pool as usize)?;
        let counts = lender.pool.counts();
        let value = gpumem_stream_pool_stats {
            size: 0,
            device: lender.device.0 as i32,
            made: counts.made as u64,
            idle: counts.idle as u64,
            borrowed: counts.borrowed as u64,
            waiters: counts.waiters as u64,
        };
        // SAFETY: as above, and writable by the contract.
        unsafe { options::write(out, &value) }
    })
}

/// # Safety
/// `out` is null or writable.
unsafe fn borrow(pool: gpumem_stream_pool, exhausted: Exhausted, out: *mut gpumem_stream) -> Result<()> {
    not_null(out, "out")?;
    Context::global()?;
    let lender = POOLS.get(pool as usize)?;
    let borrowed = lender.pool.borrow(exhausted)?;
    let s = StreamHandle(borrowed.stream() as usize);
    let mut lent = lock(&lender.state);
    if lent.closed {
        drop(lent);
        // Lent just before the pool was closed, and not yet handed out.
        drop(borrowed);
        return Err(Error::new(Status::ShuttingDown, "the stream pool has been closed; it lends no more streams"));
    }
    lent.streams.insert(s, borrowed);
    drop(lent);
    // SAFETY: not null, so a writable handle by the contract.
    unsafe { out.write(s.0 as gpumem_stream) };
    Ok(())
}

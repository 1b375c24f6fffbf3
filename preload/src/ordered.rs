//! `cuMemAllocAsync` and `cuMemFreeAsync`, and `cuMemAllocFromPoolAsync` of the default pool.

use crate::captures::{any as any_capture, of_thread};
use crate::cuda::{Code, MemPool, Ptr, Stream, INVALID_VALUE, SUCCESS};
use crate::pressure::again;
use crate::real::{other, Real};
use crate::served::{self, aligned, Served};
use crate::{counters, settings};
use gpumem::base::StreamHandle;
use std::sync::atomic::Ordering::Relaxed;

/// Allocates; returns the memory or an error code, or `None` for the driver, as for any pool but
/// the default one.
#[inline(always)]
fn serve(real: &Real, bytes: usize, stream: Stream, pool: Option<MemPool>) -> Option<Result<Ptr, Code>> {
    if bytes == 0 || bytes as u64 >= settings::get().own.native {
        return None;
    }
    let _time = counters::time();
    if pool.is_none() && !any_capture() {
        if let Some(served) = served::of_primary(real.current()) {
            if served.pool_is_current.load(Relaxed) {
                if let Some(ptr) = served.pool.malloc_hit_on(served.dev, aligned(bytes as u64), StreamHandle(stream)) {
                    counters::made(aligned(bytes as u64));
                    return Some(Ok(ptr.get()));
                }
            }
        }
    }
    search(real, bytes, stream, pool)
}

#[inline(never)]
fn search(real: &Real, bytes: usize, stream: Stream, pool: Option<MemPool>) -> Option<Result<Ptr, Code>> {
    // The driver makes the memory nodes, and the errors for an invalid stream.
    if real.is_captured(stream) {
        return None;
    }
    let served = of_stream(real, stream)?;
    let default = match pool {
        Some(pool) => pool == served.default_pool,
        None => served.pool_is_current.load(Relaxed),
    };
    if !default {
        return None;
    }
    match served.take_ordered(bytes as u64, stream) {
        Ok(ptr) => {
            counters::made(aligned(bytes as u64));
            Some(Ok(ptr))
        }
        Err(e) => served::code(&e).map(Err),
    }
}

/// The device of a stream of its primary context. Streams of created contexts are the driver's:
/// gpumem's events are of the primary one.
fn of_stream(real: &Real, stream: Stream) -> Option<&'static Served> {
    let mut ctx = 0;
    if stream <= 2 {
        ctx = real.current();
    } else if other!(real, cuStreamGetCtx(stream, &mut ctx)) != SUCCESS {
        return None;
    }
    served::of_context(real, ctx).and_then(|(served, primary)| primary.then_some(served))
}

/// Writes the memory that was served, or asks the driver.
unsafe fn finish(out: *mut Ptr, served: Option<Result<Ptr, Code>>, driver: impl Fn() -> Code) -> Code {
    match served {
        Some(Ok(ptr)) => {
            // SAFETY: the callers have made sure that it is not null, so it is the program's place
            // for an address.
            unsafe { out.write(ptr) };
            SUCCESS
        }
        Some(Err(code)) => code,
        None => {
            counters::left();
            again(driver)
        }
    }
}

pub unsafe fn alloc(real: &Real, out: *mut Ptr, bytes: usize, stream: Stream) -> Code {
    let made = if out.is_null() { None } else { serve(real, bytes, stream, None) };
    // SAFETY: served only if not null.
    unsafe { finish(out, made, || real.cuMemAllocAsync(out, bytes, stream)) }
}

pub unsafe fn alloc_own(real: &Real, out: *mut Ptr, bytes: usize, stream: Stream) -> Code {
    let made = if out.is_null() { None } else { serve(real, bytes, of_thread(stream), None) };
    // SAFETY: served only if not null.
    unsafe { finish(out, made, || real.cuMemAllocAsync_ptsz(out, bytes, stream)) }
}

pub unsafe fn from_pool(real: &Real, out: *mut Ptr, bytes: usize, pool: MemPool, stream: Stream) -> Code {
    let made = if out.is_null() { None } else { serve(real, bytes, stream, Some(pool)) };
    // SAFETY: served only if not null.
    unsafe { finish(out, made, || real.cuMemAllocFromPoolAsync(out, bytes, pool, stream)) }
}

pub unsafe fn from_pool_own(real: &Real, out: *mut Ptr, bytes: usize, pool: MemPool, stream: Stream) -> Code {
    let made = if out.is_null() { None } else { serve(real, bytes, of_thread(stream), Some(pool)) };
    // SAFETY: served only if not null.
    unsafe { finish(out, made, || real.cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream)) }
}

/// Frees; returns the code, or `None` if the driver is to do it.
#[inline(always)]
fn release(real: &Real, ptr: Ptr, stream: Stream) -> Option<Code> {
    let served = served::owner(ptr).filter(|_| ptr != 0)?;
    let _time = counters::time();
    // A free in a capture is a node for the graph's own memory; the driver refuses other memory.
    if any_capture() && real.is_captured(stream) {
        return None;
    }
    if served.quarantine.has(ptr) {
        return Some(INVALID_VALUE);
    }
    let bytes = if counters::is_on() { served.pool.info(ptr).map_or(0, |i| i.requested) } else { 0 };
    // The default streams are those of the current context, which may be none that gpumem knows.
    let elsewhere = stream <= 2 && real.current() != served.primary();
    if elsewhere || served.has_created() || !served.pool.free_hit(ptr, Some(StreamHandle(stream))) {
        if let Err(code) = release_slowly(real, served, ptr, stream) {
            return code;
        }
    }
    counters::freed(bytes);
    Some(SUCCESS)
}

#[inline(never)]
fn release_slowly(real: &Real, served: &Served, ptr: Ptr, stream: Stream) -> Result<(), Option<Code>> {
    let info = served.pool.info(ptr).map_err(|e| served::code(&e))?;
    if of_stream(real, stream).is_none() {
        // A stream of a created context, which gpumem cannot make anything wait for.
        match other!(real, cuStreamSynchronize(stream)) {
            SUCCESS => {}
            code => return Err(Some(code)),
        }
        served.disown(&info);
        served.pool.note_free(ptr, Some(StreamHandle(stream)));
        served.put(ptr, info.id);
        return Ok(());
    }
    served.disown(&info);
    served.pool.free_async(ptr, StreamHandle(stream)).map_err(|e| served::code(&e))
}

pub unsafe fn free(real: &Real, ptr: Ptr, stream: Stream) -> Code {
    release(real, ptr, stream).unwrap_or_else(|| real.cuMemFreeAsync(ptr, stream))
}

pub unsafe fn free_own(real: &Real, ptr: Ptr, stream: Stream) -> Code {
    release(real, ptr, of_thread(stream)).unwrap_or_else(|| real.cuMemFreeAsync_ptsz(ptr, stream))
}

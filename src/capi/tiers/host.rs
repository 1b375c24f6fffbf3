//! Pinned host memory
//!
//! Host memory that devices copy to and from directly. Copies run at the speed of the bus, overlap
//! with other work, and can be captured. The host reads and writes it like any other memory.
//! Pinning is slow, so gpumem pins large chunks ahead of need, keeps them, and hands out blocks of
//! them (1 MiB by default: GPUMEM_PINNED_BLOCKS), or a part of a block for half a block or less.
//!
//!   void *p;
//!   if (gpumem_host_malloc(bytes, GPUMEM_HOST_NEAREST, &p) != GPUMEM_OK) ...
//!   memcpy(p, data, bytes);
//!   gpumem_memcpy_async(on_device, p, bytes, s);
//!   gpumem_stream_sync(s);
//!   gpumem_host_free(p);
//!
//! One piece    gpumem_host_malloc returns a pointer. A request larger than a chunk (128 MiB by
//!              default) is pinned on its own.
//! Many pieces  gpumem_host_blocks_malloc returns a handle to as few pieces as possible. It
//!              succeeds whenever enough blocks are free, wherever they are, so use it for large
//!              memory.
//! Nodes        Memory belongs to a NUMA node of the host, which is a space: GPUMEM_TIER_HOST and
//!              the node's number. GPUMEM_HOST_NEAREST means the node nearest to the current
//!              device, or the first one where the machine does not tell. A node's limit starts at
//!              GPUMEM_PINNED_LIMIT, by default half of its memory.
//! Counting     Memory counts in its space by whole blocks and parts (powers of two). It is drawn
//!              from the given reservation, else from the one attached to the calling thread, else
//!              from what is available outside any reservation.
//! Freeing      Does not wait for the device: copies to and from the memory must be complete. The
//!              memory stays pinned for the next request until gpumem_host_trim.
//! Fork         A forked child does not have the memory: reading it there may fault.

use super::reservations;
use crate::base::{Error, Result};
use crate::capi::call::arguments::{guard_out, put};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::handles::Handles;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{address, gpumem_reservation, not_null, pointer};
use crate::context::Context;
use crate::tier::host::{HostStats, Piece};
use crate::tier::HostMemory;
use std::ffi::c_void;
use std::sync::Arc;

/// The NUMA node nearest to the current device, or the first one where the machine does not tell.
pub const GPUMEM_HOST_NEAREST: i32 = -1;

/// The type that a gpumem_host_blocks points to: opaque, never defined.
#[allow(non_camel_case_types)]
pub struct gpumem_host_blocks_st(());

/// A handle to pinned memory in pieces. It is opaque: compare it only with NULL and other handles.
#[allow(non_camel_case_types)]
pub type gpumem_host_blocks = *mut gpumem_host_blocks_st;

/// The counters of a node's pinned memory. Bytes unless a field says otherwise.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_host_stats {
    /// sizeof(gpumem_host_stats), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// The node.
    pub node: u32,
    /// One block.
    pub block_bytes: u64,
    /// Pinned: blocks handed out, shared and free.
    pub pinned: u64,
    /// The most that pinned was.
    pub peak: u64,
    /// Blocks that are handed out whole.
    pub blocks: u64,
    /// Blocks with parts handed out.
    pub shared: u64,
    /// Parts that are handed out.
    pub parts: u64,
    /// Blocks with nothing handed out.
    pub free: u64,
    /// The longest run of free blocks: the largest piece that needs no further pinning.
    pub longest: u64,
    /// Chunks that are pinned, a count.
    pub chunks: u64,
    /// How often memory has been pinned, a count.
    pub pins: u64,
    /// How often the system refused to pin memory, a count.
    pub refused: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_host_stats, 96, 2 * 4 + 11 * 8);

/// All memory in pieces that C has.
static BLOCKS: Handles<HostMemory> = Handles::ended_by(b'H', "gpumem_host_blocks", "freed");

/// Allocates pinned memory in one piece.
///
/// bytes must not be 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST. out receives the
/// memory, which the caller owns until gpumem_host_free; it is not cleared. Its alignment is bytes
/// rounded up to a power of two, but at least 256 and at most 4096. Every device can copy to and
/// from it. When too little is free, the call pins more or waits for a thread that does. When the
/// limit or the reservation is short, evicted memory that may move automatically goes on to a disk,
/// if there is one and as much.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, bytes 0 or there is no such node;
/// GPUMEM_ERROR_OUT_OF_MEMORY when the limit, a reservation or the system forbids so much, or what
/// is free is in pieces; GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, GPUMEM_ERROR_SHUTTING_DOWN,
/// GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_malloc(bytes: usize, node: i32, out: *mut *mut c_void) -> gpumem_status {
    // SAFETY: the caller passes NULL or a place to write to.
    unsafe { guard_out(out, || Ok(pointer(Context::global()?.host_malloc(named(node)?, bytes as u64)?))) }
}

/// Frees memory from gpumem_host_malloc, on any thread. Calls no driver and waits for nothing.
///
/// ptr may be NULL, which does nothing. Copies to and from the memory must be complete.
/// Errors: GPUMEM_ERROR_DOUBLE_FREE when it was freed in one of the last 1024 frees;
/// GPUMEM_ERROR_UNKNOWN_POINTER for every other pointer that is not the start of such memory.
/// Nothing is freed then.
#[no_mangle]
pub extern "C" fn gpumem_host_free(ptr: *mut c_void) -> gpumem_status {
    guard(|| match ptr.is_null() {
        true => Ok(()),
        false => Context::global()?.host_free(address(ptr)),
    })
}

/// Allocates pinned memory in as few pieces as possible: whole blocks, the last one cut to size.
///
/// bytes must not be 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST, which means the
/// reservation's node if r is given. r is a reservation of the node's space to draw from instead of
/// the one attached to the thread, or NULL. out receives a handle, which the caller owns until
/// gpumem_host_blocks_free. Each piece starts at a multiple of 4096, and all but the last are whole
/// blocks. Half a block or less is one piece, a part of a block. When too little is free, the call
/// pins more, waits for a thread that does, or makes room as gpumem_host_malloc does.
/// Errors: as gpumem_host_malloc, except that free memory in pieces is no error;
/// GPUMEM_ERROR_INVALID when there is no such reservation, or it is of another space.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_blocks_malloc(
    bytes: usize,
    node: i32,
    r: gpumem_reservation,
    out: *mut gpumem_host_blocks,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let from = reservations::named(r)?;
        let memory = Context::global()?.host_blocks(named(node)?, bytes as u64, from.as_deref())?;
        let handle = BLOCKS.insert(memory)?;
        // SAFETY: not null, so a writable handle by the contract.
        unsafe { out.write(handle as gpumem_host_blocks) };
        Ok(())
    })
}

/// Gets the number of pieces.
///
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, or there is no such memory.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_blocks_count_get(blocks: gpumem_host_blocks, out: *mut usize) -> gpumem_status {
    // SAFETY: the caller passes NULL or a place to write to.
    unsafe { guard_out(out, || Ok(live(blocks)?.pieces().len())) }
}

/// Gets piece i of the memory, counted from 0. The bytes of all pieces add up to what was asked
/// for.
///
/// ptr_out receives its start and bytes_out its length; either may be NULL. They do not change
/// until the memory is freed.
/// Errors: GPUMEM_ERROR_INVALID when there is no such piece or memory.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_blocks_get(
    blocks: gpumem_host_blocks,
    i: usize,
    ptr_out: *mut *mut c_void,
    bytes_out: *mut usize,
) -> gpumem_status {
    guard(|| {
        let memory = live(blocks)?;
        let Some(Piece { addr, bytes }) = memory.pieces().get(i).copied() else {
            let count = memory.pieces().len();
            return Err(Error::invalid(format!("there is no piece {i}: there are {count}, counted from 0")));
        };
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(ptr_out, pointer(addr)) };
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(bytes_out, bytes as usize) };
        Ok(())
    })
}

/// Frees memory in pieces, on any thread. Calls no driver and waits for nothing.
///
/// blocks may be NULL, which does nothing. Copies to and from the memory must be complete. The
/// handle is stale afterwards.
/// Errors: GPUMEM_ERROR_INVALID when there is no such memory, or it has been freed.
#[no_mangle]
pub extern "C" fn gpumem_host_blocks_free(blocks: gpumem_host_blocks) -> gpumem_status {
    guard(|| {
        if !blocks.is_null() {
            Context::global()?;
            drop(BLOCKS.remove(blocks as usize)?);
        }
        Ok(())
    })
}

/// Pins memory of a node until its free blocks come to bytes, so that allocations do not wait for
/// pinning.
///
/// bytes is rounded up to whole blocks. node as in gpumem_host_malloc. Nothing is set aside: the
/// next request, by any thread, may take it.
/// Errors: GPUMEM_ERROR_INVALID when there is no such node, GPUMEM_ERROR_OUT_OF_MEMORY when the
/// limit or the system forbids so much (what has been pinned until then stays),
/// GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_host_prepare(node: i32, bytes: u64) -> gpumem_status {
    guard(|| Context::global()?.host_prepare(named(node)?, bytes))
}

/// Returns a node's unused memory to the system, except keep bytes of free blocks.
///
/// Only whole chunks can go. node as in gpumem_host_malloc. out_or_null receives the bytes
/// returned. May wait for the devices.
/// Errors: GPUMEM_ERROR_INVALID when there is no such node, GPUMEM_ERROR_UNSUPPORTED,
/// GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_trim(node: i32, keep: u64, out_or_null: *mut u64) -> gpumem_status {
    guard(|| {
        let bytes = Context::global()?.host_trim(named(node)?, keep)?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(out_or_null, bytes) };
        Ok(())
    })
}

/// The counters of a node's pinned memory.
///
/// out->size must be set (GPUMEM_INIT). node as in gpumem_host_malloc. What gpumem pins for itself
/// counts too, for instance memory evicted from a device.
/// Errors: GPUMEM_ERROR_INVALID when there is no such node, out is NULL or its size impossible;
/// GPUMEM_ERROR_UNSUPPORTED.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_stats_get(node: i32, out: *mut gpumem_host_stats) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let context = Context::global()?;
        let (node, stats) = context.host_stats(named(node)?)?;
        let value = convert(node, context.tiers()?.host().block_bytes(), &stats);
        // SAFETY: as above, and writable by the contract.
        unsafe { options::write(out, &value) }
    })
}

/// The node that a number names; none for the nearest.
fn named(node: i32) -> Result<Option<u32>> {
    match u32::try_from(node) {
        Ok(node) => Ok(Some(node)),
        Err(_) if node == GPUMEM_HOST_NEAREST => Ok(None),
        Err(_) => Err(Error::invalid(format!("{node} is no NUMA node; pass a node's number or GPUMEM_HOST_NEAREST"))),
    }
}

fn live(blocks: gpumem_host_blocks) -> Result<Arc<HostMemory>> {
    Context::global()?;
    BLOCKS.get(blocks as usize)
}

fn convert(node: u32, block_bytes: u64, stats: &HostStats) -> gpumem_host_stats {
    // By name, so that a counter added there cannot be forgotten here.
    let HostStats { pinned, peak, blocks, shared, parts, free, longest, chunks, pins, refused } = *stats;
    gpumem_host_stats {
        size: 0,
        node,
        block_bytes,
        pinned,
        peak,
        blocks,
        shared,
        parts,
        free,
        longest,
        chunks,
        pins,
        refused,
    }
}

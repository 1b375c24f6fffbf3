//! Pinned host memory
//!
//! Memory of the host that devices copy to and from directly: copies are as fast as the bus, run beside other work, and can be
//! captured. The host reads and writes it like any other. The system pins slowly, so gpumem does it in large chunks, ahead of
//! need, keeps them, and hands out blocks of them (1 MiB by default: GPUMEM_PINNED_BLOCKS), or parts of blocks to those who
//! need half a block or less.
//!
//!   void *p;
//!   if (gpumem_host_malloc(bytes, GPUMEM_HOST_NEAREST, &p) != GPUMEM_OK) ...
//!   memcpy(p, data, bytes);
//!   gpumem_memcpy_async(on_device, p, bytes, s);
//!   gpumem_stream_sync(s);
//!   gpumem_host_free(p);
//!
//! One piece    gpumem_host_malloc gives a pointer. What is larger than a chunk (128 MiB by default) is pinned for it.
//! Many pieces  gpumem_host_blocks_malloc gives a handle to as few pieces as there are. It finds room whenever enough blocks are
//!              free, wherever they are, so it is the one for what is large.
//! Nodes        Memory belongs to a NUMA node of the host, which is a space: GPUMEM_TIER_HOST and the node's number.
//!              GPUMEM_HOST_NEAREST stands for the node that the current device is nearest to, or the first where the machine
//!              does not say. A node's limit is GPUMEM_PINNED_LIMIT at first, half of its memory by default.
//! Counting     What is handed out counts in its space, by whole blocks and parts (powers of two of bytes). It is drawn from
//!              the reservation that is given, else from the one that is attached to the calling thread, else from what is
//!              available outside of any.
//! Freeing      Does not wait for the device: copies to and from the memory must be done. The memory stays pinned, for
//!              others, until gpumem_host_trim.
//! Fork         A child that was forked does not have the memory: what reads it there may fault.

use super::reservations::reservation;
use crate::base::{Error, Result};
use crate::capi::call::arguments::put;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::handles::Handles;
use crate::capi::call::options::{self, Extensible};
use crate::capi::call::types::{address, gpumem_reservation, not_null, pointer};
use crate::context::Context;
use crate::tier::host::{HostStats, Piece};
use crate::tier::HostMemory;
use std::ffi::c_void;
use std::sync::Arc;

/// The NUMA node that the current device is nearest to, or the first where the machine does not say.
pub const GPUMEM_HOST_NEAREST: i32 = -1;

/// What a gpumem_host_blocks seems to point to. There is nothing there.
#[allow(non_camel_case_types)]
pub struct gpumem_host_blocks_st(());

/// A handle to pinned memory in pieces. Compare it with NULL and with others; do not look into it.
#[allow(non_camel_case_types)]
pub type gpumem_host_blocks = *mut gpumem_host_blocks_st;

/// The pinned memory of a node. Bytes unless a field says otherwise.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_host_stats {
    /// sizeof(gpumem_host_stats), set by the caller; afterwards the bytes filled.
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
    /// Blocks of which parts are handed out.
    pub shared: u64,
    /// Those parts.
    pub parts: u64,
    /// Blocks of which nothing is handed out.
    pub free: u64,
    /// The longest run of them: what one piece can have without more being pinned.
    pub longest: u64,
    /// Chunks that are pinned, a count.
    pub chunks: u64,
    /// How often memory has been pinned, a count.
    pub pins: u64,
    /// How often the system refused that, a count.
    pub refused: u64,
}

// SAFETY: repr(C), a u32 first, integers only, and the assertion below shows that there is no padding.
unsafe impl Extensible for gpumem_host_stats {
    const NAME: &'static str = "gpumem_host_stats";
    const FIRST_BYTES: usize = 96;
}
const _: () = assert!(size_of::<gpumem_host_stats>() == 2 * 4 + 11 * 8);

/// All memory in pieces that C has.
static BLOCKS: Handles<HostMemory> = Handles::ended_by(b'H', "gpumem_host_blocks", "freed");

/// Allocates pinned memory in one piece.
///
/// bytes is not 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST. out receives the memory, which the caller owns until
/// gpumem_host_free; not cleared, at a multiple of 4096, or, where that is less, of bytes rounded up to a power of two, but of
/// 256 at least. Every device can copy to and from it. Pins more when too little is free, and waits for who does.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, bytes 0 or there is no such node; GPUMEM_ERROR_OUT_OF_MEMORY when the limit, a
/// reservation or the system forbids so much, or what is free is in pieces; GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off,
/// GPUMEM_ERROR_SHUTTING_DOWN, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_malloc(bytes: usize, node: i32, out: *mut *mut c_void) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let addr = Context::global()?.host_malloc(named(node)?, bytes as u64)?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(addr)) };
        Ok(())
    })
}

/// Frees memory of gpumem_host_malloc, on any thread. Calls no driver and waits for nothing.
///
/// ptr may be NULL, which does nothing. Copies to and from the memory must be done.
/// Errors: GPUMEM_ERROR_DOUBLE_FREE when it has been freed, as far as the last 1024 frees tell; GPUMEM_ERROR_UNKNOWN_POINTER
/// for every other pointer that is not the start of such memory. Nothing is freed then.
#[no_mangle]
pub extern "C" fn gpumem_host_free(ptr: *mut c_void) -> gpumem_status {
    guard(|| match ptr.is_null() {
        true => Ok(()),
        false => Context::global()?.host_free(address(ptr)),
    })
}

/// Allocates pinned memory in as few pieces as there are: whole blocks, the last cut to what was asked for.
///
/// bytes is not 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST, which with a reservation stands for that one's node.
/// r is a reservation of the node's space to draw from, whatever is attached to the thread, or NULL. out receives a handle, which
/// the caller owns until gpumem_host_blocks_free. Each piece starts at a multiple of 4096, and all but the last are whole
/// blocks. Half a block or less is one piece, a part of a block. Pins more when too little is free, and waits for who does.
/// Errors: as gpumem_host_malloc, but pieces do no harm; GPUMEM_ERROR_INVALID when there is no such reservation, or it is one
/// of another space.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_blocks_malloc(
    bytes: usize,
    node: i32,
    r: gpumem_reservation,
    out: *mut gpumem_host_blocks,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let from = if r.is_null() { None } else { Some(reservation(r)?) };
        let memory = Context::global()?.host_blocks(named(node)?, bytes as u64, from.as_deref())?;
        let handle = BLOCKS.insert(memory)?;
        // SAFETY: not null, so a writable handle by the contract.
        unsafe { out.write(handle as gpumem_host_blocks) };
        Ok(())
    })
}

/// How many pieces memory has.
///
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, or there is no such memory.
#[no_mangle]
pub unsafe extern "C" fn gpumem_host_blocks_count_get(blocks: gpumem_host_blocks, out: *mut usize) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let count = live(blocks)?.pieces().len();
        // SAFETY: not null, so a writable size_t by the contract.
        unsafe { out.write(count) };
        Ok(())
    })
}

/// A piece of memory, the first of which is 0. Their bytes add up to what was asked for.
///
/// ptr_out receives where it starts, bytes_out how long it is; either may be NULL. They do not change until the memory is
/// freed.
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
/// blocks may be NULL, which does nothing. Copies to and from the memory must be done. The handle is stale afterwards.
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

/// Pins memory of a node until bytes of its blocks are free, so that allocations need not wait for that.
///
/// bytes is rounded up to whole blocks. node as in gpumem_host_malloc. Nothing is set aside: whoever comes first gets it.
/// Errors: GPUMEM_ERROR_INVALID when there is no such node, GPUMEM_ERROR_OUT_OF_MEMORY when the limit or the system forbids so
/// much (what has been pinned until then stays), GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_host_prepare(node: i32, bytes: u64) -> gpumem_status {
    guard(|| Context::global()?.host_prepare(named(node)?, bytes))
}

/// Gives memory of a node that nobody has back to the system, but for keep bytes of free blocks.
///
/// Only whole chunks can go. node as in gpumem_host_malloc. out_or_null receives how many bytes went. May wait for the devices.
/// Errors: GPUMEM_ERROR_INVALID when there is no such node, GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_DRIVER.
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
/// out->size must be set (GPUMEM_INIT). node as in gpumem_host_malloc. What gpumem pins for itself counts as well: memory that
/// was moved out of a device, for instance.
/// Errors: GPUMEM_ERROR_INVALID when there is no such node, out is NULL or its size impossible; GPUMEM_ERROR_UNSUPPORTED.
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

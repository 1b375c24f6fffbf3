//! A small test that a device works through the allocator: allocate, fill, copy back, compare,
//! free.

use gpumem::base::{size, DeviceId, Error, Result, StreamHandle};
use gpumem::context::{Context, Request};
use serde::Serialize;

/// Small and slab-sized, page-sized, and large with an odd end.
const SIZES: [u64; 4] = [256, 64 << 10, 2 << 20, (24 << 20) + 13];

/// The filled part comes first, the uploaded part after it.
const FILL: u8 = 0xa5;

/// One check and how it went.
#[derive(Debug, Serialize)]
pub struct Check {
    /// The device's ordinal.
    pub device: u32,
    /// What was tried.
    pub check: String,
    /// Whether it worked.
    pub passed: bool,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Runs every check on one device. Leaves nothing allocated.
pub fn run(ctx: &Context, device: DeviceId) -> Vec<Check> {
    let check = |what: String, result: Result<()>| Check {
        device: device.0,
        check: what,
        passed: result.is_ok(),
        detail: result.err().map(|e| e.to_string()),
    };
    let stream = match ctx.driver().set_current_device(device).and_then(|()| ctx.driver().stream_create(device)) {
        Ok(stream) => stream,
        Err(e) => return vec![check("create a stream".to_string(), Err(e))],
    };
    let mut checks: Vec<_> = SIZES
        .into_iter()
        .map(|bytes| check(format!("write and read {}", size::human(bytes)), round_trip(ctx, device, stream, bytes)))
        .collect();
    checks.push(check("destroy the stream".to_string(), ctx.driver().stream_destroy(device, stream)));
    checks.push(check("invariants of the pool".to_string(), ctx.validate()));
    checks
}

/// Allocates, writes, reads back, and frees even after a failure.
fn round_trip(ctx: &Context, device: DeviceId, stream: StreamHandle, bytes: u64) -> Result<()> {
    let ptr = ctx.malloc(&Request { size: bytes, device: Some(device), stream, ..Request::default() })?;
    let result = write_and_read(ctx, device, stream, ptr, bytes);
    let freed = ctx.free_async(ptr, stream);
    let synced = ctx.driver().stream_sync(device, stream);
    result.and(freed).and(synced)
}

fn write_and_read(ctx: &Context, device: DeviceId, stream: StreamHandle, ptr: u64, bytes: u64) -> Result<()> {
    let driver = ctx.driver();
    let half = bytes / 2;
    // 251 is prime, so a block at a wrong power-of-two offset is noticed.
    let uploaded: Vec<u8> = (0..bytes - half).map(|i| (i % 251) as u8).collect();
    let mut back = vec![0u8; usize::try_from(bytes).map_err(|_| Error::internal("a size exceeds usize"))?];
    let submitted = driver
        .set_async(device, ptr, FILL, half, stream)
        .and_then(|()| driver.copy_async(device, ptr + half, uploaded.as_ptr() as u64, bytes - half, stream))
        .and_then(|()| driver.copy_async(device, back.as_mut_ptr() as u64, ptr, bytes, stream));
    // Whatever was submitted may still use both buffers.
    driver.stream_sync(device, stream)?;
    submitted?;
    let expected = (0..half).map(|_| FILL).chain(uploaded);
    match back.iter().zip(expected).position(|(&got, want)| got != want) {
        None => Ok(()),
        Some(at) => Err(Error::internal(format!(
            "byte {at} of {bytes} came back as {:#04x}, not as it was written",
            back.get(at).copied().unwrap_or_default()
        ))),
    }
}

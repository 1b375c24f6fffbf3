//! Memory handles for other processes (`cuIpcGetMemHandle`). The driver makes none for memory that
//! is mapped, so a handle of gpumem's names the process and the allocation. The process that opens
//! it asks the named one ([`crate::porter`]), gets the memory as file descriptors, and maps it.

use crate::captures;
use crate::cuda::{Code, Ctx, IpcHandle, Ptr, CAPTURING, INVALID_CONTEXT, INVALID_VALUE, MAP_FAILED, SUCCESS};
use crate::name::Name;
use crate::porter;
use crate::real::{other, Real};
use crate::served::{self, Found, Served};
use gpumem::base::{DeviceId, Error};
use gpumem::driver::process::Uncancelled;
use gpumem::driver::PhysHandle;
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A piece of another process's memory.
struct Piece {
    handle: PhysHandle,
    bytes: u64,
    served: &'static Served,
}

impl Drop for Piece {
    fn drop(&mut self) {
        let _ = self.served.ledger.inner().phys_release(self.handle);
    }
}

/// Memory of another process.
struct Import {
    ptr: Ptr,
    /// The first mapped address, and the pieces from there.
    va: u64,
    pieces: Vec<Piece>,
    /// Openings less closings. With none left it is mapped until no work uses it.
    opened: u64,
    /// The number of the first opening, and of the last.
    first: u64,
    latest: u64,
    /// The context of the first opening, with which it ends.
    ctx: Ctx,
    served: &'static Served,
}

/// By name, and the device that it was opened on, which has an address of its own.
type Imports = Option<HashMap<(Name, DeviceId), Import>>;

static IMPORTS: Mutex<Imports> = Mutex::new(None);
/// Imports that were closed while no wait was possible.
static LATE: Mutex<Vec<(Name, DeviceId)>> = Mutex::new(Vec::new());
/// Openings so far.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

fn imports() -> MutexGuard<'static, Imports> {
    IMPORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn opening() -> u64 {
    OPENINGS.fetch_add(1, Relaxed) + 1
}

/// The memory of another process at `ptr`.
pub fn find(ptr: Ptr) -> Option<Found> {
    let imports = imports();
    let mut open = imports.iter().flatten().filter(|(_, i)| i.opened > 0);
    let ((name, _), import) = open.find(|((name, _), i)| (i.ptr..i.ptr + name.bytes).contains(&ptr))?;
    Some(Found {
        served: import.served,
        base: import.ptr,
        bytes: name.bytes,
        id: import.id(),
        context: import.ctx,
        pool: 0,
        shareable: false,
    })
}

/// Whether memory was opened on a device in other contexts than `ctx`.
pub fn any_besides(dev: DeviceId, ctx: Ctx) -> bool {
    imports().iter().flatten().any(|((_, on), i)| *on == dev && i.ctx != ctx)
}

/// Unmaps what a context has opened, which is about to end.
pub fn context_ends(real: &Real, ctx: Ctx) {
    end_late(real);
    let ending: Vec<Import> =
        imports().iter_mut().flat_map(|all| all.extract_if(|_, i| i.ctx == ctx)).map(|(_, i)| i).collect();
    if !ending.is_empty() {
        let _ = real.within(ctx, || other!(real, cuCtxSynchronize()));
        ending.iter().for_each(Import::end);
    }
}

pub unsafe fn export(real: &Real, out: *mut IpcHandle, ptr: Ptr) -> Code {
    let _uncancelled = Uncancelled::new();
    let found = served::owner(ptr).filter(|_| !out.is_null()).and_then(|s| Some((s, s.info_containing(ptr)?)));
    let Some((served, info)) = found else { return real.cuIpcGetMemHandle(out, ptr) };
    let Some(nonce) = porter::start() else { return MAP_FAILED };
    let (base, id) = (info.base, info.id);
    let name = Name { pid: std::process::id(), device: served.dev.0, nonce, base, id, bytes: info.requested };
    // SAFETY: not null, so the program's place for a handle.
    unsafe { out.write(name.write()) };
    SUCCESS
}

pub unsafe fn open(real: &Real, out: *mut Ptr, handle: IpcHandle, flags: c_uint) -> Code {
    match Name::read(&handle) {
        // SAFETY: as the program promises.
        Some(name) => unsafe { attach(real, out, name) },
        None => real.cuIpcOpenMemHandle_v2(out, handle, flags),
    }
}

/// The function's first variant.
pub unsafe fn open_1(real: &Real, out: *mut Ptr, handle: IpcHandle, flags: c_uint) -> Code {
    match Name::read(&handle) {
        // SAFETY: as the program promises.
        Some(name) => unsafe { attach(real, out, name) },
        None => real.cuIpcOpenMemHandle(out, handle, flags),
    }
}

unsafe fn attach(real: &Real, out: *mut Ptr, name: Name) -> Code {
    if out.is_null() {
        return INVALID_VALUE;
    }
    let _uncancelled = Uncancelled::new();
    // As in the driver, a handle is only for other processes.
    if name.pid == std::process::id() && porter::start() == Some(name.nonce) {
        return INVALID_CONTEXT;
    }
    let Some((served, _)) = served::of_context(real, real.current()) else { return INVALID_CONTEXT };
    end_late(real);
    let key = (name, served.dev);
    let open_again = |imports: &mut Imports| {
        let known = imports.get_or_insert_default().get_mut(&key)?;
        known.latest = opening();
        if known.opened == 0 {
            (known.first, known.ctx) = (known.latest, real.current());
        }
        known.opened += 1;
        // SAFETY: not null, so the program's place for an address.
        unsafe { out.write(known.ptr) };
        Some(SUCCESS)
    };
    if let Some(done) = open_again(&mut imports()) {
        return done;
    }
    // Without the lock: the other process may take its time.
    let fetched = fetch(served, &name);
    let mut imports = imports();
    // Another thread may have been quicker.
    if let Some(done) = open_again(&mut imports) {
        return done;
    }
    let made = fetched.and_then(|(offset, pieces)| import(served, real.current(), pieces, offset).map_err(failed));
    match made {
        Ok(import) => {
            // SAFETY: as above.
            unsafe { out.write(import.ptr) };
            imports.get_or_insert_default().insert(key, import);
            SUCCESS
        }
        Err(code) => code,
    }
}

fn failed(e: Error) -> Code {
    served::code(&e).unwrap_or(MAP_FAILED)
}

/// Fetches the memory under an allocation: its offset in the first piece, and all pieces. Few
/// descriptors are open at a time, as the memory may have more pieces than a process descriptors.
fn fetch(served: &'static Served, name: &Name) -> Result<(u64, Vec<Piece>), Code> {
    let (mut all, mut first, mut end) = (Vec::new(), 0, 0u64);
    // Bytes of the allocation that have been fetched.
    let mut done = 0;
    while done < name.bytes {
        let (offset, pieces) = porter::fetch(name, done).ok_or(INVALID_VALUE)?;
        if all.is_empty() {
            first = offset;
        }
        for (fd, bytes) in pieces {
            let handle = served.ledger.inner().phys_import(served.dev, &fd).map_err(failed)?;
            all.push(Piece { handle, bytes, served });
            end = end.saturating_add(bytes);
        }
        done = end.saturating_sub(first);
    }
    Ok((first, all))
}

/// Maps pieces side by side.
fn import(served: &'static Served, ctx: Ctx, pieces: Vec<Piece>, offset: u64) -> Result<Import, Error> {
    // Not the pool's memory: it is not written down, and a tear-down leaves it alone.
    let driver = served.ledger.inner();
    let total: u64 = pieces.iter().map(|p| p.bytes).sum();
    let va = driver.va_reserve(served.dev, total, 2 << 20)?;
    let mut at = va;
    let mapped = pieces.iter().try_for_each(|p| {
        driver.map(served.dev, at, p.bytes, p.handle)?;
        at += p.bytes;
        Ok(())
    });
    if let Err(e) = mapped.and_then(|()| driver.set_access(va, total, &[served.dev])) {
        if at > va {
            let _ = driver.unmap(va, at - va);
        }
        // Nothing is mapped in it any more.
        let _ = driver.va_free(served.dev, va, total);
        return Err(e);
    }
    let number = opening();
    Ok(Import { ptr: va + offset, va, pieces, opened: 1, first: number, latest: number, ctx, served })
}

impl Import {
    /// A number that no allocation has.
    fn id(&self) -> u64 {
        self.first | 1 << 63
    }

    /// Unmaps it; the pieces go when it is dropped.
    fn end(&self) {
        self.served.synchronous.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.ptr);
        let driver = self.served.ledger.inner();
        let total = self.pieces.iter().map(|p| p.bytes).sum();
        let _ = driver.unmap(self.va, total);
        let _ = driver.va_free(self.served.dev, self.va, total);
    }
}

pub unsafe fn close(real: &Real, ptr: Ptr) -> Code {
    let _uncancelled = Uncancelled::new();
    end_late(real);
    let mut imports = imports();
    let found = imports.iter_mut().flatten().find(|(_, i)| i.ptr == ptr && i.opened > 0);
    let Some((key, known)) = found.map(|(key, known)| (*key, known)) else {
        drop(imports);
        return real.cuIpcCloseMemHandle(ptr);
    };
    known.opened -= 1;
    drop(imports);
    match end_when_idle(real, key) {
        CAPTURING => SUCCESS,
        code => code,
    }
}

/// Unmaps what was closed while no wait was possible, if one is now.
fn end_late(real: &Real) {
    let late = std::mem::take(&mut *LATE.lock().unwrap_or_else(PoisonError::into_inner));
    for key in late {
        end_when_idle(real, key);
    }
}

/// Waits for the work that uses an import, as the driver does, and unmaps it; others open and close
/// meanwhile, and one that is open stays.
fn end_when_idle(real: &Real, key: (Name, DeviceId)) -> Code {
    // The opening up to which all work has been waited for.
    let mut waited = None;
    loop {
        let mut imports = imports();
        let Some(all) = imports.as_mut() else { return SUCCESS };
        let Some(known) = all.get(&key).filter(|i| i.opened == 0) else { return SUCCESS };
        let latest = Some(known.latest);
        if waited == latest {
            let last = all.remove(&key);
            drop(imports);
            last.iter().for_each(Import::end);
            return SUCCESS;
        }
        let users = [known.ctx, known.served.primary(), real.current()];
        drop(imports);
        match captures::wait_for(real, users) {
            SUCCESS => waited = latest,
            code => {
                LATE.lock().unwrap_or_else(PoisonError::into_inner).push(key);
                return code;
            }
        }
    }
}

//! Recording, snapshots, events
//!
//! A recording holds every allocation, free and slow step, for `gpumem view`, `gpumem replay` and
//! `gpumem record convert`; GPUMEM_RECORD=FILE records the whole process. A snapshot holds the
//! state of all memory at one moment, and the reason why a request failed. docs/recording.md
//! explains both; docs/spec/recording.md has the file's format.
//!
//!   gpumem_record_start("steps.gmrec", 16);            (with 16 frames of each stack)
//!   ...
//!   gpumem_record_stop(NULL, NULL);
//!
//! then `gpumem view steps.gmrec --out steps.html`. Recording costs a few tens of nanoseconds an
//! allocation and free, and some microseconds with stacks. While off it costs nothing, unless
//! GPUMEM_SNAPSHOT_ON=oom keeps the last events, which costs as much as a recording without stacks.

use crate::base::{Error, Result};
use crate::capi::call::arguments::{name, put};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{device_id, gpumem_stream, not_null, pointer};
use crate::context::{Context, Past};
use crate::observe::{Callback, Event, StackSource};
use crate::pool::Alive;
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::PathBuf;
use std::sync::Arc;

/// For gpumem_record_start: stacks as deep as GPUMEM_RECORD_STACKS says.
pub const GPUMEM_RECORD_STACKS_DEFAULT: u32 = u32::MAX;

/// A live allocation, as gpumem_visit_allocations shows it.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_allocation {
    /// sizeof(gpumem_allocation) as the library has it; later versions may have more fields.
    pub size: u32,
    /// The device it lives on.
    pub device: i32,
    /// Its first byte.
    pub base: *mut c_void,
    /// Bytes asked for.
    pub requested: usize,
    /// Bytes usable from base.
    pub usable: usize,
    /// The stream it was allocated on. A name only: the stream may be gone.
    pub stream: gpumem_stream,
    /// A number that is never reused in this process. While a stream has one heap, the larger of
    /// two numbers is the younger allocation.
    pub id: u64,
    /// The caller's tag.
    pub tag: u64,
    /// The number of its arena, or 0: the number in recordings and dumps, not a gpumem_arena.
    pub arena: u64,
    /// GPUMEM_MALLOC_* it was made with.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// Nanoseconds since it was made or resized, or since the recording began if that was later. 0
    /// without gpumem_visit_filter.age_and_stack, and where the recording does not know the
    /// allocation.
    pub age_ns: u64,
    /// The stack of the request, a frame a line, the innermost first, valid until the visitor
    /// returns. NULL without gpumem_visit_filter.age_and_stack, and where no stack was recorded.
    pub stack: *const c_char,
}

/// Which allocations gpumem_visit_allocations shows. Zero the whole and set the size: GPUMEM_INIT.
/// A field that is 0 filters nothing.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_visit_filter {
    /// sizeof(gpumem_visit_filter).
    pub size: u32,
    /// 1: only those on device; 0: on every device.
    pub on_device: u32,
    /// Only those for which at least this many bytes were asked.
    pub least_bytes: u64,
    /// Only those with this tag.
    pub tag: u64,
    /// Only those of the arena with this number.
    pub arena: u64,
    /// The device, if on_device is 1.
    pub device: i32,
    /// 1: with age and stack, from the recording under way; 0: without.
    pub age_and_stack: u32,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_visit_filter, 40, 40);
const _: () = assert!(size_of::<gpumem_allocation>() == 88);

/// Receives one allocation. Returns 0 to go on, anything else to end the visit.
#[allow(non_camel_case_types)]
pub type gpumem_visitor =
    Option<unsafe extern "C" fn(allocation: *const gpumem_allocation, user: *mut c_void) -> c_int>;

/// What happened, for an event callback. docs/spec/recording.md has the numbers of the kinds and
/// the meaning of the fields.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_event {
    /// sizeof(gpumem_event) as the library has it; later versions may have more fields.
    pub size: u32,
    /// GPUMEM_EVENT_*.
    pub kind: i32,
    /// Nanoseconds of a clock of the library's own.
    pub time: u64,
    /// An address, or a handle of physical memory.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// What it means depends on the kind.
    pub other: u64,
    /// A stream; 0 is the legacy default stream.
    pub stream: u64,
    /// The caller's tag.
    pub tag: u64,
    /// The arena's number, or 0.
    pub arena: u32,
    /// The device's ordinal; 0 where it is about no single device.
    pub device: i32,
}
const _: () = assert!(size_of::<gpumem_event>() == 64);

/// Memory was handed out: address, bytes, stream, tag, arena.
pub const GPUMEM_EVENT_MALLOC: i32 = 1;
/// Memory was given back: address; other: 1 if a stream was named, and that stream.
pub const GPUMEM_EVENT_FREE: i32 = 2;
/// An allocation changed its size in place: address, bytes.
pub const GPUMEM_EVENT_REALLOC: i32 = 3;
/// A request failed for lack of memory: bytes, stream, tag, arena.
pub const GPUMEM_EVENT_OUT_OF_MEMORY: i32 = 4;
/// An arena was opened: arena.
pub const GPUMEM_EVENT_ARENA_ENTER: i32 = 6;
/// An arena has ended, and what was in it is free: arena.
pub const GPUMEM_EVENT_ARENA_EXIT: i32 = 7;
/// An allocation went to another arena: address, arena.
pub const GPUMEM_EVENT_MOVE: i32 = 8;
/// Free memory was given back to the device. In this kind and those below, other is the time it
/// took in nanoseconds.
pub const GPUMEM_EVENT_TRIM: i32 = 9;
/// Evictable memory left the device: address or tag, bytes.
pub const GPUMEM_EVENT_EVICT: i32 = 10;
/// Evictable memory came back to the device: address or tag, bytes.
pub const GPUMEM_EVENT_RESTORE: i32 = 11;
/// A request was met with new physical memory, perhaps beside moved memory: address, new bytes.
pub const GPUMEM_EVENT_GROWTH: i32 = 15;
/// A request was met by moving physical memory, and none was added: address, bytes.
pub const GPUMEM_EVENT_STITCH: i32 = 16;

const _: () = {
    use crate::observe::Kind;
    assert!(GPUMEM_EVENT_MALLOC == Kind::Malloc as i32 && GPUMEM_EVENT_FREE == Kind::Free as i32);
    assert!(GPUMEM_EVENT_REALLOC == Kind::Realloc as i32 && GPUMEM_EVENT_OUT_OF_MEMORY == Kind::OutOfMemory as i32);
    assert!(GPUMEM_EVENT_ARENA_ENTER == Kind::ArenaEnter as i32 && GPUMEM_EVENT_ARENA_EXIT == Kind::ArenaExit as i32);
    assert!(GPUMEM_EVENT_MOVE == Kind::Move as i32 && GPUMEM_EVENT_TRIM == Kind::Trim as i32);
    assert!(GPUMEM_EVENT_EVICT == Kind::Evict as i32 && GPUMEM_EVENT_RESTORE == Kind::Restore as i32);
    assert!(GPUMEM_EVENT_GROWTH == Kind::Growth as i32 && GPUMEM_EVENT_STITCH == Kind::Stitch as i32);
};

/// Called with each event, after the call that caused it has released its locks. It must not
/// unwind. It may call gpumem; such calls make no events.
#[allow(non_camel_case_types)]
pub type gpumem_event_callback = Option<unsafe extern "C" fn(event: *const gpumem_event, user: *mut c_void)>;

/// Writes the calling thread's stack into buf, one frame a line, innermost first, and returns its
/// length in bytes. Text beyond cap is cut. Returns 0 to have gpumem record the native stack. For
/// interpreters.
#[allow(non_camel_case_types)]
pub type gpumem_stack_callback = Option<unsafe extern "C" fn(buf: *mut c_char, cap: usize, user: *mut c_void) -> usize>;

/// Records every allocation to a file from now on, until gpumem_record_stop or the process's end.
///
/// path is the file to create. If it exists, "." and the process's number are added to the name; if
/// that exists too, ".2", ".3" and so on. stack_frames is the depth of the stacks recorded with
/// each allocation: up to 256, 0 for none, or GPUMEM_RECORD_STACKS_DEFAULT. The file begins with
/// the allocations that are live already.
/// Errors: GPUMEM_ERROR_INVALID when path is NULL or empty, stack_frames is out of range, or a
/// recording is under way; GPUMEM_ERROR_IO when the file cannot be created, or path is a directory.
#[no_mangle]
pub unsafe extern "C" fn gpumem_record_start(path: *const c_char, stack_frames: u32) -> gpumem_status {
    guard(|| {
        // SAFETY: NULL or a string by the contract.
        let path = unsafe { path_of(path, "path") }?;
        let depth = match stack_frames {
            GPUMEM_RECORD_STACKS_DEFAULT => None,
            0..=256 => Some(stack_frames),
            other => return Err(Error::invalid(format!("stack_frames is {other}; it is a number from 0 to 256"))),
        };
        Context::global()?.record_start(&path, depth).map(|_| ())
    })
}

/// Ends the recording, and waits until it is written.
///
/// events and lost may be NULL. They receive the number of events in the file and the number that
/// were lost, with GPUMEM_ERROR_IO too.
/// Errors: GPUMEM_ERROR_INVALID when no recording is under way; GPUMEM_ERROR_IO when it has ended
/// but could not be written to its end, as on a full disk, was removed meanwhile, or its last
/// events are not written after ten seconds.
#[no_mangle]
pub unsafe extern "C" fn gpumem_record_stop(events: *mut u64, lost: *mut u64) -> gpumem_status {
    guard(|| {
        let summary = Context::global()?.record_stop()?;
        for (out, n) in [(events, summary.events), (lost, summary.lost)] {
            // SAFETY: the caller passes NULL or a place to write to.
            unsafe { put(out, n) };
        }
        summary.written
    })
}

/// Writes a snapshot: the state of all memory now, as JSON, for `gpumem view`.
///
/// path is a file to create or to replace. Other threads go on meanwhile: each heap is shown as it
/// was at one moment.
/// Errors: GPUMEM_ERROR_INVALID when path is NULL or empty, GPUMEM_ERROR_IO when it cannot be
/// written.
#[no_mangle]
pub unsafe extern "C" fn gpumem_snapshot(path: *const c_char) -> gpumem_status {
    guard(|| {
        // SAFETY: NULL or a string by the contract.
        let path = unsafe { path_of(path, "path") }?;
        Context::global()?.snapshot_to(&path, "call")
    })
}

/// Calls a function with every live allocation, small ones too.
///
/// filter may be NULL: all allocations. visitor runs on this thread and receives user, which is not
/// kept. Heaps are visited one after the other, each as it was at one moment; other threads wait
/// only while one is copied. The visitor may call gpumem. With gpumem_visit_filter.age_and_stack
/// each allocation also has its age and its stack. That reads the recording so far, which takes
/// about a second for four million events; other threads go on.
/// Errors: GPUMEM_ERROR_INVALID when visitor is NULL, the filter's size impossible, on_device or
/// age_and_stack neither 0 nor 1, or device one that does not exist or set without on_device; with
/// age_and_stack also when nothing is recorded to a file.
#[no_mangle]
pub unsafe extern "C" fn gpumem_visit_allocations(
    filter: *const gpumem_visit_filter,
    visitor: gpumem_visitor,
    user: *mut c_void,
) -> gpumem_status {
    guard(|| {
        let visitor = visitor.ok_or_else(|| Error::invalid("visitor is NULL"))?;
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        let filter = unsafe { options::read_if_any(filter) }?;
        if let Some(f) = filter {
            match f.on_device {
                0 if f.device == 0 => {}
                0 => return Err(Error::invalid("gpumem_visit_filter.device is set, but on_device is 0")),
                1 => _ = device_id(Context::global()?, f.device)?,
                n => return Err(Error::invalid(format!("gpumem_visit_filter.on_device is {n}; it is 0 or 1"))),
            }
        }
        let wanted = |a: &gpumem_allocation| {
            filter.is_none_or(|f| {
                (f.on_device == 0 || f.device == a.device)
                    && a.requested as u64 >= f.least_bytes
                    && (f.tag == 0 || f.tag == a.tag)
                    && (f.arena == 0 || f.arena == a.arena)
            })
        };
        let mut show = |alive: &Alive, arena: Option<u64>, past: &Past| {
            let i = &alive.info;
            // A name with a zero byte in it is cut there.
            let stack = past.stack.split('\0').next().filter(|s| !s.is_empty()).and_then(|s| CString::new(s).ok());
            let a = gpumem_allocation {
                size: size_of::<gpumem_allocation>() as u32,
                device: i.device.0 as i32,
                base: pointer(i.base),
                requested: i.requested as usize,
                usable: i.usable as usize,
                stream: i.stream.0 as gpumem_stream,
                id: i.id,
                tag: i.tag,
                arena: arena.unwrap_or(0),
                flags: i.flags.0,
                reserved: 0,
                age_ns: past.age_ns,
                stack: stack.as_ref().map_or(std::ptr::null(), |s| s.as_ptr()),
            };
            // SAFETY: the program's function, called as its type says; it does not unwind.
            !wanted(&a) || unsafe { visitor(&a, user) } == 0
        };
        let context = Context::global()?;
        match filter.map_or(0, |f| f.age_and_stack) {
            0 => context.visit(&mut |alive, arena| show(alive, arena, &Past::default())),
            1 => context.visit_with_past(&mut show)?,
            other => return Err(Error::invalid(format!("gpumem_visit_filter.age_and_stack is {other}; it is 0 or 1"))),
        }
        Ok(())
    })
}

/// What a program's function is called with.
struct User(*mut c_void);
// SAFETY: the pointer is only handed back to the program's function, which says in its contract
// that any thread may call it.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl User {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Calls a function with each event from now on, on the thread where it happens. NULL ends that.
///
/// The callback receives user, which must be valid while the callback is set. Driver calls of the
/// slow path are events too. A callback that is running on another thread may still be running, and
/// use its user, when this returns.
#[no_mangle]
pub extern "C" fn gpumem_event_callback_set(callback: gpumem_event_callback, user: *mut c_void) -> gpumem_status {
    guard(|| {
        let user = User(user);
        let call = callback.map(|f| -> Callback {
            Arc::new(move |e: &Event| {
                let event = convert(e);
                // SAFETY: the program's function, called as its type says; it does not unwind.
                unsafe { f(&event, user.get()) };
            })
        });
        Context::global()?.set_event_callback(call);
        Ok(())
    })
}

/// Takes the stacks of recordings from a function. With NULL gpumem records the native stacks.
///
/// The function receives user, which must be valid while the function is set. It runs on the thread
/// that allocates, and must not allocate from gpumem. One that is running on another thread may
/// still be running, and use its user, when this returns.
#[no_mangle]
pub extern "C" fn gpumem_stack_callback_set(callback: gpumem_stack_callback, user: *mut c_void) -> gpumem_status {
    guard(|| {
        let user = User(user);
        let source = callback.map(|f| -> StackSource {
            Arc::new(move |text: &mut String| {
                let mut buf = vec![0_u8; 1 << 14];
                // SAFETY: as many writable bytes as are said; the function does not unwind.
                let n = unsafe { f(buf.as_mut_ptr().cast(), buf.len(), user.get()) };
                buf.truncate(n);
                text.push_str(&String::from_utf8_lossy(&buf));
            })
        });
        Context::global()?.set_stack_source(source);
        Ok(())
    })
}

fn convert(e: &Event) -> gpumem_event {
    gpumem_event {
        size: size_of::<gpumem_event>() as u32,
        kind: e.kind as i32,
        time: e.time,
        address: e.address,
        bytes: e.bytes,
        other: e.other,
        stream: e.stream,
        tag: e.tag,
        arena: e.arena,
        device: i32::from(e.device),
    }
}

/// # Safety
/// `path` is NULL or a string.
unsafe fn path_of(path: *const c_char, parameter: &str) -> Result<PathBuf> {
    not_null(path, parameter)?;
    // SAFETY: passed on from the caller.
    let text = unsafe { name(path, parameter) }?.unwrap_or("");
    match text {
        "" => Err(Error::invalid(format!("{parameter} is empty"))),
        text => Ok(PathBuf::from(text)),
    }
}

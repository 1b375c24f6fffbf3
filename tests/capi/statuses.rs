//! What the headers say of statuses holds when the driver fails: every call of the driver that a
//! function of the C ABI makes fails once, and the function ends with a status that its comment
//! lists.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// The fuzzer reads the same comments.
#[path = "../../fuzz/src/header.rs"]
#[allow(dead_code)]
mod header;

use crate::cc;

use gpumem::base::size::MIB;
use gpumem::base::Status;
use gpumem::capi::alloc::ipc::*;
use gpumem::capi::alloc::malloc_with::*;
use gpumem::capi::arena::check::*;
use gpumem::capi::arena::scope::*;
use gpumem::capi::capture::capture_arena::*;
use gpumem::capi::capture::sim_graph::*;
use gpumem::capi::device::devices::*;
use gpumem::capi::device::memory::*;
use gpumem::capi::device::stream::*;
use gpumem::capi::device::stream_pool::*;
use gpumem::capi::everyday::malloc::*;
use gpumem::capi::observe::stats::*;
use gpumem::capi::plan::buffers::*;
use gpumem::capi::plan::memory::*;
use gpumem::capi::plan::solve::*;
use gpumem::capi::tiers::evict::*;
use gpumem::capi::tiers::host::*;
use gpumem::capi::tiers::reserve::*;
use gpumem::capi::tiers::space::*;
use gpumem::capi::{gpumem_arena, gpumem_reservation, gpumem_stream};
use gpumem::context::config::{Config, DiskMount};
use gpumem::context::Context;
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::{Fault, FaultRule};
use header::Header;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use test_support::alone;

/// Calls of one function that are made to fail, at most: each of the first ones.
const MOST: u64 = 40;

struct Rig {
    fault: Arc<Fault>,
    header: Header,
    /// A stream of device 0, and one of device 1.
    near: gpumem_stream,
    far: gpumem_stream,
    /// Statuses that are not listed, each with what was said first.
    wrong: BTreeMap<(&'static str, i32), String>,
    /// Functions that failed at all.
    failed: BTreeSet<&'static str>,
}

/// What a structure of the ABI is when it is zeroed and its size is set.
fn init<T>() -> T {
    // SAFETY: every structure of the ABI is made of numbers and pointers, and begins with its size.
    unsafe {
        let mut value: T = std::mem::zeroed();
        (&raw mut value).cast::<u32>().write(std::mem::size_of::<T>() as u32);
        value
    }
}

fn ok(status: i32) {
    assert_eq!(status, 0, "{}", said());
}

extern "C" {
    fn gpumem_last_error(buf: *mut std::ffi::c_char, cap: usize) -> usize;
}

/// The text of the last failure.
fn said() -> String {
    let mut text = vec![0u8; 1001];
    // SAFETY: a buffer of this length.
    let n = unsafe { gpumem_last_error(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..n.min(1000)]).into_owned()
}

impl Rig {
    /// Prepares, calls with the `n`-th call of the driver failing, and tidies up: for each `n` in
    /// turn.
    fn each<T>(
        &mut self,
        name: &'static str,
        prepare: impl Fn(&Rig) -> T,
        mut call: impl FnMut(&mut T) -> i32,
        tidy: impl Fn(T, bool),
    ) {
        let rules: [fn(u64) -> FaultRule; 3] =
            [FaultRule::nth, |n| FaultRule::nth(n).lasting(), |n| FaultRule::nth(n).with_status(Status::OutOfMemory)];
        for rule in rules {
            for n in 0..MOST {
                let mut with = prepare(self);
                let before = self.fault.fired();
                self.fault.set_rule(Some(rule(n)));
                let status = call(&mut with);
                self.fault.set_rule(None);
                let fired = self.fault.fired() > before;
                if status != 0 {
                    self.failed.insert(name);
                    if !self.header.documents(name, status) {
                        self.wrong.entry((name, status)).or_insert_with(said);
                    }
                }
                tidy(with, status == 0);
                ok(gpumem_validate());
                if !fired {
                    break;
                }
            }
        }
    }
}

fn malloc(bytes: u64, s: gpumem_stream) -> *mut c_void {
    let mut p = null_mut();
    // SAFETY: a place to write to.
    ok(unsafe { gpumem_malloc_async(bytes as usize, s, &raw mut p) });
    p
}

fn with_flags(flags: u32, s: gpumem_stream) -> *mut c_void {
    let (mut p, mut o) = (null_mut(), init::<gpumem_malloc_options>());
    (o.bytes, o.flags, o.stream, o.tag) = (MIB as usize, flags, s, 7);
    // SAFETY: options, and a place to write to.
    ok(unsafe { gpumem_malloc_with(&raw const o, &raw mut p) });
    p
}

fn free(p: *mut c_void) {
    if !p.is_null() {
        gpumem_free(p);
    }
}

/// Nothing is mapped that is not live, so the next request needs the driver.
fn bare() {
    ok(gpumem_device_set(0));
    ok(gpumem_device_sync());
    ok(gpumem_trim(0));
}

fn allocating(rig: &mut Rig) {
    let near = rig.near;
    let none = |_: &Rig| {
        bare();
        null_mut::<c_void>()
    };
    let tidy = |p: *mut c_void, _| free(p);
    // SAFETY: each call gets what its contract asks for.
    unsafe {
        rig.each("gpumem_malloc_async", none, |p| gpumem_malloc_async(3 << 20, near, p), tidy);
        for flags in
            [0, GPUMEM_MALLOC_SINGLE_HANDLE, GPUMEM_MALLOC_EXPORTABLE, GPUMEM_MALLOC_GUARD, GPUMEM_MALLOC_EVICTABLE]
        {
            let mut o = init::<gpumem_malloc_options>();
            (o.bytes, o.flags, o.stream) = (3 << 20, flags, near);
            rig.each("gpumem_malloc_with", none, |p| gpumem_malloc_with(&raw const o, p), tidy);
        }
        for flags in [0, GPUMEM_MALLOC_SINGLE_HANDLE, GPUMEM_MALLOC_EVICTABLE] {
            // In the order of its own stream, of another one, and of one of another device.
            let make = move |rig: &Rig| (with_flags(flags, rig.near), [rig.near, null_mut(), rig.far]);
            for at in 0..3 {
                let tidy = |(p, _): (_, _), done: bool| {
                    if !done {
                        free(p)
                    }
                };
                rig.each("gpumem_free_async", make, |(p, s)| gpumem_free_async(*p, s[at]), tidy);
                let id = |p| {
                    let mut id = 0;
                    ok(gpumem_allocation_id_get(p, &raw mut id));
                    id
                };
                let known = |rig: &Rig| {
                    let (p, s) = make(rig);
                    (p, s, id(p))
                };
                let tidy = |(p, ..): (_, _, _), done: bool| {
                    if !done {
                        free(p)
                    }
                };
                rig.each(
                    "gpumem_free_id_async",
                    known,
                    |(p, s, number)| gpumem_free_id_async(*p, *number, s[at]),
                    tidy,
                );
                let record = |(p, s): &mut (*mut c_void, [gpumem_stream; 3])| gpumem_record_stream(*p, s[at]);
                rig.each("gpumem_record_stream", make, record, |(p, _), _| free(p));
                if flags != 0 {
                    continue;
                }
                for size in [100, 5 << 20] {
                    let move_it = |(p, s): &mut (*mut c_void, [gpumem_stream; 3])| {
                        let old = *p;
                        gpumem_realloc_async(old, size, s[at], p)
                    };
                    rig.each("gpumem_realloc_async", make, move_it, |(p, _), _| free(p));
                }
            }
        }
        let freed = |rig: &Rig| free(malloc(5 << 20, rig.near));
        rig.each("gpumem_trim", freed, |()| gpumem_trim(0), |(), _| ());
        rig.each("gpumem_device_trim", freed, |()| gpumem_device_trim(0, 0), |(), _| ());
        rig.each(
            "gpumem_device_limit_set",
            freed,
            |()| gpumem_device_limit_set(0, 1 << 29),
            |(), _| {
                ok(gpumem_device_limit_set(0, 0));
            },
        );
        let shared = |rig: &Rig| (with_flags(GPUMEM_MALLOC_EXPORTABLE, rig.near), -1 as c_int, null_mut::<c_void>());
        let end = |(p, fd, q): (_, c_int, _), _| {
            [p, q].into_iter().for_each(free);
            if fd >= 0 {
                libc::close(fd);
            }
        };
        rig.each("gpumem_export_fd", shared, |(p, fd, _)| gpumem_export_fd(*p, fd), end);
        let exported = |rig: &Rig| {
            let (p, mut fd, q) = shared(rig);
            ok(gpumem_export_fd(p, &raw mut fd));
            (p, fd, q)
        };
        rig.each("gpumem_import_fd", exported, |(_, fd, q)| gpumem_import_fd(*fd, MIB as usize, 0, q), end);
    }
}

fn devices_and_streams(rig: &mut Rig) {
    let (near, far) = (rig.near, rig.far);
    // SAFETY: each call gets what its contract asks for.
    unsafe {
        rig.each("gpumem_device_get", |_| 0, |n| gpumem_device_get(n), |_, _| ());
        rig.each("gpumem_device_set", |_| (), |()| gpumem_device_set(0), |(), _| ());
        rig.each("gpumem_device_sync", |_| (), |()| gpumem_device_sync(), |(), _| ());
        let props = |_: &Rig| init::<gpumem_device_props>();
        rig.each("gpumem_device_props_get", props, |o| gpumem_device_props_get(0, o), |_, _| ());
        let get = |(f, t): &mut (usize, usize)| gpumem_device_memory_get(0, f, t);
        rig.each("gpumem_device_memory_get", |_| (0, 0), get, |_, _| ());
        let no_stream = |_: &Rig| null_mut();
        let destroy = |s: gpumem_stream, done: bool| {
            if done {
                ok(gpumem_stream_destroy(s))
            }
        };
        rig.each("gpumem_stream_create", no_stream, |s| gpumem_stream_create(s), destroy);
        let a_stream = |_: &Rig| {
            let mut s = null_mut();
            ok(gpumem_stream_create(&raw mut s));
            s
        };
        rig.each(
            "gpumem_stream_destroy",
            a_stream,
            |s| gpumem_stream_destroy(*s),
            |s, done: bool| {
                if !done {
                    ok(gpumem_stream_destroy(s));
                }
            },
        );
        for s in [near, far, null_mut()] {
            rig.each("gpumem_stream_sync", |_| (), |()| gpumem_stream_sync(s), |(), _| ());
            rig.each("gpumem_stream_wait", |_| (), |()| gpumem_stream_wait(near, s), |(), _| ());
        }
        let no_pool = |_: &Rig| null_mut();
        let close = |p: gpumem_stream_pool, done: bool| {
            if done {
                ok(gpumem_stream_pool_destroy(p))
            }
        };
        rig.each("gpumem_stream_pool_create", no_pool, |p| gpumem_stream_pool_create(2, p), close);
        let a_pool = |_: &Rig| {
            let mut p = null_mut();
            ok(gpumem_stream_pool_create(1, &raw mut p));
            (p, null_mut())
        };
        let back = |(p, s): (_, gpumem_stream), _| {
            if !s.is_null() {
                ok(gpumem_stream_pool_return(p, s));
            }
            ok(gpumem_stream_pool_destroy(p));
        };
        rig.each("gpumem_stream_pool_borrow", a_pool, |(p, s)| gpumem_stream_pool_borrow(*p, 0, s), back);
        rig.each("gpumem_stream_pool_borrow_or_grow", a_pool, |(p, s)| gpumem_stream_pool_borrow_or_grow(*p, s), back);
        let lent = |rig: &Rig| {
            let (p, mut s) = a_pool(rig);
            ok(gpumem_stream_pool_borrow(p, 0, &raw mut s));
            (p, s)
        };
        let back = |(p, s): (_, _), done: bool| {
            if !done {
                ok(gpumem_stream_pool_return(p, s));
            }
            ok(gpumem_stream_pool_destroy(p));
        };
        rig.each("gpumem_stream_pool_return", lent, |(p, s)| gpumem_stream_pool_return(*p, *s), back);
        let idle = |rig: &Rig| {
            let (p, s) = lent(rig);
            ok(gpumem_stream_pool_return(p, s));
            p
        };
        rig.each("gpumem_stream_pool_destroy", idle, |p| gpumem_stream_pool_destroy(*p), |_, _| ());

        let two = |rig: &Rig| [malloc(MIB, rig.near), malloc(MIB, rig.near)];
        let end = |p: [_; 2], _| p.into_iter().for_each(free);
        let n = MIB as usize;
        rig.each("gpumem_memcpy_async", two, |p| gpumem_memcpy_async(p[0], p[1], n, near), end);
        rig.each("gpumem_memcpy", two, |p| gpumem_memcpy(p[0], p[1], n), end);
        rig.each("gpumem_memset_async", two, |p| gpumem_memset_async(p[0], 1, n, near), end);
        rig.each("gpumem_memset", two, |p| gpumem_memset(p[0], 1, n), end);
    }
}

fn looking(rig: &mut Rig) {
    // SAFETY: each call gets what its contract asks for.
    unsafe {
        let live = |rig: &Rig| malloc(5 << 20, rig.near);
        let end = |p, _| free(p);
        let mut stats = init::<gpumem_stats>();
        rig.each("gpumem_stats_get", live, |_| gpumem_stats_get(0, &raw mut stats), end);
        rig.each("gpumem_stats_reset_peak", live, |_| gpumem_stats_reset_peak(0), end);
        rig.each("gpumem_validate", live, |_| gpumem_validate(), end);
        let mut text = vec![0u8; 100];
        rig.each("gpumem_dump", live, |_| gpumem_dump(0, text.as_mut_ptr().cast(), 100, null_mut()), end);
        let mut info = init::<gpumem_pointer_info>();
        rig.each("gpumem_pointer_info_get", live, |p| gpumem_pointer_info_get(*p, &raw mut info), end);
        let mut id = 0;
        rig.each("gpumem_allocation_id_get", live, |p| gpumem_allocation_id_get(*p, &raw mut id), end);
        let near = rig.near;
        rig.each("gpumem_owner_id_get", live, |p| gpumem_owner_id_get(*p, near, &raw mut id), end);
    }
}

fn arenas_and_captures(rig: &mut Rig) {
    let near = rig.near;
    // SAFETY: each call gets what its contract asks for.
    unsafe {
        let close = |a: gpumem_arena, done: bool| {
            if done {
                ok(gpumem_arena_abort(a, null_mut()))
            }
        };
        rig.each("gpumem_arena_enter", |_| null_mut(), |a| gpumem_arena_enter(a), close);
        let open = |rig: &Rig| {
            let mut a = null_mut();
            ok(gpumem_arena_enter(&raw mut a));
            (a, [malloc(MIB, rig.near), malloc(3 << 20, rig.near), malloc(300, null_mut())])
        };
        let end = |(a, p): (_, [_; 3]), done: bool| {
            if !done {
                ok(gpumem_arena_abort(a, null_mut()));
            }
            if done {
                gpumem_free_id(p[0], 0);
            }
        };
        rig.each("gpumem_arena_exit", open, |(a, _)| gpumem_arena_exit(*a, null(), 0, null_mut()), end);
        rig.each("gpumem_arena_abort", open, |(a, _)| gpumem_arena_abort(*a, null_mut()), end);
        rig.each(
            "gpumem_arena_verify",
            open,
            |_| gpumem_arena_verify(),
            |(a, _), _| ok(gpumem_arena_abort(a, null_mut())),
        );

        let give_up = |c: gpumem_capture, done: bool| {
            if done {
                ok(gpumem_capture_abort(c))
            }
        };
        let begin = |c: &mut gpumem_capture| gpumem_capture_begin(near, null(), c);
        rig.each("gpumem_capture_begin", |_| null_mut(), begin, give_up);
        let begun = |_: &Rig| {
            let mut c = null_mut();
            ok(begin(&mut c));
            free(malloc(3 << 20, near));
            c
        };
        let ended = |rig: &Rig| {
            let c = begun(rig);
            ok(gpumem_capture_end(c));
            c
        };
        rig.each(
            "gpumem_capture_end",
            begun,
            |c| gpumem_capture_end(*c),
            |c, _| {
                gpumem_capture_abort(c);
                gpumem_capture_release(c);
            },
        );
        let gone = |c, done: bool| {
            if !done {
                ok(gpumem_capture_abort(c));
            }
        };
        rig.each("gpumem_capture_abort", begun, |c| gpumem_capture_abort(*c), gone);
        let gone = |c, done: bool| {
            if !done {
                ok(gpumem_capture_release(c));
            }
        };
        rig.each("gpumem_capture_release", ended, |c| gpumem_capture_release(*c), gone);

        let start = |_: &mut ()| gpumem_sim_capture_begin(near, 2);
        let stop = || {
            let mut g = null_mut();
            if gpumem_sim_capture_end(near, &raw mut g) == 0 {
                ok(gpumem_sim_graph_destroy(g));
            }
        };
        rig.each(
            "gpumem_sim_capture_begin",
            |_| (),
            start,
            |(), done: bool| {
                if done {
                    stop()
                }
            },
        );
        let started = |_: &Rig| {
            ok(gpumem_sim_capture_begin(near, 2));
            null_mut()
        };
        rig.each(
            "gpumem_sim_capture_end",
            started,
            |g| gpumem_sim_capture_end(near, g),
            |g, done: bool| match done {
                true => ok(gpumem_sim_graph_destroy(g)),
                false => stop(),
            },
        );
        let graph = |rig: &Rig| {
            let mut g = started(rig);
            ok(gpumem_sim_capture_end(near, &raw mut g));
            g
        };
        let destroy = |g, _| ok(gpumem_sim_graph_destroy(g));
        rig.each("gpumem_sim_graph_launch", graph, |g| gpumem_sim_graph_launch(*g, near), destroy);
        rig.each(
            "gpumem_sim_graph_destroy",
            graph,
            |g| gpumem_sim_graph_destroy(*g),
            |g, _| {
                gpumem_sim_graph_destroy(g);
            },
        );
        let mut info = init::<gpumem_sim_graph_info>();
        rig.each("gpumem_sim_graph_info_get", graph, |g| gpumem_sim_graph_info_get(*g, &raw mut info), destroy);
    }
}

fn plans(rig: &mut Rig) {
    let near = rig.near;
    // SAFETY: each call gets what its contract asks for.
    unsafe {
        let mut plan = null_mut();
        ok(gpumem_plan_create(null(), &raw mut plan));
        let (mut o, mut id) = (init::<gpumem_plan_buffer_options>(), 0);
        (o.bytes, o.upper) = (3 << 20, 1);
        ok(gpumem_plan_buffer_add(plan, &raw const o, &raw mut id));
        ok(gpumem_plan_solve(plan, null()));
        let none = |_: &Rig| {
            bare();
            null_mut::<c_void>()
        };
        let tidy = |p: *mut c_void, _| free(p);
        rig.each("gpumem_plan_materialise", none, |p| gpumem_plan_materialise(plan, 0, near, p), tidy);
        let mut o = init::<gpumem_malloc_options>();
        o.stream = near;
        let call = |p: &mut _| gpumem_plan_materialise_with(plan, 0, &raw const o, p);
        rig.each("gpumem_plan_materialise_with", none, call, tidy);
        ok(gpumem_plan_destroy(plan));
    }
}

fn tiers(rig: &mut Rig) {
    let (near, far) = (rig.near, rig.far);
    let at = |tier, id| gpumem_space { tier, id };
    // SAFETY: each call gets what its contract asks for.
    unsafe {
        let here = |rig: &Rig| with_flags(GPUMEM_MALLOC_EVICTABLE, rig.near);
        let end = |p, _| free(p);
        let to = |space, stream: gpumem_stream| {
            let mut o = init::<gpumem_move_options>();
            o.space = space;
            o.stream = stream;
            o.flags = if stream.is_null() { 0 } else { GPUMEM_MOVE_ON_STREAM };
            o
        };
        let host = to(at(GPUMEM_TIER_HOST, 0), null_mut());
        let disk = to(at(GPUMEM_TIER_DISK, 0), null_mut());
        for o in [host, disk, to(at(0, 0), near), to(at(0, 0), far)] {
            rig.each("gpumem_evict", here, |p| gpumem_evict(*p, &raw const o, null_mut()), end);
            rig.each("gpumem_evict_tag", here, |_| gpumem_evict_tag(7, &raw const o, null_mut()), end);
            let away = |rig: &Rig| {
                let p = here(rig);
                ok(gpumem_evict(p, &raw const o, null_mut()));
                bare();
                p
            };
            rig.each("gpumem_restore", away, |p| gpumem_restore(*p, null(), null_mut()), end);
            rig.each("gpumem_restore_tag", away, |_| gpumem_restore_tag(7, null(), null_mut()), end);
            rig.each(
                "gpumem_hold",
                away,
                |p| gpumem_hold(*p),
                |p, done: bool| {
                    if done {
                        ok(gpumem_unhold(p, null_mut()));
                    }
                    free(p);
                },
            );
        }
        for s in [near, far, null_mut()] {
            let held = |rig: &Rig| {
                let p = here(rig);
                ok(gpumem_hold(p));
                p
            };
            rig.each(
                "gpumem_unhold",
                held,
                |p| gpumem_unhold(*p, s),
                |p, done: bool| {
                    if !done {
                        ok(gpumem_unhold(p, s));
                    }
                    free(p);
                },
            );
        }
        let mut location = init::<gpumem_location>();
        rig.each("gpumem_location_get", here, |p| gpumem_location_get(*p, &raw mut location), end);

        let mut stats = init::<gpumem_space_stats>();
        let gpu = at(GPUMEM_TIER_GPU, 0);
        rig.each("gpumem_space_stats_get", |_| (), |()| gpumem_space_stats_get(gpu, &raw mut stats), |(), _| ());
        rig.each(
            "gpumem_space_limit_set",
            |_| (),
            |()| gpumem_space_limit_set(gpu, 1 << 29),
            |(), _| {
                ok(gpumem_space_limit_set(gpu, 1 << 30));
            },
        );
        let mut want = init::<gpumem_reserve_options>();
        want.bytes = MIB;
        let release = |r: gpumem_reservation, done: bool| {
            if done {
                ok(gpumem_reservation_release(r, null_mut()))
            }
        };
        rig.each("gpumem_reserve", |_| null_mut(), |r| gpumem_reserve(&raw const want, r), release);
        let promised = |_: &Rig| {
            let mut r = null_mut();
            ok(gpumem_reserve(&raw const want, &raw mut r));
            r
        };
        let release = |r, _| ok(gpumem_reservation_release(r, null_mut()));
        for s in [near, null_mut()] {
            rig.each(
                "gpumem_reservation_attach_stream",
                promised,
                |r| gpumem_reservation_attach_stream(*r, s),
                release,
            );
        }
        rig.each("gpumem_reservation_grow", promised, |r| gpumem_reservation_grow(*r, MIB, 0, null_mut()), release);

        let none = |_: &Rig| {
            ok(gpumem_host_trim(GPUMEM_HOST_NEAREST, 0, null_mut()));
            null_mut::<c_void>()
        };
        let back = |p, _| ok(gpumem_host_free(p));
        rig.each("gpumem_host_malloc", none, |p| gpumem_host_malloc(5000, GPUMEM_HOST_NEAREST, p), back);
        rig.each("gpumem_host_prepare", none, |_| gpumem_host_prepare(GPUMEM_HOST_NEAREST, 1 << 20), |_, _| ());
        let pinned = |_: &Rig| ok(gpumem_host_prepare(GPUMEM_HOST_NEAREST, 1 << 20));
        let trim = |_: &mut ()| gpumem_host_trim(GPUMEM_HOST_NEAREST, 0, null_mut());
        rig.each("gpumem_host_trim", pinned, trim, |_, _| ());
    }
}

#[test]
fn a_driver_that_fails_gives_no_status_that_is_not_listed() {
    alone!("a_driver_that_fails_gives_no_status_that_is_not_listed");
    let options = HostOptions { devices: 2, bytes_per_device: 1 << 30, ..HostOptions::default() };
    let fault = Arc::new(Fault::new(HostDriver::new(options).unwrap()));
    let folder = tempfile::tempdir().unwrap();
    let disks = vec![DiskMount { path: folder.path().to_owned(), limit: None }];
    let config = Config { host_devices: 2, disks, log: 0, ..Config::default() };
    Context::adopt(Context::new(fault.clone(), config).unwrap()).unwrap();
    let header = Header::read(&Path::new(cc::root()).join("include/gpumem")).unwrap();
    let mut streams = [null_mut(); 2];
    for (d, s) in streams.iter_mut().enumerate().rev() {
        ok(gpumem_device_set(d as c_int));
        // SAFETY: a place to write to.
        ok(unsafe { gpumem_stream_create(s) });
        free(malloc(MIB, *s));
    }
    let [near, far] = streams;
    let mut rig = Rig { fault, header, near, far, wrong: BTreeMap::new(), failed: BTreeSet::new() };
    allocating(&mut rig);
    devices_and_streams(&mut rig);
    looking(&mut rig);
    arenas_and_captures(&mut rig);
    plans(&mut rig);
    tiers(&mut rig);
    assert!(rig.wrong.is_empty(), "statuses that no header lists: {:#?}", rig.wrong);
    assert!(rig.failed.len() >= 40, "only these failed: {:?}", rig.failed);
}

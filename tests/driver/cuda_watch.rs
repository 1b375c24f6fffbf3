//! How the CUDA driver's streams are seen without asking it (`src/driver/cuda/watch.rs`), against a
//! library that stands in for libcuda and keeps its streams in structures of this shape or that. No
//! GPU is needed; a C compiler is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::undocumented_unsafe_blocks)]

use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::driver::cuda::CudaDriver;
use gpumem::driver::watch::Fields;
use gpumem::driver::{Driver, Watch};
use gpumem::pool::{AllocRequest, Pool, PoolOptions};
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::PathBuf;
use std::sync::Arc;

const D0: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;

/// A variant of the stand-in with controls of its own, and the driver over it.
struct Fake {
    library: *mut c_void,
    driver: Arc<CudaDriver>,
}

impl Fake {
    /// Each under a name of its own: each has its own state.
    fn new(name: &str, defines: &str) -> Option<Fake> {
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/driver/fake_cuda/libcuda.c");
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcuda_watch_{name}.so"));
        let mut cc = test_support::c_compiler();
        cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(&out).arg(source).args(defines.split_whitespace());
        match cc.status() {
            Err(e) => {
                println!("skipped: no C compiler ({cc:?}: {e})");
                return None;
            }
            Ok(status) => assert!(status.success(), "the stand-in does not compile"),
        }
        let path = out.to_str().unwrap();
        let driver = CudaDriver::open_from(&[path]).unwrap();
        let path = CString::new(path).unwrap();
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        assert!(!library.is_null());
        Some(Fake { library, driver })
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        let symbol = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    fn int(&self, name: &str) -> i32 {
        let f: extern "C" fn() -> c_int = unsafe { std::mem::transmute(self.symbol(name)) };
        f()
    }

    fn calls(&self) -> i32 {
        self.int("fake_calls")
    }

    fn fail(&self, call: &str, code: i32) {
        let call = CString::new(call).unwrap();
        let f: extern "C" fn(*const c_char, c_int) = unsafe { std::mem::transmute(self.symbol("fake_fail")) };
        f(call.as_ptr(), code);
    }

    fn stream(&self) -> StreamHandle {
        self.driver.stream_create(D0).unwrap()
    }

    /// One that synchronises with the legacy stream.
    fn blocking_stream(&self) -> StreamHandle {
        let f: extern "C" fn(*mut usize, u32) -> u32 = unsafe { std::mem::transmute(self.symbol("cuStreamCreate")) };
        let set: extern "C" fn(usize) = unsafe { std::mem::transmute(self.symbol("fake_set_current")) };
        let primary: extern "C" fn(c_int) -> usize = unsafe { std::mem::transmute(self.symbol("fake_primary")) };
        set(primary(0));
        let mut s = 0;
        assert_eq!(f(&mut s, 0), 0);
        StreamHandle(s)
    }

    /// Begins a capture into a graph that is there.
    fn begin_to_graph(&self, s: StreamHandle, mode: u32) {
        type Begin = extern "C" fn(usize, *mut c_void, *const c_void, *const c_void, usize, u32) -> u32;
        let create: extern "C" fn(*mut *mut c_void, u32) -> u32 =
            unsafe { std::mem::transmute(self.symbol("cuGraphCreate")) };
        let begin: Begin = unsafe { std::mem::transmute(self.symbol("cuStreamBeginCaptureToGraph")) };
        let mut graph = std::ptr::null_mut();
        assert_eq!(create(&mut graph, 0), 0);
        assert_eq!(begin(s.0, graph, std::ptr::null(), std::ptr::null(), 0, mode), 0);
    }

    fn begin_in(&self, s: StreamHandle, mode: u32) {
        let f: extern "C" fn(usize, u32) -> u32 =
            unsafe { std::mem::transmute(self.symbol("cuStreamBeginCapture_v2")) };
        assert_eq!(f(s.0, mode), 0);
    }

    fn begin(&self, s: StreamHandle) {
        let f: extern "C" fn(usize, u32) -> u32 =
            unsafe { std::mem::transmute(self.symbol("cuStreamBeginCapture_v2")) };
        assert_eq!(f(s.0, 0), 0);
    }

    /// Ends a capture; says whether it was still valid.
    fn end(&self, s: StreamHandle) -> bool {
        let f: extern "C" fn(usize, *mut *mut c_void) -> u32 =
            unsafe { std::mem::transmute(self.symbol("cuStreamEndCapture")) };
        let mut graph = std::ptr::null_mut();
        f(s.0, &mut graph) == 0
    }

    /// A search that leaves no stream, event or capture behind.
    fn watch(&self) -> Watch {
        let watch = self.driver.stream_watch(D0);
        assert_eq!(self.int("fake_live"), 0, "streams and events that the search left behind");
        assert_eq!((self.int("fake_depth"), self.int("fake_mode")), (0, 0), "the thread's context and capture mode");
        watch
    }

    fn pool(&self) -> Pool {
        let driver: Arc<dyn Driver> = self.driver.clone();
        let pool = Pool::new(driver, D0, PoolOptions { va_size: 1 << 36, ..PoolOptions::default() }).unwrap();
        assert_eq!(self.int("fake_capturing"), 0);
        pool
    }
}

#[test]
fn the_places_are_found_wherever_they_are() {
    let shapes = [
        ("as_seen", "", 336, 1096),
        ("first", "-DID_AT=0 -DCAPTURE_AT=16", 0, 16),
        ("neighbours", "-DID_AT=32 -DCAPTURE_AT=24", 32, 24),
        ("last", "-DID_AT=4088 -DCAPTURE_AT=4080", 4088, 4080),
        ("short", "-DREADABLE=1024 -DID_AT=1016 -DCAPTURE_AT=512", 1016, 512),
    ];
    for (name, defines, id, capture) in shapes {
        let Some(fake) = Fake::new(name, &format!("-DSTREAMS {defines}")) else { return };
        let watch = fake.watch();
        match watch {
            Watch::Fields(fields) => {
                let blocking = name == "as_seen";
                assert_eq!(
                    fields,
                    Fields { id, capture, blocking },
                    "{name}: known of blocking streams only where it was seen"
                );
            }
            _ => panic!("{name}: nothing was found"),
        }
        let calls = fake.calls();
        assert!(matches!(fake.driver.stream_watch(D0), Watch::Fields(_)) && fake.calls() == calls, "once in a process");
        let d = &*fake.driver;
        let (mut streams, event) = ((0..16).map(|_| fake.stream()).collect::<Vec<_>>(), d.event_create(D0).unwrap());
        for round in 0..200 {
            let n = round % streams.len();
            for &s in &streams {
                assert_eq!(watch.look(s), Some(d.stream_id(D0, s).unwrap()), "{name}");
            }
            let (s, joined) = (streams[n], streams[(n + 5) % 16]);
            fake.begin(s);
            assert_eq!(watch.look(s), None, "{name}");
            d.event_record(D0, event, s).unwrap();
            d.stream_wait(D0, joined, event).unwrap();
            assert_eq!(watch.look(joined), None, "{name}: joined");
            for &t in streams.iter().filter(|&&t| t != s && t != joined) {
                assert_eq!(watch.look(t), Some(d.stream_id(D0, t).unwrap()), "{name}: no part in it");
            }
            assert!(fake.end(s));
            assert!(watch.look(s).is_some() && watch.look(joined).is_some());
            d.stream_destroy(D0, s).unwrap();
            streams[n] = fake.stream();
            assert_eq!(streams[n], s, "the handle comes back");
        }
    }
}

/// Shapes that look right for a while, or in part; and drivers that cannot be tried.
const LIARS: [(&str, &str); 11] = [
    ("stale", "-DSTALE"),
    ("no_id", "-DID_AT=-1"),
    ("two_words", "-DALSO_CAPTURE_AT=1104"),
    ("no_word", "-DCAPTURE_AT=-1"),
    ("begun_only", "-DCAPTURE_OF_THE_FIRST"),
    ("new_graphs_only", "-DTO_GRAPH_ELSEWHERE"),
    ("out_of_sight", "-DCAPTURE_AT=5000"),
    ("unreadable", "-DREADABLE=64 -DID_AT=16 -DCAPTURE_AT=-1"),
    ("no_captures", "-DWITHOUT_CAPTURES"),
    ("old", "-DWITHOUT_CAPTURES -DWITHOUT_NEWER"),
    ("nothing", "-DREADABLE=16 -DID_AT=-1 -DCAPTURE_AT=-1"),
];

#[test]
fn where_there_is_any_doubt_the_driver_is_asked_and_the_pool_works() {
    for (name, defines) in LIARS {
        let Some(fake) = Fake::new(name, &format!("-DSTREAMS {defines}")) else { return };
        assert!(matches!(fake.watch(), Watch::Ask), "{name}");
        let pool = fake.pool();
        let s = fake.stream();
        let pair = || {
            let p = pool.malloc(&AllocRequest { size: MIB, stream: s, ..AllocRequest::default() }).unwrap();
            pool.free(p, Some(s)).unwrap();
            p
        };
        let p = pair();
        let calls = fake.calls();
        for _ in 0..100 {
            assert_eq!(pair(), p);
        }
        assert_eq!(fake.calls(), calls + 200, "{name}: whether it is captured, and its id, each time");
        pool.validate().unwrap();
    }
}

/// Whatever kind of stream is captured in whatever way, the pool notices: where it looks, or
/// because it asks.
#[test]
fn every_kind_of_capture_is_noticed() {
    // The second driver shows captures of blocking streams where nobody looked, at places that were
    // never seen before.
    let shapes = [
        ("kinds", "", true),
        ("kinds_elsewhere", "-DID_AT=32 -DCAPTURE_AT=24 -DBLOCKING_ELSEWHERE", false),
        ("kinds_unseen", "-DID_AT=32 -DCAPTURE_AT=24", false),
    ];
    for (name, defines, shows_blocking) in shapes {
        let Some(fake) = Fake::new(name, &format!("-DSTREAMS {defines}")) else { return };
        let pool = fake.pool();
        for blocking in [false, true] {
            let make = || if blocking { fake.blocking_stream() } else { fake.stream() };
            let (s, joined, event) = (make(), make(), fake.driver.event_create(D0).unwrap());
            let pair = |stream| {
                let p = pool.malloc(&AllocRequest { size: MIB, stream, ..AllocRequest::default() }).unwrap();
                pool.free(p, Some(stream)).unwrap();
                p
            };
            let own = [pair(s), pair(joined)];
            let calls = fake.calls();
            for _ in 0..50 {
                assert_eq!([pair(s), pair(joined)], own);
            }
            // Two calls for each allocation, or none but for markers, of which there is one for
            // many frees.
            let asked = fake.calls() - calls >= 200;
            assert_eq!(
                asked,
                blocking && !shows_blocking,
                "{name}, blocking {blocking}: {} calls",
                fake.calls() - calls
            );
            for mode in [0, 1, 2] {
                for to_graph in [false, true] {
                    match to_graph {
                        true => fake.begin_to_graph(s, mode),
                        false => fake.begin_in(s, mode),
                    }
                    let what = format!("{name}: mode {mode}, blocking {blocking}, to a graph {to_graph}");
                    assert_eq!(pair(joined), own[1], "{what}: not yet joined");
                    assert_ne!(pair(s), own[0], "{what}");
                    fake.driver.event_record(D0, event, s).unwrap();
                    fake.driver.stream_wait(D0, joined, event).unwrap();
                    assert_ne!(pair(joined), own[1], "{what}: joined");
                    assert!(fake.end(s), "{what}: the capture was lost");
                    assert_eq!([pair(s), pair(joined)], own, "{what}: over");
                }
            }
            fake.driver.event_destroy(D0, event).unwrap();
        }
        pool.validate().unwrap();
    }
}

/// Handles that are no addresses at all: those of the stand-in's simpler streams.
#[test]
fn handles_that_are_no_addresses_are_no_crash() {
    let Some(fake) = Fake::new("plain", "") else { return };
    assert!(matches!(fake.driver.stream_watch(D0), Watch::Ask));
}

#[test]
fn a_call_that_fails_ends_the_search_and_leaves_nothing_behind() {
    let calls = [
        "cuStreamCreate",
        "cuStreamGetId",
        "cuStreamIsCapturing",
        "cuStreamBeginCapture_v2",
        "cuStreamBeginCaptureToGraph",
        "cuGraphCreate",
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuCtxPushCurrent_v2",
    ];
    for call in calls {
        let Some(fake) = Fake::new(&format!("failing_{call}"), "-DSTREAMS") else { return };
        fake.fail(call, 999);
        assert!(matches!(fake.watch(), Watch::Ask), "{call}");
        assert_eq!(fake.int("fake_capturing"), 0, "{call}");
        fake.fail("", 0);
        let s = fake.stream();
        let pool = fake.pool();
        let p = pool.malloc(&AllocRequest { size: MIB, stream: s, ..AllocRequest::default() }).unwrap();
        pool.free(p, Some(s)).unwrap();
    }
}

#[test]
fn with_a_watch_the_pool_makes_no_call_on_a_hit_and_notices_new_streams_and_captures() {
    let Some(fake) = Fake::new("pool", "-DSTREAMS") else { return };
    let pool = fake.pool();
    let s = fake.stream();
    let pair_of = |size| {
        let p = pool.malloc(&AllocRequest { size, stream: s, ..AllocRequest::default() }).unwrap();
        pool.free(p, Some(s)).unwrap();
        p
    };
    for size in [300, 100 << 10, MIB, 20 * MIB] {
        let (p, calls) = (pair_of(size), fake.calls());
        assert!((0..1000).all(|_| pair_of(size) == p), "{size} bytes");
        assert_eq!(fake.calls(), calls, "{size} bytes");
    }
    // With the captures there are two streams, and frees are marked in batches: less than one here.
    for size in [300, 10 << 10, 70_000] {
        let pair = || pair_of(size);
        for round in 0..5 {
            let p = pair();
            let calls = fake.calls();
            assert!((0..50).all(|_| pair() == p), "{size} bytes, round {round}");
            assert_eq!(fake.calls(), calls, "{size} bytes, round {round}");
            fake.begin(s);
            let captured = pair();
            assert_ne!(captured, p, "{size} bytes: the stream's own memory went into a graph");
            assert_eq!(pair(), captured);
            assert!(fake.end(s), "the capture was lost");
            assert_eq!(pair(), p);
            fake.driver.stream_destroy(D0, s).unwrap();
            assert_eq!(fake.stream(), s, "the handle comes back");
            let calls = fake.calls();
            pair();
            assert!(fake.calls() > calls, "nobody noticed that it is another stream");
            pool.validate().unwrap();
        }
    }
    assert_eq!(pool.stats().streams, 2, "one handle, and its captures");
    // It is compared with the driver's answer for each stream that is met for the first time.
    let t = fake.stream();
    let structure = unsafe { *(t.0 as *const *mut u64) };
    unsafe { *structure.add(336 / 8) ^= 1 << 40 };
    let malloc = || pool.malloc(&AllocRequest { size: MIB, stream: t, ..AllocRequest::default() });
    // More than there is anywhere, so that the heap has memory of its own.
    let large = pool.malloc(&AllocRequest { size: 256 * MIB, stream: t, ..AllocRequest::default() }).unwrap();
    pool.free(large, Some(t)).unwrap();
    let p = malloc().unwrap();
    pool.free(p, Some(t)).unwrap();
    let calls = fake.calls();
    let q = malloc().unwrap();
    assert_eq!(fake.calls(), calls + 2, "the driver says something else than what is to be seen: it is asked");
    pool.free(q, Some(t)).unwrap();
    fake.begin(t);
    let e = fake.driver.stream_id(D0, t).unwrap_err();
    assert_eq!(e.status, Status::Capturing);
    assert!(fake.end(t));
}

//! Captures and graphs of the CUDA driver (`src/driver/cuda/graph.rs`), against a library that
//! stands in for libcuda and keeps count of graphs, nodes and user objects. No GPU is needed; a C
//! compiler is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::undocumented_unsafe_blocks)]

use gpumem::base::{DeviceId, Result, Status, StreamHandle};
use gpumem::driver::cuda::CudaDriver;
use gpumem::driver::{CaptureMode, Driver, GraphHandle, GraphNodes};
use std::ffi::{c_char, c_int, c_uint, c_void, CString};
use std::path::PathBuf;
use std::sync::Arc;

const D0: DeviceId = DeviceId(0);
const D1: DeviceId = DeviceId(1);
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// A variant of the stand-in with controls of its own, and the driver over it.
struct Fake {
    library: *mut c_void,
    d: Arc<CudaDriver>,
}

impl Fake {
    fn new(name: &str, defines: &str) -> Option<Fake> {
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/driver/fake_cuda/libcuda.c");
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcuda_graphs_{name}.so"));
        let mut cc = test_support::c_compiler();
        cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(&out).arg(source).arg("-DSTREAMS");
        match cc.args(defines.split_whitespace()).status() {
            Err(e) => {
                println!("skipped: no C compiler ({cc:?}: {e})");
                return None;
            }
            Ok(status) => assert!(status.success(), "the stand-in does not compile"),
        }
        let path = out.to_str().unwrap();
        let d = CudaDriver::open_from(&[path]).unwrap();
        let path = CString::new(path).unwrap();
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        assert!(!library.is_null());
        Some(Fake { library, d })
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

    /// Live graphs, executable copies and user objects.
    fn kept(&self) -> (i32, i32, i32) {
        let n = self.int("fake_kept");
        (n / 10_000, n / 100 % 100, n % 100)
    }

    fn fail(&self, call: &str, code: i32) {
        let call = CString::new(call).unwrap();
        let f: extern "C" fn(*const c_char, c_int) = unsafe { std::mem::transmute(self.symbol("fake_fail")) };
        f(call.as_ptr(), code);
    }

    fn set_mode(&self, mode: u32) {
        let f: extern "C" fn(c_uint) = unsafe { std::mem::transmute(self.symbol("fake_set_mode")) };
        f(mode);
    }

    fn captured(&self, s: StreamHandle, mode: CaptureMode, work: impl FnOnce()) -> Result<GraphHandle> {
        self.d.capture_begin(D0, s, mode)?;
        work();
        self.d.capture_end(D0, s)
    }

    /// Ties a token to the graph being captured on `s`.
    fn retain(&self, s: StreamHandle, token: u64) -> Result<()> {
        let info = self.d.capture_info(D0, s)?.expect("being captured");
        self.d.graph_retain(D0, info.graph, token)
    }
}

#[test]
fn a_graph_is_made_launched_counted_and_destroyed() {
    for (name, defines) in [("life", ""), ("life_old", "-DWITHOUT_NEWER")] {
        let Some(fake) = Fake::new(name, defines) else { return };
        let d = &fake.d;
        let s = d.stream_create(D0).unwrap();
        let mut ids = Vec::new();
        for (launches, mode) in MODES.into_iter().enumerate() {
            for thread in [0, 1, 2] {
                fake.set_mode(thread);
                assert_eq!(d.capture_info(D0, s), Ok(None));
                d.capture_begin(D0, s, mode).unwrap();
                let info = d.capture_info(D0, s).unwrap().unwrap();
                assert!(info.graph != 0 && !ids.contains(&info.id), "{info:?}");
                ids.push(info.id);
                d.set_async(D0, 1, 2, 3, s).unwrap();
                let p = d.native_alloc(D0, 64, s).unwrap();
                d.copy_async(D0, 1, 2, 3, s).unwrap();
                d.native_free(D0, p, s).unwrap();
                d.set_async(D0, 1, 2, 3, s).unwrap();
                let g = d.capture_end(D0, s).unwrap();
                assert_eq!(d.capture_info(D0, s), Ok(None));
                assert_eq!(d.graph_nodes(g), Ok(GraphNodes { total: 5, memory: 2 }));
                d.graph_launch(D0, g, s).unwrap();
                assert_eq!(fake.kept(), (1, 1, 0));
                d.graph_destroy(D0, g).unwrap();
                assert_eq!(fake.kept(), (0, 0, 0));
                assert_eq!((fake.int("fake_depth"), fake.int("fake_mode")), (0, thread as i32), "as they were");
            }
            assert_eq!(fake.int("fake_launches"), 3 * (launches as i32 + 1));
        }
        assert_eq!(d.capture_info(D0, StreamHandle::LEGACY), Ok(None));
        assert_eq!(d.capture_info(D0, StreamHandle::PER_THREAD), Ok(None));
    }
}

#[test]
fn rules() {
    let Some(fake) = Fake::new("rules", "") else { return };
    let d = &fake.d;
    let s = d.stream_create(D0).unwrap();
    let done = fake.captured(s, CaptureMode::Global, || ()).unwrap();
    for legacy in [StreamHandle(0), StreamHandle(1)] {
        assert_eq!(d.capture_begin(D0, legacy, CaptureMode::Global).unwrap_err().status, Status::Invalid);
        assert_eq!(d.capture_end(D0, legacy).unwrap_err().status, Status::Invalid);
    }
    assert_eq!(d.capture_end(D0, s).unwrap_err().status, Status::Invalid);
    d.capture_begin(D0, s, CaptureMode::Global).unwrap();
    assert_eq!(d.capture_begin(D0, s, CaptureMode::Global).unwrap_err().status, Status::Capturing);
    assert_eq!(d.graph_launch(D0, done, s).unwrap_err().status, Status::Capturing);
    let e = std::thread::scope(|scope| scope.spawn(|| d.capture_end(D0, s)).join().unwrap()).unwrap_err();
    assert!(e.status == Status::Capturing && e.message.contains("only the thread that began"), "{e}");
    let g = d.capture_end(D0, s).unwrap();
    assert_eq!(d.graph_nodes(g), Ok(GraphNodes::default()), "the launch that was refused is no node");

    d.capture_begin(D0, s, CaptureMode::Relaxed).unwrap();
    assert_eq!(d.stream_sync(D0, s).unwrap_err().status, Status::Capturing);
    let e = d.capture_info(D0, s).unwrap_err();
    assert!(e.status == Status::Capturing && e.message.contains("invalidated"), "{e}");
    assert_eq!(d.set_async(D0, 1, 2, 3, s).unwrap_err().status, Status::Capturing);
    let e = d.capture_end(D0, s).unwrap_err();
    assert!(e.status == Status::Capturing && e.message.contains("capture again"), "{e}");
    assert!(!d.stream_is_capturing(D0, s).unwrap());

    assert_eq!(d.graph_launch(D1, g, s).unwrap_err().status, Status::Invalid, "captured on another device");
    assert_eq!(d.graph_destroy(D1, g).unwrap_err().status, Status::Invalid);
    for graph in [done, g] {
        d.graph_destroy(D0, graph).unwrap();
        let calls = fake.int("fake_launches");
        assert_eq!(d.graph_launch(D0, graph, s).unwrap_err().status, Status::Invalid);
        assert_eq!(d.graph_destroy(D0, graph).unwrap_err().status, Status::Invalid);
        assert_eq!(d.graph_nodes(graph).unwrap_err().status, Status::Invalid);
        assert_eq!(fake.int("fake_launches"), calls);
    }
    assert_eq!(d.graph_nodes(GraphHandle(0)).unwrap_err().status, Status::Invalid);
    assert_eq!(fake.kept(), (0, 0, 0));
    assert_eq!(fake.int("fake_capturing"), 0);
}

#[test]
fn tokens_come_back_with_the_last_copy_of_their_graph() {
    let Some(fake) = Fake::new("tokens", "") else { return };
    let d = &fake.d;
    let s = d.stream_create(D0).unwrap();
    let tie = |token| fake.retain(s, token).unwrap();
    let g = fake.captured(s, CaptureMode::Global, || [1, 2].into_iter().for_each(tie)).unwrap();
    let h = fake.captured(s, CaptureMode::Global, || tie(u64::MAX)).unwrap();
    assert_eq!((fake.kept(), d.graphs_gone()), ((2, 2, 3), vec![]));
    d.graph_destroy(D0, h).unwrap();
    assert_eq!(d.graphs_gone(), [u64::MAX]);
    assert_eq!(d.graphs_gone(), [0_u64; 0]);
    d.graph_destroy(D0, g).unwrap();
    let mut gone = d.graphs_gone();
    gone.sort_unstable();
    assert_eq!(gone, [1, 2]);
    // A capture that comes to nothing.
    d.capture_begin(D0, s, CaptureMode::Relaxed).unwrap();
    tie(3);
    d.stream_sync(D0, s).unwrap_err();
    assert_eq!(d.graphs_gone(), [0_u64; 0]);
    d.capture_end(D0, s).unwrap_err();
    assert_eq!(d.graphs_gone(), [3]);
    assert_eq!(d.graph_retain(D0, 0, 4).unwrap_err().status, Status::Invalid);
    assert_eq!(fake.kept(), (0, 0, 0));
}

#[test]
fn a_call_that_fails_leaves_nothing_behind() {
    let Some(fake) = Fake::new("failing", "") else { return };
    let d = &fake.d;
    let s = d.stream_create(D0).unwrap();
    // What fails while the graph is being captured: no token is tied, and the capture goes on.
    for call in ["cuUserObjectCreate", "cuGraphRetainUserObject", "cuStreamGetCaptureInfo_v3"] {
        d.capture_begin(D0, s, CaptureMode::Global).unwrap();
        fake.fail(call, 999);
        let e = fake.retain(s, 7).unwrap_err();
        fake.fail("", 0);
        assert!(e.status == Status::Driver && e.message.contains(call.trim_end_matches("_v3")), "{e}");
        assert_eq!(fake.kept(), (1, 0, 0), "{call}");
        let g = d.capture_end(D0, s).unwrap();
        d.graph_destroy(D0, g).unwrap();
        assert_eq!((fake.kept(), d.graphs_gone()), ((0, 0, 0), vec![]), "{call}");
    }
    // What fails at the end: the capture is lost, and its tokens are back.
    for call in ["cuGraphInstantiateWithFlags", "cuThreadExchangeStreamCaptureMode"] {
        d.capture_begin(D0, s, CaptureMode::Global).unwrap();
        fake.retain(s, 8).unwrap();
        fake.fail(call, 2);
        let e = d.capture_end(D0, s).unwrap_err();
        fake.fail("", 0);
        assert_eq!(e.status, Status::OutOfMemory, "{e}");
        assert!(!d.stream_is_capturing(D0, s).unwrap());
        assert_eq!((fake.kept(), d.graphs_gone()), ((0, 0, 0), vec![8]), "{call}");
    }
    // What fails at the beginning, and with a graph.
    fake.fail("cuStreamBeginCapture_v2", 999);
    assert_eq!(d.capture_begin(D0, s, CaptureMode::Global).unwrap_err().status, Status::Driver);
    fake.fail("", 0);
    let g = fake.captured(s, CaptureMode::Global, || d.set_async(D0, 1, 2, 3, s).unwrap()).unwrap();
    for call in ["cuGraphGetNodes", "cuGraphNodeGetType"] {
        fake.fail(call, 999);
        assert_eq!(d.graph_nodes(g).unwrap_err().status, Status::Driver, "{call}");
    }
    fake.fail("cuGraphLaunch", 700);
    assert!(d.graph_launch(D0, g, s).unwrap_err().message.contains("earlier work"));
    fake.fail("", 0);
    d.graph_destroy(D0, g).unwrap();
    assert_eq!((fake.kept(), fake.int("fake_capturing")), ((0, 0, 0), 0));
    assert_eq!((fake.int("fake_depth"), fake.int("fake_mode")), (0, 0));
}

#[test]
fn what_the_driver_lacks_is_unsupported() {
    let Some(fake) = Fake::new("without_captures", "-DWITHOUT_CAPTURES") else { return };
    let d = &fake.d;
    let s = d.stream_create(D0).unwrap();
    let g = GraphHandle(1);
    let answers = [
        d.capture_begin(D0, s, CaptureMode::Global),
        d.capture_end(D0, s).map(drop),
        d.capture_info(D0, s).map(drop),
        d.graph_retain(D0, 1, 1),
        d.graph_launch(D0, g, s),
        d.graph_destroy(D0, g),
        d.graph_nodes(g).map(drop),
    ];
    for answer in answers {
        let e = answer.unwrap_err();
        assert!(e.status == Status::Unsupported && e.message.contains("CUDA 13.0"), "{e}");
    }
    let Some(fake) = Fake::new("without_objects", "-DWITHOUT_OBJECTS") else { return };
    let s = fake.d.stream_create(D0).unwrap();
    let tie = || assert_eq!(fake.retain(s, 1).unwrap_err().status, Status::Unsupported);
    let g = fake.captured(s, CaptureMode::Global, tie).unwrap();
    fake.d.graph_destroy(D0, g).unwrap();
    assert_eq!(fake.d.graphs_gone(), [0_u64; 0]);
}

//! Recordings of a context's calls: what the file says is what happened.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::arena::capture::CaptureOptions;
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::observe::history::NEVER;
use gpumem::observe::{Event, History, Kind, Options, Recorder, Recording};
use gpumem::pool::AllocFlags;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use test_support::alone;

const M: u64 = 1 << 20;

fn context() -> Context {
    Context::new(HostDriver::new(HostOptions::default()).unwrap(), Config::default()).unwrap()
}

fn malloc(cx: &Context, size: u64, tag: u64) -> u64 {
    cx.malloc(&Request { size, tag, ..Request::default() }).unwrap()
}

/// What leaves the device to make room, or by the mover, and what a hold brings back, is recorded
/// as what a call moves is.
#[test]
fn what_moves_without_being_named_is_recorded() {
    let memory = HostOptions { bytes_per_device: 8 * M, ..HostOptions::default() };
    let config = Config { mover: false, ..Config::default() };
    let cx = Context::new(HostDriver::new(memory).unwrap(), config).unwrap();
    let mut all = Vec::new();
    let (recording, _) = recorded(&cx, || {
        for _ in 0..3 {
            let ptr = cx.malloc(&Request { size: 4 * M, flags: AllocFlags::EVICTABLE, ..Request::default() }).unwrap();
            cx.hold(ptr).unwrap();
            cx.unhold(ptr, StreamHandle::LEGACY).unwrap();
            all.push(ptr);
        }
        cx.hold(all[0]).unwrap();
    });
    let of = |kind| {
        let events = recording.events.iter().map(|h| h.event).filter(|e| e.kind == kind);
        events.map(|e| (e.address, e.bytes, e.other > 0)).collect::<Vec<_>>()
    };
    // The first for the third, then the second for the first.
    assert_eq!(of(Kind::Evict), [(all[0], 4 * M, true), (all[1], 4 * M, true)]);
    assert_eq!(of(Kind::Restore), [(all[0], 4 * M, true)]);
    all.iter().for_each(|&ptr| cx.free(ptr).unwrap());
}

/// Records what `f` does; the recording, followed.
fn recorded(cx: &Context, f: impl FnOnce()) -> (Recording, History) {
    let dir = tempfile::tempdir().unwrap();
    let file = cx.record_start(&dir.path().join("a.gmrec"), None).unwrap();
    f();
    let summary = cx.record_stop().unwrap();
    assert_eq!(summary.lost, 0);
    let recording = Recording::open(&file).unwrap();
    assert_eq!(recording.faults(), None);
    assert_eq!(recording.events.len() as u64, summary.events);
    let history = History::of(&recording);
    (recording, history)
}

#[test]
fn no_recording_takes_the_place_of_another() {
    let cx = context();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gmrec");
    let files: Vec<_> = (0..4)
        .map(|n| {
            let file = cx.record_start(&path, None).unwrap();
            (0..n).for_each(|_| cx.free(malloc(&cx, 100, 0)).unwrap());
            cx.record_stop().unwrap();
            file
        })
        .collect();
    let allocations = files.iter().map(|f| History::of(&Recording::open(f).unwrap()).lives.len());
    assert_eq!(allocations.collect::<Vec<_>>(), [0, 1, 2, 3], "{files:?}");
}

#[test]
fn nothing_is_recorded_beside_a_directory() {
    let cx = context();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::create_dir(&path).unwrap();
    let e = cx.record_start(&path, None).unwrap_err();
    assert!(e.status == Status::Io && e.message.contains("is a directory"), "{e}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Nor beside a device or a socket, such as /dev/null.
#[test]
fn nothing_is_recorded_beside_what_is_no_file() {
    let cx = context();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let e = cx.record_start(&path, None).unwrap_err();
    assert!(e.status == Status::Io && e.message.contains("it is no regular file"), "{e}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// As on a full disk: what the file has and what it lacks is all that happened.
#[test]
fn a_file_that_takes_no_more_has_the_events_that_are_said() {
    alone!("a_file_that_takes_no_more_has_the_events_that_are_said");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gmrec");
    let recorder = Recorder::default();
    recorder.start(&Options { file: Some(path.clone()), ..Options::default() }).unwrap();
    let limit = libc::rlimit { rlim_cur: 1 << 16, rlim_max: 1 << 16 };
    // SAFETY: the struct is complete; only this process, made for it, is affected. A write beyond
    // the limit is an error then, and no signal.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        assert_ne!(libc::signal(libc::SIGXFSZ, libc::SIG_IGN), libc::SIG_ERR);
    }
    for i in 0..100_000 {
        recorder.push(Event { address: i * 7919, bytes: i, ..Event::new(Kind::Malloc, recorder.now()) });
    }
    let summary = recorder.stop().unwrap();
    assert!(summary.events > 0 && summary.lost > 0, "{summary:?}");
    assert_eq!(summary.events + summary.lost, 100_000);
    assert_eq!(Recording::open(&path).unwrap().events.len() as u64, summary.events);
    let e = summary.written.unwrap_err();
    assert_eq!(e.status, Status::Io);
    let lost = format!("{} are lost", summary.lost);
    for part in [path.to_str().unwrap(), "File too large", &lost] {
        assert!(e.message.contains(part), "no {part:?} in {e}");
    }
}

/// A free that names no stream is one in the order of the allocation's.
#[test]
fn a_free_is_of_its_stream_or_of_the_allocations() {
    let cx = context();
    let s = cx.driver().stream_create(DeviceId(0)).unwrap();
    let (_, history) = recorded(&cx, || {
        for order in [None, Some(StreamHandle::LEGACY), Some(s)] {
            let p = cx.malloc(&Request { size: 100, stream: s, ..Request::default() }).unwrap();
            match order {
                None => cx.free(p).unwrap(),
                Some(stream) => cx.free_async(p, stream).unwrap(),
            }
        }
    });
    let freed_on: Vec<u64> = history.lives.iter().map(|l| l.freed_on).collect();
    assert_eq!(freed_on, [s.0 as u64, 0, s.0 as u64]);
}

/// Evictable memory and memory of another process are in no arena, and do not end with one.
#[test]
fn what_is_in_no_arena_is_recorded_so() {
    let cx = context();
    let exported = cx.malloc(&Request { size: 2 * M, flags: AllocFlags::EXPORTABLE, ..Request::default() }).unwrap();
    let fd = cx.export_fd(exported).unwrap();
    let (_, history) = recorded(&cx, || {
        let arena = cx.arena_enter("step").unwrap();
        let evictable =
            cx.malloc(&Request { size: 2 * M, flags: AllocFlags::EVICTABLE, ..Request::default() }).unwrap();
        let imported = cx.import_fd(DeviceId(0), &fd, 2 * M).unwrap();
        let own = malloc(&cx, 100, 0);
        assert_eq!(cx.arena_exit(&arena, &[]).unwrap().freed, 1, "{own:#x}");
        [evictable, imported].iter().for_each(|&p| cx.free(p).unwrap());
    });
    // The last is the arena's.
    let arenas: Vec<bool> = history.lives.iter().rev().take(3).map(|l| l.arena != 0).collect();
    assert_eq!((arenas, history.unknown_frees), (vec![true, false, false], 0));
    cx.free(exported).unwrap();
}

#[test]
fn what_keeps_the_last_events_is_no_recording() {
    let mut config = Config::default();
    config.snapshot_on.oom = true;
    let cx = Context::new(HostDriver::new(HostOptions::default()).unwrap(), config).unwrap();
    cx.free(malloc(&cx, 100, 0)).unwrap();
    assert!(cx.record_stop().unwrap_err().message.contains("no recording is under way"));
    // Begun and ended like any other, and before and after it the last events are kept.
    let last = || cx.recorder().last_events().len();
    let before = last();
    let (_, history) = recorded(&cx, || cx.free(malloc(&cx, 100, 0)).unwrap());
    assert_eq!(history.lives.len(), 1);
    assert!(cx.record_stop().is_err());
    cx.free(malloc(&cx, 100, 0)).unwrap();
    assert!(before >= 2 && last() >= 2, "{before} and {} events", last());
}

#[test]
fn the_last_events_are_kept_where_the_recording_cannot_be_written() {
    // Contexts that record share the process's recorder.
    alone!("the_last_events_are_kept_where_the_recording_cannot_be_written");
    let mut config = Config { record: Some("/no/such/folder/a.gmrec".into()), log: 0, ..Config::default() };
    config.snapshot_on.oom = true;
    let cx = Context::new(HostDriver::new(HostOptions::default()).unwrap(), config).unwrap();
    assert!(!cx.recorder().is_recording());
    cx.free(malloc(&cx, 100, 0)).unwrap();
    assert!(cx.recorder().last_events().len() >= 2);
}

#[test]
fn a_recording_by_a_relative_name_is_read_from_any_folder() {
    alone!("a_recording_by_a_relative_name_is_read_from_any_folder");
    let dir = tempfile::tempdir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    let cx = context();
    cx.record_start(Path::new("a.gmrec"), None).unwrap();
    malloc(&cx, 100, 0);
    std::env::set_current_dir("/").unwrap();
    let mut ages = Vec::new();
    cx.visit_with_past(&mut |_, _, past| {
        ages.push(past.age_ns);
        true
    })
    .unwrap();
    assert!(ages.len() == 1 && ages.iter().all(|age| *age > 0), "{ages:?}");
    cx.record_stop().unwrap();
}

/// Live allocations by address, as the history has them at its end: bytes and tag.
fn left(h: &History) -> HashMap<u64, (u64, u64)> {
    h.lives.iter().filter(|l| l.to == NEVER).map(|l| (l.address, (l.bytes, l.tag))).collect()
}

/// The same, as the context has them.
fn alive(cx: &Context) -> HashMap<u64, (u64, u64)> {
    let mut all = HashMap::new();
    cx.visit(&mut |a, _| {
        assert!(all.insert(a.info.base, (a.info.requested, a.info.tag)).is_none(), "shown twice");
        true
    });
    all
}

#[test]
fn a_random_program_is_followed_to_its_end() {
    let cx = context();
    let s = cx.driver().stream_create(DeviceId(0)).unwrap();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    // Some of it is there before.
    let mut live: Vec<u64> = (0..50).map(|i| malloc(&cx, 100 * i + 1, i)).collect();
    let before = alive(&cx);
    let (mut mallocs, mut frees) = (0, 0);
    let (recording, history) = recorded(&cx, || {
        for i in 0..4000_u64 {
            let size = if random.u8(..) < 200 { random.u64(0..5000) } else { random.u64(0..8 * M) };
            let stream = if random.bool() { s } else { StreamHandle::LEGACY };
            match random.u8(0..10) {
                0..=4 => {
                    let tag = if random.bool() { 0 } else { i };
                    live.push(cx.malloc(&Request { size, stream, tag, ..Request::default() }).unwrap());
                    mallocs += 1;
                }
                5 => {
                    if let Some(p) = live.pop() {
                        live.push(cx.realloc(p, size, StreamHandle::LEGACY).unwrap());
                    }
                }
                6 if !live.is_empty() => {
                    let p = live.swap_remove(random.usize(0..live.len()));
                    let id = cx.info(p).unwrap().id;
                    assert!(cx.free_id(p, id, Some(stream)).unwrap());
                    assert!(!cx.free_id(p, id, Some(stream)).unwrap_or(false));
                    frees += 1;
                }
                _ if !live.is_empty() => {
                    let p = live.swap_remove(random.usize(0..live.len()));
                    if random.bool() { cx.free(p) } else { cx.free_async(p, stream) }.unwrap();
                    frees += 1;
                }
                _ => {}
            }
        }
        cx.free(64).unwrap_err();
        cx.trim(0).unwrap();
    });
    assert_eq!(left(&history), alive(&cx));
    let count = |kind| recording.events.iter().filter(|h| h.event.kind == kind).count();
    assert_eq!(count(Kind::Existing), before.len());
    assert!(count(Kind::Malloc) >= mallocs && count(Kind::Free) >= frees, "resizes that move are both");
    assert_eq!(count(Kind::Malloc) - mallocs, count(Kind::Free) - frees);
    assert_eq!((count(Kind::Trim), history.unknown_frees), (1, 0));
    assert_eq!(history.live, cx.stats(DeviceId(0)).unwrap().requested);
    // Physical memory: what was made and not given back since is what is mapped, but for what was
    // before.
    assert!(count(Kind::Growth) > 0 && count(Kind::Create) > 0);
}

#[test]
fn arenas_free_in_a_recording_what_they_free() {
    let cx = context();
    let (recording, history) = recorded(&cx, || {
        let outer = cx.arena_enter("outer").unwrap();
        let kept = malloc(&cx, 111, 1);
        let step = cx.arena_enter("step").unwrap();
        let (up, out, gone) = (malloc(&cx, 222, 2), malloc(&cx, 333, 3), malloc(&cx, 444, 4));
        cx.arena_escape(out).unwrap();
        // One that grows elsewhere stays in its arena; what is of another arena is not kept from
        // there.
        let grown = cx.realloc(malloc(&cx, 555, 5), 5 * M, StreamHandle::LEGACY).unwrap();
        assert!(cx.arena_of(grown).unwrap().is_some());
        cx.arena_exit(&step, &[up + 5, kept, 0]).unwrap();
        assert!(cx.info(gone).is_err());
        cx.arena_exit(&outer, &[kept]).unwrap();
    });
    assert_eq!(left(&history), alive(&cx));
    assert_eq!(left(&history).values().map(|v| v.1).collect::<std::collections::BTreeSet<_>>(), [1, 3].into());
    let names: Vec<&str> = { recording.arena_names().into_values().collect() };
    assert!(names.contains(&"step") && names.contains(&"outer"));
    // An arena that is aborted takes those inside with it.
    let (_, history) = recorded(&cx, || {
        let outer = cx.arena_enter("").unwrap();
        malloc(&cx, 5, 5);
        cx.arena_enter("").unwrap();
        malloc(&cx, 6, 6);
        cx.arena_abort(&outer).unwrap();
    });
    assert_eq!(left(&history), alive(&cx));
}

#[test]
fn failures_and_slow_steps_are_in_it() {
    let host = HostDriver::new(HostOptions::default()).unwrap();
    let limit = gpumem::context::config::Limit::Bytes(64 * M);
    let cx = Context::new(host, Config { limit, ..Config::default() }).unwrap();
    let (recording, history) = recorded(&cx, || {
        malloc(&cx, 10 * M, 0);
        cx.malloc(&Request { size: 100 * M, tag: 3, ..Request::default() }).unwrap_err();
    });
    assert_eq!(history.failures, 1);
    let of = |kind| recording.events.iter().map(|h| h.event).filter(|e| e.kind == kind).collect::<Vec<_>>();
    let failed = of(Kind::OutOfMemory);
    assert_eq!((failed[0].bytes, failed[0].tag, failed[0].other), (100 * M, 3, 1));
    let grown: u64 = of(Kind::Growth).iter().map(|e| e.bytes).sum();
    assert_eq!(grown, of(Kind::Create).iter().map(|e| e.bytes).sum::<u64>());
    assert_eq!(grown, cx.stats(DeviceId(0)).unwrap().mapped);
    assert!(of(Kind::Growth).iter().all(|e| e.other > 0));
}

/// A request met by moving and by adding memory is a growth to both.
#[test]
fn growths_and_stitches_are_those_of_the_counters() {
    let host = HostDriver::new(HostOptions::default()).unwrap();
    let limit = gpumem::context::config::Limit::Bytes(170 * M);
    let cx = Context::new(host, Config { limit, ..Config::default() }).unwrap();
    let stats = || cx.stats(DeviceId(0)).unwrap();
    let (recording, _) = recorded(&cx, || {
        let blocks: Vec<u64> = (0..16).map(|i| malloc(&cx, 8 * M, i)).collect();
        blocks.iter().step_by(2).for_each(|&p| cx.free(p).unwrap());
        let before = stats();
        // 64 MiB are free, and 42 may be added.
        let mixed = malloc(&cx, 100 * M, 0);
        assert!(stats().moved > before.moved && stats().mapped > before.mapped);
        assert_eq!((stats().growths, stats().stitches), (before.growths + 1, before.stitches));
        cx.free(mixed).unwrap();
        blocks.iter().skip(1).step_by(4).for_each(|&p| cx.free(p).unwrap());
        malloc(&cx, 120 * M, 0);
        assert_eq!(stats().stitches, before.stitches + 1);
    });
    let count = |kind| recording.events.iter().filter(|h| h.event.kind == kind).count() as u64;
    assert_eq!((count(Kind::Growth), count(Kind::Stitch)), (stats().growths, stats().stitches));
}

#[test]
fn threads_that_share_addresses_are_told_apart() {
    let cx = Arc::new(context());
    let (_, history) = recorded(&cx, || {
        std::thread::scope(|s| {
            for t in 0..4 {
                let cx = cx.clone();
                s.spawn(move || {
                    for i in 0..3000 {
                        let p = malloc(&cx, 256 + t, t);
                        if i % 100 != 0 {
                            cx.free(p).unwrap();
                        }
                    }
                });
            }
        });
    });
    // Every malloc found its free: an address that two threads had in turn is never mixed up.
    assert_eq!((left(&history), history.unknown_frees), (alive(&cx), 0));
    assert_eq!(history.lives.len(), 12_000);
}

#[test]
fn the_hit_path_is_as_before_when_nobody_records() {
    let cx = context();
    let warm = malloc(&cx, 512, 0);
    cx.free(warm).unwrap();
    let hits = |cx: &Context| {
        let p = cx.malloc_hit(512, StreamHandle::LEGACY).map(|p| p.get());
        (p.is_some(), p.is_some_and(|p| cx.free_hit(p, None)))
    };
    assert_eq!(hits(&cx), (true, true));
    let (_, history) = recorded(&cx, || {
        // Hits still, which are recorded.
        assert_eq!(hits(&cx), (true, true));
    });
    assert_eq!((history.lives.len(), history.live), (1, 0));
    assert_eq!(hits(&cx), (true, true));
}

#[test]
fn a_callback_sees_the_same_as_a_recording() {
    let cx = context();
    let seen: Arc<Mutex<Vec<Event>>> = Arc::default();
    let into = seen.clone();
    cx.set_event_callback(Some(Arc::new(move |e: &Event| into.lock().unwrap().push(*e))));
    let (recording, _) = recorded(&cx, || {
        let p = malloc(&cx, 100, 7);
        cx.free(p).unwrap();
    });
    cx.set_event_callback(None);
    let after = seen.lock().unwrap().len();
    malloc(&cx, 100, 7);
    assert_eq!(seen.lock().unwrap().len(), after);
    let kinds: Vec<Kind> = seen.lock().unwrap().iter().map(|e| e.kind).collect();
    let mut recorded: Vec<Kind> = recording.events.iter().map(|h| h.event.kind).collect();
    recorded.sort_unstable();
    let mut sorted = kinds.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, recorded);
}

const CHILD: &str = "GPUMEM_TEST_RECORDING_CHILD";

/// Not a test of its own: what the next one starts and kills.
#[test]
fn a_child_that_allocates_until_it_is_killed() {
    let Some(file) = std::env::var_os(CHILD) else { return };
    let cx = context();
    cx.record_start(Path::new(&file), None).unwrap();
    for i in 0.. {
        let p = malloc(&cx, 1000 + i % 7, i);
        if i % 1000 != 0 {
            cx.free(p).unwrap();
        }
    }
}

#[test]
fn a_process_that_is_killed_leaves_a_readable_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("killed.gmrec");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "record::a_child_that_allocates_until_it_is_killed", "--nocapture"])
        .env(CHILD, &file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Until it has written for a while; the limit is for one that never does.
    let start = Instant::now();
    while std::fs::metadata(&file).map_or(0, |m| m.len()) < 200_000 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    // SIGKILL: nothing of the child runs after it.
    child.kill().unwrap();
    child.wait().unwrap();
    let recording = Recording::open(&file).unwrap();
    assert!(!recording.complete && recording.faults().unwrap().contains("ended before"));
    assert_eq!((recording.damaged, recording.lost), (0, 0));
    let history = History::of(&recording);
    assert!(history.lives.len() > 10_000, "{}", history.lives.len());
    assert_eq!(history.unknown_frees, 0);
    // All but the last call's are as the program made them.
    for (i, l) in history.lives.iter().enumerate() {
        assert_eq!((l.bytes, l.tag), (1000 + i as u64 % 7, i as u64));
        assert!(l.to == NEVER || i % 1000 != 0);
    }
}

#[test]
fn counters_are_published_until_the_end() {
    use gpumem::observe::page;
    let config = Config { stats_page: true, ..Config::default() };
    let cx = Context::new(HostDriver::new(HostOptions::default()).unwrap(), config).unwrap();
    let path = page::path(std::process::id());
    malloc(&cx, 3 * M, 0);
    // Until it has been written once more; the limit is for a page that never is.
    let start = Instant::now();
    let stats = loop {
        let read: serde_json::Value = serde_json::from_str(&page::read(&path).unwrap()).unwrap();
        assert_eq!(read["pid"], std::process::id());
        let stats = read["devices"][0]["stats"].clone();
        if stats["allocations"] == 1 {
            break stats;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the page stays as it was");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(stats["requested"], 3 * M);
    drop(cx);
    assert!(!path.exists());
}

/// What a capture's abort frees is free in the recording, too.
#[test]
fn an_aborted_capture_leaves_nothing_live() {
    let cx = context();
    let s = cx.driver().stream_create(DeviceId(0)).unwrap();
    let (recording, history) = recorded(&cx, || {
        let capture = cx.capture_begin(s, CaptureOptions::default()).unwrap();
        for size in [100, 3 * M, 3 * M] {
            cx.malloc(&Request { size, stream: s, ..Request::default() }).unwrap();
        }
        cx.capture_abort(&capture).unwrap();
    });
    assert_eq!(left(&history), HashMap::new());
    assert_eq!(history.lives.len(), 3);
    assert_eq!(recording.events.iter().filter(|e| e.event.kind == Kind::CaptureRelease).count(), 1);
}

/// Each event of a capture names its stream and its device.
#[test]
fn events_of_a_capture_name_its_stream_and_device() {
    let host = HostDriver::new(HostOptions { devices: 2, ..HostOptions::default() }).unwrap();
    let cx = Context::new(host, Config::default()).unwrap();
    let s = cx.driver().stream_create(DeviceId(1)).unwrap();
    let (recording, _) = recorded(&cx, || {
        let begin = || cx.capture_begin(s, CaptureOptions::default()).unwrap();
        let capture = begin();
        cx.capture_end(&capture).unwrap();
        assert!(cx.capture_release(&capture).unwrap());
        cx.capture_abort(&begin()).unwrap();
    });
    let of_captures = |k| matches!(k, Kind::CaptureBegin | Kind::CaptureEnd | Kind::CaptureRelease);
    let events: Vec<_> = recording.events.iter().map(|e| e.event).filter(|e| of_captures(e.kind)).collect();
    let kinds: Vec<_> = events.iter().map(|e| e.kind).collect();
    use Kind::{CaptureBegin as Begin, CaptureEnd as End, CaptureRelease as Release};
    assert_eq!(kinds, [Begin, End, Release, Begin, Release]);
    assert!(events.iter().all(|e| (e.stream, e.device) == (s.0 as u64, 1)), "{events:?}");
}

/// A resize that fails for lack of memory is a request that failed, as a malloc is.
#[test]
fn a_resize_that_fails_is_seen() {
    let host = HostDriver::new(HostOptions { bytes_per_device: 64 * M, ..HostOptions::default() }).unwrap();
    let cx = Context::new(host, Config::default()).unwrap();
    let (recording, history) = recorded(&cx, || {
        let p = malloc(&cx, M, 9);
        assert_eq!(cx.realloc(p, 1 << 40, StreamHandle::LEGACY).unwrap_err().status, Status::OutOfMemory);
        assert_eq!(cx.realloc(0, 1 << 40, StreamHandle::LEGACY).unwrap_err().status, Status::OutOfMemory);
        // No request for memory.
        assert_eq!(cx.realloc(p + 1, 5, StreamHandle::LEGACY).unwrap_err().status, Status::UnknownPointer);
        cx.free(p).unwrap();
    });
    let failed: Vec<_> = recording
        .events
        .iter()
        .filter(|e| e.event.kind == Kind::OutOfMemory)
        .map(|e| (e.event.bytes, e.event.tag))
        .collect();
    assert_eq!(failed, [(1 << 40, 9), (1 << 40, 0)]);
    assert_eq!((history.lives.len(), left(&history)), (1, HashMap::new()));
}

//! What is legal during stream capture.

use super::*;

/// Whether a capture on another stream survives `call`, and what `call` answers.
fn during_capture<T>(call: impl FnOnce(&HostDriver, StreamHandle, EventHandle) -> T) -> (T, bool) {
    let d = simulation(1);
    let (captured, other) = (stream(&d), stream(&d));
    let e = recorded(&d, other);
    d.begin_capture(captured).unwrap();
    assert!(d.stream_is_capturing(D, captured).unwrap());
    assert!(!d.stream_is_capturing(D, other).unwrap());
    assert!(!d.stream_is_capturing(D, LEGACY).unwrap());
    let answer = call(&d, other, e);
    let valid = d.end_capture(captured).unwrap();
    assert!(!d.stream_is_capturing(D, captured).unwrap());
    (answer, valid)
}

#[test]
fn calls_that_are_legal_during_capture_leave_it_alone() {
    let (_, valid) = during_capture(|d, s, e| {
        let (va, h) = mapped(d, M2);
        d.set_async(D, va, 1, 64, s).unwrap();
        d.event_record(D, e, s).unwrap();
        while !d.event_query(D, e).unwrap() {}
        d.event_sync(D, e).unwrap();
        d.unmap(va, M2).unwrap();
        d.phys_release(h).unwrap();
        d.va_free(D, va, M2).unwrap();
        d.mem_info(D).unwrap();
        let e = d.event_create(D).unwrap();
        d.event_destroy(D, e).unwrap();
        d.stream_id(D, s).unwrap();
        let t = stream(d);
        d.stream_wait(D, t, recorded(d, s)).unwrap();
        d.stream_destroy(D, t).unwrap();
        let p = d.native_alloc(D, 64, s).unwrap();
        d.native_free(D, p, s).unwrap();
        assert_eq!(d.take_reports(), []);
    });
    assert!(valid);
}

#[test]
fn calls_that_are_illegal_during_capture_spoil_it() {
    type Call = fn(&HostDriver, StreamHandle, EventHandle) -> gpumem::base::Result<()>;
    let calls: [(&str, Call); 3] = [
        ("context_record", |d, _, e| d.context_record(D, e)),
        ("stream_sync", |d, s, _| d.stream_sync(D, s)),
        ("device_sync", |d, _, _| d.device_sync(D)),
    ];
    for (name, call) in calls {
        let (answer, valid) = during_capture(call);
        let e = answer.unwrap_err();
        assert_eq!(e.status, Status::Capturing, "{name}");
        assert!(e.message.contains(name), "{e}");
        assert!(!valid, "{name}");
    }
}

#[test]
fn the_captured_stream_has_rules_of_its_own() {
    let d = simulation(1);
    let (va, _) = mapped(&d, M2);
    let s = stream(&d);
    let e = d.event_create(D).unwrap();
    assert_eq!(d.begin_capture(LEGACY).unwrap_err().status, Status::Invalid);
    assert_eq!(d.end_capture(s).unwrap_err().status, Status::Invalid);
    d.begin_capture(s).unwrap();
    assert_eq!(d.begin_capture(s).unwrap_err().status, Status::Capturing);
    assert_eq!(d.event_record(D, e, s).unwrap_err().status, Status::Capturing);
    assert_eq!(d.stream_destroy(D, s).unwrap_err().status, Status::Capturing);
    assert_eq!(d.native_alloc(D, 64, s).unwrap_err().status, Status::Capturing);
    d.set_async(D, va, 9, 64, s).unwrap();
    assert!(d.end_capture(s).unwrap(), "none of these spoils it");
    d.device_sync(D).unwrap();
    let mut out = [1u8; 64];
    d.copy_async(D, out.as_mut_ptr() as u64, va, 64, s).unwrap();
    assert_eq!(out, [0; 64], "captured work does not run");

    d.begin_capture(s).unwrap();
    let other = recorded(&d, LEGACY);
    assert_eq!(d.stream_wait(D, s, other).unwrap_err().status, Status::Capturing);
    assert!(!d.end_capture(s).unwrap(), "waiting for work outside spoils it");

    let blocking = d.stream_create_blocking(D).unwrap();
    d.begin_capture(blocking).unwrap();
    assert_eq!(d.set_async(D, va, 9, 64, LEGACY).unwrap_err().status, Status::Capturing);
    assert!(!d.end_capture(blocking).unwrap(), "the legacy stream would wait for it");
    d.begin_capture(PER_THREAD).unwrap();
    assert!(d.stream_is_capturing(D, PER_THREAD).unwrap());
    assert!(d.end_capture(PER_THREAD).unwrap());
}

/// A free that the legacy stream refuses has not begun: the memory is there, and can be freed
/// afterwards.
#[test]
fn a_refused_native_free_leaves_the_memory() {
    let d = eager();
    let p = d.native_alloc(D, 64, LEGACY).unwrap();
    let free = d.mem_info(D).unwrap().free;
    let blocking = d.stream_create_blocking(D).unwrap();
    d.begin_capture(blocking).unwrap();
    assert_eq!(d.native_free(D, p, LEGACY).unwrap_err().status, Status::Capturing);
    let _ = d.end_capture(blocking);
    d.native_free(D, p, LEGACY).unwrap();
    d.device_sync(D).unwrap();
    assert!(d.mem_info(D).unwrap().free > free);
}

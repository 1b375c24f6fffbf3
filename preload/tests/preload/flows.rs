//! What a program of the driver API sees is what the driver would have shown it, and the memory is
//! gpumem's.

use crate::support::{self, flow, program, run, Run};
use gpumem::observe::Kind;
use std::process::Command;

/// Runs a flow both ways: the same codes, data and order. Gives the one with gpumem.
#[track_caller]
fn alike(how: &str, name: &str, variables: &[(&str, &str)]) -> Option<Run> {
    let without = flow(how, name, false, variables)?;
    let with = flow(how, name, true, variables)?;
    assert_eq!(without.code, Some(0), "{}{}", without.out, without.err);
    assert_eq!(with.code, Some(0), "{}{}", with.out, with.err);
    assert_eq!(without.same(), with.same(), "{}", with.err);
    Some(with)
}

#[test]
fn allocating_and_freeing_by_every_way_to_the_functions() {
    for how in ["proc", "own", "dlsym"] {
        let Some(with) = alike(how, "basic", &[]) else { return };
        with.says("# native 0");
        assert_eq!((with.counts(" allocations"), with.counts(" frees")), (vec![2], vec![2]), "{how}: {}", with.err);
        let Some(with) = alike(how, "async", &[]) else { return };
        // Only what came from pools of the program's own is the driver's.
        for line in ["# native 0", "# native, other pool 1", "# native, pool set 1", "# native, pool gone 0"] {
            with.says(line);
        }
        assert_eq!((with.counts(" allocations"), with.counts(" frees")), (vec![5], vec![5]), "{how}: {}", with.err);
    }
}

#[test]
fn a_program_that_is_linked_to_the_driver() {
    let Some(path) = program("flows.c", "flows_direct", &["-DDIRECT"]) else { return };
    for name in ["basic", "async"] {
        let [without, with] = [false, true].map(|gpumem| {
            let mut command = Command::new(&path);
            command.args(["direct", name]);
            run(command, gpumem, &[])
        });
        assert_eq!((without.same(), with.code), (with.same(), Some(0)), "{}", with.err);
        with.says("# native 0");
    }
}

#[test]
fn a_driver_whose_answers_are_not_its_exports() {
    let Some(with) = alike("proc", "async", &[("SIM_OTHER", "1")]) else { return };
    with.says("# native 0");
}

#[test]
fn pitched_memory() {
    let Some(with) = alike("proc", "pitch", &[]) else { return };
    assert_eq!(with.counts(" allocations"), [1]);
}

#[test]
fn a_memset_node_needs_no_context() {
    for how in ["proc", "own", "dlsym"] {
        if alike(how, "nodes", &[]).is_none() {
            return;
        }
    }
}

#[test]
fn the_default_pool_tells_what_gpumem_has() {
    let Some(with) = alike("proc", "pool", &[]) else { return };
    for line in [
        "# threshold of before 7",
        "# used 1",
        "# reserved 1",
        "# used then 0",
        "# high 100",
        "# high reset 0, reserved high 100",
        "# reserved then 0",
        "# reserved high reset 0",
        "# threshold 5",
        "# used after a free 0",
    ] {
        with.says(line);
    }
    // What still waits for the device is free for the program.
    let late = [("SIM_SEED", "7"), ("GPUMEM_FREE", "marker")];
    let Some(with) = flow("proc", "pool", true, &late) else { return };
    with.says("# used after a free 0");
}

#[test]
fn pointers_are_told_by_their_allocations() {
    let Some(with) = alike("proc", "facts", &[]) else { return };
    with.says("# both 0, 10000000");
    assert!(with.err.contains("peak live 64.00 MiB,"), "{}", with.err);
    with.says("# sync 0 0 1, id 0 1");
    // What still waits for the device is free for the program.
    let late = [("SIM_SEED", "7"), ("GPUMEM_FREE", "marker")];
    let Some(with) = flow("proc", "facts", true, &late) else { return };
    with.says("# free at once 1");
}

#[test]
fn a_capture_is_the_drivers_and_survives_frees_elsewhere() {
    let names = ["capture", "recapture", "graphics_capture"];
    for (name, free) in names.into_iter().flat_map(|name| [(name, "marker"), (name, "sync")]) {
        let Some(with) = flow("proc", name, true, &[("GPUMEM_FREE", free)]) else { return };
        // The driver's answer, which on this one is that it cannot.
        with.says("# alloc 900");
        with.says("# free of the pool's in the capture 1");
        with.says("other thread's free = 0");
        let end = if name == "graphics_capture" { "ToCig(s)" } else { "(s, &graph)" };
        with.says(&format!("cuStreamEndCapture{end} = 0"));
        with.says("how == GRAPHICS || graph != 0 = 1");
        with.says("cuMemFree(q) = 0");
    }
}

#[test]
fn memory_of_work_under_way_is_nobody_elses() {
    let Some(with) = flow("proc", "held", true, &[("SIM_SEED", "7"), ("GPUMEM_FREE", "marker")]) else { return };
    assert_eq!(with.out.lines().filter(|l| *l == "same 0").count(), 3, "{}{}", with.out, with.err);
    with.says("mine 1");
    with.says("# same after 1");
    assert!(!with.err.contains("Race"), "{}", with.err);
    // The other way waits for the work, which this device refuses to do while it is held.
    let Some(with) = flow("proc", "held", true, &[("SIM_SEED", "7"), ("GPUMEM_FREE", "sync")]) else { return };
    assert_eq!(with.out.lines().filter(|l| *l == "same 0").count(), 3, "{}{}", with.out, with.err);
    with.says("mine 1");
}

/// A gibibyte is freed behind work that the device has not done, with 32 MiB live.
#[test]
fn what_waits_for_the_device_is_bounded() {
    for free in ["marker", "sync"] {
        let Some(with) = flow("proc", "ahead", true, &[("SIM_SEED", "7"), ("GPUMEM_FREE", free)]) else { return };
        assert_eq!(with.code, Some(0), "{}{}", with.out, with.err);
        assert!(!with.err.contains("Race"), "{}", with.err);
        let (_, peak) = with.err.split_once("peak mapped ").unwrap();
        let mib: f64 = peak.split_once(" MiB").unwrap().0.parse().unwrap();
        assert!(mib <= 448.0, "{}", with.err);
    }
}

#[test]
fn a_reset_takes_everything_and_the_next_request_starts_afresh() {
    let Some(with) = alike("proc", "reset", &[]) else { return };
    with.says("# native 0");
    assert!(with.err.contains("peak live 64.00 MiB,"), "{}", with.err);
    assert!(with.err.contains("the driver: 64.00 MiB or more"), "{}", with.err);
    assert_eq!(with.counts(" allocations"), [2]);
}

#[test]
fn a_reset_during_the_first_request_does_not_end_service() {
    let Some(with) = alike("proc", "reset_while_starting", &[]) else { return };
    with.says("# native 0");
    assert!(!with.err.contains("left to the driver:"), "{}", with.err);
}

/// A thread may still look at what served a device before a reset, so some host memory stays.
#[test]
fn a_reset_costs_little_host_memory() {
    let Some(with) = flow("proc", "resets", true, &[]) else { return };
    let (_, kib) = with.out.split_once("# KiB a reset ").unwrap();
    assert!(kib.trim().parse::<i64>().unwrap() < 400, "{}{}", with.out, with.err);
}

#[test]
fn what_is_set_to_be_synchronous_leaves_nothing_behind() {
    let Some(with) = flow("proc", "synchronous", true, &[]) else { return };
    with.says("bad 0");
    let (_, kib) = with.out.split_once("# KiB kept ").unwrap();
    assert!(kib.trim().parse::<i64>().unwrap() < 1000, "{}{}", with.out, with.err);
}

#[test]
fn a_created_context_takes_its_memory_along() {
    let Some(with) = alike("proc", "created", &[]) else { return };
    with.says("# native 0");
    with.says("# native, a stream of it 1");
    with.says("# freed with it 500");
}

#[test]
fn memory_of_a_created_context_outlives_the_primary_one() {
    let Some(with) = flow("proc", "outlives", true, &[]) else { return };
    let lines = |wanted: &str| with.out.lines().filter(|l| *l == wanted).count();
    for line in ["all 1", "cuMemGetAddressRange(0, &n, p) = 0", "of the primary one 0", "elsewhere 1"] {
        assert_eq!(lines(line), 2, "{line}: {}{}", with.out, with.err);
    }
    // Nothing of a created one is left, so the last release ends everything.
    with.says("retained 0");
}

#[test]
fn a_green_context_keeps_the_primary_one() {
    let Some(with) = alike("proc", "green", &[]) else { return };
    with.says("all 1");
    with.says("retained 0");
}

#[test]
fn forked_children_have_no_memory_and_other_programs_start_their_own() {
    let Some(with) = alike("dlsym", "children", &[]) else { return };
    with.says("child 5");
    assert_eq!(with.counts(" allocations"), [2, 1], "the other program, and this one: {}", with.err);
}

#[test]
fn frees_in_exit_handlers_and_destructors() {
    let Some(with) = flow("proc", "ending", true, &[]) else { return };
    with.says("free at the end = 0");
    with.says("again = 1");
    assert_eq!(with.code, Some(0));
}

#[test]
fn threads_keep_their_bytes() {
    for variables in [&[("GPUMEM_FREE", "marker")][..], &[("GPUMEM_FREE", "sync")], &[("SIM_SEED", "3")]] {
        let Some(with) = flow("proc", "threads", true, variables) else { return };
        with.says("bad 0");
        assert!(!with.err.contains("Race"), "{}", with.err);
    }
}

#[test]
fn out_of_memory_is_the_drivers_error_and_others_get_what_is_free() {
    let Some(with) = alike("proc", "shortage", &[]) else { return };
    with.says("cuMemAlloc(&p, (size_t)1 << 50) = 2");
    with.says("cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) = 0");
    with.says("cuArrayCreate(&array, 0) = 0");
    with.says("cuFuncGetAttribute(&n, 0, 0) = 0");
    with.says("cuGraphAddNode(&node, 1, 0, 0, 0, kernel_node) = 0");
    with.says("cuGreenCtxCreate(&green, 0, 0, 1) = 0");
}

#[test]
fn what_takes_a_little_memory_gets_what_gpumem_holds_free() {
    let Some(with) = alike("proc", "shortage_of_little", &[]) else { return };
    for call in ["cuMemMap", "cuMemSetAccess", "cuMemPoolCreate", "cuEventCreate", "cuGreenCtxStreamCreate"] {
        assert!(with.out.lines().any(|l| l.starts_with(call) && l.ends_with(" = 0")), "{call}: {}", with.out);
    }
}

#[test]
fn a_device_that_could_not_be_served_for_want_of_memory_is_served_later() {
    let variables = [("GPUMEM_NATIVE", "400M"), ("GPUMEM_PREALLOC", "256M")];
    let Some(with) = alike("proc", "full", &variables) else { return };
    with.says("retained 1");
    with.says("# native 0");
}

#[test]
fn a_device_that_is_short_of_memory_takes_its_own_first() {
    let Some(with) = alike("proc", "shortage_of_one", &[("SIM_DEVICES", "2")]) else { return };
    with.says("cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) = 0");
    with.says("# reserved on the other 64");
    with.says("cuMemCreate(&made, 600 << 20, on_the_other, 0) = 0");
}

#[test]
fn what_is_left_to_the_driver_gets_what_gpumem_holds_free() {
    let Some(with) = alike("proc", "left", &[("GPUMEM_NATIVE", "400M")]) else { return };
    assert_eq!(with.counts(" requests left"), [2], "{}", with.err);
}

#[test]
fn a_capture_that_goes_with_its_context_keeps_no_memory_back() {
    assert!(alike("proc", "captured_context", &[]).is_none_or(|with| with.code == Some(0)));
}

#[test]
fn a_capture_in_another_context_outlasts_the_primary_one() {
    let Some(with) = flow("proc", "captured_elsewhere", true, &[]) else { return };
    with.says("graph != 0 = 1");
}

#[test]
fn captures_of_a_threads_own_streams_are_one_on_each_device() {
    let Some(with) = flow("own", "own_captures", true, &[("SIM_DEVICES", "2")]) else { return };
    with.says("other thread's free = 0");
    with.says("graph && second = 1");
}

#[test]
fn a_capture_that_goes_with_its_thread_keeps_no_memory_back() {
    let Some(with) = flow("own", "captured_thread", true, &[]) else { return };
    assert_eq!(with.out.lines().filter(|l| *l == "cuMemFree(p) = 0").count(), 10, "{}{}", with.out, with.err);
}

#[test]
fn a_forked_child_of_a_thread_that_has_captured_exits() {
    let Some(with) = flow("own", "forked_captures", true, &[]) else { return };
    with.says("exited 60");
}

#[test]
fn a_capture_that_begins_while_a_thread_waits_is_not_lost() {
    let two = ("SIM_DEVICES", "2");
    for (name, free) in
        [("captured_meanwhile", "sync"), ("captured_in_shortage", "marker"), ("captured_by_guest", "marker")]
    {
        let Some(with) = flow("proc", name, true, &[two, ("GPUMEM_FREE", free)]) else { return };
        with.says("graph != 0 = 1");
    }
}

#[test]
fn a_free_that_waits_tells_what_the_device_has_come_to() {
    let Some(with) = alike("proc", "failed", &[("GPUMEM_FREE", "sync")]) else { return };
    with.says("cuMemFree(p) = 700");
}

#[test]
fn a_limit_is_what_the_program_sees() {
    let Some(with) = flow("proc", "limited", true, &[("GPUMEM_LIMIT", "128M")]) else { return };
    with.says("# size 128");
    with.says("# free 127 total 128");
    with.says("cuMemAlloc(&p, 200 << 20) = 2");
}

#[test]
fn devices_that_are_let_in_reach_old_and_new_memory() {
    let two = ("SIM_DEVICES", "2");
    let Some(with) = alike("proc", "peers", &[two]) else { return };
    with.says("all 1");
}

#[test]
fn a_device_that_was_let_in_before_the_first_request_is_waited_for() {
    let Some(with) = flow("proc", "let_in_early", true, &[("SIM_DEVICES", "2"), ("SIM_SEED", "7")]) else { return };
    with.says("mine 1");
    assert!(!with.err.contains("Race"), "{}", with.err);
}

#[test]
fn a_guest_that_leaves_is_not_kept() {
    let Some(with) = alike("proc", "guest_leaves", &[("SIM_DEVICES", "2")]) else { return };
    with.says("retained 0");
    with.says("retained then 0");
}

#[test]
fn a_created_context_that_was_let_in_is_waited_for() {
    let Some(with) = flow("proc", "created_guest", true, &[("SIM_DEVICES", "2"), ("SIM_SEED", "7")]) else { return };
    with.says("mine 1");
    with.says("cuMemFree(q) = 0");
    assert!(!with.err.contains("Race"), "{}", with.err);
}

#[test]
fn two_processes_share_memory_by_handle() {
    let Some(with) = flow("proc", "share", true, &[]) else { return };
    for line in ["once 1, all 1", "changed 1", "freed = 1"] {
        with.says(line);
    }
    // The driver's answers for a handle of one's own, and for one close too many.
    with.says("cuIpcOpenMemHandle(&q, h, 1) = 201");
    let closes: Vec<&str> = with.out.lines().filter(|l| l.contains("Close")).collect();
    assert_eq!(closes.iter().map(|l| l.rsplit(' ').next().unwrap()).collect::<Vec<_>>(), ["0", "0", "1"]);
}

#[test]
fn memory_of_another_process_is_told_like_an_allocation_and_ends_with_its_context() {
    let Some(with) = flow("proc", "share_facts", true, &[]) else { return };
    for line in ["range 1 5242880", "start 1, id 1", "sync 1", "gone 1", "all 1"] {
        with.says(line);
    }
    with.says("cuMemRetainAllocationHandle(&made, q) = 1");
    with.says("cuPointerSetAttribute(&sync, 6, q) = 0");
    with.says("cuGraphAddNode(&node, 1, 0, 0, 0, memset_node) = 0");
    assert_eq!(with.out.lines().filter(|l| *l == "closed 0").count(), 2, "{}{}", with.out, with.err);
}

#[test]
fn a_handle_can_be_opened_while_a_thread_waits_to_close_it() {
    let Some(with) = flow("proc", "share_while_closing", true, &[]) else { return };
    with.says("closed 1, once 1, all 1");
    with.says("cuIpcCloseMemHandle(r) = 0");
    with.says("cuIpcCloseMemHandle(r) = 1");
}

#[test]
fn a_handle_that_is_closed_in_a_capture_is_unmapped_later() {
    let Some(with) = flow("proc", "share_captured", true, &[]) else { return };
    let lines = |wanted: &str| with.out.lines().filter(|l| *l == wanted).count();
    for (line, times) in [("graph != 0 = 1", 2), ("closed again 0", 3), ("cuIpcCloseMemHandle(q) = 0", 3), ("all 1", 2)]
    {
        assert_eq!(lines(line), times, "{line}: {}{}", with.out, with.err);
    }
    for line in ["once 1", "mapped 1", "mapped then 0"] {
        with.says(line);
    }
}

#[test]
fn a_close_waits_for_the_device_that_the_handle_was_opened_on() {
    for seed in ["1", "2", "3"] {
        let variables = [("SIM_DEVICES", "2"), ("SIM_SEED", seed)];
        let Some(with) = flow("proc", "share_elsewhere", true, &variables) else { return };
        with.says("changed 1");
        assert!(!with.err.contains("UnmapInUse"), "{}", with.err);
    }
}

#[test]
fn a_forked_child_does_not_keep_the_socket() {
    let Some(with) = flow("proc", "share_child", true, &[]) else { return };
    with.says("sockets 1");
    with.says("sockets of the child 0");
}

#[test]
fn signals_do_not_keep_a_handle_from_being_opened() {
    let Some(with) = flow("proc", "share_interrupted", true, &[]) else { return };
    with.says("opened 1");
}

#[test]
fn a_handle_opened_on_two_devices_is_memory_of_both() {
    let Some(with) = flow("proc", "share_devices", true, &[("SIM_DEVICES", "2")]) else { return };
    with.says("cuIpcOpenMemHandle(&r, h, 1) = 0");
    with.says("two 1, all 1");
    assert_eq!(with.code, Some(0), "{}", with.err);
}

#[test]
fn an_allocation_of_many_pieces_is_shared_too() {
    let memory = ("SIM_BYTES", "17179869184");
    let Some(with) = flow("proc", "share_pieces", true, &[memory]) else { return };
    with.says("too many 1, left open 0");
    for line in ["cuIpcOpenMemHandle(&q, h, 1) = 0", "all 1 1", "left open then 0", "left open here 0"] {
        with.says(line);
    }
}

#[test]
fn large_requests_can_be_left_to_the_driver() {
    let Some(with) = flow("proc", "basic", true, &[("GPUMEM_NATIVE", "1M")]) else { return };
    with.says("# native 1");
    assert_eq!(with.counts(" allocations"), [1], "{}", with.err);
}

#[test]
fn what_is_not_understood_leaves_the_program_alone_and_is_said_once() {
    for (name, value) in [
        ("GPUMEM_FREE", "never"),
        ("GPUMEM_NATIVE", "much"),
        ("GPUMEM_LIMIT", "x"),
        ("GPUMEM_STATS", "2"),
        ("GPUMEM_SLACKS", "x"),
    ] {
        let two = ("SIM_DEVICES", "2");
        let Some(without) = flow("proc", "all_devices", false, &[two]) else { return };
        let mut command = Command::new(support::flows().unwrap());
        command.args(["proc", "all_devices"]).env("LD_PRELOAD", support::preload());
        let with = run(command, false, &[(name, value), two]);
        assert_eq!(without.same(), with.same());
        assert_eq!(with.err.matches(name).count(), 1, "{}", with.err);
    }
}

#[test]
fn a_recording_has_what_was_allocated() {
    let file = support::scratch().join("flow.gmrec");
    let _ = std::fs::remove_file(&file);
    let Some(with) = flow("proc", "basic", true, &[("GPUMEM_RECORD", file.to_str().unwrap())]) else { return };
    assert_eq!(with.code, Some(0));
    let recording = gpumem::observe::Recording::open(&file).unwrap();
    assert_eq!(recording.faults(), None);
    let history = gpumem::observe::History::of(&recording);
    assert_eq!(history.lives.iter().map(|l| l.bytes).collect::<Vec<_>>(), [3145728, 1000]);
    // Both are free by the program's own frees, whatever the memory still waits for.
    assert_eq!((history.live, history.changes.len(), history.unknown_frees), (0, 4, 0));
}

#[test]
fn a_recording_outlives_a_reset() {
    let file = support::scratch().join("reset.gmrec");
    let _ = std::fs::remove_file(&file);
    let Some(with) = flow("proc", "recorded", true, &[("GPUMEM_RECORD", file.to_str().unwrap())]) else { return };
    assert_eq!(with.code, Some(0), "{}", with.err);
    let recording = gpumem::observe::Recording::open(&file).unwrap();
    assert_eq!(recording.faults(), None);
    assert_eq!(gpumem::observe::History::of(&recording).lives.len(), 100);
}

#[test]
fn a_recording_shows_what_a_reset_takes_as_free_and_unmapped() {
    let file = support::scratch().join("resets.gmrec");
    let _ = std::fs::remove_file(&file);
    let Some(with) = flow("proc", "recorded_resets", true, &[("GPUMEM_RECORD", file.to_str().unwrap())]) else {
        return;
    };
    assert_eq!(with.code, Some(0), "{}", with.err);
    let recording = gpumem::observe::Recording::open(&file).unwrap();
    let history = gpumem::observe::History::of(&recording);
    assert_eq!((history.lives.len(), history.live, history.peak), (10, 0, 50 << 20));
    assert_eq!(history.unknown_frees, 0);
    let bytes = |of| recording.events.iter().filter(|h| h.event.kind == of).map(|h| h.event.bytes).sum::<u64>();
    assert_eq!(bytes(Kind::Map), bytes(Kind::Unmap));
}

/// Of two devices, one is reset again and again and at the end.
#[test]
fn one_page_and_one_snapshot_have_all_devices() {
    let file = support::scratch().join("observed.json");
    let variables = [
        ("SIM_DEVICES", "2"),
        ("GPUMEM_STATS_PAGE", "on"),
        ("GPUMEM_TRIM_INTERVAL", "3600"),
        ("GPUMEM_SNAPSHOT_ON", "oom,exit"),
        ("GPUMEM_SNAPSHOT", file.to_str().unwrap()),
    ];
    let Some(with) = flow("proc", "observed", true, &variables) else { return };
    for line in ["two devices 1", "one device 1", "as many threads 1", "more descriptors 0"] {
        with.says(line);
    }
    let pid = with.out.lines().last().unwrap().parse().unwrap();
    assert!(!gpumem::observe::page::path(pid).exists());
    assert_eq!(with.err.matches("a snapshot is in").count(), 1, "{}", with.err);
    let snapshot: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let devices = snapshot["devices"].as_array().unwrap();
    let live: Vec<_> = devices.iter().map(|d| (d["device"].as_u64(), d["stats"]["live"].as_u64())).collect();
    assert_eq!(live, [(Some(0), Some(10 << 20)), (Some(1), Some(30 << 20))]);
    assert_eq!(snapshot["report"].to_string().matches("The pool of device").count(), 2);
}

/// The devices are reset one after the other before the end.
#[test]
fn the_snapshot_of_the_end_has_the_last_events() {
    let file = support::scratch().join("late.json");
    let variables =
        [("SIM_DEVICES", "2"), ("GPUMEM_SNAPSHOT_ON", "oom,exit"), ("GPUMEM_SNAPSHOT", file.to_str().unwrap())];
    if flow("proc", "observed_late", true, &variables).is_none() {
        return;
    }
    let snapshot: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let numbers = |of: &str| snapshot[of].as_array().unwrap().iter().map(|x| x["device"].as_u64()).collect::<Vec<_>>();
    assert_eq!(numbers("devices"), [Some(0), Some(1)]);
    assert!(numbers("events").contains(&Some(1)), "{}", snapshot["events"]);
}

#[test]
fn a_pending_cancellation_waits_for_the_end_of_a_call() {
    alike("proc", "cancel", &[]);
}

/// Each is tried again once free memory has been given back; that is no second request.
#[test]
fn a_refused_request_is_one_failure() {
    let file = support::scratch().join("refused.gmrec");
    let _ = std::fs::remove_file(&file);
    let variables = [("GPUMEM_LIMIT", "128M"), ("GPUMEM_RECORD", file.to_str().unwrap())];
    let Some(with) = flow("proc", "limited", true, &variables) else { return };
    with.says("cuMemAlloc(&p, 200 << 20) = 2");
    with.says("cuMemAllocAsync(&p, 200 << 20, 0) = 2");
    let recording = gpumem::observe::Recording::open(&file).unwrap();
    assert_eq!(gpumem::observe::History::of(&recording).failures, 2);
}

#[test]
fn pairs_stay_in_gpumem() {
    for free in ["marker", "sync"] {
        let Some(with) = flow("proc", "pairs", true, &[("GPUMEM_FREE", free)]) else { return };
        with.says("bad 0");
        assert_eq!((with.counts(" requests left"), with.counts(" allocations")), (vec![0], vec![2000]));
    }
}

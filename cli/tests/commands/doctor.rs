//! `gpumem doctor` from the outside, on the host device.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{gpumem, json, run, stderr, stdout};

#[test]
fn a_healthy_host_device_is_all_well() {
    let out = run(gpumem().args(["doctor", "--backend", "host", "--json"]));
    let r = json(&out);
    assert_eq!(out.status.code(), Some(0), "{r:#}\n{}", stderr(&out));
    assert_eq!(r["ok"], true);
    assert_eq!(r["backend"]["name"], "host");
    let devices = r["devices"].as_array().unwrap();
    assert!(!devices.is_empty());
    for d in devices {
        assert!(d["granularity"].as_u64().unwrap().is_power_of_two(), "{d}");
        assert!(d["free_bytes"].as_u64() <= d["total_bytes"].as_u64(), "{d}");
    }
    let tests = r["self_test"].as_array().unwrap();
    assert!(tests.len() >= 4 && tests.iter().all(|t| t["passed"] == true), "{tests:#?}");
    assert!(r["limits"].as_array().unwrap().iter().any(|l| l["name"] == "vm.max_map_count"));
    assert_eq!(r["problems"].as_array().map(Vec::len), Some(0));
}

#[test]
fn settings_say_where_they_come_from() {
    let out = run(gpumem().env("GPUMEM_LIMIT", "1G").env("VPMM_VA_SIZE", "1T").args([
        "doctor",
        "--backend",
        "host",
        "--json",
    ]));
    let r = json(&out);
    let source = |name: &str| {
        let settings = r["settings"].as_array().unwrap();
        let s = settings.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("no {name} in {settings:?}"));
        (s["value"].as_str().unwrap().to_string(), s["source"].as_str().unwrap().to_string())
    };
    assert_eq!(source("GPUMEM_LIMIT"), ("1G".to_string(), "from GPUMEM_LIMIT".to_string()));
    assert_eq!(source("GPUMEM_VA_SIZE"), ("1T".to_string(), "from VPMM_VA_SIZE".to_string()));
    assert_eq!(source("GPUMEM_REUSE").1, "default");
    assert_eq!(r["devices"][0]["pool_limit_bytes"], 1u64 << 30);
}

#[test]
fn what_is_wrong_is_said_and_gives_exit_code_1() {
    let out = run(gpumem().env("GPUMEM_REUSE", "sometimes").args(["doctor", "--backend", "host"]));
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let text = stdout(&out);
    assert!(text.contains("Problems") && text.contains("GPUMEM_REUSE=\"sometimes\" is not understood"), "{text}");
    // The settings are shown all the same.
    let row = |name: &str| text.lines().find(|l| l.starts_with(name)).unwrap_or_default().to_string();
    assert!(row("GPUMEM_REUSE").ends_with("\"sometimes\" (from GPUMEM_REUSE, not understood)"), "{text}");
    assert!(
        row("GPUMEM_LIMIT").ends_with("(default)") && row("GPUMEM_BACKEND").ends_with("(from --backend)"),
        "{text}"
    );
    // A limit below what the self-test allocates.
    let out = run(gpumem().env("GPUMEM_LIMIT", "4M").args(["doctor", "--backend", "host", "--json"]));
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!(r["ok"], false);
    assert!(r["self_test"].as_array().unwrap().iter().any(|t| t["passed"] == false), "{r:#}");
}

#[test]
fn people_get_tables() {
    let out = run(gpumem().args(["doctor", "--backend", "host"]));
    let text = stdout(&out);
    for part in ["Device 0", "granularity", "Limits", "Settings", "Self-test", "No problem found."] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn equal_devices_are_told_of_once() {
    let out = run(gpumem().env("GPUMEM_HOST_DEVICES", "3").args(["doctor", "--backend", "host"]));
    let text = stdout(&out);
    let lines = |start: &str| text.lines().filter(|l| l.starts_with(start)).count();
    assert_eq!((lines("Devices 0 to 2"), lines("granularity")), (1, 1), "{text}");
    assert_eq!(lines("devices 0 to 2: write and read 256 B"), 1, "{text}");
    assert!(!text.contains('`'), "Markdown is for documents:\n{text}");
}

/// What would be noticed only when the program is half done.
#[test]
fn settings_that_cannot_work_are_problems() {
    let dir = tempfile::tempdir().unwrap();
    let there = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    for (variable, value, problem) in [
        ("GPUMEM_LIMTI", "1G".to_string(), Some("GPUMEM_LIMIT is")),
        ("GPUMEM_FREE", "later".into(), Some("sync or marker")),
        ("GPUMEM_RECORD", there("missing/file"), Some("missing")),
        ("GPUMEM_RECORD", there(""), Some("directory")),
        ("GPUMEM_RECORD", there("missing/"), Some("directory")),
        ("GPUMEM_RECORD", "/dev/null".into(), Some("no regular file")),
        ("GPUMEM_RECORD", there("file"), None),
        ("GPUMEM_DISK", there("missing"), Some("GPUMEM_DISK")),
        ("GPUMEM_DISK", there(""), None),
    ] {
        let out = run(gpumem().env(variable, &value).args(["doctor", "--backend", "host", "--json"]));
        let r = json(&out);
        let problems: Vec<&str> = r["problems"].as_array().unwrap().iter().filter_map(|p| p.as_str()).collect();
        assert_eq!(out.status.code(), Some(i32::from(problem.is_some())), "{variable}={value}: {problems:?}");
        assert_eq!(problems.len(), usize::from(problem.is_some()), "{variable}={value}: {problems:?}");
        assert!(problem.is_none_or(|p| problems[0].contains(p)), "{variable}={value}: {problems:?}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.contains(&"file".into()), "the program's recording is not doctor's: {left:?}");
    // With snapshots, their file too, which may be a device.
    for (snapshot, wrong) in [(there("missing/s.json"), true), (there(""), true), ("/dev/null".into(), false)] {
        let mut doctor = gpumem();
        doctor.env("GPUMEM_SNAPSHOT_ON", "oom").env("GPUMEM_SNAPSHOT", snapshot);
        let out = run(doctor.args(["doctor", "--backend", "host"]));
        let problem = stdout(&out).contains("GPUMEM_SNAPSHOT is");
        assert_eq!((out.status.code(), problem), (Some(i32::from(wrong)), wrong), "{}", stdout(&out));
    }
}

//! Every variable with good and bad values.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::arena::DebugMode;
use crate::context::config::*;
use crate::tier::Thresholds;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

const CHECK: DebugMode = DebugMode { check: true, abort: false, poison: false, unmap: false };

fn read(vars: &[(&str, &str)]) -> Result<Config> {
    Config::from_lookup(&|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
}

fn good(vars: &[(&str, &str)]) -> Config {
    read(vars).unwrap_or_else(|e| panic!("{vars:?}: {e}"))
}

#[test]
fn an_empty_environment_gives_the_defaults() {
    assert_eq!(good(&[]), Config::default());
    let d = Config::default();
    assert_eq!((d.log, d.pool, d.va_size, d.host_bytes), (1, true, 8 << 40, 64 << 30));
}

fn mount(path: &str, limit: Option<u64>) -> DiskMount {
    DiskMount { path: path.into(), limit }
}

#[test]
fn every_variable_sets_its_field() {
    let base = Config::default;
    let cases: &[(&str, &str, Config)] = &[
        ("GPUMEM_BACKEND", "auto", base()),
        ("GPUMEM_BACKEND", "cuda", Config { backend: Backend::Cuda, ..base() }),
        ("GPUMEM_BACKEND", " Host ", Config { backend: Backend::Host, ..base() }),
        ("GPUMEM_VA_SIZE", "1T", Config { va_size: 1 << 40, ..base() }),
        ("GPUMEM_VA_SIZE", "64T", Config { va_size: 64 << 40, ..base() }),
        ("GPUMEM_VA_SIZE", "2097152", Config { va_size: 2 << 20, ..base() }),
        ("GPUMEM_PAGE_SIZE", "32M", Config { page_size: 32 << 20, ..base() }),
        ("GPUMEM_PAGE_SIZE", "1G", Config { page_size: 1 << 30, ..base() }),
        ("GPUMEM_PAGE_SIZE", "0", base()),
        ("GPUMEM_PREALLOC", "3G", Config { prealloc: Prealloc::Bytes(3 << 30), ..base() }),
        ("GPUMEM_PREALLOC", "80%", Config { prealloc: Prealloc::Percent(80), ..base() }),
        ("GPUMEM_PREALLOC", "0 %", Config { prealloc: Prealloc::Percent(0), ..base() }),
        ("GPUMEM_LIMIT", "10G", Config { limit: Limit::Bytes(10 << 30), ..base() }),
        ("GPUMEM_LIMIT", "100%", Config { limit: Limit::Percent(100), ..base() }),
        ("GPUMEM_LIMIT", "0", base()),
        ("GPUMEM_SLACK", "Tight", Config { slack: Slack::Tight, ..base() }),
        ("GPUMEM_SLACK", "20%", Config { slack: Slack::Percent(20), ..base() }),
        ("GPUMEM_SLACK", "auto", base()),
        ("GPUMEM_REUSE", "settled", Config { reuse: Reuse::Settled, ..base() }),
        ("GPUMEM_REUSE", "WAIT", Config { reuse: Reuse::Wait, ..base() }),
        ("GPUMEM_TRIM_THRESHOLD", "512M", Config { trim_threshold: 512 << 20, ..base() }),
        ("GPUMEM_TRIM_INTERVAL", "10", Config { trim_interval: Duration::from_secs(10), ..base() }),
        ("GPUMEM_TRIM_INTERVAL", "2 s", Config { trim_interval: Duration::from_secs(2), ..base() }),
        ("GPUMEM_TRIM_INTERVAL", "500ms", Config { trim_interval: Duration::from_millis(500), ..base() }),
        ("GPUMEM_TRIM_INTERVAL", "0", base()),
        ("GPUMEM_CAPTURE", "auto", Config { capture: CaptureDetection::Auto, ..base() }),
        ("GPUMEM_CAPTURE", "OFF", base()),
        ("GPUMEM_TIERS", "on", Config { tiers: true, ..base() }),
        (
            "GPUMEM_PINNED_BLOCKS",
            "64K, 16, 0",
            Config { pinned_blocks: PinnedBlocks { block_bytes: 64 << 10, blocks: 16, chunks: 0 }, ..base() },
        ),
        ("GPUMEM_PINNED_BLOCKS", "1M,128,4", base()),
        ("GPUMEM_PINNED_LIMIT", "8G", Config { pinned_limit: Limit::Bytes(8 << 30), ..base() }),
        (
            "GPUMEM_DISK",
            "/a b=2G;/mnt/c",
            Config { disks: vec![mount("/a b", Some(2 << 30)), mount("/mnt/c", None)], ..base() },
        ),
        ("GPUMEM_DISK", "/x=y=1M; ", Config { disks: vec![mount("/x=y", Some(1 << 20))], ..base() }),
        ("GPUMEM_DOWNGRADE", "0.9, 0.5", Config { thresholds: Thresholds::new(0.9, 0.5).unwrap(), ..base() }),
        ("GPUMEM_MOVER", "off", Config { mover: false, ..base() }),
        ("GPUMEM_STREAM_CHECK", "driver", Config { stream_check: StreamCheck::Driver, ..base() }),
        ("GPUMEM_ARENA_DEBUG", "off", base()),
        ("GPUMEM_ARENA_DEBUG", "1", Config { arena_debug: CHECK, ..base() }),
        ("GPUMEM_ARENA_DEBUG", "Check", Config { arena_debug: CHECK, ..base() }),
        ("GPUMEM_ARENA_DEBUG", "abort", Config { arena_debug: DebugMode { abort: true, ..CHECK }, ..base() }),
        (
            "GPUMEM_ARENA_DEBUG",
            "poison, abort",
            Config { arena_debug: DebugMode { abort: true, poison: true, ..CHECK }, ..base() },
        ),
        ("GPUMEM_ARENA_DEBUG", "1,unmap", Config { arena_debug: DebugMode { unmap: true, ..CHECK }, ..base() }),
        ("GPUMEM_ARENA_QUARANTINE", "1G", Config { arena_quarantine: Some(1 << 30), ..base() }),
        ("GPUMEM_RECORD", "/tmp/a b.gmrec", Config { record: Some("/tmp/a b.gmrec".into()), ..base() }),
        ("GPUMEM_RECORD_STACKS", "16", Config { record_stacks: 16, ..base() }),
        ("GPUMEM_SNAPSHOT_ON", "off", base()),
        ("GPUMEM_SNAPSHOT_ON", "OOM", Config { snapshot_on: SnapshotOn { oom: true, exit: false }, ..base() }),
        ("GPUMEM_SNAPSHOT_ON", "exit, oom", Config { snapshot_on: SnapshotOn { oom: true, exit: true }, ..base() }),
        ("GPUMEM_SNAPSHOT", "s.json", Config { snapshot: Some("s.json".into()), ..base() }),
        ("GPUMEM_SNAPSHOT_EVENTS", "0", Config { snapshot_events: 0, ..base() }),
        ("GPUMEM_STATS_PAGE", "on", Config { stats_page: true, ..base() }),
        ("GPUMEM_NVTX", "on", Config { nvtx: true, ..base() }),
        ("GPUMEM_LOG", "0", Config { log: 0, ..base() }),
        ("GPUMEM_LOG", "2", Config { log: 2, ..base() }),
        ("GPUMEM_POOL", "off", Config { pool: false, ..base() }),
        ("GPUMEM_POOL", "No", Config { pool: false, ..base() }),
        ("GPUMEM_POOL", "1", base()),
        ("GPUMEM_HOST_DEVICES", "4", Config { host_devices: 4, ..base() }),
        ("GPUMEM_HOST_BYTES", "1G", Config { host_bytes: 1 << 30, ..base() }),
        ("GPUMEM_HOST_SEED", "18446744073709551615", Config { host_seed: u64::MAX, ..base() }),
        ("GPUMEM_HOST_MODE", "eager", Config { host_mode: Some(HostMode::Eager), ..base() }),
        ("GPUMEM_HOST_MODE", "Simulate", Config { host_mode: Some(HostMode::Simulate), ..base() }),
    ];
    for (name, value, want) in cases {
        assert_eq!(&good(&[(name, value)]), want, "{name}={value}");
    }
    for name in known() {
        assert!(cases.iter().any(|(n, _, c)| *n == name && *c != Config::default()) || name == "GPUMEM_BACKEND");
    }
}

#[test]
fn a_bad_value_names_the_variable_the_value_and_what_is_accepted() {
    for (name, values, accepted) in [
        ("GPUMEM_BACKEND", vec!["gpu", "", "cuda,host"], "auto, cuda, host"),
        ("GPUMEM_VA_SIZE", vec!["0", "1M", "3M", "65T", "lots", "-1", ""], "64T"),
        ("GPUMEM_PAGE_SIZE", vec!["3M", "2G", "32G", "x", "1.5M"], "power of two"),
        ("GPUMEM_PREALLOC", vec!["101%", "-1%", "%", "half", "1G%", "5 percent"], "100%"),
        ("GPUMEM_LIMIT", vec!["0%", "101%", "90.5%", "99999999999G", "all"], "100%"),
        ("GPUMEM_SLACK", vec!["0%", "101%", "20", ""], "auto, tight"),
        ("GPUMEM_REUSE", vec!["never", ""], "settled, wait"),
        ("GPUMEM_TRIM_THRESHOLD", vec!["never", "10%", "1Q"], "512M"),
        ("GPUMEM_TRIM_INTERVAL", vec!["", "often", "-1", "1.5", "1m", "10us"], "500ms"),
        ("GPUMEM_STREAM_CHECK", vec!["never", ""], "auto, driver"),
        ("GPUMEM_ARENA_DEBUG", vec!["", "2", "on", "off,check", "poison,unmap", "check,", "fill"], "poison and unmap"),
        ("GPUMEM_ARENA_QUARANTINE", vec!["", "all", "10%"], "512M"),
        ("GPUMEM_TIERS", vec!["2", ""], "on, off"),
        ("GPUMEM_PINNED_BLOCKS", vec!["", "1M", "1M,128", "3M,128,4", "2K,1,1", "1M,0,4", "1M,1,1,1"], "1M,128,4"),
        ("GPUMEM_PINNED_LIMIT", vec!["", "0%", "101%"], "100%"),
        ("GPUMEM_DISK", vec!["", ";", "scratch", "/a=0", "/a=x", "/a;/a"], "/scratch=200G"),
        ("GPUMEM_DOWNGRADE", vec!["", "0.85", "0.5,0.6", "1.1,0.5", "x,0"], "0.85,0.65"),
        ("GPUMEM_MOVER", vec!["2", ""], "on, off"),
        ("GPUMEM_RECORD", vec![""], "a file"),
        ("GPUMEM_RECORD_STACKS", vec!["257", "-1", "all", ""], "0 to 256"),
        ("GPUMEM_SNAPSHOT_ON", vec!["", "on", "oom,", "off,oom"], "oom,exit"),
        ("GPUMEM_SNAPSHOT", vec![""], "a file"),
        ("GPUMEM_SNAPSHOT_EVENTS", vec!["65537", "x", ""], "0 to 65536"),
        ("GPUMEM_STATS_PAGE", vec!["2", ""], "on, off"),
        ("GPUMEM_NVTX", vec!["2", ""], "on, off"),
        ("GPUMEM_LOG", vec!["3", "-1", "debug", ""], "0, 1 or 2"),
        ("GPUMEM_POOL", vec!["2", "disabled", ""], "on, off"),
        ("GPUMEM_HOST_DEVICES", vec!["0", "65", "one"], "1 to 64"),
        ("GPUMEM_HOST_BYTES", vec!["0", "1000", "big"], "2 MiB"),
        ("GPUMEM_HOST_MODE", vec!["", "late", "simulate,abort"], "eager, simulate, abort"),
        ("GPUMEM_HOST_SEED", vec!["-1", "18446744073709551616", "x"], "2^64"),
        ("VPMM_VA_SIZE", vec!["0", "8X"], "64T"),
        ("VPMM_PAGE_SIZE", vec!["0", "3M", "page"], "power of two"),
        ("VPMM_PAGES", vec!["-1", "many", "1.5"], "number of pages"),
    ] {
        for value in values {
            let e = read(&[(name, value)]).expect_err(&format!("{name}={value}"));
            assert_eq!(e.status, Status::Config);
            for part in [name, &format!("{value:?}"), accepted] {
                assert!(e.message.contains(part), "{part:?} is not in: {e}");
            }
        }
        let e = Config::from_lookup(&|n| (n == name).then(|| OsString::from_vec(vec![b'1', 0xff]))).unwrap_err();
        assert_eq!(e.status, Status::Config);
        assert!(e.message.contains(name) && e.message.contains("UTF-8"), "{e}");
    }
}

#[test]
fn vpmm_variables_are_understood_and_gpumem_ones_win() {
    const M: u64 = 1 << 20;
    assert_eq!(good(&[("VPMM_VA_SIZE", "4T")]).va_size, 4 << 40);
    assert_eq!(good(&[("VPMM_VA_SIZE", "4T"), ("GPUMEM_VA_SIZE", "2T")]).va_size, 2 << 40);
    assert_eq!(good(&[("VPMM_PAGE_SIZE", "4194304")]).page_size, 4 * M);
    assert_eq!(good(&[("VPMM_PAGE_SIZE", "4M"), ("GPUMEM_PAGE_SIZE", "8M")]).page_size, 8 * M);
    // 16,384 pages of the default 2 MiB are 32 GiB; other page sizes count as they are.
    assert_eq!(good(&[("VPMM_PAGES", "16384")]).prealloc, Prealloc::Bytes(32 << 30));
    assert_eq!(good(&[("VPMM_PAGES", "3"), ("VPMM_PAGE_SIZE", "4M")]).prealloc, Prealloc::Bytes(12 * M));
    assert_eq!(good(&[("VPMM_PAGES", "3"), ("GPUMEM_PAGE_SIZE", "16M")]).prealloc, Prealloc::Bytes(48 * M));
    assert_eq!(good(&[("VPMM_PAGES", "3"), ("GPUMEM_PAGE_SIZE", "0")]).prealloc, Prealloc::Bytes(6 * M));
    assert_eq!(good(&[("VPMM_PAGES", "3"), ("GPUMEM_PREALLOC", "5%")]).prealloc, Prealloc::Percent(5));
    let e = read(&[("VPMM_PAGES", "18446744073709551615")]).unwrap_err();
    assert!(e.status == Status::Config && e.message.contains("VPMM_PAGES"), "{e}");
    // Overridden, and still checked.
    assert!(read(&[("VPMM_PAGE_SIZE", "nonsense"), ("GPUMEM_PAGE_SIZE", "8M")]).is_err());
}

#[test]
fn a_vpmm_page_beyond_any_request_turns_the_pool_off() {
    for size in ["1073741824", "34359738368", "32G", "18446744073709551615"] {
        for pages in [None, Some("0")] {
            let mut vars = vec![("VPMM_PAGE_SIZE", size)];
            vars.extend(pages.map(|p| ("VPMM_PAGES", p)));
            assert_eq!(
                good(&vars),
                Config { pool: false, prealloc: Prealloc::Bytes(0), ..Config::default() },
                "{vars:?}"
            );
            vars.push(("GPUMEM_POOL", "on"));
            assert!(good(&vars).pool);
        }
    }
    assert!(good(&[("VPMM_PAGE_SIZE", "512M")]).pool);
    let some = good(&[("VPMM_PAGE_SIZE", "2G"), ("VPMM_PAGES", "10")]);
    assert_eq!((some.pool, some.page_size, some.prealloc), (true, 1 << 30, Prealloc::Bytes(20 << 30)));
    let own = good(&[("VPMM_PAGE_SIZE", "32G"), ("GPUMEM_PAGE_SIZE", "8M")]);
    assert_eq!((own.pool, own.page_size), (true, 8 << 20));
}

#[test]
fn misspelt_names_are_found() {
    let names = ["PATH", "GPUMEM_LIMIT", "GPUMEM_LIMTI", "GPUMEM_TEST_X", "GPUMEM_", "VPMM_PAGES", "gpumem_log"];
    assert_eq!(
        unknown(names.iter().map(OsString::from)),
        ["GPUMEM_ is no setting; docs/settings.md lists them", "GPUMEM_LIMTI is no setting; GPUMEM_LIMIT is"]
    );
    let far = unknown(["GPUMEM_STATES", "GPUMEM_MAKE_IT_FASTER"].iter().map(OsString::from));
    assert_eq!(far[0], "GPUMEM_MAKE_IT_FASTER is no setting; docs/settings.md lists them");
    assert_eq!(far[1], "GPUMEM_STATES is no setting; GPUMEM_STATS is");
    assert_eq!(unknown(known().map(OsString::from)), [""; 0]);
    assert_eq!(unknown([OsString::from("GPUMEM_LIBRARY")].into_iter()), [""; 0], "the bindings' own");
}

#[test]
fn what_is_shown_of_a_setting_sets_it() {
    let set = |vars: &[(&str, &str)]| good(vars);
    for config in [
        Config::default(),
        set(&[("GPUMEM_BACKEND", "host"), ("GPUMEM_LIMIT", "3%"), ("GPUMEM_PREALLOC", "5000"), ("GPUMEM_POOL", "off")]),
        set(&[
            ("GPUMEM_TRIM_INTERVAL", "1500ms"),
            ("GPUMEM_ARENA_DEBUG", "abort,poison"),
            ("GPUMEM_DOWNGRADE", "0.9,0.123456"),
        ]),
        set(&[("GPUMEM_DISK", "/a b=3G;/c"), ("GPUMEM_PINNED_BLOCKS", "64K,7,0"), ("GPUMEM_HOST_SEED", "9")]),
    ] {
        let texts: Vec<(&str, String)> =
            SETTINGS.iter().map(|s| (s.variable, s.text(&config))).filter(|t| !t.1.is_empty()).collect();
        let texts: Vec<(&str, &str)> = texts.iter().map(|(v, t)| (*v, t.as_str())).collect();
        let again = good(&texts);
        let resolved = Config {
            arena_quarantine: Some(config.quarantine()),
            host_mode: Some(config.host_mode()),
            ..config.clone()
        };
        assert_eq!(again, resolved);
    }
    assert_eq!(settings::find("GPUMEM_LIMIT").unwrap().shown(&Config::default()), "0: what the device has");
    assert_eq!(settings::find("GPUMEM_DISK").unwrap().shown(&Config::default()), "none");
}

#[test]
fn a_seed_asks_for_a_simulation_unless_something_else_is_said() {
    assert_eq!(good(&[("GPUMEM_HOST_SEED", "0")]).host_mode(), HostMode::Eager);
    assert_eq!(good(&[("GPUMEM_HOST_SEED", "1")]).host_mode(), HostMode::Simulate);
    assert_eq!(good(&[("GPUMEM_HOST_SEED", "1"), ("GPUMEM_HOST_MODE", "eager")]).host_mode(), HostMode::Eager);
    assert_eq!(good(&[("GPUMEM_HOST_MODE", "abort")]).host_mode(), HostMode::Abort);
}

//! `bench/peers` where there is no GPU: gpumem alone on the host device, from the build to the table.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{gpumem, json, run, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::{tempdir, TempDir};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What of `programs` cannot be started here.
fn missing(programs: &[&str]) -> bool {
    let lacks = |p: &&&str| Command::new(p).arg("--version").output().is_err();
    let found = programs.iter().find(lacks);
    if let Some(program) = found {
        println!("skipped: there is no {program}");
    }
    found.is_some()
}

/// A folder as `build.sh` wants it: headers, and the library that cargo built with these tests.
fn install(dir: &TempDir) -> PathBuf {
    let folder = dir.path().join("gpumem");
    std::fs::create_dir_all(folder.join("lib")).unwrap();
    symlink(root().canonicalize().unwrap().join("include"), folder.join("include")).unwrap();
    let library = std::env::current_exe().unwrap().with_file_name("libgpumem.so");
    assert!(library.exists(), "{} is missing: cargo builds it with the tests", library.display());
    symlink(library, folder.join("lib/libgpumem.so.0")).unwrap();
    folder
}

/// The values of every figure of a metric, in the order of the lines.
fn figures(lines: &[Value], workload: &str, metric: &str) -> Vec<f64> {
    let found = lines.iter().filter(|l| l["workload"] == workload && l["metric"] == metric);
    found.map(|l| l["value"].as_f64().unwrap()).collect()
}

#[test]
fn gpumem_runs_through_the_peers_benchmark_on_the_same_workloads() {
    if missing(&["bash", "g++", "python3", "timeout"]) {
        return;
    }
    let dir = tempdir().unwrap();
    let out = dir.path().join("out");
    let mut command = Command::new("bash");
    command.arg(root().join("bench/peers/run.sh")).arg(&out).arg(root().join("examples/traces/training.csv.gz"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("GPUMEM_")) {
        command.env_remove(name);
    }
    command.env("BACKEND", "host").env("GPUMEM", install(&dir)).env("BUILT", dir.path().join("built"));
    let done = run(command.env("OPS", "400"));
    assert!(done.status.success(), "{}\n{}", stdout(&done), stderr(&done));

    let lines: Vec<Value> = std::fs::read_to_string(out.join("peers.jsonl"))
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
        .collect();
    let measured: BTreeSet<_> = lines.iter().map(|l| (l["workload"].as_str().unwrap(), l["run"].as_u64())).collect();
    assert_eq!(measured.len(), 2 * 10, "ten workloads, twice: {measured:?}");
    assert!(lines.iter().all(|l| l["allocator"] == "gpumem" && l["metric"] != "failed"), "{lines:?}");
    assert_eq!(figures(&lines, "replay", "failures"), [0.0; 4]);

    let table = std::fs::read_to_string(out.join("peers.md")).unwrap();
    assert!(table.contains("| workload | case | metric | gpumem | gpumem, again |"), "{table}");
    assert!(table.contains("Driver calls of gpumem an operation") && table.contains(" hot 0."), "{table}");
    assert!(stdout(&done).contains(&table), "the table is printed too");

    // Both programs draw the same sizes: the live sets are the same to the byte.
    let own = run(gpumem().args(["bench", "--backend", "host", "--json", "--ops", "400", "random", "growing"]));
    let own = json(&own);
    for workload in ["random", "growing"] {
        let same: Vec<f64> = own["measurements"].as_array().unwrap().iter().filter(|m| m["workload"] == workload).fold(
            Vec::new(),
            |mut all, m| {
                let peak = m["metrics"].as_array().unwrap().iter().find(|f| f["metric"] == "peak live").unwrap();
                all.push(peak["value"].as_f64().unwrap());
                all
            },
        );
        let theirs = figures(&lines, workload, "peak live");
        assert!((theirs[0] - same[0]).abs() < 1e-6 * same[0], "{workload}: {theirs:?} in C++, {same:?} in Rust");
    }
}

/// `table.py` on figures made up here; the text it prints and the plot.
fn table(lines: &[(&str, u32, &str, f64, &str, &str)]) -> (String, String) {
    let dir = tempdir().unwrap();
    let text: String = lines
        .iter()
        .map(|(allocator, run, metric, value, unit, note)| {
            let workload = if *unit == "Mops/s" { "threads" } else { "random" };
            let line = serde_json::json!({"allocator": allocator, "run": run, "workload": workload, "case": "warm",
                "metric": metric, "value": value, "unit": unit, "note": note});
            format!("{line}\n")
        })
        .collect();
    std::fs::write(dir.path().join("in.jsonl"), text).unwrap();
    let svg = dir.path().join("out.svg");
    let mut command = Command::new("python3");
    command.arg(root().join("bench/peers/table.py")).arg("--machine").arg("a <GPU>").arg("--svg").arg(&svg);
    let out = run(command.arg(dir.path().join("in.jsonl")));
    assert!(out.status.success(), "{}", stderr(&out));
    (stdout(&out), std::fs::read_to_string(svg).unwrap())
}

#[test]
fn the_worse_run_is_compared_with_the_best_peer() {
    if missing(&["python3"]) {
        return;
    }
    let (text, svg) = table(&[
        ("gpumem", 1, "mean", 0.1, "us", ""),
        ("slow", 1, "mean", 4.0, "us", ""),
        ("fast", 1, "mean", 0.5, "us", ""),
        ("part", 1, "mean", 0.01, "us", "stopped after 7 operations"),
        ("gpumem", 2, "mean", 0.2, "us", ""),
        ("gpumem", 1, "device used", 16.0, "GiB", ""),
        ("fixed", 1, "device used", 8.0, "GiB", "taken up front"),
        ("fast", 1, "device used", 20.0, "GiB", ""),
        ("gpumem", 1, "rate", 60.0, "Mops/s", ""),
        ("slow", 1, "rate", 1.0, "Mops/s", ""),
        ("fast", 1, "rate", 1.5, "Mops/s", ""),
    ]);
    let row =
        |start: &str| text.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("no {start} in\n{text}"));
    assert!(row("| random | warm | mean").ends_with("| **0.40** (fast) |"), "{text}");
    assert!(row("| random | warm | mean").contains("0.010 *"), "{text}");
    assert!(row("| random | warm | device used").ends_with("| **0.80** (fast) |"), "{text}");
    assert!(row("| random | warm | device used").contains("(8.00)"), "{text}");
    assert!(row("| threads | warm | rate").ends_with("| **40.00** (fast) |"), "{text}");
    assert!(text.starts_with("Machine: a <GPU>."), "{text}");
    // Times and bytes turn round in the plot, so that to the right is better in every row.
    for part in ["2.5× fast", "1.25× fast", "40× fast", "a &lt;GPU&gt;"] {
        assert!(svg.contains(part), "no {part} in\n{svg}");
    }
}

#[test]
fn what_failed_is_listed_and_is_no_best_peer() {
    if missing(&["python3"]) {
        return;
    }
    let (text, _) = table(&[
        ("gpumem", 1, "mean", 0.1, "us", ""),
        ("broken", 1, "mean", 0.01, "us", ""),
        ("broken", 1, "failures", 3.0, "1", "no memory"),
        ("gone", 1, "failed", 1.0, "1", "stopped after 180 s"),
    ]);
    assert!(text.contains("- broken, random, warm: 3 allocations refused: no memory"), "{text}");
    assert!(text.contains("- gone, random, warm: stopped after 180 s"), "{text}");
    let row = text.lines().find(|l| l.starts_with("| random | warm | mean")).unwrap();
    assert!(row.contains("| failed |") && row.ends_with("|  |"), "{text}");
}

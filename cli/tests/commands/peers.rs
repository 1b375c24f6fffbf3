//! `bench/peers` where there is no GPU: gpumem alone on the host device, from the build to the
//! table.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{gpumem, json, run, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::{symlink, PermissionsExt};
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
    // Nothing is timed here.
    command.env("CXXFLAGS", "-O0");
    let done = run(command.env("OPS", "400").env("SCALING", "1").env("PROGRAMS", "3"));
    assert!(done.status.success(), "{}\n{}", stdout(&done), stderr(&done));

    let lines: Vec<Value> = std::fs::read_to_string(out.join("peers.jsonl"))
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
        .collect();
    let measured: BTreeSet<_> = lines.iter().map(|l| (l["workload"].as_str().unwrap(), l["run"].as_u64())).collect();
    assert_eq!(measured.len(), 2 * 22, "22 workloads, twice: {measured:?}");
    assert!(lines.iter().all(|l| l["allocator"] == "gpumem" && l["metric"] != "failed"), "{lines:?}");
    let page = std::fs::read_to_string(root().join("docs/benchmarks.md")).unwrap();
    let told = page.split_once("| workload | what it does |").unwrap().1.split("\n\n").next().unwrap();
    let untold: Vec<_> = measured.iter().filter(|(name, _)| !told.contains(&format!("\n| {name} | "))).collect();
    assert!(untold.is_empty(), "docs/benchmarks.md does not say what these do: {untold:?}");
    assert_eq!(figures(&lines, "replay", "failures"), [0.0; 4]);
    assert_eq!(figures(&lines, "cold", "malloc").len(), 2 * 5 * 2, "two cases in five processes, twice");
    let sizes = lines.iter().filter(|l| l["workload"] == "growth").map(|l| l["case"].as_str().unwrap());
    let sizes: BTreeSet<_> = sizes.collect();
    assert_eq!(sizes, ["2000 x 64 KiB", "2000 x 2 MiB", "2000 x 3 MiB", "2000 x 1000 B"].into());

    let table = std::fs::read_to_string(out.join("peers.md")).unwrap();
    assert!(table.contains("| workload | case | metric | gpumem | gpumem, again |"), "{table}");
    assert!(table.contains("Driver calls of gpumem an operation") && table.contains(" hot 0."), "{table}");
    assert!(stdout(&done).contains(&table), "the table is printed too");
    let scaling = std::fs::read_to_string(out.join("scaling.jsonl")).unwrap();
    let scaling: Value = serde_json::from_str(&scaling).unwrap();
    for (metric, most) in [("rate", 3), ("processes", 5), ("beside additions", 5), ("additions", 5)] {
        let made = scaling[metric].as_object().unwrap();
        assert!(made.len() == most && made.values().all(|v| v.as_f64().unwrap() > 0.0), "{metric}: {scaling}");
    }
    assert!(table.contains("\n| 16 | ") && table.contains("16 threads make "), "{table}");

    let programs = std::fs::read_to_string(out.join("programs.json")).unwrap();
    let programs: Value = serde_json::from_str(&programs).unwrap();
    for (seed, of) in programs.as_object().unwrap() {
        let (mean, used, about) = (&of["gpumem"]["mean"], &of["gpumem"]["utilisation"], &of["gpumem"]["about"]);
        assert!(mean.as_f64().unwrap() > 0.0 && used.as_f64().unwrap() > 0.0, "seed {seed}: {of}");
        assert!(about.as_str().unwrap().contains(" streams, sizes "), "seed {seed}: {of}");
    }
    assert!(table.contains("\n3 programs, 3 of which every allocator could run:\n"), "{table}");

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
        // The second run took it in three processes.
        ("gpumem", 2, "mean", 0.1, "us", ""),
        ("gpumem", 2, "mean", 0.2, "us", ""),
        ("gpumem", 2, "mean", 0.9, "us", ""),
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

/// A script of `bench/peers` with these arguments; what it printed, and its exit status.
fn script(name: &str, arguments: &[&str], python_path: &Path) -> (String, String, Option<i32>) {
    let mut command = Command::new("python3");
    command.arg(root().join("bench/peers").join(name)).args(arguments).env("PYTHONPATH", python_path);
    let out = run(command.env("PYTHONDONTWRITEBYTECODE", "1"));
    (stdout(&out), stderr(&out), out.status.code())
}

fn turns(arguments: &[&str], python_path: &Path) -> (String, String, Option<i32>) {
    script("torch_turns.py", arguments, python_path)
}

/// One process of `torch_turns.py`: the milliseconds of its steps, of which those at even places
/// are gpumem's or, swapped, those at odd ones.
fn turns_line(swapped: usize, ms: impl Fn(usize, bool) -> f64) -> String {
    let step = |i: usize| {
        let gpumem = i % 2 == swapped;
        serde_json::json!([if gpumem { "gpumem" } else { "torch_native" }, ms(i, gpumem)])
    };
    let steps: Vec<Value> = (0..60).map(step).collect();
    format!("{}\n", serde_json::json!({"workload": "w", "swapped": swapped, "steps": steps}))
}

#[test]
fn what_one_process_or_one_step_has_does_not_count_for_an_allocator() {
    if missing(&["python3"]) {
        return;
    }
    let dir = tempdir().unwrap();
    let file = dir.path().join("results.jsonl");
    // gpumem takes 0.9 of the time; the second process is 1.5 times as slow; steps differ by a
    // factor of 20; the first ten steps of gpumem and one late step take ages.
    let ms = |swapped: usize| {
        move |i: usize, gpumem: bool| {
            let odd = if i < 10 && gpumem || i == 33 && swapped == 0 { 50.0 } else { 1.0 };
            odd * (1.0 + (i % 20) as f64) * if gpumem { 0.9 } else { 1.0 } * if swapped == 1 { 1.5 } else { 1.0 }
        }
    };
    let (plain, swapped) = (turns_line(0, ms(0)), turns_line(1, ms(1)));
    std::fs::write(&file, format!("{plain}{swapped}")).unwrap();
    let name = file.to_str().unwrap();
    let (table, errors, status) = turns(&["--report", name], dir.path());
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{table}");
    let row: Vec<&str> = table.lines().last().unwrap().split(" | ").collect();
    assert_eq!((row[0], row[1], row[4], row[5]), ("| w", "50", "**0.900**", "0.000"), "{table}");
    assert_eq!(row[6], "0.667 |", "{table}");

    // Draws that are the same in both processes, and a process alone, are no comparison.
    std::fs::write(&file, format!("{plain}{}", plain.replace("\"swapped\":0", "\"swapped\":1"))).unwrap();
    let (_, errors, status) = turns(&["--report", name], dir.path());
    assert!(status == Some(1) && errors.contains("w: not steps of opposite draws"), "{errors}");
    std::fs::write(&file, &plain).unwrap();
    let (_, errors, status) = turns(&["--report", name], dir.path());
    assert!(status == Some(1) && errors.contains("w: 1 processes, 0 of the opposite draws"), "{errors}");
    std::fs::write(&file, "{}\n").unwrap();
    let (_, errors, status) = turns(&["--report", name], dir.path());
    assert!(status == Some(2) && errors.contains("no results of torch_turns.py"), "{errors}");
}

#[test]
fn two_processes_take_the_same_steps_with_opposite_draws() {
    if missing(&["python3", "cc"]) {
        return;
    }
    // A stand-in for PyTorch, for the library behind it, and a program that ends 24 steps.
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(at("torch")).unwrap();
    std::fs::write(at("torch/__init__.py"), "class cuda:\n    def synchronize(): pass\n").unwrap();
    let program = "import sys, torch\nif sys.argv[1] == 'broken': sys.exit('no such model')\n\
        assert sys.argv[2] == 'gpumem' and sys.argv[3].endswith('turns.so')\n\
        for _ in range(24): torch.cuda.synchronize()\n";
    std::fs::write(at("program.py"), program).unwrap();
    std::fs::write(
        at("turns.c"),
        "#include <stdio.h>\nvoid torch_turns_choose(int who) { fprintf(stderr, \"%d\", who); }\n",
    )
    .unwrap();
    let built = run(Command::new("cc").args(["-shared", "-fPIC", "-o", &at("turns.so"), &at("turns.c")]));
    assert!(built.status.success(), "{}", stderr(&built));

    let measured = |workload: &str| {
        let (program, library, results) = (at("program.py"), at("turns.so"), at("results.jsonl"));
        let options = ["--library", &library, "--gpumem", &library, "--results", &results];
        turns(&[&[program.as_str(), "--workloads", workload], &options[..]].concat(), dir.path())
    };
    let (table, errors, status) = measured("w");
    assert_eq!(status, Some(0), "{table}{errors}");
    assert!(table.lines().last().unwrap().starts_with("| w | 20 |"), "{table}");
    let kept = std::fs::read_to_string(at("results.jsonl")).unwrap();
    let lines: Vec<Value> = kept.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let order = |line: &Value| -> String {
        let steps = line["steps"].as_array().unwrap();
        steps.iter().map(|s| if s[0] == "gpumem" { '1' } else { '0' }).collect()
    };
    let orders: Vec<String> = lines.iter().map(order).collect();
    let opposite: String = orders[0].chars().map(|c| if c == '0' { '1' } else { '0' }).collect();
    assert_eq!((orders[0].len(), orders.len()), (24, 2));
    assert_eq!(opposite, orders[1], "the same steps, every draw the other way round");
    assert_eq!(orders[0].matches('1').count(), 12, "{orders:?}");

    // What the library was told is what the steps say.
    let one = turns(
        &[&at("program.py"), "--one", "w", "1", "--library", &at("turns.so"), "--results", &at("one.json")],
        dir.path(),
    );
    assert!(one.1.starts_with(&orders[1]), "{one:?}\n{orders:?}");

    let (_, errors, status) = measured("broken");
    assert!(
        status == Some(1) && errors.contains("broken failed: status 1") && errors.contains("no such model"),
        "{errors}"
    );
}

#[test]
fn what_several_make_is_compared_with_the_most_that_one_makes() {
    if missing(&["python3"]) {
        return;
    }
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // Stand-ins for the two programs.
    let program = |name: &str, text: &str| {
        std::fs::write(at(name), format!("#!/bin/sh\necho {name} \"$@\" >> {}\n{text}", at("log"))).unwrap();
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(0o755)).unwrap();
    };
    let line = |metric: &str, case: &str, value: &str| {
        format!("echo '{{\"metric\":\"{metric}\",\"case\":\"{case}\",\"value\":{value}}}'\n")
    };
    let threads =
        [line("rate", "1 thread", "2"), line("calls", "1 thread", "9"), line("rate", "16 threads", "20")].concat();
    let both = |metric: &str, one: &str, all: &str| line(metric, "1", one) + &line(metric, "16", all);
    let apart =
        [both("processes", "4", "32"), both("beside additions", "4", "3"), both("additions", "1", "16")].concat();
    program("threads", &threads);
    program("apart", &apart);
    let measured = |rounds: &str| {
        let (program, apart, results) = (at("threads"), at("apart"), at("results.jsonl"));
        let options = ["--program", &program, "--apart", &apart, "--results", &results, "--ops", "7"];
        script("scaling.py", &[&["--rounds", rounds], &options[..]].concat(), dir.path())
    };
    let (table, errors, status) = measured("2");
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{table}");
    let log = std::fs::read_to_string(at("log")).unwrap();
    let (first, second) = ("threads --ops 7 gpumem threads", "apart 16 0.01");
    assert_eq!(log.lines().collect::<Vec<_>>(), [first, second, second, first], "in turns");
    let row = |table: &str| table.lines().find(|l| l.starts_with("| 16 ")).unwrap().to_owned();
    let same = |ratio| format!(" {ratio} ({ratio} to {ratio}) |");
    assert_eq!(row(&table), format!("| 16 |{}", ["10.0", "8.0", "12.0", "16.0"].map(same).concat()));
    assert!(table.contains("16 threads make 0.62 (0.62 to 0.62) times"), "{table}");
    assert!(table.ends_with("and 6.7 (6.7 to 6.7) times what one process makes beside 15 that add.\n"), "{table}");

    // The most that one makes in any round is what all rounds are measured by.
    let kept = std::fs::read_to_string(at("results.jsonl")).unwrap();
    let slower = kept.lines().next().unwrap().replace("\"16\": 20", "\"16\": 12");
    let faster = kept.lines().next().unwrap().replace("\"1\": 2", "\"1\": 4").replace("\"16\": 20", "\"16\": 40");
    std::fs::write(at("kept.jsonl"), format!("{kept}{slower}\n{faster}\n")).unwrap();
    let (table, ..) = script("scaling.py", &["--report", &at("kept.jsonl")], dir.path());
    assert!(row(&table).starts_with("| 16 | 5.0 (3.0 to 10.0) | 8.0 (8.0 to 8.0) |"), "{table}");

    program("apart", "echo no cores >&2; exit 1");
    let (table, errors, status) = measured("1");
    assert!(status == Some(1) && errors.contains("scaling: apart failed: status 1\nno cores"), "{errors}");
    assert_eq!(table, "", "no table of nothing");
    for (options, why) in [(["--report", "/nowhere"], "no results"), (["--program", "/nowhere"], "no program /nowhere")]
    {
        let (_, errors, status) = script("scaling.py", &options, dir.path());
        assert!(status == Some(2) && errors.contains(why), "{errors}");
    }
}

#[test]
fn tensors_are_the_same_with_either_allocator() {
    if missing(&["python3"]) {
        return;
    }
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let stub = root().join("cli/tests/commands/stub_torch");
    std::fs::write(at("libgpumem.so"), "").unwrap();
    let measured = || {
        let (library, results) = (at("libgpumem.so"), at("results.jsonl"));
        let options = ["--runs", "2", "--library", &library, "--results", &results, "--cases", "4 KiB", "1,000 live"];
        script("torch_empty.py", &options, &stub)
    };
    let (table, errors, status) = measured();
    assert_eq!(status, Some(0), "{table}{errors}");
    let log = std::fs::read_to_string(at("log")).unwrap();
    let who: Vec<(&str, &str)> =
        log.lines().map(|l| l.split_at(l.find(|c: char| c.is_ascii_digit()).unwrap())).collect();
    let (native, ours) = ("torch_native ", "libgpumem.so gpumem_torch_malloc gpumem_torch_free ");
    assert_eq!(who.iter().map(|w| w.0).collect::<Vec<_>>(), [native, ours, ours, native], "in turns");
    assert!(who.iter().all(|w| w.1 == who[0].1), "the same sizes in the same order: {log}");
    assert!(who[0].1.starts_with("641000 999 "), "16 rounds of 20,000 in two cases, the second among 1,000: {log}");
    let row = |name: &str| table.lines().any(|l| l.starts_with(&format!("| {name} | ")) && l.ends_with("** |"));
    assert!(row("4 KiB") && row("1,000 live"), "{table}");

    let line = |allocator: &str, us: f64| format!("{{\"allocator\": \"{allocator}\", \"us\": {{\"c\": {us}}}}}\n");
    let kept: String =
        [("gpumem", 1.0), ("torch_native", 2.0), ("gpumem", 1.2), ("gpumem", 9.0), ("torch_native", 4.0)]
            .map(|(allocator, us)| line(allocator, us))
            .concat();
    std::fs::write(at("kept.jsonl"), kept).unwrap();
    let (table, ..) = script("torch_empty.py", &["--report", &at("kept.jsonl")], &stub);
    let last = table.lines().last().unwrap();
    assert_eq!(last, "| c | 3.000 (2.000 to 4.000) | 1.200 (1.000 to 9.000) | **0.40** |", "medians, limits, ratio");

    std::fs::write(at("broken"), "").unwrap();
    let (table, errors, status) = measured();
    assert!(status == Some(1) && errors.contains("gpumem failed: status 1\nno such device"), "{errors}");
    assert!(table.lines().last().unwrap().ends_with("|  |  |"), "no ratio without gpumem: {table}");
}

#[test]
fn stand_ins_for_gpumem_pass_calls_on_to_whom_they_belong() {
    if missing(&["g++"]) {
        return;
    }
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let stub = root().join("cli/tests/commands/stub_torch");
    let compile = |source: PathBuf, out: &str, options: &[&str]| {
        let mut command = Command::new("g++");
        command.args(["-std=c++20", "-O1", "-Wall", "-Wextra", "-pthread", "-I"]).arg(&stub);
        let built = run(command.arg(source).args(["-o", &at(out), "-ldl"]).args(options));
        assert!(built.status.success(), "{}", stderr(&built));
        assert_eq!(stderr(&built), "", "{out} compiles without a warning");
    };
    compile(stub.join("stand_ins.cpp"), "stand_ins", &["-rdynamic"]);
    for library in ["torch_time", "torch_turns"] {
        let source = root().join("bench/peers").join(library).with_extension("cpp");
        compile(source, &format!("{library}.so"), &["-shared", "-fPIC"]);
    }
    let gpumem = install(&dir).join("lib/libgpumem.so.0");
    let stand_in = |library: &str, of_own: &str, set: &[(&str, &Path)]| {
        let mut command = Command::new(at("stand_ins"));
        command.args([at(library).as_str(), of_own]).env("GPUMEM_BACKEND", "host").envs(set.iter().copied());
        run(&mut command)
    };
    let times = dir.path().join("times.jsonl");
    for (to, own) in [(gpumem.as_path(), "0"), (Path::new("native"), "2")] {
        let done = stand_in("torch_time.so", own, &[("TIMED", to), ("TIMED_OUT", &times)]);
        assert!(done.status.success(), "{to:?}: {}", stderr(&done));
    }
    let lines: Vec<Value> =
        std::fs::read_to_string(&times).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&lines[0]["allocator"], &lines[1]["allocator"]), (&"gpumem".into(), &"torch_native".into()));
    for line in &lines {
        let count = |name: &str| line[name].as_u64().unwrap();
        assert_eq!(count("mallocs") + count("frees") + count("long_calls"), 4, "{line}");
    }
    let done = stand_in("torch_turns.so", "turns", &[("GPUMEM_LIBRARY", &gpumem)]);
    assert!(done.status.success(), "{}", stderr(&done));
    for (library, variable) in [("torch_time.so", "TIMED"), ("torch_turns.so", "GPUMEM_LIBRARY")] {
        let done = stand_in(library, "0", &[(variable, Path::new("/nowhere/libgpumem.so.0"))]);
        assert!(
            done.status.code() == Some(2) && stderr(&done).contains("/nowhere/libgpumem.so.0"),
            "{}",
            stderr(&done)
        );
    }
}

//! The bindings: their packages' own tests, where there is the language, and the list of behaviours
//! that all of them, C and Rust have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::cc;

use cc::Language;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

fn bindings() -> PathBuf {
    cc::root().join("bindings")
}

/// The names in the table of `CONFORMANCE.md`.
fn behaviours() -> BTreeSet<String> {
    let text = std::fs::read_to_string(bindings().join("CONFORMANCE.md")).unwrap();
    let names: BTreeSet<String> = text
        .lines()
        .filter_map(|l| l.strip_prefix("| `")?.split_once("` | "))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert!(names.len() >= 25, "only {} behaviours are listed", names.len());
    names
}

/// The names that a source has between two texts.
fn names_in(file: &str, before: &str, after: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(bindings().join(file)).unwrap();
    let between = |l: &str| Some(l.trim_start().strip_prefix(before)?.split_once(after)?.0.to_owned());
    text.lines().filter_map(between).filter(|name| name != "test").collect()
}

#[test]
fn every_behaviour_is_tested_in_every_language() {
    let listed = behaviours();
    assert_eq!(names_in("conformance.c", "BEHAVIOUR(", ");"), listed, "C");
    assert_eq!(names_in("../tests/context/conformance.rs", "fn ", "() {"), listed, "Rust");
    assert_eq!(names_in("julia/Gpumem.jl/test/conformance.jl", "behaviour(\"", "\") do"), listed, "Julia");
    assert_eq!(names_in("lean/Test/Main.lean", "(\"", "\", "), listed, "Lean");
    assert_eq!(names_in("python/tests/test_conformance.py", "def test_", "()"), listed, "Python");
}

/// A program passed, and said so of every behaviour.
fn all_are_ok(language: &str, out: &Output) {
    cc::must_succeed(language, out);
    let said = String::from_utf8_lossy(&out.stdout);
    let ok: BTreeSet<String> = said.lines().filter_map(|l| l.strip_prefix("ok ")).map(str::to_owned).collect();
    assert_eq!(ok, behaviours(), "{language}");
}

/// The settings of every run: the host device, and nothing else of this process's.
fn prepared(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GPUMEM_")) {
        command.env_remove(name);
    }
    command.env("GPUMEM_BACKEND", "host").env("GPUMEM_ARENA_DEBUG", "check").env("GPUMEM_LIBRARY", cc::cdylib());
    command
}

#[test]
fn c_conforms() {
    let program = cc::scratch("bindings").join("conformance");
    cc::compile(&bindings().join("conformance.c"), Language::C99, &program, &[])
        .unwrap_or_else(|words| panic!("{words}"));
    all_are_ok("C", &cc::run(&mut prepared(&program), LIMIT));
}

/// A library with which a program sees four processors: Julia before 1.9 starts no more threads
/// than there are.
fn four_processors() -> PathBuf {
    let dir = cc::scratch("bindings");
    let (source, library) = (dir.join("processors.c"), dir.join("processors.so"));
    let text = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <unistd.h>\n\
        long sysconf(int name) {\n\
        \x20   long (*real)(int);\n\
        \x20   if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return 4;\n\
        \x20   *(void **)&real = dlsym(RTLD_NEXT, \"sysconf\");\n\
        \x20   return real(name);\n}\n";
    std::fs::write(&source, text).unwrap();
    let out =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    library
}

/// A Julia: on the PATH, or unpacked by `bindings/julia/fetch-julia.sh` into the target folder.
fn julia() -> Option<PathBuf> {
    if cc::have("julia") {
        return Some("julia".into());
    }
    // target/tmp is cargo's; the script's default is beside it.
    let fetched = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?.join("julia/julia");
    cc::have(fetched.to_str()?).then_some(fetched)
}

fn julia_with_threads(julia: &Path, threads: &str, script: &str) -> Output {
    let package = bindings().join("julia/Gpumem.jl");
    let mut command = prepared(julia);
    command.env("LD_PRELOAD", four_processors()).args(["--startup-file=no", "-t", threads]);
    command.arg(format!("--project={}", package.display())).arg(package.join(script));
    cc::run(&mut command, LIMIT)
}

#[test]
fn julia_conforms() {
    let Some(julia) = julia() else {
        return println!("skipped: no Julia (on the PATH, or by `make julia`)");
    };
    let out = julia_with_threads(&julia, "4", "test/runtests.jl");
    all_are_ok("Julia", &out);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("all of Julia's tests passed, on 4 threads and the host device"), "{said}");
    // With one thread too, but for what needs two.
    all_are_ok("Julia with one thread", &julia_with_threads(&julia, "1", "test/runtests.jl"));
}

/// The loop is flat with arenas and grows without; the example itself compares, and exits with 1 if
/// not.
#[test]
fn julias_examples_run() {
    let Some(julia) = julia() else {
        return println!("skipped: no Julia (on the PATH, or by `make julia`)");
    };
    let out = julia_with_threads(&julia, "1", "examples/training_loop.jl");
    cc::must_succeed("training_loop.jl", &out);
    loops_as_it_should("Julia", &String::from_utf8_lossy(&out.stdout));
    let out = julia_with_threads(&julia, "1", "examples/first.jl");
    cc::must_succeed("first.jl", &out);
    assert!(String::from_utf8_lossy(&out.stdout).contains("1024.0 of DeviceBuffer(4 KiB at "));
}

fn loops_as_it_should(language: &str, said: &str) {
    assert!(
        said.contains("reclaimed 256 buffers in 4 arenas, 256 still held, 0 more live than before"),
        "{language}: {said}"
    );
    assert!(
        said.contains("use-after-arena-free: mul x was reclaimed by arena_exit at depth 0 (arena "),
        "{language}: {said}"
    );
    let last = said.lines().find(|l| l.starts_with("with arenas: ")).unwrap();
    let numbers: Vec<u64> =
        last.split(|c: char| !c.is_ascii_digit()).filter(|w| !w.is_empty()).map(|w| w.parse().unwrap()).collect();
    let [flat, _, flat_twice, _, grown, grown_twice] = numbers[..] else { panic!("{language}: {last}") };
    assert!(flat == flat_twice && grown > 10 * flat && grown_twice >= 2 * grown, "{language}: {last}");
}

#[test]
fn lean_conforms() {
    if !cc::have("lake") {
        return println!("skipped: no Lean (lake is not on the PATH)");
    }
    let lake = |target: &str| {
        let mut command = prepared("lake");
        command.env("GPUMEM_LOG", "0").args(["exe", target]).current_dir(bindings().join("lean"));
        cc::run(&mut command, LIMIT)
    };
    all_are_ok("Lean", &lake("gpumemTest"));
    let out = lake("trainingLoop");
    cc::must_succeed("TrainingLoop.lean", &out);
    loops_as_it_should("Lean", &String::from_utf8_lossy(&out.stdout));
}

/// The libraries and the command of this build in one folder, as a wheel is made of; none where
/// some are not built.
fn prebuilt() -> Option<PathBuf> {
    let deps = cc::cdylib().parent()?.to_path_buf();
    let profile = deps.parent()?;
    let found = |name: &str| [deps.join(name), profile.join(name)].into_iter().find(|p| p.exists());
    let dir = cc::scratch("python");
    for name in ["libgpumem.so", "libgpumem_preload.so", "gpumem"] {
        let to = dir.join(name);
        let _ = std::fs::remove_file(&to);
        std::os::unix::fs::symlink(found(name)?, to).unwrap();
    }
    Some(dir)
}

/// The wheel in a virtual environment, or the sources where only the library is built.
#[test]
fn python_conforms() {
    let mut command = prepared("sh");
    command.arg(bindings().join("python/test.sh")).arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python"));
    match prebuilt() {
        Some(dir) => command.env("GPUMEM_PREBUILT", dir),
        None => command.env("GPUMEM_LIBRARY", cc::cdylib()),
    };
    let out = cc::run(&mut command, LIMIT);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() && said.lines().count() == 1 && said.starts_with("skipped: ") {
        return print!("{said}");
    }
    all_are_ok("Python", &out);
    assert!(said.lines().any(|l| l.contains(" passed")), "{said}");
}

//! The C ABI through the eyes of C: every program of `c_tests/`, compiled as what it is and run.
//! Those in C compile as C++17 too, and one of them runs as that: the calls are the same. With
//! `GPUMEM_TEST_MEMCHECK=1` (`make memcheck`) each runs once under valgrind, or with
//! AddressSanitizer where there is no valgrind.
//!
//! On the host device unless `GPUMEM_TEST_BACKEND` says `cuda`; the programs are the same. They
//! stay in `target/tmp/c_abi/`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::cc;

use cc::Language;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::forget_settings;

const LIMIT: Duration = Duration::from_secs(300);
const LIMIT_UNDER_VALGRIND: Duration = Duration::from_secs(1200);

/// A test per program and language.
macro_rules! programs {
    ($($name:ident: $($language:ident)*;)*) => {
        /// The sources that have tests here.
        const SOURCES: &[&str] = &[$(stringify!($name)),*];
        $(
            mod $name {
                $(#[test]
                #[allow(non_snake_case)]
                fn $language() {
                    super::test(stringify!($name), super::cc::Language::$language);
                })*
            }
        )*
    };
}

programs! {
    everyday: C99 Cxx17;
    arena: C99 Cxx17;
    arena_threads: C99 Cxx17;
    arena_raii: Cxx17;
    streams: C99 Cxx17;
    realloc: C99 Cxx17;
    inside: C99 Cxx17;
    bad_input: C99 Cxx17;
    frees: C99 Cxx17;
    share: C99 Cxx17;
    check: C99 Cxx17;
    fork: C99 Cxx17;
    exit: C99 Cxx17;
    late: C99 Cxx17;
    environment: C99 Cxx17;
    init: C99 Cxx17;
    devices: C99 Cxx17;
    threads: C99 Cxx17;
    graph: C99 Cxx17;
    graph_raii: Cxx17;
    torch: C99 Cxx17;
    torch_throw: Cxx17;
    raii: Cxx17;
    streams_raii: Cxx17;
    default_stream: C99 Cxx17;
    default_stream_raii: Cxx17;
    rmm_cases: Cxx17;
    capture: C99 Cxx17;
    capture_auto: C99 Cxx17;
    capture_raii: Cxx17;
    torch_graph: Cxx17;
    plan: C99 Cxx17;
    plan_graph: C99 Cxx17;
    plan_misuse: C99 Cxx17;
    plan_threads: C99 Cxx17;
    plan_no_threads: C99 Cxx17;
    plan_memory: C99 Cxx17;
    plan_raii: Cxx17;
    spaces: C99 Cxx17;
    reserve: C99 Cxx17;
    reserve_wait: C99 Cxx17;
    reserve_draw: C99 Cxx17;
    reserve_raii: Cxx17;
    stream_pool: C99 Cxx17;
    evict: C99 Cxx17;
    evict_exit: C99 Cxx17;
    evict_faults: C99 Cxx17;
    evict_raii: Cxx17;
    host: C99 Cxx17;
    host_threads: C99 Cxx17;
    host_raii: Cxx17;
    disks: C99 Cxx17;
    disk_exit: C99 Cxx17;
    cancel: C99 Cxx17;
    signals: C99 Cxx17;
    across: Cxx17;
    random_calls: Cxx17;
    simulate: C99 Cxx17;
    settings: C99 Cxx17;
    record: C99 Cxx17;
    record_raii: Cxx17;
}

/// The program in C that links and runs as C++ too: the header gives its functions C's names there.
const RUNS_AS_CXX: &str = "everyday";

fn test(name: &str, language: Language) {
    if !cc::have(language.compiler()) {
        println!("skipped: there is no {}", language.compiler());
        return;
    }
    let c_as_cxx = language == Language::Cxx17 && source(name).extension().is_some_and(|e| e == "c");
    if c_as_cxx && memcheck() {
        return println!("skipped: the same calls of the same library as in C, which are looked at there");
    }
    if c_as_cxx && name != RUNS_AS_CXX {
        return must_be_accepted(name, language);
    }
    let program = build(name, language, &[]);
    if !memcheck() {
        run_plain(name, &program);
    } else if backend() != "host" {
        println!("skipped: valgrind does not know CUDA");
    } else if cc::have("valgrind") {
        run_under_valgrind(name, &program);
    } else {
        run_with_asan(name, language);
    }
}

/// Whether the programs run under valgrind, which takes most of them 2 s of a processor whatever
/// they do.
fn memcheck() -> bool {
    std::env::var_os("GPUMEM_TEST_MEMCHECK").is_some_and(|v| v == "1")
}

fn backend() -> String {
    std::env::var("GPUMEM_TEST_BACKEND").unwrap_or_else(|_| "host".into())
}

fn source(name: &str) -> PathBuf {
    let dir = cc::root().join("c_tests");
    [dir.join(format!("{name}.c")), dir.join(format!("{name}.cpp"))].into_iter().find(|p| p.exists()).unwrap()
}

fn build(name: &str, language: Language, extra: &[&str]) -> PathBuf {
    let dir = cc::scratch("c_abi");
    let asan = if extra.is_empty() { "" } else { "-asan" };
    let program = dir.join(format!("{name}-{}{asan}", language.name()));
    let mut extra = extra.to_vec();
    let stub = dir.join("libc10_cuda.so");
    let rpath = format!("-Wl,--no-as-needed,-rpath,{}", dir.display());
    if name == "torch_throw" {
        make_stub(&stub);
        extra.extend([rpath.as_str(), stub.to_str().unwrap(), "-Wl,--as-needed"]);
    }
    if let Err(words) = cc::compile(&source(name), language, &program, &extra) {
        panic!("{name} does not compile as {}:\n{words}", language.name());
    }
    program
}

/// Compiles, and makes no program.
fn must_be_accepted(name: &str, language: Language) {
    let stamp = cc::scratch("c_abi").join(format!("{name}-{}.accepted", language.name()));
    if let Err(words) = cc::accept(&source(name), language, &stamp) {
        panic!("{name} does not compile as {}:\n{words}", language.name());
    }
}

fn make_stub(to: &Path) {
    let out = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libc10_cuda.so", "-o"])
        .arg(to)
        .arg(cc::root().join("c_tests/stub_c10_cuda.c"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// The settings every program starts from: a backend, and nothing else of this process's.
fn prepare(command: &mut Command) -> &mut Command {
    forget_settings(command).env("GPUMEM_BACKEND", backend()).env("GPUMEM_TEST_BACKEND", backend())
}

/// Reserves little: valgrind and AddressSanitizer have tables for every address.
fn prepare_small(command: &mut Command) -> &mut Command {
    prepare(command).env("GPUMEM_VA_SIZE", "8G").env("GPUMEM_HOST_BYTES", "2G")
}

fn run_plain(name: &str, program: &Path) {
    let out = cc::run(prepare(&mut Command::new(program)), LIMIT);
    cc::must_succeed(name, &out);
    if name == "torch_throw" {
        assert!(!String::from_utf8_lossy(&out.stdout).contains("skipped"), "the stub was not loaded");
    }
}

fn run_under_valgrind(name: &str, program: &Path) {
    let mut command = Command::new("valgrind");
    command.args(["-q", "--error-exitcode=97", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    command.args(["--show-leak-kinds=definite", "--fair-sched=yes", "--num-callers=30"]);
    // Reading which functions are inlined where takes longer than many of the programs.
    command.arg("--read-inline-info=no").arg(program);
    let out = cc::run(prepare_small(&mut command), LIMIT_UNDER_VALGRIND);
    cc::must_succeed(&format!("{name} under valgrind"), &out);
}

fn run_with_asan(name: &str, language: Language) {
    let probe = cc::scratch("c_abi").join("asan-probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").unwrap();
    let flags = ["-fsanitize=address,undefined"];
    if cc::compile(&probe, Language::C99, &probe.with_extension(""), &flags).is_err() {
        println!("skipped: neither valgrind nor AddressSanitizer is installed");
        return;
    }
    let program = build(name, language, &flags);
    // Leaks are the library's way out, and exit.c means to leave things behind.
    let out = cc::run(prepare_small(Command::new(program).env("ASAN_OPTIONS", "detect_leaks=0")), LIMIT_UNDER_VALGRIND);
    cc::must_succeed(&format!("{name} with AddressSanitizer"), &out);
}

/// A source without a line in the table above would never run.
#[test]
fn every_source_has_a_test() {
    for file in std::fs::read_dir(cc::root().join("c_tests")).unwrap().map(|e| e.unwrap().path()) {
        let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let source = file.extension().is_some_and(|e| e == "c" || e == "cpp");
        if source && !stem.starts_with("stub_") {
            assert!(SOURCES.contains(&stem.as_str()), "{} has no test in tests/capi/c_abi.rs", file.display());
        }
    }
}

/// The checks can fail: a program that reads freed memory is reported, one that fails a CHECK ends
/// with 1.
#[test]
fn the_harness_can_fail() {
    if !cc::have("cc") {
        println!("skipped: there is no cc");
        return;
    }
    let dir = cc::scratch("c_abi");
    let source = dir.join("must-fail.c");
    std::fs::write(
        &source,
        "#include \"harness.h\"\nstatic void f(void) { CHECK(gpumem_version() == 0); }\nint main(void) { RUN(f); return 0; }\n",
    )
    .unwrap();
    let include = format!("-I{}", cc::root().join("c_tests").display());
    let program = dir.join("must-fail");
    cc::compile(&source, Language::C99, &program, &[&include]).unwrap();
    let out = cc::run(prepare(&mut Command::new(&program)), LIMIT);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("gpumem_version() == 0"));
    if cc::have("valgrind") {
        std::fs::write(
            &source,
            "#include <stdlib.h>\nint main(void) { volatile char *volatile p = (char *)malloc(4); return p[4] == 77; }\n",
        )
        .unwrap();
        cc::compile(&source, Language::C99, &program, &["-O0"]).unwrap();
        let out = Command::new("valgrind").args(["-q", "--error-exitcode=97"]).arg(&program).output().unwrap();
        assert_eq!(out.status.code(), Some(97));
    }
}

/// A program is compiled again when a file of it or the command has changed, and only then; one
/// that did not compile, always.
#[test]
fn what_has_changed_is_compiled_again() {
    if !cc::have("cc") {
        println!("skipped: there is no cc");
        return;
    }
    let dir = cc::scratch("c_abi_again");
    let (source, header, program) = (dir.join("again.c"), dir.join("again.h"), dir.join("again"));
    std::fs::write(&source, "#include \"again.h\"\nint main(void) { return VALUE; }\n").unwrap();
    let compile = |extra: &[&str]| cc::compile(&source, Language::C99, &program, extra);
    let value = |to: &str| std::fs::write(&header, to).unwrap();
    let code = || cc::run(&mut Command::new(&program), LIMIT).status.code();
    value("#define VALUE 3\n");
    compile(&[]).unwrap();
    assert_eq!(code(), Some(3));
    // What stands in its place now stays there.
    std::fs::copy("/bin/false", &program).unwrap();
    compile(&[]).unwrap();
    assert_eq!(code(), Some(1));
    value("#ifndef VALUE\n#define VALUE 4\n#endif\n");
    compile(&[]).unwrap();
    assert_eq!(code(), Some(4));
    compile(&["-DVALUE=5"]).unwrap();
    assert_eq!(code(), Some(5));
    value("#error gone\n");
    for _ in 0..2 {
        assert!(compile(&["-DVALUE=5"]).unwrap_err().contains("gone"));
    }
}

//! The fuzzer on the library that has just been built, shortly; and that it finds a bug and shows
//! it in C, on a library with one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Cargo makes it together with the one that Rust programs link.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libgpumem.so")
}

fn fuzz(library: &Path, out: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem-fuzz"));
    command.arg("--library").arg(library).arg("--out").arg(out).args(["--seconds", "0"]).args(args);
    command.arg("--include").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../include")).output().unwrap()
}

fn told(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn programs_of_one_thread_and_of_three() {
    let out = tempfile::tempdir().unwrap();
    for threads in ["1", "3"] {
        let done = fuzz(&library(), out.path(), &["--seed", "7000", "--programs", "40", "--threads", threads]);
        assert!(done.status.success(), "{}", told(&done));
    }
}

/// A library between the programs and gpumem that gives the third allocation's memory out again.
const FAULTY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int gpumem_malloc_async(size_t bytes, void *s, void **out) {
    static int (*real)(size_t, void *, void **);
    static void *third;
    static int calls;
    if (!real) real = (int (*)(size_t, void *, void **))dlsym(RTLD_NEXT, "gpumem_malloc_async");
    int status = real(bytes, s, out);
    if (status == 0 && ++calls == 3) third = *out;
    if (status == 0 && calls == 5) *out = third;
    return status;
}
"#;

#[test]
fn a_bug_is_found_and_shrunk_to_a_short_program_in_c() {
    let out = tempfile::tempdir().unwrap();
    let (source, faulty) = (out.path().join("faulty.c"), out.path().join("libfaulty.so"));
    std::fs::write(&source, FAULTY).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&faulty).arg(&source).arg("-Wl,--no-as-needed").arg(library());
    cc.arg("-ldl").arg(format!("-Wl,-rpath,{}", out.path().display()));
    std::os::unix::fs::symlink(library(), out.path().join("libgpumem.so.0")).unwrap();
    match cc.output() {
        Ok(built) if built.status.success() => {}
        Ok(built) => panic!("{}", told(&built)),
        Err(e) => return println!("skipped: no C compiler (cc): {e}"),
    }
    let done = fuzz(&faulty, out.path(), &["--seed", "1", "--programs", "40", "--shrink-seconds", "20"]);
    let said = told(&done);
    assert_eq!(done.status.code(), Some(1), "{said}");
    // It is handed out to two, the second of which may want more than it has.
    assert!(said.contains("overlap") || said.contains("too small"), "{said}");
    assert!(said.contains("shows it as well"), "{said}");
    let shrunk = said.lines().find_map(|l| l.trim().strip_prefix("shrunk to ")).unwrap();
    let operations: usize = shrunk.split(' ').next().unwrap().parse().unwrap();
    assert!((5..=8).contains(&operations), "{said}");
    let mut files = std::fs::read_dir(out.path()).unwrap().map(|f| f.unwrap().path());
    let program = files.find(|f| f.extension().is_some_and(|e| e == "c") && *f != source).unwrap();
    assert!(std::fs::read_to_string(program).unwrap().contains("gpumem_malloc_async("));
}

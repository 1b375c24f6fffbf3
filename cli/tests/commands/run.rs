//! `gpumem run`: what the program gets, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Stands in for the library; nothing of it is called. `None`, and why, without a compiler.
fn library(dir: &Path) -> Option<PathBuf> {
    let (source, out) = (dir.join("empty.c"), dir.join("libstand_in.so"));
    std::fs::write(&source, "int gpumem_stands_in;\n").unwrap();
    match Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&out).arg(&source).status() {
        Ok(status) if status.success() => Some(out.canonicalize().unwrap()),
        _ => {
            println!("skipped: no C compiler (cc)");
            None
        }
    }
}

fn gpumem(library: &Path, args: &[&str]) -> Output {
    command(library, args).output().unwrap()
}

fn command(library: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem"));
    for name in ["GPUMEM_LIMIT", "GPUMEM_FREE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.args(["run", "--library"]).arg(library).args(args);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_file_that_is_no_library_is_not_preloaded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes.txt");
    std::fs::write(&file, "not a library").unwrap();
    let out = gpumem(&file, &["--", "echo", "it ran"]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(2), ""));
    assert!(text(&out.stderr).contains("notes.txt is not a shared library"), "{}", text(&out.stderr));
    let out = gpumem(Path::new("/no/such/library.so"), &["--", "echo", "it ran"]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(2), ""));
    assert!(text(&out.stderr).contains("--library \"/no/such/library.so\": No such file"), "{}", text(&out.stderr));
}

#[test]
fn settings_reach_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = library(dir.path()) else { return };
    let args = ["--limit", "20G", "--free", "sync", "--stats", "--record", "x.csv", "--torch", "--", "env"];
    let out = gpumem(&library, &args);
    let lines: Vec<&str> = text(&out.stdout).lines().collect();
    let here = std::env::current_dir().unwrap().join("x.csv");
    for want in [
        "GPUMEM_LIMIT=20G".to_string(),
        "GPUMEM_FREE=sync".into(),
        "GPUMEM_STATS=1".into(),
        format!("GPUMEM_RECORD={}", here.display()),
        "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync".into(),
        format!("LD_PRELOAD={}", library.display()),
    ] {
        assert!(lines.contains(&want.as_str()), "{want} is not in {lines:?} {}", text(&out.stderr));
    }
}

#[test]
fn exit_status_signals_and_arguments_are_the_programs() {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = library(dir.path()) else { return };
    assert_eq!(gpumem(&library, &["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(gpumem(&library, &["sh", "-c", "kill -9 $$"]).status.signal(), Some(9));
    let out = gpumem(&library, &["printf", "%s.", "--limit", "-x", ""]);
    assert_eq!(text(&out.stdout), "--limit.-x..");
}

#[test]
fn what_cannot_work_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = library(dir.path()) else { return };
    let file = |name: &str, bytes: &[u8], mode| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_string()
    };
    let elf = std::fs::read("/proc/self/exe").unwrap();
    let changed = |at: usize, byte: u8| {
        let mut elf = elf.clone();
        elf[at] = byte;
        elf
    };
    let mut alone = elf.clone();
    alone[56] = 0; // no program headers, hence no loader
    alone[57] = 0;
    let narrow = file("narrow", &changed(4, 1), 0o755);
    let script = file("script", format!("#! {narrow} -x\n").as_bytes(), 0o755);
    for (program, why) in [
        (narrow.clone(), "32-bit"),
        (file("foreign", &changed(18, 8), 0o755), "another processor"),
        (file("alone", &alone, 0o755), "statically linked"),
        (file("setuid", &elf, 0o4755), "setuid"),
        (file("text", b"hello", 0o755), "neither an ELF program"),
        (file("plain", &elf, 0o644), "not executable"),
        ("./no-such-program-at-all".into(), "no such file"),
        ("/".into(), "not a file"),
        ("no-such-program-at-all".into(), "no folder of PATH"),
        (script, "32-bit"),
    ] {
        let out = gpumem(&library, &["--", &program]);
        assert_eq!(out.status.code(), Some(2), "{program}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(why), "{program}: {}", text(&out.stderr));
    }
    let out = gpumem(Path::new("/nowhere/x.so"), &["true"]);
    assert!(text(&out.stderr).contains("--library"), "{}", text(&out.stderr));
    // An option by its name, not by that of the variable that it sets.
    let not_utf8 = OsStr::from_bytes(b"x\xff");
    for (option, value, why) in [("--limit", "lots".as_ref(), "a size such as 16G"), ("--record", not_utf8, "UTF-8")] {
        let out = command(&library, &[option]).arg(value).arg("true").output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(option) && said.contains(why) && !said.contains("GPUMEM_"), "{said}");
    }
    // Those that only the library in front reads, too.
    for (name, value) in
        [("GPUMEM_FREE", "never"), ("GPUMEM_NATIVE", "x"), ("GPUMEM_STATS", "2"), ("GPUMEM_SLACK", "x")]
    {
        let out = command(&library, &["true"]).env(name, value).output().unwrap();
        assert!(out.status.code() == Some(2) && text(&out.stderr).contains(name), "{name}: {}", text(&out.stderr));
    }
    // An option is in place of the variable.
    let mut out = command(&library, &["--free", "sync", "--limit", "50%", "true"]);
    let out = out.env("GPUMEM_FREE", "never").env("GPUMEM_LIMIT", "lots").output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
}

/// A word where there is no driver, as nobody else says why so little is recorded.
#[test]
fn without_a_driver_there_is_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = library(dir.path()) else { return };
    if Command::new("sh").args(["-c", "ldconfig -p | grep -q libcuda.so"]).status().is_ok_and(|s| s.success()) {
        println!("skipped: this machine has a CUDA driver");
        return;
    }
    let run = |args: &[&str], log| {
        let out = command(&library, args).env("GPUMEM_LOG", log).env_remove("LD_LIBRARY_PATH").output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        text(&out.stderr).to_string()
    };
    assert!(run(&["true"], "1").contains("no CUDA driver"));
    assert!(run(&["--record", "x.csv", "true"], "1").contains("records only what uses gpumem itself"));
    assert_eq!(run(&["--record", "x.csv", "true"], "0"), "");
}

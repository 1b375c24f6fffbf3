//! Compiling C and C++ against the library that cargo has just built, and running what comes out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;
pub use test_support::{have, must_succeed, run};

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The shared library of this build. Cargo makes it together with the one that the tests link.
pub fn cdylib() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let so = exe.parent().unwrap().join("libgpumem.so");
    assert!(so.exists(), "{} is missing: cargo builds it with the tests", so.display());
    so
}

/// A folder for what tests build; programs stay there to be run by hand.
pub fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A folder in which the library has the names that the linker and the loader look for. Where there
/// is `strip`, it has no line numbers: valgrind would read them for a second in every program.
pub fn library_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch("lib");
        let made = dir.join(format!("made-{}", std::process::id()));
        let stripped = Command::new("strip").arg("--strip-debug").arg("-o").arg(&made).arg(cdylib()).status();
        if !stripped.is_ok_and(|s| s.success()) {
            std::fs::copy(cdylib(), &made).unwrap();
        }
        // At once, as another process may be running programs with the one before.
        std::fs::rename(&made, dir.join("libgpumem.so.0")).unwrap();
        let link = dir.join("libgpumem.so");
        if !link.exists() {
            let _ = std::os::unix::fs::symlink("libgpumem.so.0", &link);
        }
        dir
    })
}

/// The language a source is compiled as.
#[derive(Clone, Copy, PartialEq)]
pub enum Language {
    C99,
    Cxx17,
}

impl Language {
    pub fn compiler(self) -> &'static str {
        match self {
            Language::C99 => "cc",
            Language::Cxx17 => "c++",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Language::C99 => "c99",
            Language::Cxx17 => "cxx17",
        }
    }

    /// Strict: every warning is an error.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Language::C99 => &["-x", "c", "-std=c99", "-D_GNU_SOURCE"],
            Language::Cxx17 => &["-x", "c++", "-std=c++17"],
        }
    }
}

/// The compiler with its flags and a source; every warning is an error.
fn compiler(source: &Path, language: Language) -> Command {
    let mut command = Command::new(language.compiler());
    command.args(language.flags()).args(["-g", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread"]);
    command.arg("-I").arg(root().join("include")).arg(source);
    command
}

/// Has the compiler look at a source and make nothing of it but the file `stamp`; `Err` has its
/// words.
pub fn accept(source: &Path, language: Language, stamp: &Path) -> Result<(), String> {
    unless_done(compiler(source, language).arg("-fsyntax-only"), stamp)?;
    std::fs::write(stamp, "").map_err(|e| format!("{}: {e}", stamp.display()))
}

/// Compiles and links one source; `Err` has the compiler's words.
pub fn compile(source: &Path, language: Language, to: &Path, extra: &[&str]) -> Result<(), String> {
    let mut command = compiler(source, language);
    command
        .args(["-x", "none"])
        .args(extra)
        .arg("-L")
        .arg(library_dir())
        .arg("-lgpumem")
        .arg(format!("-Wl,-rpath,{}", library_dir().display()))
        .arg("-o")
        .arg(to);
    unless_done(&mut command, to)
}

/// Runs a compiler that makes `to`, unless the same command has made it of the same files. The
/// library is not one of them: a program that lacks a symbol of it does not start.
pub fn unless_done(command: &mut Command, to: &Path) -> Result<(), String> {
    let beside = |extension: &str| PathBuf::from(format!("{}.{extension}", to.display()));
    let (used, stamp) = (beside("d"), beside("stamp"));
    command.args(["-MD", "-MF"]).arg(&used);
    let words = format!("{command:?}");
    if to.exists() && is_fresh(&stamp, &words, &used) {
        return Ok(());
    }
    let _ = std::fs::remove_file(&stamp);
    let started = SystemTime::now();
    let out = command.output().map_err(|e| format!("{words}: {e}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    std::fs::write(&stamp, words).unwrap();
    // What is edited while the compiler runs is newer.
    std::fs::File::options().append(true).open(&stamp).unwrap().set_modified(started).unwrap();
    Ok(())
}

/// Whether `stamp` is of this command, and no file that the compiler listed in `used` has changed
/// since.
fn is_fresh(stamp: &Path, words: &str, used: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    let (Ok(said), Ok(used), Some(since)) =
        (std::fs::read_to_string(stamp), std::fs::read_to_string(used), modified(stamp))
    else {
        return false;
    };
    let Some((_, files)) = used.split_once(": ") else { return false };
    said == words
        && files.split_whitespace().filter(|f| *f != "\\").all(|f| modified(Path::new(f)).is_some_and(|at| at < since))
}

/// Writes a file, unless it holds that text: what is compiled of it is then as it was.
pub fn write(path: &Path, text: &str) {
    if !std::fs::read_to_string(path).is_ok_and(|now| now == text) {
        std::fs::write(path, text).unwrap();
    }
}

//! Compiling C and C++ against the library that cargo has just built, and running what comes out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
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

/// Compiles and links one source; `Err` has the compiler's words.
pub fn compile(source: &Path, language: Language, to: &Path, extra: &[&str]) -> Result<(), String> {
    let out = Command::new(language.compiler())
        .args(language.flags())
        .args(["-g", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread"])
        .arg("-I")
        .arg(root().join("include"))
        .arg(source)
        .args(["-x", "none"])
        .args(extra)
        .arg("-L")
        .arg(library_dir())
        .arg("-lgpumem")
        .arg(format!("-Wl,-rpath,{}", library_dir().display()))
        .arg("-o")
        .arg(to)
        .output()
        .map_err(|e| format!("{}: {e}", language.compiler()))?;
    if out.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

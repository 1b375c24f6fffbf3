//! What `make install` leaves behind is enough to build and run programs, by pkg-config and by
//! `find_package(gpumem)`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::cc;
use crate::examples::{broken_links, pages_in};

use object::read::elf::{FileHeader, Sym};
use object::Endianness;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

const C: &str = r#"
#include <gpumem.h>
#include <stdio.h>
int main(void) {
    void *p = gpumem_malloc(1000);
    if (p == NULL || gpumem_version() / 100 != GPUMEM_VERSION_MINOR) return 1;
    gpumem_free(p);
    printf("C with gpumem %s\n", gpumem_version_string());
    return 0;
}
"#;

const CXX: &str = r#"
#include <gpumem.hpp>
#include <cstdio>
int main() {
    gpumem::stream s;
    gpumem::scoped_async_buffer<int> buffer(1000, s);
    gpumem::memory_resource pool;
    pool.deallocate_sync(pool.allocate_sync(100), 100);
    std::printf("C++ with gpumem %s\n", gpumem_version_string());
    return buffer.data() == nullptr;
}
"#;

const CMAKE: &str = r#"
cmake_minimum_required(VERSION 3.12)
project(uses_gpumem C CXX)
find_package(gpumem 0.1 REQUIRED)
set(CMAKE_C_STANDARD 99)
set(CMAKE_CXX_STANDARD 17)
add_executable(in_c program.c)
target_link_libraries(in_c PRIVATE gpumem::gpumem)
add_executable(in_cxx program.cpp)
target_link_libraries(in_cxx PRIVATE gpumem::gpumem)
"#;

fn make_install(variables: &[(&str, &Path)]) {
    cc::must_succeed("make install", &cc::run(&mut install(variables), Duration::from_secs(900)));
}

fn install(variables: &[(&str, &Path)]) -> Command {
    let mut make = Command::new("make");
    if !cc::root().join("Makefile").exists() {
        make.args(["-f", "mk/install.mk"]);
    }
    // The dev profile packs in the same way and links in seconds. Cargo's own settings for this
    // test stay out of it.
    make.args(["install", "CARGO_PROFILE=dev"])
        .current_dir(cc::root())
        .env_remove("MAKEFLAGS")
        .env_remove("CARGO_TARGET_DIR");
    for (name, value) in variables {
        make.arg(format!("{name}={}", value.display()));
    }
    make
}

/// An installation to a fresh prefix, made once; `None` when this machine has not what it takes.
fn prefix() -> Option<&'static Path> {
    static PREFIX: OnceLock<Option<PathBuf>> = OnceLock::new();
    PREFIX
        .get_or_init(|| {
            for tool in ["make", "cc", "c++"] {
                if !cc::have(tool) {
                    println!("skipped: {tool} is not installed");
                    return None;
                }
            }
            let prefix = cc::scratch("install").join("prefix");
            let _ = std::fs::remove_dir_all(&prefix);
            make_install(&[("PREFIX", &prefix)]);
            Some(prefix)
        })
        .as_deref()
}

/// A folder with both programs in it.
fn programs(name: &str) -> PathBuf {
    let dir = cc::scratch("install").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("program.c"), C).unwrap();
    std::fs::write(dir.join("program.cpp"), CXX).unwrap();
    std::fs::write(dir.join("CMakeLists.txt"), CMAKE).unwrap();
    dir
}

/// Runs a program with the host device, finding the library where it was installed.
fn run_program(program: &Path, lib: &Path) {
    let out = cc::run(
        Command::new(program).env("GPUMEM_BACKEND", "host").env("LD_LIBRARY_PATH", lib).env_remove("LD_PRELOAD"),
        LIMIT,
    );
    cc::must_succeed(&program.display().to_string(), &out);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains(&format!("with gpumem {}", env!("CARGO_PKG_VERSION"))), "{said}");
}

#[test]
fn programs_build_with_pkg_config() {
    let Some(prefix) = prefix() else { return };
    if !cc::have("pkg-config") {
        println!("skipped: pkg-config is not installed");
        return;
    }
    let lib = moved(prefix, "moved-pkg-config").join("lib");
    let ask = |what: &[&str]| {
        let out = Command::new("pkg-config")
            .args(what)
            .arg("gpumem")
            .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(ask(&["--modversion"]).trim(), env!("CARGO_PKG_VERSION"));
    let flags = ask(&["--cflags", "--libs"]);
    let dir = programs("pkg-config");
    for (compiler, source, standard) in [("cc", "program.c", "-std=c99"), ("c++", "program.cpp", "-std=c++17")] {
        let program = dir.join(source.replace('.', "-"));
        let out = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-pedantic", "-Werror"])
            .arg(dir.join(source))
            .args(flags.split_whitespace())
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap();
        cc::must_succeed(compiler, &out);
        run_program(&program, &lib);
    }
}

/// A copy of the installed tree elsewhere: nothing in it names the place it was installed to.
fn moved(prefix: &Path, name: &str) -> PathBuf {
    let moved = cc::scratch("install").join(name);
    let _ = std::fs::remove_dir_all(&moved);
    cc::must_succeed("cp", &Command::new("cp").arg("-a").arg(prefix).arg(&moved).output().unwrap());
    moved
}

/// Everything else that the headers and the README refer to.
#[test]
fn the_command_its_manual_and_the_documents_are_installed() {
    let Some(prefix) = prefix() else { return };
    let version = cc::run(Command::new(prefix.join("bin/gpumem")).arg("--version"), LIMIT);
    cc::must_succeed("gpumem --version", &version);
    assert_eq!(String::from_utf8_lossy(&version.stdout).trim(), format!("gpumem {}", env!("CARGO_PKG_VERSION")));
    let manual = std::fs::read_to_string(prefix.join("share/man/man1/gpumem-replay.1")).unwrap();
    assert!(manual.contains("allocation log") && manual.contains("\\-\\-repeat"), "{manual}");
    assert!(!prefix.join("share/man/man1/gpumem-man.1").exists(), "a page of what is not for users");
    let doc = prefix.join("share/doc/gpumem");
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "CHANGELOG.md", "docs/settings.md", "docs/guide.md"] {
        assert!(doc.join(file).metadata().unwrap().len() > 0, "{file}");
    }
    let wrong = broken_links(&pages_in(&doc));
    assert!(wrong.is_empty(), "links that lead nowhere: {wrong:#?}");
    // A specification that a header names is there.
    let headers = std::fs::read_dir(prefix.join("include/gpumem")).unwrap().map(|e| e.unwrap().path());
    let mut named = 0;
    for header in headers.chain([prefix.join("include/gpumem.h")]) {
        let text = std::fs::read_to_string(&header).unwrap();
        for (at, _) in text.match_indices("docs/spec/") {
            let name = text[at..].split(|c: char| c.is_whitespace() || c == ',').next().unwrap();
            let name = name.trim_end_matches('.');
            assert!(doc.join(name).exists(), "{} names {name}", header.display());
            named += 1;
        }
    }
    assert!(named >= 3, "only {named} specifications are named in the headers");
}

/// The suppressions are enough: a program with threads runs clean under ThreadSanitizer, and under
/// valgrind.
#[test]
fn the_suppressions_leave_nothing_of_gpumem() {
    let Some(prefix) = prefix() else { return };
    let dir = programs("suppressions");
    let (lib, share) = (prefix.join("lib"), prefix.join("share/gpumem"));
    let build = |source: &str, flags: &[&str]| {
        let program = dir.join(source.replace('.', "-"));
        let mut compiler = Command::new("cc");
        compiler
            .args(["-std=c99", "-g", "-D_GNU_SOURCE", "-pthread"])
            .args(flags)
            .arg("-I")
            .arg(prefix.join("include"));
        compiler.arg(cc::root().join("c_tests").join(source)).arg("-I").arg(cc::root().join("c_tests"));
        compiler.arg("-L").arg(&lib).arg("-lgpumem").arg("-o").arg(&program);
        cc::must_succeed("cc", &cc::run(&mut compiler, LIMIT));
        program
    };
    let run = |command: &mut Command| {
        cc::run(command.env("GPUMEM_BACKEND", "host").env("LD_LIBRARY_PATH", &lib), Duration::from_secs(300))
    };
    let checked = build("threads.c", &["-fsanitize=thread"]);
    let options = format!("suppressions={} exitcode=66", share.join("tsan.supp").display());
    let out = run(Command::new(checked).env("TSAN_OPTIONS", options));
    cc::must_succeed("under ThreadSanitizer", &out);
    if !cc::have("valgrind") {
        return println!("skipped: valgrind is not installed");
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=66", "--leak-check=full", "--show-leak-kinds=all"]);
    valgrind.args(["--errors-for-leak-kinds=all"]);
    valgrind.arg(format!("--suppressions={}", share.join("valgrind.supp").display())).arg(build("everyday.c", &[]));
    cc::must_succeed("under valgrind", &run(&mut valgrind));
}

#[test]
fn programs_build_with_find_package() {
    let Some(prefix) = prefix() else { return };
    if !cc::have("cmake") {
        println!("skipped: cmake is not installed");
        return;
    }
    for (name, prefix) in [("cmake", prefix), ("cmake-moved", &moved(prefix, "moved"))] {
        let dir = programs(name);
        let build = dir.join("build");
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(&dir).arg("-B").arg(&build).arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        cc::must_succeed("cmake", &cc::run(&mut configure, LIMIT));
        cc::must_succeed("cmake --build", &cc::run(Command::new("cmake").arg("--build").arg(&build), LIMIT));
        run_program(&build.join("in_c"), &prefix.join("lib"));
        run_program(&build.join("in_cxx"), &prefix.join("lib"));
    }

    // A version this is not is refused, and so are components, as there are none. What is optional
    // is not missed.
    let dir = programs("cmake-refused");
    for (asked, reason) in [
        ("0.2 REQUIRED", Some("version: 0.1")),
        ("1.0 REQUIRED", Some("version: 0.1")),
        ("0.1.99 REQUIRED", Some("version: 0.1")),
        ("0.1 REQUIRED COMPONENTS cxx", Some("gpumem has no component cxx, nor any other; leave it out")),
        ("0.1 REQUIRED OPTIONAL_COMPONENTS cxx", None),
    ] {
        std::fs::write(dir.join("CMakeLists.txt"), CMAKE.replace("0.1 REQUIRED", asked)).unwrap();
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(&dir).arg("-B").arg(dir.join(asked));
        let out = cc::run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())), LIMIT);
        assert_eq!(out.status.success(), reason.is_none(), "find_package(gpumem {asked})");
        let said = String::from_utf8_lossy(&out.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(reason.unwrap_or("")), "find_package(gpumem {asked}): {said}");
    }
}

/// Every exported symbol of the installed library carries the version; the list is the golden one.
#[test]
fn installed_symbols_are_versioned() {
    let Some(prefix) = prefix() else { return };
    let bytes = std::fs::read(prefix.join("lib/libgpumem.so.0")).unwrap();
    let header = object::elf::FileHeader64::<Endianness>::parse(&*bytes).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, &*bytes).unwrap();
    let symbols = sections.symbols(endian, &*bytes, object::elf::SHT_DYNSYM).unwrap();
    let versions = sections.versions(endian, &*bytes).unwrap().expect("no symbol versions");
    let mut exported = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) || symbol.st_name(endian) == 0 {
            continue;
        }
        let name = String::from_utf8(symbols.symbol_name(endian, symbol).unwrap().to_vec()).unwrap();
        if name == "GPUMEM_0" {
            continue; // GNU ld exports the version's own name
        }
        let version = versions.version(versions.version_index(endian, index)).unwrap();
        let version = version.map(|v| String::from_utf8(v.name().to_vec()).unwrap());
        assert_eq!(version.as_deref(), Some("GPUMEM_0"), "{name}");
        exported.insert(name);
    }
    let golden = std::fs::read_to_string(cc::root().join("abi/symbols.txt")).unwrap();
    assert_eq!(exported, golden.lines().map(str::to_owned).collect());
}

/// The compiler and cargo may be a program with flags, and are looked for by the program's name.
#[test]
fn tools_with_flags_are_found() {
    if !cc::have("make") || !cc::root().join("Makefile").exists() {
        println!("skipped: there is no make, or no Makefile");
        return;
    }
    let need = |tool: &str, name: &str, words: &str| {
        let mut make = Command::new("make");
        make.args([format!("need-{tool}"), format!("{name}={words}")]).current_dir(cc::root()).env_remove("MAKEFLAGS");
        cc::run(&mut make, LIMIT)
    };
    for (tool, name, words) in [("cc", "CC", "sh -c"), ("cargo", "CARGO", "sh +stable")] {
        cc::must_succeed(words, &need(tool, name, words));
        let out = need(tool, name, "no-such-program -flag");
        assert!(!out.status.success(), "{name}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("missing; install"), "{name}");
    }
}

/// Packagers install to a staging folder and to other library folders.
#[test]
fn destdir_and_libdir_are_honoured() {
    if prefix().is_none() {
        return;
    }
    let stage = cc::scratch("install").join("stage");
    let _ = std::fs::remove_dir_all(&stage);
    make_install(&[
        ("DESTDIR", &stage),
        ("PREFIX", Path::new("/usr")),
        ("LIBDIR", Path::new("/usr/lib/x86_64-linux-gnu")),
    ]);
    let lib = stage.join("usr/lib/x86_64-linux-gnu");
    assert_eq!(std::fs::read_link(lib.join("libgpumem.so")).unwrap(), Path::new("libgpumem.so.0"));
    assert!(lib.join("libgpumem.so").exists(), "a broken link");
    assert!(stage.join("usr/include/gpumem.h").exists());
    // The command finds what it puts in front of programs there.
    if cfg!(target_arch = "x86_64") {
        let out = cc::run(Command::new(stage.join("usr/bin/gpumem")).args(["run", "--", "/bin/true"]), LIMIT);
        cc::must_succeed("gpumem run", &out);
    }
    let pc = std::fs::read_to_string(lib.join("pkgconfig/gpumem.pc")).unwrap();
    assert!(!pc.contains("/usr") && !pc.contains("stage") && !pc.contains('@'), "it names a fixed place: {pc}");
    assert!(pc.contains("includedir=${libdir}/../../include\n"), "{pc}");
    let config = std::fs::read_to_string(lib.join("cmake/gpumem/gpumem-config.cmake")).unwrap();
    assert!(config.contains("${_gpumem_libdir}/../../include\""), "{config}");

    // Names may have spaces.
    let spaced = cc::scratch("install").join("with a space");
    let _ = std::fs::remove_dir_all(&spaced);
    make_install(&[("PREFIX", &spaced)]);
    for file in ["pkgconfig/gpumem.pc", "cmake/gpumem/gpumem-config.cmake"] {
        assert!(spaced.join("lib").join(file).exists(), "{file}");
    }

    // Where root has no cargo, what somebody else has packaged is installed.
    let by_root = cc::scratch("install").join("by-root");
    let _ = std::fs::remove_dir_all(&by_root);
    make_install(&[("PREFIX", &by_root), ("CARGO", Path::new("no-such-cargo"))]);
    assert!(by_root.join("lib/libgpumem.so").exists(), "a broken link");
    let nothing = cc::scratch("install").join("nothing-packaged");
    let variables =
        [("PREFIX", by_root.as_path()), ("CARGO", Path::new("no-such-cargo")), ("TARGET", nothing.as_path())];
    let out = cc::run(&mut install(&variables), LIMIT);
    assert!(!out.status.success(), "there is nothing to install");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("run make package as a user who has Rust"), "{said}");
}

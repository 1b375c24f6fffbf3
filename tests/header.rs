//! `include/gpumem.h` is what the sources say it is.
//!
//! The header is made by cbindgen, one run per file of `src/capi`, so that it reads by topic; each file's module
//! comment is the head of its section. `GPUMEM_BLESS=1 cargo test --test header` writes it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// The files with C declarations, in the order of the header.
const SECTIONS: [&str; 25] = [
    "error",
    "version",
    "context",
    "device",
    "stream",
    "streams",
    "alloc",
    "arena",
    "check",
    "memory",
    "graph",
    "ipc",
    "stats",
    "space",
    "policy",
    "cancel",
    "reserve",
    "evict",
    "host",
    "capture",
    "plan",
    "plan_graph",
    "plan_solve",
    "plan_report",
    "plan_memory",
];
const LAST: &str = "torch";

const FIX: &str = "run `GPUMEM_BLESS=1 cargo test --test header` and commit include/gpumem.h";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The `//!` lines at the top of a file; the first is the title.
fn module_comment(source: &str) -> Vec<&str> {
    source.lines().map_while(|l| l.strip_prefix("//!")).map(|l| l.strip_prefix(' ').unwrap_or(l)).collect()
}

fn section(name: &str) -> String {
    let path = format!("src/capi/{name}.rs");
    let source = read(&path);
    let mut out = String::from("\n/* ");
    let comment = module_comment(&source);
    let title = comment.first().unwrap_or_else(|| panic!("{path} has no module comment"));
    writeln!(out, "---- {title} {}", "-".repeat(110 - title.len())).unwrap();
    for line in &comment[1..] {
        writeln!(out, "{}", format!(" * {line}").trim_end()).unwrap();
    }
    out.push_str(" */\n\n");

    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let bindings =
        cbindgen::Builder::new().with_config(config).with_src(root().join(&path)).generate().expect("cbindgen");
    let mut declarations = Vec::new();
    bindings.write(&mut declarations);
    out.push_str(String::from_utf8(declarations).unwrap().trim());
    out.push('\n');
    out
}

fn generate() -> String {
    let mut out = read("src/capi/header/prologue.h");
    for name in SECTIONS.into_iter().chain([LAST]) {
        out.push_str(&section(name));
    }
    out.push_str(&read("src/capi/header/epilogue.h"));
    out
}

#[test]
fn the_header_is_up_to_date() {
    let path = root().join("include/gpumem.h");
    let fresh = generate();
    if std::env::var_os("GPUMEM_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &fresh).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    if let Some(n) = first_difference(&committed, &fresh) {
        let line = |text: &str| text.lines().nth(n).unwrap_or("(end of file)").to_owned();
        panic!(
            "include/gpumem.h differs from the sources at line {}:\n  header:  {}\n  sources: {}\n{FIX}",
            n + 1,
            line(&committed),
            line(&fresh)
        );
    }
}

fn first_difference(a: &str, b: &str) -> Option<usize> {
    if a == b {
        return None;
    }
    let same = a.lines().zip(b.lines()).take_while(|(x, y)| x == y).count();
    Some(same)
}

/// Every exported function of the sources is in a section: a file left out of the list above would go unnoticed.
#[test]
fn every_entry_point_is_declared_and_explained() {
    let header = generate();
    let mut entries = 0;
    for file in std::fs::read_dir(root().join("src/capi")).unwrap().map(|e| e.unwrap().path()) {
        if file.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let source = std::fs::read_to_string(&file).unwrap();
        for (before, after) in source.match_indices("#[no_mangle]").map(|(at, _)| source.split_at(at)) {
            let name = after.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            assert!(name.starts_with("gpumem_"), "{name} has no gpumem_ in front");
            let declarations = header.matches(&format!("{name}(")).count();
            assert!(declarations >= 1, "{name} is not in include/gpumem.h; {FIX}");
            assert!(before.trim_end().lines().last().unwrap().trim().starts_with("///"), "{name} has no comment");
            entries += 1;
        }
    }
    assert!(entries > 40, "found only {entries} entry points");
}

/// The header alone, in both languages, with every warning on.
#[test]
fn the_header_compiles_as_c99_and_cxx17() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpumem.h");
    std::fs::write(&path, generate()).unwrap();
    for (compiler, language, standard) in [("cc", "c", "c99"), ("c++", "c++", "c++17")] {
        let out = Command::new(compiler)
            .args(["-x", language, &format!("-std={standard}"), "-Wall", "-Wextra", "-pedantic", "-Werror"])
            .arg("-fsyntax-only")
            .arg(&path)
            .output();
        match out {
            Err(e) => println!("skipped: {compiler} does not run: {e}"),
            Ok(out) => assert!(out.status.success(), "{standard}: {}", String::from_utf8_lossy(&out.stderr)),
        }
    }
}

/// The C++ header, with and without NVIDIA's memory resource concepts. With them it asserts that its resource is one.
#[test]
fn the_cxx_header_compiles_with_and_without_cccl() {
    let check = |standard: &str, extra: &[String], source: &str| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hpp-{standard}-{}.cpp", extra.len()));
        std::fs::write(&path, source).unwrap();
        Command::new("c++")
            .args([&format!("-std={standard}"), "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"])
            .arg("-I")
            .arg(root().join("include"))
            .args(extra)
            .arg(&path)
            .output()
    };
    let alone = "#include <gpumem.hpp>\n#include <gpumem.hpp>\nint main() { gpumem::unique_buffer<int> b; }\n";
    for standard in ["c++17", "c++20"] {
        match check(standard, &["-DGPUMEM_NO_CCCL".into()], alone) {
            Err(e) => return println!("skipped: c++ does not run: {e}"),
            Ok(out) => assert!(out.status.success(), "{standard}: {}", String::from_utf8_lossy(&out.stderr)),
        }
    }

    // The toolkit's folders, or those of the `nvidia-cuda-cccl` and `nvidia-cuda-runtime` wheels.
    let folders = std::env::var("GPUMEM_TEST_CCCL").unwrap_or_else(|_| {
        let cuda = std::env::var("CUDA_HOME").unwrap_or_else(|_| "/usr/local/cuda".into());
        format!("{cuda}/include:{cuda}/include/cccl")
    });
    let extra: Vec<String> = folders.split(':').flat_map(|dir| ["-isystem".to_owned(), dir.to_owned()]).collect();
    let probe =
        "#include <cuda_runtime_api.h>\n#include <cuda/std/version>\n#if CCCL_MAJOR_VERSION < 3\n#error old\n#endif\n";
    if !check("c++17", &extra, probe).unwrap().status.success() {
        return println!("skipped: no CCCL 3 in {folders}; GPUMEM_TEST_CCCL can name its include folders");
    }
    let with = "#include <gpumem.hpp>\nstatic_assert(GPUMEM_HAS_CCCL, \"not found\");\n\
                int main() { cuda::mr::any_resource<cuda::mr::device_accessible> any{gpumem::memory_resource{}}; \
                cuda::mr::resource_ref<cuda::mr::device_accessible> ref{any}; return ref != ref; }\n";
    for standard in ["c++17", "c++20"] {
        let out = check(standard, &extra, with).unwrap();
        assert!(out.status.success(), "{standard}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

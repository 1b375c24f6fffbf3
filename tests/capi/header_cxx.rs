//! `include/gpumem.hpp` and its parts compile: alone, together, as C++17 and C++20, with either
//! default stream, beside CCCL and RMM and without; and what must not compile does not, and says
//! why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::cc;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An include path of this test's own: files with their contents.
fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let dir = cc::scratch("header_cxx").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    for (path, text) in files {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

/// Compiles a source with every warning on; `Err` has the compiler's words.
fn compile(name: &str, source: &str, flags: &[&str]) -> Result<(), String> {
    // A file for each source and way to compile it: what has not changed is not compiled again.
    let mut of = DefaultHasher::new();
    (source, flags).hash(&mut of);
    let path = cc::scratch("header_cxx").join(format!("{name}-{:016x}.cpp", of.finish()));
    cc::write(&path, source);
    let mut command = Command::new("c++");
    command
        // A later one counts.
        .arg("-std=c++17")
        .args(["-Wall", "-Wextra", "-pedantic", "-Wshadow", "-Wconversion", "-Werror", "-fsyntax-only"])
        .arg("-I")
        .arg(cc::root().join("include"))
        .args(flags)
        .arg(&path);
    cc::unless_done(&mut command, &path)
}

fn must_compile(name: &str, source: &str, flags: &[&str]) {
    if let Err(words) = compile(name, source, flags) {
        panic!("{name} with {flags:?} does not compile:\n{words}");
    }
}

fn have_cxx() -> bool {
    let have = cc::have("c++");
    if !have {
        println!("skipped: there is no c++");
    }
    have
}

fn parts() -> Vec<String> {
    let dir = std::fs::read_dir(cc::root().join("include/gpumem")).unwrap();
    let names = dir.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut parts: Vec<String> = names.filter(|n| n.ends_with(".hpp")).map(|n| format!("gpumem/{n}")).collect();
    parts.sort();
    parts
}

#[test]
fn each_part_compiles_alone() {
    if !have_cxx() {
        return;
    }
    let alone = |part: &str, flags: &[&str]| {
        let source = format!("#include <{part}>\n#include <{part}>\nint main() {{}}\n");
        must_compile("alone", &source, &[flags, &["-DGPUMEM_NO_CCCL", "-DGPUMEM_NO_RMM"]].concat());
    };
    for part in parts().iter().map(String::as_str).chain(["gpumem.hpp"]) {
        alone(part, &["-std=c++17", "-DGPUMEM_TEST"]);
    }
    alone("gpumem.hpp", &["-std=c++20", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]);
}

#[test]
fn the_page_includes_every_part_and_each_is_short() {
    let page = std::fs::read_to_string(cc::root().join("include/gpumem.hpp")).unwrap();
    for part in parts() {
        assert!(page.contains(&format!("#include <{part}>")), "gpumem.hpp does not include {part}");
        assert!(page.contains(&format!("//     {part} ")), "gpumem.hpp does not say what {part} is for");
        let text = std::fs::read_to_string(cc::root().join("include").join(&part)).unwrap();
        assert!(text.lines().count() <= 300, "{part} is long");
        if let Some(line) = text.lines().find(|l| l.chars().count() > 100) {
            panic!("{part}: {line}");
        }
    }
    assert!(page.lines().count() <= 80, "the page is long");
}

/// What a program with a `cudaStream_t` of its own writes. `cudaStream_t` is a pointer to this
/// type.
const WITH_A_STREAM_OF_MINE: &str = r#"
#include <gpumem.hpp>
#include <vector>
typedef struct CUstream_st *cudaStream_t;
void capture(cudaStream_t mine) { gpumem::capture c(mine); }
void borrow(gpumem::stream_pool &p) { auto b = p.borrow(); gpumem::async_buffer<float> x(10, b); }
gpumem::async_buffer<float> make(cudaStream_t mine) { gpumem::async_buffer<float> x(10, mine); return x; }
gpumem::scoped_async_buffer<float> scoped(cudaStream_t mine) { gpumem::scoped_async_buffer<float> x(10, mine); return x; }
std::vector<gpumem::async_buffer<float>> all;
void keep(cudaStream_t mine) { all.emplace_back(10u, mine); }
void launch(gpumem::graph &g, cudaStream_t mine) { g.launch(mine); }
void own(cudaStream_t mine) { gpumem::stream s(mine); }
void buffer(cudaStream_t mine) { gpumem::unique_buffer<float> b(10, mine); gpumem::unique_buffer<void> v(10, mine); }
void wait(gpumem::stream_pool &p, gpumem::stream &s) { auto b = p.borrow(); s.wait(b); }
void exits(gpumem::arena &a, gpumem::arena &b, gpumem::arena &c) {
    std::vector<float *> pointers;
    a.exit(pointers);
    gpumem::unique_buffer<float> f(1);
    b.exit({f.data()});
    gpumem::unique_buffer<const float> g(1);
    c.exit({g.data(), f});
}
struct has_defaults {
    gpumem::stream_pool pool = {};
    gpumem::host_allocator<float> allocator = {};
};
has_defaults defaults() { return {}; }
// An allocator of no type, to be bound to one.
using of_void = gpumem::host_allocator<void>;
std::vector<int, std::allocator_traits<of_void>::rebind_alloc<int>> bound(of_void(1));
int main() {}
"#;

#[test]
fn who_has_a_stream_needs_no_other() {
    if have_cxx() {
        must_compile("mine", WITH_A_STREAM_OF_MINE, &["-DGPUMEM_NO_CCCL"]);
        must_compile("mine", WITH_A_STREAM_OF_MINE, &["-DGPUMEM_NO_CCCL", "-D__CUDA_API_PER_THREAD_DEFAULT_STREAM"]);
    }
}

/// What the headers' macros and templates expand to has no casts that strict programs refuse.
#[test]
fn casts_raise_no_warning() {
    if !have_cxx() {
        return;
    }
    let more = "gpumem_stats first() { gpumem_stats s; GPUMEM_INIT(&s); return s; }\n\
        gpumem_stream streams[] = {GPUMEM_STREAM_LEGACY, GPUMEM_STREAM_PER_THREAD, GPUMEM_STREAM_DEFAULT};\n\
        void assign(gpumem::host_blocks &b) { b = gpumem::host_blocks(1); }\n";
    let source = WITH_A_STREAM_OF_MINE.replace("int main", &format!("{more}int main"));
    // Not every compiler has each of them.
    let all = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant", "-Wuseless-cast", "-Wno-unknown-warning-option"];
    for stream in ["-DGPUMEM_TEST", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"] {
        must_compile("strict", &source, &[&all[..], &["-DGPUMEM_NO_CCCL", stream]].concat());
    }
}

#[test]
fn what_makes_no_sense_does_not_compile_and_says_why() {
    if !have_cxx() {
        return;
    }
    let refused = [
        ("struct s { ~s(); }; void f() { gpumem::unique_buffer<s> b(1); }", "no constructor runs there"),
        ("struct alignas(8192) w {}; void f(gpumem::host_allocator<w> &a) { a.allocate(2); }", "no more than 4096"),
        ("struct alignas(512) w {}; void f(gpumem::async_buffer<w> &b) { b.resize(2); }", "no more than 256"),
        ("void f(gpumem::stream &s) { gpumem::stream t = s; }", "deleted"),
        ("void f(gpumem::stream_ref s) { gpumem::stream t = s.get(); }", "conversion"),
        ("struct no { int get() const; }; void f() { gpumem::async_buffer<int> b(1, no{}); }", "no matching"),
    ];
    for (line, says) in refused {
        let source = format!("#include <gpumem.hpp>\n{line}\nint main() {{}}\n");
        let words = compile("refused", &source, &["-DGPUMEM_NO_CCCL"]).expect_err(line);
        assert!(words.contains(says), "{line}: {words}");
    }
}

/// And nothing else is said that an older standard does not understand.
#[test]
fn an_older_standard_is_refused_by_name() {
    if !have_cxx() {
        return;
    }
    for (std, part) in [("-std=c++14", "gpumem.hpp"), ("-std=c++11", "gpumem.hpp"), ("-std=c++14", "gpumem/plan.hpp")] {
        let words = compile("older", &format!("#include <{part}>\nint main() {{}}\n"), &[std]).unwrap_err();
        let errors: Vec<&str> = words.lines().filter(|l| l.contains("error: ")).collect();
        assert!(errors[0].contains("gpumem's C++ headers need C++17: compile with -std=c++17"), "{std}: {words}");
        assert!(errors[1..].iter().all(|l| l.contains("needs-c++17")), "{std}: {words}");
    }
}

/// What depends on the default stream has another name with either: parts of one program never
/// share it.
#[test]
fn both_default_streams_fit_into_one_program() {
    if !have_cxx() {
        return;
    }
    let dir = cc::scratch("header_cxx");
    let source = dir.join("streams.cpp");
    let text = "#include <gpumem.hpp>\ngpumem_stream NAME() { return gpumem::stream_ref(nullptr).get(); }\n";
    std::fs::write(&source, text).unwrap();
    std::fs::write(
        dir.join("both.cpp"),
        "#include <gpumem.h>\ngpumem_stream legacy();\ngpumem_stream own();\n\
         int main() { return legacy() == nullptr && own() == GPUMEM_STREAM_PER_THREAD ? 0 : 1; }\n",
    )
    .unwrap();
    let cxx = || {
        let mut command = Command::new("c++");
        // Without inlining each file has its copy of the functions, and the linker keeps one of a
        // name.
        command.args(["-std=c++17", "-O0", "-DGPUMEM_NO_CCCL", "-I"]).arg(cc::root().join("include"));
        command
    };
    for (name, more) in [("legacy", "-DGPUMEM_TEST"), ("own", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM")] {
        let object = dir.join(format!("{name}.o"));
        let out = cxx().arg("-c").arg(format!("-DNAME={name}")).arg(more).arg(&source).arg("-o").arg(object).output();
        cc::must_succeed(name, &out.unwrap());
    }
    for order in [["legacy.o", "own.o"], ["own.o", "legacy.o"]] {
        let program = dir.join("both");
        let objects = order.map(|name| dir.join(name));
        let out = cxx()
            .arg(dir.join("both.cpp"))
            .args(objects)
            .arg("-L")
            .arg(cc::library_dir())
            .args(["-lgpumem", "-o"])
            .arg(&program)
            .output();
        cc::must_succeed("linking both", &out.unwrap());
        let out = Command::new(&program).env("LD_LIBRARY_PATH", cc::library_dir()).output().unwrap();
        assert!(out.status.success(), "{order:?}: one default stream for both");
    }
}

const RUNTIME: (&str, &str) = ("cuda_runtime_api.h", "typedef struct CUstream_st *cudaStream_t;\n");

/// CCCL's own header of a version, such as 3_002_000 for 3.2.
fn version(number: u32) -> String {
    format!("#define CCCL_VERSION {number}\n#define CCCL_MAJOR_VERSION {}\n", number / 1_000_000)
}

/// CCCL is there, and a header of it is not where it was: that is said, and there is a way without.
#[test]
fn a_header_that_is_gone_is_an_error_that_says_so() {
    if !have_cxx() {
        return;
    }
    let source = "#include <gpumem.hpp>\nstatic_assert(!GPUMEM_HAS_CCCL, \"found\");\nint main() {}\n";
    let new = folder("gone", &[RUNTIME, ("cuda/std/version", &version(4_000_000))]);
    let include = format!("-I{}", new.display());
    let words = compile("gone", source, &[&include]).unwrap_err();
    assert!(words.contains("no <cuda/memory_resource>") && words.contains("GPUMEM_NO_CCCL"), "{words}");
    must_compile("gone", source, &[&include, "-DGPUMEM_NO_CCCL"]);
    // Those of before the concepts, and one without CUDA, are left out.
    for number in [2_008_000, 3_000_001, 3_001_004] {
        let old = folder("old", &[RUNTIME, ("cuda/std/version", &version(number))]);
        must_compile("old", source, &[&format!("-I{}", old.display())]);
    }
    let alone = folder("no-cuda", &[("cuda/std/version", &version(3_002_000))]);
    must_compile("no-cuda", source, &[&format!("-I{}", alone.display())]);

    let moved = folder("moved", &[("cuda/std/version", &version(3_002_000)), ("rmm/device_buffer.hpp", "")]);
    let include = format!("-I{}", moved.display());
    let words = compile("moved", source, &[&include]).unwrap_err();
    assert!(words.contains("no <rmm/error.hpp>") && words.contains("GPUMEM_NO_RMM"), "{words}");
    must_compile("moved", source, &[&include, "-DGPUMEM_NO_RMM"]);
}

/// As RMM's own, but for their definitions, which are in its library.
const RMM_ERRORS: &str = r#"
#pragma once
#include <new>
#include <string>
namespace rmm {
class bad_alloc : public std::bad_alloc {
  public:
    bad_alloc(std::string const &text) : text_(text) {}
    const char *what() const noexcept override { return text_.c_str(); }
  private:
    std::string text_;
};
class out_of_memory : public bad_alloc {
  public:
    out_of_memory(std::string const &text) : bad_alloc("out_of_memory: " + text) {}
};
}
"#;

/// What RMM's adaptors catch, and nothing else, makes them try again.
const SPILLS: &str = r#"
#include <gpumem.hpp>
#include <cstring>
#include <rmm/error.hpp>
static_assert(GPUMEM_HAS_RMM, "not found");
int main() {
    gpumem::memory_resource mr;
    int spilled = 0;
    for (;;) {
        try {
            mr.allocate(nullptr, std::size_t{1} << 62);
            return 2;
        } catch (const rmm::out_of_memory &e) {
            if (std::strstr(e.what(), "GPUMEM_ERROR_OUT_OF_MEMORY") == nullptr) return 3;
            if (++spilled == 3) break;
        }
    }
    try {
        mr.allocate_sync(std::size_t{1} << 62);
    } catch (const gpumem::out_of_memory &e) {
        return e.status() == GPUMEM_ERROR_OUT_OF_MEMORY ? 0 : 4;
    }
    return 5;
}
"#;

#[test]
fn lack_of_memory_is_rmms_exception_where_rmm_is() {
    if !have_cxx() {
        return;
    }
    let files = [("cuda/std/version", version(3_002_000)), ("rmm/error.hpp", RMM_ERRORS.to_owned())];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let dir = folder("rmm", &files);
    let source = dir.join("spills.cpp");
    std::fs::write(&source, SPILLS).unwrap();
    let program = dir.join("spills");
    let include = format!("-I{}", dir.display());
    cc::compile(&source, cc::Language::Cxx17, &program, &[&include, "-DGPUMEM_NO_CCCL"]).unwrap();
    let out = cc::run(Command::new(&program).env("GPUMEM_BACKEND", "host"), std::time::Duration::from_secs(60));
    cc::must_succeed("spills", &out);
    let without = "#include <gpumem.hpp>\nstatic_assert(std::is_same<gpumem::out_of_memory, gpumem::bad_alloc>::value \
                   && !GPUMEM_HAS_RMM, \"\");\nint main() {}\n";
    must_compile("no-rmm", without, &[&include, "-DGPUMEM_NO_CCCL", "-DGPUMEM_NO_RMM"]);
}

/// The toolkit's folders, or those of the `nvidia-cuda-cccl` and `nvidia-cuda-runtime` wheels.
fn cccl() -> Option<Vec<String>> {
    let folders = std::env::var("GPUMEM_TEST_CCCL").unwrap_or_else(|_| {
        let cuda = std::env::var("CUDA_HOME").unwrap_or_else(|_| "/usr/local/cuda".into());
        format!("{cuda}/include:{cuda}/include/cccl")
    });
    let flags: Vec<String> = folders.split(':').flat_map(|dir| ["-isystem".to_owned(), dir.to_owned()]).collect();
    let probe =
        "#include <cuda_runtime_api.h>\n#include <cuda/std/version>\n#if CCCL_VERSION < 3002000\n#error old\n#endif\n";
    let borrowed: Vec<&str> = flags.iter().map(String::as_str).collect();
    if compile("probe", probe, &borrowed).is_err() {
        println!("skipped: no CCCL 3.2 in {folders}; GPUMEM_TEST_CCCL can name its include folders");
        return None;
    }
    Some(flags)
}

/// With CCCL the header asserts that its resource is one. A `cuda::stream_ref` is a stream like any
/// other, also where either of CCCL's headers for it is the one that is gone.
#[test]
fn cccl_takes_the_resource() {
    if !have_cxx() {
        return;
    }
    let Some(flags) = cccl() else { return };
    let source = "#include <gpumem.hpp>\nstatic_assert(GPUMEM_HAS_CCCL, \"not found\");\n\
        void f(cuda::stream_ref s, cudaStream_t mine) { gpumem::async_buffer<int> b(3, s), c(3, mine); b.set_stream(mine); }\n\
        int main() { cuda::mr::any_resource<cuda::mr::device_accessible> any{gpumem::memory_resource{}};\n\
        cuda::mr::resource_ref<cuda::mr::device_accessible> ref{any}; return ref != ref; }\n";
    for standard in ["-std=c++17", "-std=c++20"] {
        for stream in ["-DGPUMEM_TEST", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"] {
            let all: Vec<&str> = flags.iter().map(String::as_str).chain([standard, stream]).collect();
            must_compile("cccl", source, &all);
        }
    }
    // The cases of a memory resource run through cuda::mr::any_resource where they can.
    let cases = std::fs::read_to_string(cc::root().join("c_tests/rmm_cases.cpp")).unwrap();
    let here: [String; 2] = ["c_tests", "gpu"].map(|dir| format!("-I{}", Path::new(cc::root()).join(dir).display()));
    let all: Vec<&str> = flags.iter().chain(&here).map(String::as_str).chain(["-Wno-conversion"]).collect();
    must_compile("cases", &cases.replace("../gpu/", ""), &all);
}

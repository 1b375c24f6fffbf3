//! Every example of `examples/c` and `examples/cpp` compiles without a warning and does what it says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/cc.rs"]
mod cc;

use cc::Language;
use std::process::Command;
use std::time::Duration;

/// An example, and what it prints when all is well.
const EXAMPLES: [(&str, &str); 5] = [
    ("c/quickstart.c", "20 allocations, 20 frees, 0 live"),
    ("c/export.c", "reads: written by process"),
    ("c/plan.c", "11 values in 9 slots: 2402816 bytes, 65536 saved, all as written"),
    ("cpp/buffers.cpp", "round trip: the same"),
    ("cpp/memory_resource.cpp", "29524000 bytes through gpumem::memory_resource"),
];

#[test]
fn every_example_runs() {
    for (path, says) in EXAMPLES {
        let language = if path.starts_with("c/") { Language::C99 } else { Language::Cxx17 };
        if !cc::have(language.compiler()) {
            println!("skipped: {} is not installed", language.compiler());
            continue;
        }
        let program = cc::scratch("examples").join(path.replace(['/', '.'], "-"));
        cc::compile(&cc::root().join("examples").join(path), language, &program, &[])
            .unwrap_or_else(|words| panic!("{path}:\n{words}"));
        let out = cc::run(Command::new(&program).env("GPUMEM_BACKEND", "host"), Duration::from_secs(120));
        cc::must_succeed(path, &out);
        assert!(String::from_utf8_lossy(&out.stdout).contains(says), "{path} does not say {says:?}");
    }
}

#[test]
fn every_example_is_tested() {
    for folder in ["c", "cpp"] {
        for file in std::fs::read_dir(cc::root().join("examples").join(folder)).unwrap().map(|e| e.unwrap().file_name())
        {
            let path = format!("{folder}/{}", file.to_string_lossy());
            assert!(EXAMPLES.iter().any(|(known, _)| *known == path), "{path} has no line in tests/examples.rs");
        }
    }
}

//! Every example of `examples/c` and `examples/cpp` compiles without a warning and does what it says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/cc.rs"]
mod cc;

use cc::Language;
use std::process::Command;
use std::time::Duration;

/// An example, and what it prints when all is well.
const EXAMPLES: [(&str, &str); 7] = [
    ("c/quickstart.c", "20 allocations, 20 frees, 0 live"),
    ("c/export.c", "reads: written by process"),
    ("c/plan.c", "11 values in 9 slots: 2402816 bytes, 65536 saved, all as written"),
    ("c/training_loop.c", "learnt from 400 of 400 steps; 20401 finalizers ran, 20400 of them too late"),
    ("cpp/buffers.cpp", "round trip: the same"),
    ("cpp/oversubscribe.cpp", "200 steps, and every byte of three times the limit is right"),
    ("cpp/memory_resource.cpp", "29524000 bytes through gpumem::memory_resource"),
];

#[test]
fn every_example_runs() {
    for (path, says) in EXAMPLES {
        if let Some(said) = run(path) {
            assert!(said.contains(says), "{path} does not say {says:?}");
            if path == "c/training_loop.c" {
                is_flat_with_arenas_and_grows_without(&said);
            }
            if path == "cpp/oversubscribe.cpp" {
                holds_a_third_of_its_data(&said);
            }
        }
    }
}

/// What an example prints, on the host device; `None` when there is no compiler for it.
fn run(path: &str) -> Option<String> {
    let language = if path.starts_with("c/") { Language::C99 } else { Language::Cxx17 };
    if !cc::have(language.compiler()) {
        println!("skipped: {} is not installed", language.compiler());
        return None;
    }
    let program = cc::scratch("examples").join(path.replace(['/', '.'], "-"));
    cc::compile(&cc::root().join("examples").join(path), language, &program, &[])
        .unwrap_or_else(|words| panic!("{path}:\n{words}"));
    let out = cc::run(Command::new(&program).env("GPUMEM_BACKEND", "host"), Duration::from_secs(120));
    cc::must_succeed(path, &out);
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The figures of the training loop: MiB mapped and live buffers, a pair for each line that begins with `how`.
fn figures(said: &str, how: &str) -> Vec<(u64, u64)> {
    let of = |line: &str, unit: &str| {
        let before = line.split(unit).next().unwrap();
        before.rsplit([' ', ',']).find(|word| !word.is_empty()).unwrap().parse().unwrap()
    };
    let lines = said.lines().filter(|l| l.starts_with(how) && l.ends_with(" live buffers"));
    lines.map(|l| (of(l, " MiB mapped"), of(l, " live buffers"))).collect()
}

fn is_flat_with_arenas_and_grows_without(said: &str) {
    let flat = figures(said, "with arenas, step");
    assert_eq!(flat.len(), 8);
    assert!(flat.iter().all(|f| *f == flat[0]), "{flat:?}");
    assert_eq!(flat[0].1, 1, "live: the parameters");
    let grows = figures(said, "without arenas, step");
    assert!(grows.len() >= 3, "{grows:?}");
    assert!(grows.windows(2).all(|w| w[1].0 > w[0].0 + 50 && w[1].1 == w[0].1 + 510), "{grows:?}");
    assert!(grows.last().unwrap().0 > 5 * flat[0].0, "{grows:?} beside {flat:?}");
    assert!(said.contains("ended with GPUMEM_ERROR_OUT_OF_MEMORY: "), "{said}");
}

/// A third of the buffers fit: the others are elsewhere, and came and went.
fn holds_a_third_of_its_data(said: &str) {
    assert!(said.contains("48 buffers of 4 MiB (192 MiB) on the host device, which gives 64 MiB"), "{said}");
    assert!(
        said.contains("now 16 are in the device, 32 in the host's memory, 0 on disk; 64 MiB mapped at most"),
        "{said}"
    );
    let moved = said.lines().find(|l| l.contains(" of buffers that were elsewhere: ")).unwrap();
    let words: Vec<&str> = moved.split(' ').collect();
    let [pins, back]: [u64; 2] = [words[0], words[2]].map(|n| n.parse().unwrap());
    assert!(pins == 200 * 3 + 48 && back > 100 && back < pins, "{moved}");
    assert!(!said.contains('\r'), "a bar where there is no terminal");
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

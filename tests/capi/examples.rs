//! Every example of `examples/c` and `examples/cpp` compiles without a warning and does what it
//! says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::cc;

use cc::Language;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// An example, and what it prints when all is well.
const EXAMPLES: [(&str, &str); 9] = [
    ("c/quickstart.c", "20 allocations, 20 frees, 0 live"),
    ("c/export.c", "reads: written by process"),
    ("c/plan.c", "11 values in 9 slots: 2402816 bytes, 65536 saved, all as written"),
    ("c/training_loop.c", "learnt from 400 of 400 steps; 20401 finalizers ran, 20400 of them too late"),
    ("c/leak.c", "200 steps, and 200 allocations are live still"),
    ("c/stream_order.c", "as it was first: mistakes were reported\nmended: 0 mistakes\n"),
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

/// The recording of the leaking example points to its line.
#[test]
fn the_leak_is_found() {
    let Some(program) = build("c/leak.c", "leak") else { return };
    let file = cc::scratch("leak").join("leak.gmrec");
    let _ = std::fs::remove_file(&file);
    let mut command = Command::new(&program);
    command.env("GPUMEM_BACKEND", "host").env("GPUMEM_RECORD", &file).env("GPUMEM_RECORD_STACKS", "16");
    cc::must_succeed("c/leak.c", &cc::run(&mut command, Duration::from_secs(120)));
    let recording = gpumem::observe::Recording::open(&file).unwrap();
    assert_eq!(recording.faults(), None);
    let history = gpumem::observe::History::of(&recording);
    let left: Vec<_> = history.lives.iter().filter(|l| l.to == gpumem::observe::history::NEVER).collect();
    assert_eq!((left.len(), history.live), (200, 200 * 300_000));
    let source = std::fs::read_to_string(cc::root().join("examples/c/leak.c")).unwrap();
    let line = source.lines().position(|l| l.contains("the leak */")).unwrap() + 1;
    let frames = recording.frames(left[0].stack);
    let named = |n: usize| frames.iter().position(|f| f.contains(&format!("leak.c:{n})")));
    // Inlined or not, the line is among the innermost frames.
    assert!(named(line).is_some_and(|at| at < 3), "line {line} is not in {frames:#?}");
    assert!(left.iter().all(|l| l.stack == left[0].stack));
}

/// An example in a folder of the test's own, as tests run at once; `None` when there is no compiler
/// for it.
fn build(path: &str, folder: &str) -> Option<PathBuf> {
    let language = if path.starts_with("c/") { Language::C99 } else { Language::Cxx17 };
    if !cc::have(language.compiler()) {
        println!("skipped: {} is not installed", language.compiler());
        return None;
    }
    let program = cc::scratch(folder).join(path.replace(['/', '.'], "-"));
    cc::compile(&cc::root().join("examples").join(path), language, &program, &[])
        .unwrap_or_else(|words| panic!("{path}:\n{words}"));
    Some(program)
}

/// What an example prints, on the host device; `None` when there is no compiler for it.
fn run(path: &str) -> Option<String> {
    let program = build(path, "examples")?;
    let out = cc::run(Command::new(&program).env("GPUMEM_BACKEND", "host"), Duration::from_secs(120));
    cc::must_succeed(path, &out);
    if path == "c/stream_order.c" {
        tells_of_both_sides(&String::from_utf8_lossy(&out.stderr));
    }
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The figures of the training loop: MiB mapped and live buffers, a pair for each line that begins
/// with `how`.
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
    let [holds, back]: [u64; 2] = [words[0], words[2]].map(|n| n.parse().unwrap());
    assert!(holds == 200 * 3 + 48 && back > 100 && back < holds, "{moved}");
    assert!(!said.contains('\r'), "a bar where there is no terminal");
}

/// Each race with both operations, their streams and the memory.
fn tells_of_both_sides(said: &str) {
    let races: Vec<&str> = said.lines().filter(|l| l.contains("host device: Race: ")).collect();
    assert!(!races.is_empty(), "{said}");
    for race in races {
        assert!(race.contains("\"fill\" of [0x") && race.contains("\"copy\" of [0x"), "{race}");
        assert!(
            race.matches(" of stream 0x").count() == 2 && race.contains("neither is ordered before the other"),
            "{race}"
        );
    }
}

#[test]
fn every_example_is_tested() {
    for folder in ["c", "cpp"] {
        for file in std::fs::read_dir(cc::root().join("examples").join(folder)).unwrap().map(|e| e.unwrap().file_name())
        {
            let path = format!("{folder}/{}", file.to_string_lossy());
            assert!(EXAMPLES.iter().any(|(known, _)| *known == path), "{path} has no line in tests/capi/examples.rs");
        }
    }
}

/// A fenced block of C or C++ in a document, and what the comment in front of it declares: `<!--
/// given: ... -->`.
struct Snippet<'a> {
    line: usize,
    language: Language,
    given: &'a str,
    code: Vec<&'a str>,
}

fn snippets(text: &str) -> Vec<Snippet<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let language = match *line {
            "```c" => Language::C99,
            "```cpp" => Language::Cxx17,
            _ => continue,
        };
        let code = lines[at + 1..].iter().take_while(|l| **l != "```").copied().collect();
        let before = at.checked_sub(1).map_or("", |i| lines[i]);
        let given = before.strip_prefix("<!-- given: ").and_then(|g| g.strip_suffix(" -->")).unwrap_or_default();
        found.push(Snippet { line: at + 1, language, given, code });
    }
    found
}

impl Snippet<'_> {
    /// Whether it is a program by itself.
    fn is_whole(&self) -> bool {
        self.code.iter().any(|l| l.starts_with("int main("))
    }

    /// The program that it is, or one around it. `...` stands for the reader's own code, and a
    /// kernel launch for a call.
    fn program(&self) -> String {
        if self.is_whole() {
            return self.code.join("\n") + "\n";
        }
        let (top, rest): (Vec<&str>, Vec<&str>) = self.code.iter().partition(|l| l.starts_with('#'));
        let mut body = rest.join("\n").replace("...", ";");
        while let Some((before, after)) = body.split_once("<<<") {
            let (configuration, call) = after.split_once(">>>").expect("a launch that does not end");
            let name = before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap();
            let before = &before[..before.len() - name.len()];
            body = format!("{before}{name}{}", call.replacen('(', &format!("({configuration}, "), 1));
        }
        let header = if self.language == Language::C99 { "gpumem.h" } else { "gpumem.hpp" };
        let top = top.join("\n");
        let given = self.given.replace("; #", ";\n#");
        format!(
            "#include <{header}>\n#include <string.h>\n{top}\nvoid snippet(void);\nvoid snippet(void) {{\n{given}\n{body}\n}}\n\
             int main(void) {{ return 0; }}\n"
        )
    }
}

/// The README, and every page under `docs/`.
fn pages() -> Vec<std::path::PathBuf> {
    pages_in(cc::root())
}

/// The same, of a copy of them.
pub fn pages_in(root: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs", "docs/spec", "docs/adr"] {
        let files = std::fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap().path());
        pages.extend(files.filter(|f| f.extension().is_some_and(|e| e == "md")));
    }
    pages
}

/// What the README and the pages show in C and C++ compiles and links against this library.
#[test]
fn the_snippets_of_the_documents_compile() {
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for snippet in snippets(&text) {
            if !cc::have(snippet.language.compiler()) {
                return println!("skipped: {} is not installed", snippet.language.compiler());
            }
            let stem = page.file_stem().unwrap().to_string_lossy();
            let name = format!("{stem}-{}-{}", snippet.line, snippet.language.name());
            let source = cc::scratch("snippets").join(format!("{name}.txt"));
            cc::write(&source, &snippet.program());
            let lenient = ["-Wno-unused", "-Wno-empty-body", "-Wno-uninitialized", "-Wno-unused-but-set-variable"];
            if let Err(words) = cc::compile(&source, snippet.language, &source.with_extension("out"), &lenient) {
                panic!("{}, line {}:\n{}\n{words}", page.display(), snippet.line, snippet.program());
            }
            count += 1;
        }
    }
    assert!(count >= 12, "only {count} snippets were found");
}

/// Pasted into a file, what the README shows in C and C++ compiles, and does what it says.
#[test]
fn the_programs_of_the_readme_run() {
    let text = std::fs::read_to_string(cc::root().join("README.md")).unwrap();
    let all = snippets(&text);
    assert_eq!(all.len(), 2, "one program in C, one in C++");
    for snippet in all {
        assert!(snippet.is_whole(), "README.md, line {}: no program by itself", snippet.line);
        if !cc::have(snippet.language.compiler()) {
            println!("skipped: {} is not installed", snippet.language.compiler());
            continue;
        }
        let source = cc::scratch("readme").join(snippet.language.name()).with_extension("txt");
        cc::write(&source, &snippet.program());
        let program = source.with_extension("out");
        cc::compile(&source, snippet.language, &program, &[]).unwrap_or_else(|words| panic!("README.md:\n{words}"));
        let out = cc::run(Command::new(&program).env("GPUMEM_BACKEND", "host"), Duration::from_secs(120));
        cc::must_succeed("the README's program", &out);
        // The one in C prints why it failed.
        assert_eq!(String::from_utf8_lossy(&out.stdout), "");
    }
}

/// What the README and the pages link to in this repository is there.
#[test]
fn the_links_of_the_documents_lead_somewhere() {
    let wrong = broken_links(&pages());
    assert!(wrong.is_empty(), "links that lead nowhere: {wrong:#?}");
}

/// Of each page, the links to files beside it that are not there.
pub fn broken_links(pages: &[std::path::PathBuf]) -> Vec<String> {
    let mut wrong = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(page).unwrap();
        // Code has brackets of its own.
        let prose: String =
            text.split("```").step_by(2).flat_map(str::lines).filter(|l| !l.starts_with("<!--")).collect();
        for target in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            let elsewhere = target.contains(char::is_whitespace) || target.starts_with("http");
            if !(file.is_empty() || elsewhere || page.parent().unwrap().join(file).exists()) {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    wrong
}

/// A snippet that is wrong does not compile.
#[test]
fn a_wrong_snippet_is_noticed() {
    let text = "```c\ngpumem_stream s;\ngpumem_free_async(NULL, s, 3);\n```\n";
    let all = snippets(text);
    let source = cc::scratch("snippets").join("wrong.txt");
    std::fs::write(&source, all[0].program()).unwrap();
    assert!(cc::compile(&source, all[0].language, &source.with_extension("out"), &[]).is_err());
}

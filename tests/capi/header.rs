//! `include/gpumem.h` is what the sources say it is.
//!
//! The header is made by cbindgen, one run per file of `src/capi`, so that it reads by topic; each
//! file's module comment is the head of its section. `GPUMEM_BLESS=1 cargo test --test capi header`
//! writes it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// A header of `include/gpumem/`, made of sections: files of `src/capi`, in the order of reading. A
/// section that more than one file holds names them all; the first has its comment.
struct Part {
    name: &'static str,
    about: &'static str,
    /// Headers it needs, `core.h` aside.
    needs: &'static [&'static str],
    sections: &'static [&'static str],
}

const PARTS: [Part; 15] = [
    Part {
        name: "core",
        about: "statuses, malloc and free",
        needs: &[],
        sections: &["call/error", "everyday/malloc", "everyday/version"],
    },
    Part {
        name: "alloc",
        about: "allocating with options, facts about an allocation, sharing it",
        needs: &[],
        sections: &["alloc/malloc_with", "alloc/ipc"],
    },
    Part {
        name: "settings",
        about: "starting gpumem with the program's own settings",
        needs: &[],
        sections: &["settings/context_options settings/init"],
    },
    Part {
        name: "device",
        about: "devices, streams, copies, for programs without a CUDA runtime",
        needs: &[],
        sections: &["device/devices", "device/stream", "device/stream_pool", "device/memory"],
    },
    Part { name: "stats", about: "counters, dumps, checks", needs: &[], sections: &["observe/stats"] },
    Part { name: "record", about: "recordings, snapshots, events", needs: &[], sections: &["observe/record"] },
    Part {
        name: "arena",
        about: "allocations that end together, and finding late uses",
        needs: &[],
        sections: &["arena/scope", "arena/check"],
    },
    Part { name: "capture", about: "memory for CUDA graphs", needs: &[], sections: &["capture/capture_arena"] },
    Part {
        name: "space",
        about: "spaces, and what happens when one is full",
        needs: &[],
        sections: &["tiers/space", "tiers/policy", "tiers/token"],
    },
    Part { name: "reserve", about: "reservations", needs: &["space"], sections: &["tiers/reserve"] },
    Part {
        name: "evict",
        about: "moving memory out of the device and back",
        needs: &["space"],
        sections: &["tiers/evict"],
    },
    Part { name: "host", about: "pinned host memory", needs: &["space"], sections: &["tiers/host"] },
    Part {
        name: "plan",
        about: "layouts computed ahead of a run",
        needs: &["alloc"],
        sections: &["plan/buffers", "plan/graph", "plan/solve", "plan/report", "plan/memory"],
    },
    Part { name: "torch", about: "the functions that PyTorch calls", needs: &[], sections: &["torch"] },
    Part {
        name: "sim",
        about: "graphs without a CUDA runtime, for tests; gpumem.h does not include it",
        needs: &[],
        sections: &["capture/sim_graph"],
    },
];

const FIX: &str = "run `GPUMEM_BLESS=1 cargo test --test capi header` and commit include/";

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

fn section(names: &str) -> String {
    let paths: Vec<String> = names.split(' ').map(|name| format!("src/capi/{name}.rs")).collect();
    let path = &paths[0];
    let source = read(path);
    let mut out = String::from("\n/* ");
    let comment = module_comment(&source);
    let title = comment.first().unwrap_or_else(|| panic!("{path} has no module comment"));
    writeln!(out, "---- {title} {}", "-".repeat(90 - title.len())).unwrap();
    for line in &comment[1..] {
        writeln!(out, "{}", format!(" * {line}").trim_end()).unwrap();
    }
    out.push_str(" */\n\n");

    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = paths.iter().fold(builder, |builder, path| builder.with_src(root().join(path)));
    let bindings = builder.generate().expect("cbindgen");
    let mut declarations = Vec::new();
    bindings.write(&mut declarations);
    out.push_str(String::from_utf8(declarations).unwrap().trim());
    out.push('\n');
    out
}

impl Part {
    fn text(&self) -> String {
        let guard = format!("GPUMEM_{}_H", self.name.to_uppercase());
        let mut out = format!(
            "/* gpumem/{}.h: {}.\n * gpumem.h has the conventions that hold for every function here. */\n\n\
             #ifndef {guard}\n#define {guard}\n\n",
            self.name, self.about
        );
        match self.name {
            "core" => out.push_str(&read("src/capi/header/types.h")),
            _ => out.push_str("#include \"core.h\"\n"),
        }
        self.needs.iter().for_each(|name| writeln!(out, "#include \"{name}.h\"").unwrap());
        out.push_str("\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
        self.sections.iter().for_each(|name| out.push_str(&section(name)));
        out.push_str("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
        out
    }
}

/// Every generated header, by its path below `include/`.
fn generate() -> Vec<(String, String)> {
    let page = ("gpumem.h".to_owned(), read("src/capi/header/gpumem.h"));
    PARTS.iter().map(|part| (format!("gpumem/{}.h", part.name), part.text())).chain([page]).collect()
}

#[test]
fn the_headers_are_up_to_date() {
    for (name, fresh) in generate() {
        let path = root().join("include").join(&name);
        if std::env::var_os("GPUMEM_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &fresh).unwrap();
            continue;
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        if let Some(n) = first_difference(&committed, &fresh) {
            let line = |text: &str| text.lines().nth(n).unwrap_or("(end of file)").to_owned();
            panic!(
                "include/{name} differs from the sources at line {}:\n  header:  {}\n  sources: {}\n{FIX}",
                n + 1,
                line(&committed),
                line(&fresh)
            );
        }
    }
}

fn first_difference(a: &str, b: &str) -> Option<usize> {
    if a == b {
        return None;
    }
    let same = a.lines().zip(b.lines()).take_while(|(x, y)| x == y).count();
    Some(same)
}

/// The page names every part with what it is about, and includes all but `sim.h`.
#[test]
fn the_page_names_every_part() {
    let page = read("src/capi/header/gpumem.h");
    for part in &PARTS {
        let named = format!("gpumem/{}.h", part.name);
        let line = page.lines().find(|l| l.contains(&format!(" {named} "))).unwrap_or_default();
        assert!(
            line.contains(part.about.split(';').next().unwrap_or(part.about)),
            "{named}: {line:?} is not {:?}",
            part.about
        );
        assert_eq!(page.contains(&format!("#include \"{named}\"")), part.name != "sim", "{named}");
    }
}

/// Functions named after the value they return, which cannot fail.
const VALUES: [&str; 6] = ["version", "version_string", "status_name", "last_status", "last_error", "backend_name"];

/// What a name is about. A name without one is about memory.
const NOUNS: [&str; 19] = [
    "sim_graph",
    "sim_capture",
    "space_stream_stats",
    "stream_pool",
    "host_blocks",
    "allocation",
    "arena",
    "capture",
    "device",
    "host",
    "plan",
    "record",
    "reservation",
    "settings",
    "sim",
    "space",
    "stats",
    "stream",
    "token",
];

/// What may stand behind the verb: to what or how it is done.
const QUALIFIERS: [&str; 16] = [
    "allocations",
    "ancestors",
    "async",
    "device",
    "fd",
    "from",
    "id",
    "id_async",
    "named",
    "or_grow",
    "peak",
    "stream",
    "tag",
    "thread",
    "to_fit",
    "with",
];

/// The verbs that the page explains: the left column of its table.
fn verbs() -> Vec<String> {
    let page = read("src/capi/header/gpumem.h");
    let table = page.split(" * NAMES.").nth(1).unwrap().split("\n *\n").nth(1).unwrap();
    let extra = ["realloc", "usable_size", "memcpy", "memset"].map(str::to_owned);
    let words = |l: &str| -> Vec<String> {
        let column = l.strip_prefix(" * ").unwrap().get(..21).unwrap_or_default();
        let before_text = column.split("  ").next().unwrap_or_default();
        before_text.split(", ").map(|w| w.trim().to_owned()).filter(|w| !w.is_empty()).collect()
    };
    table.lines().filter(|l| l.starts_with(" * ")).flat_map(words).chain(extra).collect()
}

/// `gpumem_[<noun>_][<property>_]<verb>[_<qualifier>]`.
fn follows_the_grammar(name: &str, verbs: &[String]) -> bool {
    let Some(rest) = name.strip_prefix("gpumem_") else { return false };
    if VALUES.contains(&rest) || rest.starts_with("torch_") {
        return true;
    }
    let noun = NOUNS.iter().find_map(|n| rest.strip_prefix(*n)?.strip_prefix('_'));
    // A noun may be a verb too: record.
    [noun, Some(rest)].into_iter().flatten().any(|rest| is_verb_with_its_own(rest, verbs))
}

/// `[<property>_]<verb>[_<qualifier>]`.
fn is_verb_with_its_own(rest: &str, verbs: &[String]) -> bool {
    let words: Vec<&str> = rest.split('_').collect();
    (0..words.len()).any(|from| {
        (from + 1..=words.len()).any(|to| {
            let (verb, qualifier) = (words[from..to].join("_"), words[to..].join("_"));
            // Only these have something to be asked, changed, added or started anew.
            let takes_property = ["get", "set", "add", "reset"].contains(&verb.as_str());
            verbs.contains(&verb)
                && (from == 0 || takes_property)
                && (qualifier.is_empty() || QUALIFIERS.contains(&qualifier.as_str()))
        })
    })
}

#[test]
fn every_name_follows_the_grammar() {
    let verbs = verbs();
    assert!(verbs.len() > 50, "only {} verbs were read from the page: {verbs:?}", verbs.len());
    let symbols = read("abi/symbols.txt");
    let wrong: Vec<&str> = symbols.lines().filter(|name| !follows_the_grammar(name, &verbs)).collect();
    assert!(wrong.is_empty(), "names that break the grammar in gpumem.h: {wrong:#?}");
    for word in &verbs {
        let used = symbols.lines().any(|name| format!("{name}_").contains(&format!("_{word}_")));
        assert!(used, "{word:?} is in the table of verbs and no name has it");
    }
}

#[test]
fn a_name_that_breaks_the_grammar_is_noticed() {
    let verbs = verbs();
    let wrong = ["plan_add_buffer", "pin", "stream_pool_close", "arena_of", "locate", "space_usage_get_all", "dumps"];
    for name in wrong {
        assert!(!follows_the_grammar(&format!("gpumem_{name}"), &verbs), "{name}");
    }
}

/// The names in a text that begin as gpumem's do, with what follows each.
fn names(text: &str) -> Vec<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = ["gpumem_", "GPUMEM_"].into_iter().flat_map(|prefix| text.match_indices(prefix).map(|(at, _)| at));
    let whole = starts.filter(|&at| !text[..at].ends_with(is_part));
    whole.map(|at| text[at..].split_at(text[at..].find(|c| !is_part(c)).unwrap_or(text.len() - at))).collect()
}

/// Comments of the headers name what there is: functions, types, constants, environment variables.
#[test]
fn every_name_in_a_comment_exists() {
    let headers: String = generate().into_iter().map(|(_, text)| text).collect();
    let is_comment =
        |line: &&str| [" *", "/*", "//"].iter().any(|c| line.trim_start_matches(' ').starts_with(c.trim()));
    let (comments, code): (Vec<&str>, Vec<&str>) = headers.lines().partition(is_comment);
    let mut known: BTreeSet<String> = BTreeSet::new();
    for line in &code {
        let of_a_guard = |name: &str| name.ends_with("_H");
        known.extend(names(line).into_iter().map(|(name, _)| name.to_owned()).filter(|name| !of_a_guard(name)));
    }
    // A variable of the environment is one that the page of settings lists.
    let settings = read("docs/settings.md");
    known.extend(settings.split('`').filter(|word| word.starts_with("GPUMEM_")).map(str::to_owned));
    let mut wrong = Vec::new();
    for line in comments {
        for (name, behind) in names(line) {
            let found = match behind.starts_with('*') || behind.starts_with('<') || behind.starts_with(['[', '?']) {
                true => known.iter().any(|k| k.starts_with(name)),
                false => known.contains(name),
            };
            if !found {
                wrong.push(format!("{name} in {line:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "named in a header, and nowhere to be found: {wrong:#?}");
}

/// Every exported function of the sources is in a section: a file left out of the list above would
/// go unnoticed.
#[test]
fn every_entry_point_is_declared_and_explained() {
    let header: String = generate().into_iter().map(|(_, text)| text).collect();
    let mut entries = 0;
    let mut folders = vec![root().join("src/capi")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    for file in files.into_iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let source = std::fs::read_to_string(&file).unwrap();
        for (before, after) in source.match_indices("#[no_mangle]").map(|(at, _)| source.split_at(at)) {
            let name = after.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            assert!(name.starts_with("gpumem_"), "{name} has no gpumem_ in front");
            let declarations = header.matches(&format!("{name}(")).count();
            assert!(declarations >= 1, "{name} is in no header; {FIX}");
            assert!(before.trim_end().lines().last().unwrap().trim().starts_with("///"), "{name} has no comment");
            entries += 1;
        }
    }
    assert!(entries > 40, "found only {entries} entry points");
}

/// Each header alone, in both languages, with every warning on.
#[test]
fn each_header_compiles_alone_as_c99_and_cxx17() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("headers");
    std::fs::create_dir_all(dir.join("gpumem")).unwrap();
    let headers = generate();
    headers.iter().for_each(|(name, text)| std::fs::write(dir.join(name), text).unwrap());
    for (name, _) in &headers {
        for (compiler, language, standard) in [("cc", "c", "c99"), ("c++", "c++", "c++17")] {
            let program = dir.join(format!("{}.{language}", name.replace('/', "-")));
            std::fs::write(
                &program,
                format!("#include \"{name}\"\n#include \"{name}\"\nint main(void) {{ return 0; }}\n"),
            )
            .unwrap();
            let out = Command::new(compiler)
                .args(["-x", language, &format!("-std={standard}"), "-Wall", "-Wextra", "-pedantic", "-Werror"])
                .arg("-fsyntax-only")
                .arg("-I")
                .arg(&dir)
                .arg(&program)
                .output();
            match out {
                Err(e) => println!("skipped: {compiler} does not run: {e}"),
                Ok(out) => {
                    assert!(out.status.success(), "{name}, {standard}: {}", String::from_utf8_lossy(&out.stderr))
                }
            }
        }
    }
}

/// A reader who only allocates has this much before them.
#[test]
fn the_page_and_the_core_are_short() {
    let lines = |name: &str| generate().iter().find(|(n, _)| n == name).map_or(0, |(_, text)| text.lines().count());
    assert!(lines("gpumem/core.h") <= 300, "core.h has {} lines", lines("gpumem/core.h"));
    assert!(lines("gpumem.h") <= 180, "gpumem.h has {} lines", lines("gpumem.h"));
}

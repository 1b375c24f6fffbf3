//! The rules that a compiler does not check: which folder may use which, that no files lead to each
//! other in a circle, where `unsafe` may be.
//!
//! First comes the checker, then the library as it is, then planted faults that prove the checker
//! sees them.

mod circles;
mod methods;

use crate::files;
use circles::Graph;
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every folder there is or will be. A folder uses itself and folders of a lower level; those of
/// one level meet only in a higher one. The table at the top of `src/lib.rs` says the same of the
/// folders that exist.
const LEVELS: [(&str, u32); 9] = [
    ("base", 0),
    ("driver", 1),
    ("plan", 1),
    ("pool", 2),
    ("arena", 3),
    ("tier", 3),
    ("observe", 3),
    ("context", 4),
    ("capi", 5),
];

/// Folders whose files may contain `unsafe`.
const UNSAFE_FOLDERS: [&str; 2] = ["driver", "capi"];

/// Single files elsewhere that may, relative to `src/`, each with its reason. Keep it short.
const UNSAFE_FILES: [(&str, &str); 0] = [];

/// The crates of the workspace, by their root file's folder.
const CRATES: [&str; 3] = ["src", "cli/src", "preload/src"];

/// Types whose methods are spread over the files of a folder: there a call counts as a use, too.
const SPREAD: [(&str, &[&str]); 1] = [("src/pool", &["Pool", "HeapState", "Heap", "Order"])];

/// Folders within a folder, from the bottom up: each uses those before it. A single file counts as
/// a folder.
const ROOMS: [(&str, &[&str]); 3] = [
    ("pool", &["types", "order", "memory", "heap", "state", "streams", "remap", "graph", "calls", "scopes", "look"]),
    (
        "capi",
        &["call", "everyday", "settings", "device", "observe", "tiers", "arena", "capture", "alloc", "plan", "torch"],
    ),
    ("tier", &["promise", "host", "disk", "stream_pool", "evict"]),
];

/// Most lines of code between a `SAFETY:` comment and its `unsafe`: a statement may start above its
/// block.
const SAFETY_DISTANCE: usize = 3;

fn level(folder: &str) -> Option<u32> {
    LEVELS.iter().find(|(name, _)| *name == folder).map(|&(_, level)| level)
}

/// Checks one file and returns its faults, ready to print. `path` is relative to `src/`.
fn check(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    let tokens: TokenStream = match text.parse() {
        Ok(tokens) => tokens,
        Err(e) => return vec![format!("{path}: does not parse: {e}")],
    };
    let mut uses = Uses::default();
    uses.walk(tokens, module_depth(path));
    // Files directly in src/ tie the folders together and belong to none.
    let folder = path.split_once('/').map_or("", |(folder, _)| folder);
    if !folder.is_empty() {
        faults.extend(uses.folders.iter().filter_map(|(line, used)| layering_fault(path, *line, folder, used)));
    }
    for (line, needs_reason) in uses.unsafes {
        if !UNSAFE_FOLDERS.contains(&folder) && !UNSAFE_FILES.iter().any(|(file, _)| *file == path) {
            faults.push(format!("{path}:{line}: unsafe outside {UNSAFE_FOLDERS:?}; move it there, or list the file"));
        }
        if needs_reason && !has_safety_comment(&lines, line) {
            faults.push(format!("{path}:{line}: unsafe without a SAFETY comment; say why it is sound"));
        }
    }
    faults
}

fn layering_fault(path: &str, line: usize, folder: &str, used: &str) -> Option<String> {
    if used == folder {
        return None;
    }
    let Some(own) = level(folder) else {
        return Some(format!("{path}: folder {folder} has no level; add it to the table"));
    };
    match level(used) {
        None => Some(format!("{path}:{line}: crate::{used} is no folder of the table")),
        Some(theirs) if theirs < own => None,
        Some(theirs) => Some(format!(
            "{path}:{line}: {folder} (level {own}) uses {used} (level {theirs}); only lower levels may be"
        )),
    }
}

/// How many modules a file's items are inside: 0 for `lib.rs`, 1 for `pool/mod.rs`, 2 for
/// `pool/trim.rs`.
fn module_depth(path: &str) -> usize {
    let parts = path.split('/').count();
    match path.rsplit('/').next() {
        Some("mod.rs" | "lib.rs") => parts - 1,
        _ => parts,
    }
}

/// Whether line `line` (from 1), or the comment above its statement, says `SAFETY:`.
fn has_safety_comment(lines: &[&str], line: usize) -> bool {
    let at = line.saturating_sub(1);
    if lines.get(at).is_some_and(|l| l.contains("// SAFETY:")) {
        return true;
    }
    let is_comment = |l: &&&str| l.trim_start().starts_with("//");
    let above = lines.iter().take(at).rev();
    let code = above.clone().take_while(|l| !is_comment(l)).count();
    code <= SAFETY_DISTANCE && above.skip(code).take_while(is_comment).any(|l| l.contains("// SAFETY:"))
}

/// What a file names: folders of the crate, and `unsafe`.
#[derive(Default)]
struct Uses {
    /// Line and first name after `crate::`, or after as many `super::` as lead there.
    folders: BTreeSet<(usize, String)>,
    /// Line, and whether it is a block or an impl, which need a reason, rather than a function's
    /// declaration.
    unsafes: Vec<(usize, bool)>,
}

impl Uses {
    /// `depth` is how many modules the tokens are inside.
    fn walk(&mut self, tokens: TokenStream, depth: usize) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (i, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    let is_mod = group.delimiter() == Delimiter::Brace && i >= 2 && is_ident(&tokens, i - 2, "mod");
                    self.walk(group.stream(), depth + usize::from(is_mod));
                }
                TokenTree::Ident(ident) if ident == "unsafe" => {
                    let is_block =
                        matches!(tokens.get(i + 1), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace);
                    let needs_reason = is_block || is_ident(&tokens, i + 1, "impl");
                    self.unsafes.push((ident.span().start().line, needs_reason));
                }
                // Only where a path starts, as `super::super` is one path.
                TokenTree::Ident(ident) if ident == "crate" && !follows_colons(&tokens, i) => {
                    self.path(&tokens, i + 1, 0);
                }
                TokenTree::Ident(ident) if ident == "super" && !follows_colons(&tokens, i) => {
                    self.path(&tokens, i + 1, depth.saturating_sub(1));
                }
                TokenTree::Ident(ident) if ident == "self" && is_colons(&tokens, i + 1) => {
                    self.path(&tokens, i + 1, depth);
                }
                _ => {}
            }
        }
    }

    /// The rest of a path, from the `::` at `at`; what is before it names a module inside `depth`
    /// others.
    fn path(&mut self, tokens: &[TokenTree], at: usize, depth: usize) {
        if !is_colons(tokens, at) {
            return;
        }
        if let Some(TokenTree::Group(group)) = tokens.get(at + 2) {
            let items: Vec<TokenTree> = group.stream().into_iter().collect();
            for item in items.split(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == ',')) {
                self.segment(item, 0, depth);
            }
        } else {
            self.segment(tokens, at + 2, depth);
        }
    }

    /// One name of a path and what follows it.
    fn segment(&mut self, tokens: &[TokenTree], at: usize, depth: usize) {
        match tokens.get(at) {
            Some(TokenTree::Ident(ident)) if ident == "super" => self.path(tokens, at + 1, depth.saturating_sub(1)),
            Some(TokenTree::Ident(ident)) if depth == 0 && ident != "self" => {
                self.folders.insert((ident.span().start().line, ident.to_string()));
            }
            _ => {}
        }
    }
}

fn is_ident(tokens: &[TokenTree], at: usize, name: &str) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Ident(ident)) if ident == name)
}

fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    matches!(
        (tokens.get(at), tokens.get(at + 1)),
        (Some(TokenTree::Punct(a)), Some(TokenTree::Punct(b)))
            if a.as_char() == ':' && a.spacing() == Spacing::Joint && b.as_char() == ':'
    )
}

fn follows_colons(tokens: &[TokenTree], at: usize) -> bool {
    at >= 2 && is_colons(tokens, at - 2)
}

/// What is wrong with the order of the rooms of `folder`, from the bottom up, in a crate's graph.
fn room_faults(graph: &Graph, folder: &str, rooms: &[&str]) -> Vec<String> {
    let room = |file: &str| {
        let inside = file.strip_prefix(folder)?.strip_prefix('/')?;
        Some(inside.split('/').next()?.trim_end_matches(".rs").to_string())
    };
    let height = |room: &str| rooms.iter().position(|r| *r == room);
    let mut faults = Vec::new();
    for (file, used) in graph {
        let Some(own) = room(file).filter(|room| room != "mod") else { continue };
        let Some(at) = height(&own) else {
            faults.push(format!("{file}: {own} is no room of {folder}; add it to the list"));
            continue;
        };
        for other in used {
            let Some(theirs) = room(other).and_then(|room| height(&room)) else { continue };
            if theirs > at {
                faults.push(format!("{file} uses {other}; {own} is below {}", rooms[theirs]));
            }
        }
    }
    faults
}

/// The rows of the table in `src/lib.rs`: level, folder in backquotes and brackets, what it holds.
fn documented_levels(lib: &str) -> BTreeMap<String, u32> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("//! |")?.split('|').map(str::trim);
        let level = cells.next()?.parse().ok()?;
        let folder = cells.next()?.strip_prefix("[`")?.strip_suffix("`]")?;
        Some((folder.to_string(), level))
    };
    lib.lines().filter_map(row).collect()
}

// ---- the library as it is -----------------------------------------------------------------------

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    files(dir, found);
    found.retain(|path| path.extension().is_some_and(|e| e == "rs"));
}

/// The graph of a crate: which file uses which.
fn graph_of(root: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    let mut files = Vec::new();
    rust_files(&folder, &mut files);
    assert!(files.len() > 5, "found only {files:?}");
    let name = |file: &Path| file.strip_prefix(&folder).unwrap().to_str().unwrap().to_string();
    let texts: Vec<_> = files.iter().map(|file| (name(file), fs::read_to_string(file).unwrap())).collect();
    let mut graph = circles::graph(&texts);
    for (spread, types) in SPREAD {
        let within = texts.iter().filter(|(file, _)| format!("{root}/{file}").starts_with(&format!("{spread}/")));
        for (file, uses) in methods::graph(&within.cloned().collect::<Vec<_>>(), types) {
            // What paths leave out, such as models, stays out.
            if let Some(known) = graph.get_mut(&file) {
                known.extend(uses);
            }
        }
    }
    graph
}

#[test]
fn files_do_not_lead_to_each_other() {
    let mut faults = Vec::new();
    for root in CRATES {
        let graph = graph_of(root);
        assert!(graph.values().map(BTreeSet::len).sum::<usize>() > graph.len(), "{root}: hardly any uses were read");
        for (files, circle) in circles::circles(&graph) {
            faults.push(format!("{root}: {} files lead to each other: {circle}", files.len()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn rooms_use_those_below() {
    let graph = graph_of("src");
    for (folder, rooms) in ROOMS {
        let faults = room_faults(&graph, folder, rooms);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        for room in rooms {
            let path = src().join(folder).join(room);
            assert!(path.is_dir() || path.with_extension("rs").is_file(), "{folder} has no room {room}");
        }
    }
}

#[test]
fn the_library_keeps_the_rules() {
    let mut files = Vec::new();
    rust_files(&src(), &mut files);
    assert!(files.len() > 5, "found only {files:?}");
    let mut faults = Vec::new();
    for file in files {
        let path = file.strip_prefix(src()).unwrap().to_str().unwrap();
        faults.extend(check(path, &fs::read_to_string(&file).unwrap()));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_documented_levels_are_the_enforced_ones() {
    let documented = documented_levels(&fs::read_to_string(src().join("lib.rs")).unwrap());
    let folders = fs::read_dir(src()).unwrap().map(|e| e.unwrap()).filter(|e| e.path().is_dir());
    let present: BTreeSet<String> = folders.map(|e| e.file_name().into_string().unwrap()).collect();
    assert_eq!(documented.keys().cloned().collect::<BTreeSet<_>>(), present, "the table in src/lib.rs lists src/*/");
    for (folder, documented) in documented {
        assert_eq!(level(&folder), Some(documented), "level of {folder}");
    }
}

#[test]
fn exceptions_are_still_needed() {
    for (file, why) in UNSAFE_FILES {
        let text = fs::read_to_string(src().join(file)).unwrap_or_default();
        assert!(text.contains("unsafe") && !why.is_empty(), "{file} is listed for unsafe and has none");
    }
}

// ---- planted faults -----------------------------------------------------------------------------

/// Checks one planted file: as many faults as `expected`, each containing its text, in order.
#[track_caller]
fn planted(path: &str, text: &str, expected: &[&str]) {
    let faults = check(path, text);
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    for (fault, part) in faults.iter().zip(expected) {
        assert!(fault.contains(part), "{fault} does not contain {part}");
    }
}

#[test]
fn upward_and_sideways_uses_are_seen_in_every_form() {
    planted("pool/a.rs", "use crate::base::Error; use crate::driver::Driver; use crate::pool::heap;", &[]);
    planted("pool/a.rs", "use crate::context::Config;", &["a.rs:1: pool (level 2) uses context (level 4)"]);
    planted("base/mod.rs", "pub use crate::driver::Driver;", &["mod.rs:1: base"]);
    planted("pool/a.rs", "use crate::{base::{Error, Result},\n context::{self, Config}};", &["a.rs:2: pool"]);
    planted("pool/a.rs", "use crate::{\n  base,\n  arena as a,\n};", &["a.rs:3: pool (level 2) uses arena"]);
    planted("arena/a.rs", "use crate::tier::Space;", &["arena (level 3) uses tier (level 3)"]);
    planted("pool/a.rs", "fn f() {\n  g(crate::context::config::X)\n}", &["a.rs:2: pool"]);
    planted("pool/a.rs", "fn f(x: &crate::context::Context) -> crate::base::Result<()> {}", &["uses context"]);
    planted("pool/a.rs", "mod tests {\n  use crate::context::Context;\n}", &["a.rs:2: pool"]);
    planted("context/a.rs", "use crate::capi::free;", &["uses capi (level 5)"]);
    planted("pool/a.rs", "macro_rules! m { () => { $crate::context::f() } }", &["uses context"]);
    planted("pool/a.rs", "use crate::helpers::x;", &["crate::helpers is no folder"]);
    planted("misc/a.rs", "use crate::base::Error;", &["folder misc has no level"]);
}

#[test]
fn climbing_by_super_is_followed() {
    planted("pool/a.rs", "use super::heap; use super::super::base::Error;", &[]);
    planted("pool/a.rs", "use super::super::context::X;", &["uses context"]);
    planted("pool/a.rs", "use self::super::super::context::X;", &["uses context"]);
    planted("pool/mod.rs", "use super::context::X;", &["uses context"]);
    planted("driver/host/mod.rs", "use super::super::pool::X;\nuse super::{super::context::Y};", &["pool", "context"]);
    planted("pool/a.rs", "mod tests { use super::context; use super::super::bins; }", &[]);
    planted("pool/a.rs", "mod tests { use super::super::super::context; }", &["uses context"]);
}

#[test]
fn comments_strings_and_other_words_are_no_uses() {
    let text =
        "//! [`crate::context`]\n/* use crate::capi; unsafe */\nconst S: &str = \"use crate::capi; unsafe { }\";\n\
                #![deny(unsafe_code)]\npub(crate) fn f() {}\nuse crate::base::crate_name;\n";
    planted("pool/a.rs", text, &[]);
    planted("lib.rs", "pub use crate::context::Context;", &[]);
}

#[test]
fn unsafe_is_kept_to_its_folders_and_explained() {
    planted("pool/a.rs", "fn f() {\n  // SAFETY: none\n  unsafe { g() }\n}", &["a.rs:3: unsafe outside"]);
    planted("lib.rs", "// SAFETY: none\nunsafe impl Send for A {}", &["lib.rs:2: unsafe outside"]);
    planted("base/a.rs", "unsafe fn f() {}", &["a.rs:1: unsafe outside"]);
    planted("driver/a.rs", "fn f() { unsafe { g() } }", &["a.rs:1: unsafe without a SAFETY"]);
    planted("driver/a.rs", "unsafe impl Send for A {}", &["a.rs:1: unsafe without a SAFETY"]);
    planted("driver/a.rs", "// SAFETY: long\n// and longer.\n#[x]\nunsafe impl Send for A {}", &[]);
    planted("driver/a.rs", "// SAFETY: far away\nlet a;\nlet b;\nlet c;\nlet d;\nunsafe { g() };", &["a.rs:6"]);
    planted("driver/a.rs", "// SAFETY: near\nlet a =\n  x(\n    unsafe { g() });", &[]);
    planted("driver/a.rs", "// Safe enough.\nunsafe { g() }", &["a.rs:2"]);
    planted("capi/a.rs", "pub unsafe extern \"C\" fn f() {}\ntype F = unsafe extern \"C\" fn();", &[]);
    planted("capi/a.rs", "#[unsafe(no_mangle)]\nextern \"C\" fn f() {}", &[]);
}

#[test]
fn the_table_is_read_from_the_documentation() {
    let lib =
        "//! | level | folder | holds |\n//! |---|---|---|\n//! | 0 | [`base`] | errors |\n//! | 12 | [`x`] | y |\n";
    assert_eq!(documented_levels(lib), BTreeMap::from([("base".to_string(), 0), ("x".to_string(), 12)]));
}

/// The graph of planted files.
fn planted_graph(files: &[(&str, &str)]) -> Graph {
    circles::graph(&files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect::<Vec<_>>())
}

/// Plants files and finds just this circle, or with "" none.
#[track_caller]
fn planted_circle(files: &[(&str, &str)], circle: &str) {
    let graph = planted_graph(files);
    let found: Vec<_> = circles::circles(&graph).into_iter().map(|(_, circle)| circle).collect();
    let expected: &[&str] = if circle.is_empty() { &[] } else { &[circle] };
    assert_eq!(found, expected, "{graph:#?}");
}

#[test]
fn circles_are_seen_however_a_path_is_written() {
    let b = ("x/b.rs", "pub struct B; use super::a::A;");
    for a in [
        "pub struct A; use super::b::B;",
        "pub struct A; use crate::x::b::B as Other;",
        "pub struct A; use super::{b::{self, B}};",
        "pub struct A; fn f() { super::b::B; }",
        "pub struct A; use super::b; fn f(_: &b::B) {}",
        "pub struct A; use super::b::*; fn f(_: B) {}",
        "pub struct A; mod inner { use super::super::b::B; }",
        "pub struct A; fn f() { assert!(crate::x::b::B) }",
        "pub struct A; use super::b; a_macro!();",
    ] {
        planted_circle(
            &[("lib.rs", "mod x;"), ("x/mod.rs", "mod a; mod b;"), ("x/a.rs", a), b],
            "x/a.rs -> x/b.rs -> x/a.rs",
        );
    }
    planted_circle(
        &[
            ("a.rs", "pub fn a() { crate::b::b() }"),
            ("b.rs", "pub use crate::c::c as b;"),
            ("c.rs", "use crate::a::a; fn c() {}"),
        ],
        "a.rs -> c.rs -> a.rs",
    );
}

#[test]
fn circles_through_a_folders_head_are_seen() {
    let a = ("x/a.rs", "pub struct A; use super::Head;");
    let head = "mod a; pub struct Head;";
    planted_circle(&[("x/mod.rs", head), a], "");
    planted_circle(&[("x/mod.rs", &format!("{head} pub use a::A;")), a], "");
    let both = "x/a.rs -> x/mod.rs -> x/a.rs";
    planted_circle(&[("x/mod.rs", &format!("{head} use a::A;")), a], both);
    planted_circle(&[("x/mod.rs", &format!("{head} pub use a::A; fn f(_: A) {{}}")), a], both);
    planted_circle(&[("x/mod.rs", &format!("{head} fn f(_: a::A) {{}}")), a], both);
    // What the head only passes on is its definer's.
    let passes = "mod a; mod b; pub use a::A; pub(super) use b::B;";
    planted_circle(
        &[
            ("x/mod.rs", passes),
            ("x/a.rs", "pub struct A; use super::B;"),
            ("x/b.rs", "pub struct B; use crate::x::A;"),
        ],
        "x/a.rs -> x/b.rs -> x/a.rs",
    );
    planted_circle(&[("x/mod.rs", passes), ("x/a.rs", "pub struct A; use super::B;"), ("x/b.rs", "pub struct B;")], "");
}

#[test]
fn tests_and_comments_make_no_circle() {
    let b = ("b.rs", "pub struct B; use crate::a::A;");
    for a in [
        "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
        "pub struct A; #[cfg(all(test, loom))] use crate::b::B;",
        "//! [`crate::b::B`]\npub struct A; /* use crate::b::B; */ const S: &str = \"use crate::b::B;\";",
        "pub struct A; pub(in crate::b) fn f() { g.b::<u8>() }",
    ] {
        planted_circle(&[("a.rs", a), b], "");
    }
    let with_tests = "pub struct A; #[cfg(test)] #[path = \"a_tests.rs\"] mod tests;";
    planted_circle(&[("a.rs", with_tests), ("a_tests.rs", "use crate::b::B;"), b], "");
    planted_circle(&[("a.rs", "pub struct A; #[cfg(not(test))] use crate::b::B;"), b], "a.rs -> b.rs -> a.rs");
}

#[test]
fn a_room_that_looks_up_is_seen() {
    let files = |low: &'static str| {
        [
            ("t/mod.rs", "pub mod low; pub mod high;"),
            ("t/low/a.rs", low),
            ("t/high.rs", "pub struct High; use super::low::a::A;"),
        ]
    };
    let rooms = ["low", "high"];
    assert_eq!(room_faults(&planted_graph(&files("pub struct A;")), "t", &rooms), [""; 0]);
    let faults = room_faults(&planted_graph(&files("pub struct A; use crate::t::high::High;")), "t", &rooms);
    assert_eq!(faults, ["t/low/a.rs uses t/high.rs; low is below high"]);
    let faults = room_faults(&planted_graph(&files("pub struct A;")), "t", &["low"]);
    assert_eq!(faults, ["t/high.rs: high is no room of t; add it to the list"]);
}

#[test]
fn planted_calls_of_methods_are_seen() {
    let file = |name: &str, text: &str| (name.to_string(), text.to_string());
    let files = [
        file("a.rs", "impl Big { fn one(&self) { self.two(); self.len(); other.unknown() } }"),
        file("b.rs", "impl Big { fn two(&self) { Big::three(); map(Big::four) } fn len(&self) {} } impl Small { fn len(&self) {} }"),
        file("c.rs", "impl Big { fn three() { x.one() } fn four() {} } impl Drop for Big { fn drop(&mut self) {} }"),
        file("d.rs", "#[cfg(test)] mod tests { fn f() { x.one() } } impl Small { fn g(&self) { self.g(); y.drop() } }"),
    ];
    let graph = methods::graph(&files, &["Big"]);
    let uses = |name: &str| graph.get(name).map(|uses| uses.iter().cloned().collect::<Vec<_>>()).unwrap_or_default();
    assert_eq!(
        (uses("a.rs"), uses("b.rs"), uses("c.rs")),
        (vec!["b.rs".to_string()], vec!["c.rs".to_string()], vec!["a.rs".to_string()])
    );
    assert_eq!(uses("d.rs"), Vec::<String>::new());
    assert_eq!(circles::circles(&graph).len(), 1);
}

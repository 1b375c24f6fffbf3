//! Comments are no wider than 100 columns. rustfmt wraps code only.
#![allow(clippy::unwrap_used)]

use crate::files;
use std::fs;
use std::path::Path;

const WIDEST: usize = 100;
const FOLDERS: &str = "abi bench benches bindings c_tests cli examples fuzz gpu include preload scripts src tests";

/// What a line of nothing but comment begins with, by the name's ending.
fn marks(ending: &str) -> &'static [&'static str] {
    match ending {
        "rs" => &["//"],
        "c" | "h" | "hpp" | "cpp" | "cu" => &["//", "/*", "* "],
        "sh" | "py" | "jl" => &["#"],
        _ => &[],
    }
}

#[test]
fn comments_are_wrapped() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    FOLDERS.split(' ').for_each(|folder| files(&root.join(folder), &mut all));
    let mut wide = Vec::new();
    let mut seen = 0;
    for path in all {
        let ending = path.extension().map_or(Default::default(), |e| e.to_string_lossy());
        let marks = marks(&ending);
        let Some(text) = fs::read_to_string(&path).ok().filter(|_| !marks.is_empty()) else { continue };
        for (number, line) in text.lines().enumerate() {
            let words = line.trim_start();
            if !marks.iter().any(|mark| words.starts_with(mark)) {
                continue;
            }
            seen += 1;
            // A row of a table cannot be wrapped.
            let row = words.trim_start_matches(['/', '!', ' ']).starts_with('|');
            if line.chars().count() > WIDEST && !row && !words.contains("://") {
                wide.push(format!("{}:{}: {words}", path.strip_prefix(root).unwrap().display(), number + 1));
            }
        }
    }
    assert!(seen > 10_000, "only {seen} lines of comment were found");
    assert!(wide.is_empty(), "wrap these at {WIDEST} columns:\n{}", wide.join("\n"));
}

//! The functions and structures that `include/gpumem/*.h` declare. The headers are generated, so
//! their form is known: this reads that form and no C beyond it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A parameter, or a field of a structure.
#[derive(Clone, Debug)]
pub struct Param {
    /// As C writes it, without `const` and `struct`: `size_t`, `void **`, `gpumem_arena *`.
    pub ctype: String,
    pub name: String,
    /// Whether the function only reads what it points to.
    pub is_const: bool,
    /// The offset of a field, bytes.
    pub offset: usize,
    /// The length of an array field, else 1.
    pub count: usize,
}

#[derive(Debug)]
pub struct Function {
    pub name: String,
    pub result: String,
    pub params: Vec<Param>,
}

#[derive(Debug, Default)]
pub struct Struct {
    pub fields: Vec<Param>,
    pub size: usize,
    pub align: usize,
}

#[derive(Debug, Default)]
pub struct Header {
    pub functions: Vec<Function>,
    pub structs: BTreeMap<String, Struct>,
    /// The statuses that a function can return, by its own comment, its section's, and those that
    /// they refer to.
    documented: BTreeMap<String, BTreeSet<i32>>,
}

impl Header {
    /// Reads every header in a folder.
    pub fn read(folder: &Path) -> Result<Header, String> {
        let mut header = Header::default();
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .map_err(|e| format!("{}: {e}", folder.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "h"))
            .collect();
        files.sort();
        let mut text = String::new();
        for file in files {
            text += &std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        // Structures contain those of other headers, so this takes as many rounds as they are deep.
        let code = without_comments(&text);
        for _ in 0..4 {
            header.structs(&code);
        }
        header.functions(&code);
        header.statuses(&text);
        match header.functions.len() {
            0 => Err(format!("{}: no function is declared there", folder.display())),
            _ => Ok(header),
        }
    }

    /// Whether a program may expect the status of the function. The page lists the statuses that
    /// any function may give, and those that a driver gives instead; functions that PyTorch calls
    /// return none.
    pub fn documents(&self, function: &str, status: i32) -> bool {
        const OUT_OF_MEMORY: i32 = 2;
        const DRIVER: i32 = 5;
        let lists = |status| self.documented.get(function).is_some_and(|all| all.contains(&status));
        [0, 6, 8, 9, 11].contains(&status)
            || lists(status)
            || (status == OUT_OF_MEMORY && lists(DRIVER))
            || function.starts_with("gpumem_torch_")
    }

    /// Reads the statuses in comments. A function has those that its comment and its section's
    /// name, and those of functions to which its comment refers.
    fn statuses(&mut self, text: &str) {
        let define = |line: &str| {
            let (name, number) = line.strip_prefix("#define GPUMEM_ERROR_")?.split_once(' ')?;
            Some((format!("GPUMEM_ERROR_{name}"), number.parse().ok()?))
        };
        let numbers: BTreeMap<String, i32> = text.lines().filter_map(define).collect();
        let (mut section, mut comment, mut in_section) = (String::new(), String::new(), false);
        let mut comments: BTreeMap<&str, (String, String)> = BTreeMap::new();
        for line in text.lines() {
            in_section |= line.starts_with("/* ");
            if line.starts_with("/* ----") {
                section.clear();
            }
            if in_section {
                section += line;
                in_section = !line.ends_with("*/");
            } else if let Some(words) = line.strip_prefix("//") {
                comment += words;
            } else if line.is_empty() {
                comment.clear();
            } else if let Some((head, _)) =
                line.split_once('(').filter(|_| line.starts_with(|c: char| c.is_alphabetic()))
            {
                let name = head.rfind("gpumem_").map_or("", |at| &head[at..]);
                comments.insert(name, (section.clone(), std::mem::take(&mut comment)));
            }
        }
        let named = |text: &str| -> BTreeSet<i32> { words(text).filter_map(|w| numbers.get(w).copied()).collect() };
        for (name, (section, _)) in &comments {
            let (mut of, mut next) = (BTreeSet::from([*name]), vec![*name]);
            let mut all = named(section);
            while let Some((_, comment)) = next.pop().and_then(|name| comments.get(name)) {
                all.extend(named(comment));
                let others = words(&referring(comment)).filter_map(|w| comments.get_key_value(w)).collect::<Vec<_>>();
                next.extend(others.into_iter().map(|(other, _)| *other).filter(|other| of.insert(other)));
            }
            self.documented.insert((*name).to_owned(), all);
        }
    }

    fn structs(&mut self, code: &str) {
        for (_, rest) in code.match_indices("typedef struct ").map(|(at, word)| (at, &code[at + word.len()..])) {
            let Some((head, rest)) = rest.split_once('{') else { continue };
            let Some((body, _)) = rest.split_once('}') else { continue };
            if head.contains(';') {
                continue;
            }
            let mut made = Struct { align: 1, ..Struct::default() };
            for line in body.split(';').map(str::trim).filter(|l| !l.is_empty()) {
                let mut field = param(line);
                if let Some((name, count)) = field.name.clone().split_once('[') {
                    field.count = count.trim_end_matches(']').parse().unwrap_or(1);
                    field.name = name.to_owned();
                }
                let (size, align) = self.layout(&field.ctype);
                field.offset = made.size.next_multiple_of(align);
                made.size = field.offset + size * field.count;
                made.align = made.align.max(align);
                made.fields.push(field);
            }
            made.size = made.size.next_multiple_of(made.align);
            self.structs.insert(head.trim().to_owned(), made);
        }
    }

    /// Size and alignment of a type, bytes, on a 64-bit machine.
    pub fn layout(&self, ctype: &str) -> (usize, usize) {
        match ctype {
            "char" => (1, 1),
            "int" | "int32_t" | "uint32_t" | "gpumem_status" => (4, 4),
            other => self.structs.get(other).map_or((8, 8), |s| (s.size, s.align)),
        }
    }

    fn functions(&mut self, code: &str) {
        let mut plain = String::new();
        // Bodies of structures have no functions, and typedefs of callbacks are no functions.
        let mut depth = 0;
        for c in code.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                c if depth == 0 => plain.push(c),
                _ => {}
            }
        }
        for statement in plain.split(';').map(str::trim).filter(|s| !s.contains("typedef")) {
            let Some((head, params)) = statement.split_once('(') else { continue };
            let Some(at) = head.find("gpumem_").and_then(|_| head.rfind("gpumem_")) else { continue };
            let params = params.trim_end_matches(')').trim();
            let params = if params == "void" { vec![] } else { params.split(',').map(param).collect() };
            let result = param(&format!("{} r", head[..at].trim())).ctype;
            self.functions.push(Function { name: head[at..].trim().to_owned(), result, params });
        }
    }
}

/// `const struct gpumem_move_options *opts`, taken apart.
fn param(text: &str) -> Param {
    let is_const = text.contains("const ");
    let text = text.replace("const", " ").replace("struct ", " ").replace('*', " * ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, ctype) = words.split_last().map_or(("", &[][..]), |(name, ctype)| (*name, ctype));
    let stars = ctype.iter().filter(|w| **w == "*").count();
    let base: Vec<&str> = ctype.iter().filter(|w| **w != "*").copied().collect();
    let space = if stars > 0 { " " } else { "" };
    let ctype = format!("{}{space}{}", base.join(" "), "*".repeat(stars));
    Param { ctype, name: name.to_owned(), is_const, offset: 0, count: 1 }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// The part of a comment that refers to the errors of other functions: what follows "Errors:", and
/// what it says that the function is like.
fn referring(comment: &str) -> String {
    let errors = comment.split_once("Errors:").map_or("", |(_, errors)| errors);
    let like = comment.split(". ").filter(|sentence| sentence.trim_start().starts_with("Like "));
    like.chain([errors]).collect::<Vec<_>>().join(" ")
}

/// C without comments and lines for the preprocessor, and without `extern "C" {` and its end.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        out += &rest[..at];
        rest = rest[at..].split_once("*/").map_or("", |(_, behind)| behind);
    }
    out += rest;
    let mut continued = false;
    let lines = out.lines().filter_map(|line| {
        let is_directive = continued || line.starts_with('#');
        continued = is_directive && line.ends_with('\\');
        let line = line.split("//").next().unwrap_or_default();
        (!is_directive && line.trim() != "extern \"C\" {" && line != "}").then_some(line)
    });
    lines.collect::<Vec<_>>().join("\n")
}

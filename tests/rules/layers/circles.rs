//! Which file of a crate uses which, read from the paths in its code, and the circles among them.
//!
//! A `use` or a path inside code leads to the file that defines what it names, through whatever
//! `mod.rs` passes it on: passing a name on with `pub use` is no use of it, unless the same file
//! names it again. Test code is left out, and so is what paths do not show, such as methods.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A module's path from the crate's root.
type Name = Vec<String>;

/// File uses files.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

#[derive(Default)]
struct Module {
    file: String,
    /// What it defines, modules aside.
    items: BTreeSet<String>,
    /// Names that a `use` brings here, each with the path that it stands for.
    imports: BTreeMap<String, Name>,
    /// Modules of which a `use` brings everything.
    globs: Vec<Name>,
    /// Paths that count as uses, as they are written.
    paths: Vec<Name>,
    /// Names passed on: uses if they are among `words`.
    passed_on: BTreeMap<String, Name>,
    /// Every name in the code but those of `use` statements.
    words: BTreeSet<String>,
    /// Modules in files of their own that only tests have.
    tests: Vec<Name>,
}

enum Found {
    Module(Name),
    /// Something that this file defines.
    Item(String),
}

/// The modules of one crate.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Name, Module>,
}

/// Reads the files of one crate: paths relative to its root file's folder, and their text.
pub fn graph(files: &[(String, String)]) -> Graph {
    let mut krate = Crate::default();
    for (path, text) in files {
        let tokens: TokenStream = text.parse().unwrap_or_else(|e| panic!("{path}: does not parse: {e}"));
        krate.read(path, module_of(path), tokens);
    }
    krate.forget_tests();
    krate.graph()
}

fn module_of(path: &str) -> Name {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let mut name: Name = stem.split('/').map(str::to_string).collect();
    if matches!(name.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        name.pop();
    }
    name
}

impl Crate {
    fn read(&mut self, file: &str, name: Name, tokens: TokenStream) {
        let mut module = Module { file: file.to_string(), ..Module::default() };
        self.walk(&mut module, &name, tokens, true);
        self.modules.insert(name, module);
    }

    /// Reads code of `module`; `top` says whether items found here are the module's own.
    fn walk(&mut self, module: &mut Module, name: &Name, tokens: TokenStream, top: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Punct(p) if p.as_char() == '#' && is_test(tokens.get(at + 1)) => {
                    let end = item_end(&tokens, at + 2);
                    module.tests.extend(file_module(name, &tokens[at + 2..end]));
                    at = end;
                }
                TokenTree::Ident(word) if word == "use" => {
                    let end = tokens[at..].iter().position(|t| is_punct(t, ';')).map_or(tokens.len(), |n| at + n);
                    let passes_on = ident(&tokens, at.wrapping_sub(1)).as_deref() == Some("pub")
                        || ident(&tokens, at.wrapping_sub(2)).as_deref() == Some("pub");
                    let mut leaves = Vec::new();
                    use_tree(&tokens[at + 1..end], &Vec::new(), &mut leaves);
                    for (alias, path) in leaves {
                        module.import(alias, path, passes_on);
                    }
                    at = end;
                }
                TokenTree::Ident(word) if word == "mod" => {
                    if let (Some(inner), Some(TokenTree::Group(group))) = (ident(&tokens, at + 1), tokens.get(at + 2)) {
                        let inner = [name.clone(), vec![inner]].concat();
                        self.read(&module.file, inner, group.stream());
                    }
                    at += 2;
                }
                // What follows in brackets is a visibility.
                TokenTree::Ident(word) if word == "pub" => {
                    at += usize::from(
                        matches!(tokens.get(at + 1), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis),
                    );
                }
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    if top && DEFINES.contains(&word.as_str()) {
                        let name = ident(&tokens, at + 1).filter(|n| n != "mut").or_else(|| ident(&tokens, at + 2));
                        module.items.extend(name);
                    }
                    let path = path_at(&tokens, at);
                    at += 3 * (path.len() - 1);
                    if path.len() > 1 {
                        module.paths.push(path);
                    }
                    module.words.insert(word);
                }
                TokenTree::Group(group) => {
                    let of_macro = at > 0 && is_punct(&tokens[at - 1], '!');
                    self.walk(module, name, group.stream(), top && of_macro);
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Drops the modules that only tests have, and what is below them.
    fn forget_tests(&mut self) {
        let tests: Vec<Name> = self.modules.values().flat_map(|module| module.tests.clone()).collect();
        self.modules.retain(|name, _| !tests.iter().any(|test| name.starts_with(test)));
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (name, module) in &self.modules {
            let edges = graph.entry(module.file.clone()).or_default();
            let again = module.passed_on.iter().filter(|(alias, _)| module.words.contains(*alias));
            for path in module.paths.iter().chain(again.map(|(_, path)| path)) {
                match self.resolve(name, path, 0) {
                    Some(Found::Item(file)) => drop(edges.insert(file)),
                    // A module that is brought here and not named again: a macro may name it.
                    Some(Found::Module(of)) if of.last().is_some_and(|last| !module.words.contains(last)) => {
                        edges.extend(self.modules.get(&of).map(|module| module.file.clone()));
                    }
                    _ => {}
                }
            }
            for glob in &module.globs {
                match self.resolve(name, glob, 0) {
                    Some(Found::Item(file)) => drop(edges.insert(file)),
                    Some(Found::Module(of)) => {
                        edges.extend(module.words.iter().filter_map(|word| match self.step(&of, word, 0)? {
                            Found::Item(file) => Some(file),
                            Found::Module(_) => None,
                        }));
                    }
                    None => {}
                }
            }
            edges.remove(&module.file);
        }
        graph
    }

    /// What `path` leads to, as code in `here` writes it; `None` if to another crate.
    fn resolve(&self, here: &Name, path: &[String], depth: usize) -> Option<Found> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Name::new(),
            "self" => here.clone(),
            "super" => parent(here),
            _ => match self.step(here, first, depth)? {
                Found::Module(module) => module,
                item => return Some(item),
            },
        };
        while let Some((next, after)) = rest.split_first() {
            rest = after;
            at = match next.as_str() {
                "super" => parent(&at),
                "self" => at,
                _ => match self.step(&at, next, depth) {
                    Some(Found::Module(module)) => module,
                    Some(item) => return Some(item),
                    // Perhaps a macro makes it.
                    None => return Some(Found::Item(self.modules.get(&at)?.file.clone())),
                },
            };
        }
        Some(Found::Module(at))
    }

    /// What `word` names in the module `at`.
    fn step(&self, at: &Name, word: &str, depth: usize) -> Option<Found> {
        // Modules that take everything of each other.
        if depth > 8 {
            return None;
        }
        let child = [at.clone(), vec![word.to_string()]].concat();
        if self.modules.contains_key(&child) {
            return Some(Found::Module(child));
        }
        let module = self.modules.get(at)?;
        if module.items.contains(word) {
            return Some(Found::Item(module.file.clone()));
        }
        // A path that starts with the name it defines is another crate's, or a module's handled
        // above.
        if let Some(path) = module.imports.get(word).filter(|path| path[0] != word) {
            return self.resolve(at, path, depth + 1);
        }
        module.globs.iter().find_map(|glob| match self.resolve(at, glob, depth + 1)? {
            Found::Module(of) if of != *at => self.step(&of, word, depth + 1),
            _ => None,
        })
    }
}

impl Module {
    fn import(&mut self, alias: String, path: Name, passes_on: bool) {
        if alias == "*" {
            self.globs.push(path);
            return;
        }
        self.imports.insert(alias.clone(), path.clone());
        if passes_on {
            self.passed_on.insert(alias, path);
        } else {
            self.paths.push(path);
        }
    }
}

/// Words before the name of an item.
const DEFINES: [&str; 9] = ["struct", "enum", "union", "trait", "fn", "const", "static", "type", "macro_rules"];

fn parent(name: &Name) -> Name {
    name[..name.len().saturating_sub(1)].to_vec()
}

fn is_punct(token: &TokenTree, char: char) -> bool {
    matches!(token, TokenTree::Punct(p) if p.as_char() == char)
}

fn ident(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        // The name of `macro_rules! name`.
        Some(TokenTree::Punct(_)) | Some(TokenTree::Group(_)) | Some(TokenTree::Literal(_)) | None => None,
    }
}

/// The names from `at` on that `::` joins.
fn path_at(tokens: &[TokenTree], at: usize) -> Name {
    let mut path: Name = ident(tokens, at).into_iter().collect();
    let mut next = at + 1;
    while super::is_colons(tokens, next) {
        let Some(word) = ident(tokens, next + 2) else { break };
        path.push(word);
        next += 3;
    }
    path
}

/// Whether the brackets of an attribute say `cfg` of something with `test`.
pub fn is_test(token: Option<&TokenTree>) -> bool {
    let Some(TokenTree::Group(group)) = token else { return false };
    // Without what is in the brackets of a `not`.
    let text = group.stream().to_string();
    let asked: String =
        text.split("not").enumerate().map(|(i, part)| if i == 0 { part } else { after_brackets(part) }).collect();
    asked.starts_with("cfg") && asked.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test" || word == "loom")
}

/// What follows the brackets that `text` starts with.
fn after_brackets(text: &str) -> &str {
    let mut open = 0;
    for (at, c) in text.char_indices() {
        open += i32::from(c == '(') - i32::from(c == ')');
        if open == 0 && c == ')' {
            return &text[at + 1..];
        }
    }
    ""
}

/// Where the item that starts at `at` ends: after its block or semicolon.
pub fn item_end(tokens: &[TokenTree], at: usize) -> usize {
    let ends =
        |t: &TokenTree| is_punct(t, ';') || matches!(t, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace);
    tokens[at..].iter().position(ends).map_or(tokens.len(), |n| at + n + 1)
}

/// The module that `mod name;` in `here` stands for, if the item is one; `#[path]` names a file
/// beside `here`'s.
fn file_module(here: &Name, item: &[TokenTree]) -> Option<Name> {
    let at = (0..item.len()).find(|&i| ident(item, i).as_deref() == Some("mod"))?;
    if !is_punct(item.get(at + 2)?, ';') {
        return None;
    }
    let path = item.iter().find_map(|token| match token {
        TokenTree::Group(group) => {
            let attribute = group.stream().to_string();
            let file = attribute.strip_prefix("path = \"")?.strip_suffix(".rs\"")?;
            Some([parent(here), vec![file.to_string()]].concat())
        }
        _ => None,
    });
    path.or_else(|| Some([here.clone(), vec![ident(item, at + 1)?]].concat()))
}

/// The names that a `use` brings, each with its path; `*` for everything.
fn use_tree(tokens: &[TokenTree], before: &Name, leaves: &mut Vec<(String, Name)>) {
    let mut path = before.clone();
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) => path.push(word.to_string()),
            Some(TokenTree::Punct(p)) if p.as_char() == '*' => return leaves.push(("*".to_string(), path)),
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for branch in inner.split(|t| is_punct(t, ',')).filter(|branch| !branch.is_empty()) {
                    use_tree(branch, &path, leaves);
                }
                return;
            }
            _ => return,
        }
        at += 1;
        if super::is_colons(tokens, at) {
            at += 2;
            continue;
        }
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let alias =
            if ident(tokens, at).as_deref() == Some("as") { ident(tokens, at + 1) } else { path.last().cloned() };
        return leaves.extend(alias.map(|alias| (alias, path)));
    }
}

/// Every set of files that lead to each other, each with a shortest circle inside it: `a -> b ->
/// a`.
pub fn circles(graph: &Graph) -> Vec<(BTreeSet<String>, String)> {
    let reach: BTreeMap<&String, BTreeSet<&String>> = graph.keys().map(|file| (file, reached(graph, file))).collect();
    let mut left: BTreeSet<&String> = graph.keys().filter(|file| reach[file].contains(file)).collect();
    let mut found = Vec::new();
    while let Some(first) = left.first().copied() {
        let together: BTreeSet<&String> =
            left.iter().filter(|file| reach[first].contains(*file) && reach[*file].contains(first)).copied().collect();
        left.retain(|file| !together.contains(file));
        let shortest =
            together.iter().filter_map(|file| shortest(graph, file)).min_by_key(Vec::len).unwrap_or_default();
        found.push((together.into_iter().cloned().collect(), shortest.join(" -> ")));
    }
    found
}

fn reached<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = graph[from].iter().collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(graph.get(file).into_iter().flatten());
        }
    }
    reached
}

fn shortest(graph: &Graph, from: &String) -> Option<Vec<String>> {
    let mut ways = VecDeque::from([vec![from.clone()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in graph.get(way.last()?).into_iter().flatten() {
            let longer = [way.clone(), vec![next.clone()]].concat();
            if next == from {
                return Some(longer);
            }
            if seen.insert(next) {
                ways.push_back(longer);
            }
        }
    }
    None
}

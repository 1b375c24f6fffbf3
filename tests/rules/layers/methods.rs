//! Which file calls methods that another file defines: what paths do not show.
//!
//! Only types whose methods are spread over many files, which the caller names: there a method
//! hides where it is from. A method counts when one file of the folder defines it, and no trait
//! does: then its name says which it is.

use super::circles::{is_test, item_end, Graph};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
struct Methods {
    /// By name: the files that define it for one of the types.
    defined: BTreeMap<String, BTreeSet<String>>,
    /// Names of other types' and of traits' methods.
    others: BTreeSet<String>,
    /// By file: the names that are called.
    called: BTreeMap<String, BTreeSet<String>>,
}

/// File calls methods in files. `files` are paths and texts; `types` those whose methods count.
pub fn graph(files: &[(String, String)], types: &[&str]) -> Graph {
    let mut methods = Methods::default();
    for (path, text) in files {
        let tokens: TokenStream = text.parse().unwrap_or_else(|e| panic!("{path}: does not parse: {e}"));
        methods.walk(path, tokens, types);
    }
    let mut graph = Graph::new();
    for (file, called) in &methods.called {
        let edges = graph.entry(file.clone()).or_default();
        for name in called.iter().filter(|name| !methods.others.contains(*name)) {
            match methods.defined.get(name).map(|files| files.iter().collect::<Vec<_>>()).as_deref() {
                Some([other]) if *other != file => drop(edges.insert((*other).clone())),
                _ => {}
            }
        }
    }
    graph
}

impl Methods {
    fn walk(&mut self, file: &str, tokens: TokenStream, types: &[&str]) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Punct(p) if p.as_char() == '#' && is_test(tokens.get(at + 1)) => {
                    at = item_end(&tokens, at + 2);
                    continue;
                }
                TokenTree::Ident(word) if word == "impl" || word == "trait" => {
                    let end = item_end(&tokens, at);
                    let head: Vec<String> = tokens[at..end - 1].iter().map(ToString::to_string).collect();
                    let own = word == "impl"
                        && !head.iter().any(|h| h == "for")
                        && head.iter().any(|h| types.contains(&h.as_str()));
                    if let Some(TokenTree::Group(body)) = tokens.get(end - 1) {
                        self.define(file, body.stream(), own);
                    }
                }
                TokenTree::Ident(word) => {
                    let after_dot = at > 0 && matches!(&tokens[at - 1], TokenTree::Punct(p) if p.as_char() == '.');
                    let of_type =
                        at > 2 && matches!(&tokens[at - 3], TokenTree::Ident(t) if types.iter().any(|n| t == n));
                    let is_call = matches!(tokens.get(at + 1), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis);
                    if (after_dot && is_call) || of_type {
                        self.called.entry(file.to_string()).or_default().insert(word.to_string());
                    }
                }
                TokenTree::Group(group) => self.walk(file, group.stream(), types),
                _ => {}
            }
            at += 1;
        }
    }

    /// Notes the functions of an `impl` or a trait.
    fn define(&mut self, file: &str, body: TokenStream, own: bool) {
        let tokens: Vec<TokenTree> = body.into_iter().collect();
        for pair in tokens.windows(2) {
            if let [TokenTree::Ident(word), TokenTree::Ident(name)] = pair {
                if word == "fn" && own {
                    self.defined.entry(name.to_string()).or_default().insert(file.to_string());
                } else if word == "fn" {
                    self.others.insert(name.to_string());
                }
            }
        }
    }
}

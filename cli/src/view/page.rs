//! The page: the viewer's own files put into one, and the data as compressed blocks behind them.

use super::data::Data;
use base64::Engine;
use flate2::write::DeflateEncoder;
use flate2::Compression;
use std::io::{self, Write};

const HTML: &str = include_str!("../../viewer/page.html");
const STYLE: &str = include_str!("../../viewer/style.css");
/// The scripts, in the order of their dependencies.
const SCRIPTS: [&str; 8] = [
    include_str!("../../viewer/decode.js"),
    include_str!("../../viewer/format.js"),
    include_str!("../../viewer/timeline.js"),
    include_str!("../../viewer/map.js"),
    include_str!("../../viewer/flame.js"),
    include_str!("../../viewer/table.js"),
    include_str!("../../viewer/slow.js"),
    include_str!("../../viewer/main.js"),
];

/// Joins the modules into one, so their imports from each other are dropped.
fn bundle() -> String {
    let mut out = String::new();
    for line in SCRIPTS.iter().flat_map(|s| s.lines()) {
        if line.starts_with("import ") {
            continue;
        }
        out.push_str(line.strip_prefix("export ").unwrap_or(line));
        out.push('\n');
    }
    out
}

fn packed(bytes: &[u8]) -> io::Result<String> {
    let mut deflate = DeflateEncoder::new(Vec::new(), Compression::new(6));
    deflate.write_all(bytes)?;
    Ok(base64::engine::general_purpose::STANDARD.encode(deflate.finish()?))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The whole page.
pub fn html(title: &str, data: &Data) -> io::Result<String> {
    let mut blocks =
        format!("<script type=\"text/plain\" id=\"meta\">{}</script>\n", packed(data.meta.to_string().as_bytes())?);
    for (i, chunk) in data.chunks.iter().enumerate() {
        blocks.push_str(&format!("<script type=\"text/plain\" id=\"chunk{i}\">{}</script>\n", packed(chunk)?));
    }
    let page = HTML.replace("{{style}}", STYLE).replace("{{script}}", &bundle()).replace("{{data}}", &blocks);
    // Last: a file may have any name.
    Ok(page.replace("{{title}}", &escaped(title)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_page_without_data_is_small_and_asks_nobody_for_anything() {
        let data = Data { meta: serde_json::json!({}), chunks: Vec::new() };
        let page = html("<a>", &data).unwrap();
        assert!(page.len() < 1 << 20, "{} bytes", page.len());
        assert!(html("{{data}}", &data).unwrap().contains("<title>{{data}}"), "a file may have any name");
        assert!(page.contains("&lt;a&gt;") && !page.contains("{{"));
        for outside in ["http://", "https://", "src=", "@import", "fetch(", "XMLHttpRequest"] {
            let at = page.match_indices(outside).find(|(i, _)| !page[*i..].starts_with("http://www.w3.org/"));
            assert!(at.is_none(), "the page has {outside}");
        }
        assert!(!bundle().contains("\nexport ") && !bundle().contains("\nimport "));
    }

    /// Modules are joined into one, so their top-level names must be distinct.
    #[test]
    fn no_two_modules_have_a_name_in_common() {
        let mut names = std::collections::BTreeSet::new();
        for line in bundle().lines() {
            let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').collect();
            let name = match words.as_slice() {
                ["const" | "let" | "class" | "function", name, ..] | ["async", "function", name, ..] => *name,
                _ => continue,
            };
            assert!(names.insert(name.to_string()), "{name} is there twice");
        }
        assert!(names.contains("Timeline") && names.contains("inflate"), "{names:?}");
    }
}

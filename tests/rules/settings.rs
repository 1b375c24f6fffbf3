//! The table of settings in `docs/settings.md` is the one in `src/context/settings.rs`.
//! `GPUMEM_BLESS=1 cargo test --test rules settings` writes it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::context::settings::{markdown, SETTINGS};
use std::path::Path;

const BEGIN: &str = "<!-- settings: written by tests/rules/settings.rs -->\n";
const END: &str = "<!-- end of the settings -->";

#[test]
fn the_page_has_the_table_of_settings() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) =
        text.split_once(BEGIN).expect("docs/settings.md has lost the mark before its table of settings");
    let (_, after) = rest.split_once(END).expect("docs/settings.md has lost the mark after its table of settings");
    let want = format!("{before}{BEGIN}{}{END}{after}", markdown());
    if text == want {
        return;
    }
    // As tests/capi/header.rs does.
    if std::env::var_os("GPUMEM_BLESS").is_some() {
        std::fs::write(&path, want).unwrap();
        return;
    }
    panic!("docs/settings.md does not have the settings as they are; GPUMEM_BLESS=1 cargo test --test rules settings writes them");
}

#[test]
fn no_setting_is_there_twice_and_each_says_what_it_is() {
    for (i, s) in SETTINGS.iter().enumerate() {
        assert!(s.variable.starts_with("GPUMEM_") && !s.fields.is_empty(), "{}", s.variable);
        assert!(SETTINGS[..i].iter().all(|other| other.variable != s.variable), "{}", s.variable);
        for text in [s.values, s.accepted, s.doc] {
            assert!(!text.is_empty() && !text.contains(['\n', '|']), "{}: {text:?}", s.variable);
        }
    }
}

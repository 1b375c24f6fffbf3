//! The rules of the repository that a compiler does not check.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod layers;
mod prose;
mod settings;
mod test_summary;

use std::path::{Path, PathBuf};

/// Adds every file below a folder to `found`. Builds and caches are left out.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy();
        match path.is_dir() {
            true if name.starts_with(['.', '_']) || name == "target" || name == "build" => {}
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

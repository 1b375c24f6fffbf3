//! Making files with space of their own.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::books::Shared;
use super::failure::{failed, is_full, FULL};
use super::format::Content;
use crate::base::size::human;
use crate::base::{Error, Result, Status};
use std::fs::File;
use std::io;
use std::path::Path;

impl Shared {
    /// Makes a file of the right length whose space is reserved. If there is too little, waits for
    /// the space of removed files.
    pub fn make_file(&self, path: &Path, content: Content) -> Result<File> {
        let mut pending = self.reaper.pending();
        loop {
            match self.try_file(path, content) {
                Err(e) if e.status == Status::OutOfMemory && self.reaper.wait_for_one(&mut pending) => {
                    // Removes what the attempt left.
                    let _ = self.disk.remove(path);
                }
                other => return other,
            }
        }
    }

    fn try_file(&self, path: &Path, content: Content) -> Result<File> {
        let (bytes, dir) = (content.file_bytes(), &self.claim.dir);
        let space = self.disk.space(dir).map_err(|e| failed("asking for the space of", dir, &e))?;
        let full = |why: &str| {
            let message = format!(
                "{} of data need a file of {}, and {} has {} free{why}; {FULL}",
                human(content.length),
                human(bytes),
                dir.display(),
                human(space.free)
            );
            Error::new(Status::OutOfMemory, message)
        };
        // Asked first, as a file system that fills up fails others, too.
        if space.free < bytes {
            return Err(full(""));
        }
        let file = self.disk.create(path, self.abilities.is_direct()).map_err(|e| failed("making", path, &e))?;
        match self.disk.allocate(&file, bytes) {
            Ok(()) => Ok(file),
            Err(e) if is_full(&e) => Err(full(&format!(" ({e})"))),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                file.set_len(bytes).map_err(|e| failed("setting the length of", path, &e))?;
                Ok(file)
            }
            Err(e) => Err(failed("reserving space for", path, &e)),
        }
    }
}

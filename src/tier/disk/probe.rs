//! What a file system can do, tried once when a store is opened.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::claim::{Claim, PART};
use super::failure::failed;
use super::options::StoreOptions;
use super::pump::Pump;
use crate::base::Result;
use crate::driver::disk::{Buffer, Direction, Disk, ALIGN};
use std::fmt;
use std::io;

/// What a file system can do.
#[derive(Debug)]
pub(super) struct Abilities {
    /// Why files go through the page cache; `None` if they bypass it.
    buffered: Option<String>,
    /// Whether space can be reserved before it is written to.
    reserves: bool,
}

impl Abilities {
    pub fn is_direct(&self) -> bool {
        self.buffered.is_none()
    }
}

impl fmt::Display for Abilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.buffered {
            None => write!(f, "direct I/O")?,
            Some(why) => write!(f, "I/O through the page cache ({why})")?,
        }
        match self.reserves {
            true => Ok(()),
            false => write!(f, ", space not reserved (no fallocate here)"),
        }
    }
}

/// Writes and reads a small file in a store's directory.
pub(super) fn probe(disk: &dyn Disk, claim: &Claim, options: &StoreOptions) -> Result<Abilities> {
    let path = claim.dir.join(format!("probe.{PART}"));
    let buffered = if !options.direct {
        Some("by option".to_string())
    } else {
        match direct(disk, &path) {
            Ok(()) => None,
            // Any other fault, such as no permission, shows again below.
            Err(e) => Some(format!("O_DIRECT: {e}")),
        }
    };
    let file = disk.create(&path, false).map_err(|e| failed("making", &path, &e))?;
    let reserved = disk.allocate(&file, ALIGN);
    disk.remove(&path).map_err(|e| failed("removing", &path, &e))?;
    match reserved {
        Ok(()) => Ok(Abilities { buffered, reserves: true }),
        Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(Abilities { buffered, reserves: false }),
        Err(e) => Err(failed("reserving space for", &path, &e)),
    }
}

fn direct(disk: &dyn Disk, path: &std::path::Path) -> io::Result<()> {
    let file = disk.create(path, true)?;
    // Its name is not needed any more.
    disk.remove(path)?;
    let other = |e: crate::base::Error| io::Error::other(e.message);
    let mut pump = Pump::new(disk.lane()?, file);
    for direction in [Direction::Write, Direction::Read] {
        pump.submit(direction, 0, Buffer::new(ALIGN).map_err(other)?, ALIGN, 0);
        for finished in pump.wait(1) {
            finished.result?;
        }
    }
    Ok(())
}

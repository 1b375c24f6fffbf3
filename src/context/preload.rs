//! The settings that only `libgpumem_preload.so` reads. They are here because `gpumem run` checks
//! them too, before the program starts.

#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

use super::environment::Environment;
use super::values::{any_size, word, SWITCHES};
use crate::base::Result;
use std::ffi::OsString;

/// How `cuMemFree` makes sure that the memory is no longer in use when it is handed out again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Free {
    /// The host waits for all work of the context, as the driver's own free does.
    Sync,
    /// The memory waits, until the device has passed everything that was submitted before the free.
    Marker,
}

/// What they say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreloadSettings {
    /// `GPUMEM_FREE`.
    pub free: Free,
    /// `GPUMEM_NATIVE`: requests of this many bytes and more are the driver's.
    pub native: u64,
    /// `GPUMEM_STATS`: whether a summary is printed at the end.
    pub stats: bool,
}

impl Default for PreloadSettings {
    fn default() -> PreloadSettings {
        PreloadSettings { free: Free::Marker, native: u64::MAX, stats: false }
    }
}

impl PreloadSettings {
    /// The settings that `lookup` gives, by variable name. `Config` errors name the variable, its
    /// value and what is accepted.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<PreloadSettings> {
        let env = Environment { lookup };
        let frees = [("sync", Free::Sync), ("marker", Free::Marker)];
        let free = env.read("GPUMEM_FREE", "sync or marker", |text| word(text, &frees))?;
        let native = env.read("GPUMEM_NATIVE", "a size such as 8G", any_size)?;
        let stats = env.read("GPUMEM_STATS", "on or off", |text| word(text, &SWITCHES))?;
        let default = PreloadSettings::default();
        Ok(PreloadSettings {
            free: free.unwrap_or(default.free),
            native: native.unwrap_or(default.native),
            stats: stats.unwrap_or(default.stats),
        })
    }
}

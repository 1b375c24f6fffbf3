#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]
//! Settings from environment variables.
//!
//! The settings are those of [`SETTINGS`].
//!
//! A size is bytes, or a number with `K`, `M`, `G` or `T` (powers of 1024). A variable that is set
//! must parse, an empty one included; a set variable is checked even where another one overrides
//! it.
//!
//! The variables of the VPMM pool are understood where their GPUMEM counterparts are not set:
//! - `VPMM_VA_SIZE` as `GPUMEM_VA_SIZE`.
//! - `VPMM_PAGE_SIZE`, below 1 GiB, as `GPUMEM_PAGE_SIZE`. From 1 GiB on, VPMM's users mean it to
//!   exceed any request, which in VPMM sends every request to `cudaMallocAsync`: so it is
//!   `GPUMEM_POOL=off`, unless `VPMM_PAGES` asks for pages, when it is the largest page size there
//!   is, 1 GiB.
//! - `VPMM_PAGES` times the page size (2 MiB where none is set) as `GPUMEM_PREALLOC`.

use super::config::{Config, Prealloc};
use super::settings::{self, SETTINGS};
use super::values::{vpmm_page_size, LARGEST_PAGE};
use crate::base::size::{self, MIB};
use crate::base::{Error, Result, Status};
use crate::driver::process;
use std::ffi::OsString;

/// Variables with this prefix belong to gpumem's tests.
const TEST_PREFIX: &str = "GPUMEM_TEST_";
/// A name with at most this many letters wrong, missing or swapped is taken for a misspelling.
const LIKELY_SLIPS: usize = 2;
/// Read by the bindings, which find this library by it.
const OF_BINDINGS: &str = "GPUMEM_LIBRARY";

/// Variables that only `libgpumem_preload.so` reads; the last has the number of the process that
/// `gpumem run` became.
const PRELOAD: [&str; 4] = ["GPUMEM_FREE", "GPUMEM_NATIVE", "GPUMEM_STATS", "GPUMEM_RUN"];

impl Config {
    /// The settings of this process's environment. At log level 1 or more, unknown names that begin
    /// with `GPUMEM_` are listed on stderr, so that a misspelt one does not pass silently.
    pub fn from_env() -> Result<Config> {
        let config = Config::from_lookup(&|name| std::env::var_os(name))?;
        let unknown = unknown(std::env::vars_os().map(|(name, _)| name));
        if config.log >= 1 && !unknown.is_empty() {
            process::say(format_args!("ignored: {}", unknown.join("; ")));
        }
        Ok(config)
    }

    /// The settings that `lookup` gives, by variable name. `Config` errors name the variable, its
    /// value and what is accepted.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Config> {
        let env = Environment { lookup };
        let mut config = Config::default();
        for setting in SETTINGS {
            env.read(setting.variable, setting.accepted, |text| setting.set(&mut config, text))?;
        }
        env.vpmm(&mut config)?;
        Ok(config)
    }
}

/// Every variable of gpumem's own.
pub fn known() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|s| s.variable)
}

/// The names in an environment that look like settings of gpumem and are not: a sentence each, with
/// the likely name.
pub fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let meant = || known().chain(PRELOAD);
    let mut unknown: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|n| n.starts_with("GPUMEM_") && !n.starts_with(TEST_PREFIX) && n != OF_BINDINGS)
        .filter(|n| !meant().any(|k| k == n))
        .collect();
    unknown.sort();
    let sentence = |name: &String| {
        let near = meant().map(|k| (strsim::osa_distance(k, name), k)).min().filter(|&(far, _)| far <= LIKELY_SLIPS);
        match near {
            Some((_, k)) => format!("{name} is no setting; {k} is"),
            None => format!("{name} is no setting; docs/settings.md lists them"),
        }
    };
    unknown.iter().map(sentence).collect()
}

// ---- reading ------------------------------------------------------------------------------------

pub(super) struct Environment<'a> {
    pub(super) lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Environment<'_> {
    /// The variable's value as `parse` understands it; `None` when it is not set.
    pub(super) fn read<T>(
        &self,
        name: &str,
        accepted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(raw) = (self.lookup)(name) else { return Ok(None) };
        let Some(text) = raw.to_str() else {
            return Err(bad(name, &raw.to_string_lossy(), &format!("{accepted} (the value is not UTF-8)")));
        };
        match parse(text) {
            Some(value) => Ok(Some(value)),
            None => Err(bad(name, text, accepted)),
        }
    }

    /// VPMM's variables, where gpumem's own are not set.
    fn vpmm(&self, config: &mut Config) -> Result<()> {
        let set = |name| (self.lookup)(name).is_some();
        let mut va = config.clone();
        if let Some(setting) = settings::find("GPUMEM_VA_SIZE") {
            self.read("VPMM_VA_SIZE", setting.accepted, |text| setting.set(&mut va, text))?;
        }
        if !set("GPUMEM_VA_SIZE") {
            config.va_size = va.va_size;
        }

        let page = self.read("VPMM_PAGE_SIZE", VPMM_PAGE_SIZES, vpmm_page_size)?;
        let pages: Option<u64> = self.read("VPMM_PAGES", "a number of pages", |t| t.parse().ok())?;
        let own_page = Some(config.page_size).filter(|_| set("GPUMEM_PAGE_SIZE"));
        if let (Some(pages), false) = (pages, set("GPUMEM_PREALLOC")) {
            let page = page.or(own_page.filter(|p| *p > 0)).unwrap_or(2 * MIB);
            config.prealloc = Prealloc::Bytes(pages.checked_mul(page).ok_or_else(|| {
                let page = size::human(page);
                bad("VPMM_PAGES", &pages.to_string(), &format!("fewer pages: so many of {page} exceed 2^64 bytes"))
            })?);
        }
        let Some(page) = page.filter(|_| own_page.is_none()) else { return Ok(()) };
        // VPMM's way to say "no pool".
        if page >= LARGEST_PAGE && pages.unwrap_or(0) == 0 {
            config.pool = config.pool && set("GPUMEM_POOL");
        } else {
            config.page_size = page.min(LARGEST_PAGE);
        }
        Ok(())
    }
}

const VPMM_PAGE_SIZES: &str = "a size that is a power of two, or any size from 1G on";

fn bad(name: &str, value: &str, accepted: &str) -> Error {
    Error::new(Status::Config, format!("{name}={value:?} is not understood; set {accepted}, or unset it"))
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;

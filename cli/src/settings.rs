//! The configuration in force, and where each value came from.

use gpumem::base::size;
use gpumem::context::config::{Backend, Config, Limit, Prealloc, Reuse};
use serde::Serialize;

/// One setting.
#[derive(Debug, Serialize)]
pub struct Setting {
    /// The environment variable that sets it.
    pub name: &'static str,
    /// The value in force.
    pub value: String,
    /// `default`, or the variable it came from.
    pub source: String,
}

/// Every setting of `config`, which was made from this process's environment.
pub fn describe(config: &Config) -> Vec<Setting> {
    let backend = match config.backend {
        Backend::Auto => "auto",
        Backend::Cuda => "cuda",
        Backend::Host => "host",
    };
    let prealloc = match config.prealloc {
        Prealloc::Bytes(n) => size::human(n),
        Prealloc::Percent(p) => format!("{p}% of free memory"),
    };
    let reuse = match config.reuse {
        Reuse::Settled => "settled",
        Reuse::Wait => "wait",
    };
    let limit = match config.limit {
        Limit::Device => "what the device has".to_string(),
        Limit::Bytes(bytes) => size::human(bytes),
        Limit::Percent(percent) => format!("{percent}% of the device"),
    };
    let pool = if config.pool { "on" } else { "off" };
    vec![
        setting("GPUMEM_BACKEND", &[], backend),
        setting("GPUMEM_POOL", &[], pool),
        setting("GPUMEM_VA_SIZE", &["VPMM_VA_SIZE"], size::human(config.va_size)),
        setting("GPUMEM_PAGE_SIZE", &["VPMM_PAGE_SIZE"], or_zero(config.page_size, "the device's granularity")),
        setting("GPUMEM_PREALLOC", &["VPMM_PAGES"], prealloc),
        setting("GPUMEM_LIMIT", &[], limit),
        setting("GPUMEM_REUSE", &[], reuse),
        setting("GPUMEM_TRIM_THRESHOLD", &[], or_zero(config.trim_threshold, "never")),
        setting("GPUMEM_LOG", &[], config.log.to_string()),
        setting("GPUMEM_HOST_DEVICES", &[], config.host_devices.to_string()),
        setting("GPUMEM_HOST_BYTES", &[], size::human(config.host_bytes)),
        setting("GPUMEM_HOST_SEED", &[], config.host_seed.to_string()),
    ]
}

fn setting(name: &'static str, aliases: &[&'static str], value: impl Into<String>) -> Setting {
    let source = std::iter::once(&name)
        .chain(aliases)
        .find(|v| std::env::var_os(v).is_some_and(|v| !v.is_empty()))
        .map_or("default".to_string(), |v| format!("from {v}"));
    Setting { name, value: value.into(), source }
}

fn or_zero(bytes: u64, zero_means: &str) -> String {
    if bytes == 0 {
        zero_means.to_string()
    } else {
        size::human(bytes)
    }
}

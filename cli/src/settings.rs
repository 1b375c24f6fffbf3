//! The configuration in force, and where each value came from.

use gpumem::base::size;
use gpumem::context::config::{Backend, CaptureDetection, Config, DiskMount, Limit, Prealloc, Reuse, StreamCheck};
use serde::Serialize;

/// One setting.
#[derive(Debug, Serialize)]
pub struct Setting {
    /// The environment variable that sets it.
    pub name: &'static str,
    /// The value in force.
    pub value: String,
    /// `default`, or the variable or option it came from.
    pub source: String,
}

/// Every setting of `config`, which was made from this process's environment; `backend_given` when `--backend` replaced
/// what that said.
pub fn describe(config: &Config, backend_given: bool) -> Vec<Setting> {
    let backend = match config.backend {
        Backend::Auto => "auto",
        Backend::Cuda => "cuda",
        Backend::Host => "host",
    };
    let prealloc = match config.prealloc {
        Prealloc::Bytes(n) => size::human(n),
        Prealloc::Percent(p) => format!("{p}% of free memory"),
    };
    let limit = match config.limit {
        Limit::Device => "what the device has".to_string(),
        Limit::Bytes(n) => size::human(n),
        Limit::Percent(p) => format!("{p}% of the device's memory"),
    };
    let reuse = match config.reuse {
        Reuse::Settled => "settled",
        Reuse::Wait => "wait",
    };
    let check = match config.stream_check {
        StreamCheck::Auto => "auto",
        StreamCheck::Driver => "driver",
    };
    let capture = match config.capture {
        CaptureDetection::Off => "off",
        CaptureDetection::Auto => "auto",
    };
    // A VPMM page size from 1 GiB on says "no pool" and nothing about pages.
    let (pool_alias, page_alias) = match config.pool {
        true => (None, Some("VPMM_PAGE_SIZE")),
        false => (Some("VPMM_PAGE_SIZE"), None),
    };
    let interval = match config.trim_interval.as_millis() {
        0 => "no background trim".to_string(),
        ms => format!("{ms} ms"),
    };
    let blocks = config.pinned_blocks;
    let pinned = match config.pinned_limit {
        Limit::Device => "what each NUMA node has".to_string(),
        Limit::Bytes(n) => format!("{} of each NUMA node", size::human(n)),
        Limit::Percent(p) => format!("{p}% of each NUMA node's memory"),
    };
    let disk = |m: &DiskMount| match m.limit {
        Some(limit) => format!("{} ({})", m.path.display(), size::human(limit)),
        None => m.path.display().to_string(),
    };
    let disks = match config.disks.is_empty() {
        true => "none".to_string(),
        false => config.disks.iter().map(disk).collect::<Vec<_>>().join(", "),
    };
    let switch = |on| if on { "on" } else { "off" };
    let mut settings = vec![
        setting("GPUMEM_BACKEND", None, backend),
        setting("GPUMEM_POOL", pool_alias, switch(config.pool)),
        setting("GPUMEM_VA_SIZE", Some("VPMM_VA_SIZE"), size::human(config.va_size)),
        setting("GPUMEM_PAGE_SIZE", page_alias, or_zero(config.page_size, "the device's granularity")),
        setting("GPUMEM_PREALLOC", Some("VPMM_PAGES"), prealloc),
        setting("GPUMEM_LIMIT", None, limit),
        setting("GPUMEM_REUSE", None, reuse),
        setting("GPUMEM_TRIM_THRESHOLD", None, or_zero(config.trim_threshold, "never")),
        setting("GPUMEM_TRIM_INTERVAL", None, interval),
        setting("GPUMEM_STREAM_CHECK", None, check),
        setting("GPUMEM_CAPTURE", None, capture),
        setting("GPUMEM_TIERS", None, switch(config.tiers)),
        setting(
            "GPUMEM_PINNED_BLOCKS",
            None,
            format!("{} x {}, {} at first", size::human(blocks.block_bytes), blocks.blocks, blocks.chunks),
        ),
        setting("GPUMEM_PINNED_LIMIT", None, pinned),
        setting("GPUMEM_DISK", None, disks),
        setting("GPUMEM_DOWNGRADE", None, config.thresholds.to_string()),
        setting("GPUMEM_MOVER", None, switch(config.mover)),
        setting("GPUMEM_ARENA_DEBUG", None, config.arena_debug.to_string()),
        setting("GPUMEM_ARENA_QUARANTINE", None, size::human(config.quarantine())),
        setting("GPUMEM_LOG", None, config.log.to_string()),
        setting("GPUMEM_HOST_DEVICES", None, config.host_devices.to_string()),
        setting("GPUMEM_HOST_BYTES", None, size::human(config.host_bytes)),
        setting("GPUMEM_HOST_SEED", None, config.host_seed.to_string()),
    ];
    if let Some(first) = settings.first_mut().filter(|_| backend_given) {
        first.source = "from --backend".to_string();
    }
    settings
}

/// `alias` is the variable that counts where `name` is not set.
fn setting(name: &'static str, alias: Option<&'static str>, value: impl Into<String>) -> Setting {
    let set = [Some(name), alias].into_iter().flatten().find(|v| std::env::var_os(v).is_some());
    let source = set.map_or("default".to_string(), |v| format!("from {v}"));
    Setting { name, value: value.into(), source }
}

fn or_zero(bytes: u64, zero_means: &str) -> String {
    if bytes == 0 {
        zero_means.to_string()
    } else {
        size::human(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem::context::environment::KNOWN;
    use std::collections::BTreeSet;

    #[test]
    fn every_setting_there_is_is_described() {
        let described: BTreeSet<_> = describe(&Config::default(), false).iter().map(|s| s.name).collect();
        assert_eq!(described, BTreeSet::from(KNOWN));
    }
}

//! Limits of the machine and the process that a pool can run into.

use serde::Serialize;
use std::fs;

/// Mappings that the host device may need: the kernel's default limit.
const MAPS_WANTED: u64 = 65_530;

/// One limit as found.
#[derive(Debug, Serialize)]
pub struct Limit {
    /// The kernel's or the shell's name for it.
    pub name: &'static str,
    /// Its value, as the kernel writes it.
    pub value: String,
    /// What it means for gpumem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Whether gpumem cannot work well under it.
    pub too_low: bool,
}

/// Reads every limit that matters. `va_size` is the address space one pool reserves at a time,
/// bytes.
pub fn read(va_size: u64) -> Vec<Limit> {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let maps = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let overcommit = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    vec![
        map_count(maps.trim()),
        overcommit_mode(overcommit.trim()),
        address_space(soft_limit(&limits, "Max address space"), va_size),
        plain("ulimit -n", soft_limit(&limits, "Max open files"), "one per exported or imported allocation"),
        plain("ulimit -l", soft_limit(&limits, "Max locked memory"), "bytes; pinned host memory may count"),
    ]
}

/// The soft limit of one line of `/proc/self/limits`.
fn soft_limit<'a>(limits: &'a str, name: &str) -> Option<&'a str> {
    limits.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()
}

fn map_count(value: &str) -> Limit {
    let too_low = value.parse::<u64>().is_ok_and(|n| n < MAPS_WANTED);
    let remark = if too_low {
        format!("too low for the host device; raise it: sysctl -w vm.max_map_count={MAPS_WANTED}")
    } else {
        "mappings per process; the host device uses one per extent".to_string()
    };
    Limit { name: "vm.max_map_count", value: or_unknown(value), remark: Some(remark), too_low }
}

fn overcommit_mode(value: &str) -> Limit {
    let too_low = value == "2";
    let remark = too_low.then(|| {
        "strict accounting refuses large address reservations; set vm.overcommit_memory to 0 or 1, or a small \
         GPUMEM_VA_SIZE"
            .to_string()
    });
    Limit { name: "vm.overcommit_memory", value: or_unknown(value), remark, too_low }
}

fn address_space(value: Option<&str>, va_size: u64) -> Limit {
    let too_low = value.and_then(|v| v.parse::<u64>().ok()).is_some_and(|bytes| bytes < va_size);
    let remark =
        too_low.then(|| format!("below the {va_size} bytes a pool reserves; raise it or lower GPUMEM_VA_SIZE"));
    Limit { name: "ulimit -v", value: or_unknown(value.unwrap_or_default()), remark, too_low }
}

fn plain(name: &'static str, value: Option<&str>, remark: &str) -> Limit {
    Limit { name, value: or_unknown(value.unwrap_or_default()), remark: Some(remark.to_string()), too_low: false }
}

fn or_unknown(value: &str) -> String {
    if value.is_empty() { "unknown" } else { value }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROC: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
                        Max address space         1048576              unlimited            bytes     \n\
                        Max open files            1024                 524288               files     \n";

    #[test]
    fn soft_limits_are_found_by_name() {
        assert_eq!(soft_limit(PROC, "Max open files"), Some("1024"));
        assert_eq!(soft_limit(PROC, "Max address space"), Some("1048576"));
        assert_eq!(soft_limit(PROC, "Max nonsense"), None);
    }

    #[test]
    fn low_limits_are_told_apart() {
        assert!(map_count("1000").too_low);
        assert!(!map_count("65530").too_low && !map_count("").too_low);
        assert!(address_space(Some("1048576"), 1 << 40).too_low);
        assert!(!address_space(Some("unlimited"), 1 << 40).too_low);
        assert!(overcommit_mode("2").too_low && !overcommit_mode("0").too_low);
    }
}
